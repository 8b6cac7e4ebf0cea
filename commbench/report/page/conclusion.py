"""The first screen of a page: what was found, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from commbench.arrangements import MATRIX
from commbench.environment import differing
from commbench.records import FLAGS
from commbench.report.matrix import conclude
from commbench.report.page.parts import Finding, Tone
from commbench.report.page.rates import bandwidths, latencies, pairs
from commbench.report.state import undecided, unfinished
from commbench.report.table import ROWS, Flagged, Things, flags_of, warned
from commbench.report.training import MEANINGS
from commbench.store import Run
from commbench.training.conclusion import Recommendation, doubts_sentence, headline, learning_cost
from commbench.units import counted

MATRICES = Things("matrix", "matrices")
#: So many doubts stand on the first screen.
MOST_DOUBTS = 3
#: Doubts that change what the figures mean, however few rows they are about; others count where they are about most.
_ALWAYS = frozenset(
    {"ranks_differ", "traffic", "unverified", "oversubscribed", "emulated", "shared_gpu", "clock", "one_launch"}
)
#: The order in which they are told.
_GRAVE = (
    *("ranks_differ", "traffic", "unverified", "oversubscribed", "emulated", "shared_gpu", "clock", "one_launch"),
    *("few_launches", "throttled", "bimodal_launches", "drift", "harness", "ci_wide", "bimodal", "unsteady", "late"),
    "in_cache",
)
#: Which tone of several runs counts.
_TONES: Sequence[Tone] = ("bad", "doubt", "good", "quiet", "")


def find_conclusion(runs: Sequence[Run]) -> list[Finding]:
    """What to say first: how far the runs came, what to set, how fast the network is, who is slow, what is doubtful."""
    kinds = (_state, _settings, _slow, bandwidths, pairs, latencies)
    found = [[(run, finding) for run in runs for finding in kind(run)] for kind in kinds]
    doubts = list(_doubts(runs))
    if not any(found) and not doubts:
        return [Finding(label="Result", texts=["Nothing has been measured yet."], is_lead=True)]
    if len(runs) == 1:
        return [*(finding for of_kind in found for _, finding in of_kind), *doubts]
    return [*_conditions(runs), *(_together(of_kind) for of_kind in found if of_kind), *doubts]


def _together(found: Sequence[tuple[Run, Finding]]) -> Finding:
    """What was found of one kind in several runs, a line for each; details that not all of them have name their run."""
    tones = {finding.tone for _, finding in found}
    said: dict[str, list[str]] = {}
    for run, finding in found:
        for detail in finding.details:
            said.setdefault(detail, []).append(run.name)
    return Finding(
        label=found[0][1].label,
        texts=[f"{run.name}: {'; '.join(finding.texts).replace('.; ', '. ')}" for run, finding in found],
        details=[
            detail if len(names) == len(found) else f"{', '.join(names)}: {detail}" for detail, names in said.items()
        ],
        tone=next(tone for tone in _TONES if tone in tones),
        more=next((finding.more for _, finding in found if finding.more), None),
    )


def _conditions(runs: Sequence[Run]) -> Iterable[Finding]:
    """That runs were taken under unlike conditions, where they were."""
    if names := list(differing([run.info.get("environment") or {} for run in runs])):
        more = ("runs", "What each of them states")
        said = f"Unlike in {', '.join(names)}: differences between the runs can be due to these."
        yield Finding(label="Conditions", texts=[said], tone="doubt", more=more)


def _state(run: Run) -> Iterable[Finding]:
    if sentence := unfinished(run):
        yield Finding(label="State", texts=[sentence], tone="bad")


def _settings(run: Run) -> Iterable[Finding]:
    """What DDP should use."""
    if not run.recommendation:
        return
    if sentence := undecided(run):
        yield Finding(label="DDP settings", texts=[sentence], tone="doubt", is_lead=True)
        return
    found = Recommendation.from_json(run.recommendation)
    yield Finding(
        label="DDP settings",
        texts=[headline(found)],
        details=[text for text in (found.reason, _cost_of(found), found.surer, doubts_sentence(found)) if text],
        tone="bad" if not found.has_baseline else "good" if found.verdict == "change" else "",
        is_lead=True,
        more=("training", "What to paste, what it costs, and all that was tried"),
    )


def _cost_of(found: Recommendation) -> str:
    """What a change that is recommended does to learning: who pastes it must have read that."""
    return learning_cost(found) if found.verdict == "change" else ""


def _slow(run: Run) -> Iterable[Finding]:
    if sentence := conclude(run.findings):
        is_found = bool(run.findings.suspects)
        text = sentence.removeprefix("Slow: ")
        yield Finding(
            label="Slow ones",
            texts=[text if is_found else _sentence(text)],  # a host is called as it calls itself
            tone="bad" if is_found else "",
            is_lead=is_found and not run.recommendation,
            more=("pairs", "Every pair of ranks") if run.matrices else None,
        )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


# --------------------------------------------------------------------------------------------------------- doubts


class _Doubted(NamedTuple):
    """A row of any table, with those of its flags that the first screen is about."""

    flags: str
    status: str
    reason: str


class _Doubt(NamedTuple):
    """A doubt about rows of one kind."""

    gravity: int
    """The lowest first."""
    section: str
    """Where all doubts about them stand, with what to try."""
    rows: str
    """How many of which."""
    seen: str
    """What was seen, as a sentence goes on."""
    has_remedy: bool
    """Whether there is something to try."""


def _doubts(runs: Sequence[Run]) -> Iterable[Finding]:
    """The gravest doubts about each run, and how many more there are."""
    found = [(run, _doubts_about(run)) for run in runs]
    hidden = [doubt for _, doubts in found for doubt in doubts[MOST_DOUBTS:]]
    first = next((doubt for _, doubts in found for doubt in doubts), None)
    if first:
        shown = [(run, [_said(doubt) for doubt in doubts[:MOST_DOUBTS]]) for run, doubts in found if doubts]
        texts = [f"{run.name}: {' '.join(texts)}" for run, texts in shown] if len(runs) > 1 else shown[0][1]
        rest = [f"{counted(len(hidden), 'more doubt')}"] if hidden else []
        rest += ["what to try"] if any(doubt.has_remedy for _, doubts in found for doubt in doubts) else []
        more = ((hidden or [first])[0].section, _sentence(" and ".join(rest))) if rest else None
        yield Finding(label="Doubts", texts=texts, tone="doubt", more=more)


def _said(doubt: _Doubt) -> str:
    return _sentence(f"{doubt.rows} {doubt.seen}.")


def _doubts_about(run: Run) -> list[_Doubt]:
    """What a reader must know before anything is believed: what failed, then grave doubts, then those of most rows.

    Each kind of rows is judged apart: a few rows of one must not be outvoted by many of another.
    """
    collectives = [] if run.prediction_rows else [row for row in run.rows if row.pattern != MATRIX]  # an ingredient
    of_training, of_collectives = ROWS, ROWS
    if run.training_rows and collectives:
        of_training = Things("row of training", "rows of training")
        of_collectives = Things("row of collectives", "rows of collectives")
    doubts = [
        *_grave(run, "training", run.training_rows, MEANINGS, of_training),
        *_grave(run, "collectives", collectives, FLAGS, of_collectives),
        *_grave(run, "pairs", matrix_rows(run), FLAGS, MATRICES),
    ]
    alike: dict[str, _Doubt] = {}
    for doubt in sorted(doubts, key=lambda doubt: doubt.gravity):
        known = alike.get(doubt.seen)
        alike[doubt.seen] = known._replace(rows=f"{known.rows} and {doubt.rows}") if known else doubt
    return list(alike.values())


def matrix_rows(run: Run) -> list[Flagged]:
    """The rows of matrices with the doubts about their pairs: times of unlike pairs together scatter for no fault."""
    pooled = {"ci_wide", "bimodal", "bimodal_launches", "unsteady"}
    return [_with_flags(row, lambda flag: flag not in pooled) for row in run.rows if row.pattern == MATRIX]


def _with_flags(row: Flagged, is_kept: Callable[[str], bool]) -> _Doubted:
    return _Doubted(";".join(filter(is_kept, flags_of(row))), row.status, row.reason)


def _grave(
    run: Run, section: str, rows: Sequence[Flagged], meanings: Mapping[str, str], things: Things
) -> list[_Doubt]:
    """What failed and what is gravely doubtful of one kind of rows, with the meanings of their flags."""
    most = len(rows) / 2
    counts = Counter(flag for row in rows for flag in flags_of(row))
    shown = [flag for flag in _GRAVE if counts[flag] > most or (counts[flag] and flag in _ALWAYS)]
    chosen = {flag: meanings[flag] for flag in shown if flag in meanings}
    kept = [_with_flags(row, chosen.__contains__) for row in rows]
    found = warned(kept, run.info, meanings=chosen, things=things)
    gravity = [*[-1] * (len(found) - len(chosen)), *map(_GRAVE.index, chosen)]
    return [
        _Doubt(rank, section, one.rows, one.seen, bool(one.remedy)) for rank, one in zip(gravity, found, strict=True)
    ]
