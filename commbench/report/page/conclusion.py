"""The first screen of a page: what was found, in words, and the conditions that it was found under."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from commbench.collectives import OPERATIONS
from commbench.environment import differing
from commbench.prediction.links import limit_of, link_of
from commbench.records import FLAGS, Row
from commbench.report.matrix import conclude
from commbench.report.page.columns import digits
from commbench.report.page.parts import Fact, Finding
from commbench.report.state import undecided, unfinished
from commbench.report.table import Flagged, flags_of, format_time_us, warnings_for
from commbench.report.training import MEANINGS
from commbench.store import Run
from commbench.training.conclusion import Recommendation, doubts_sentence, headline, learning_cost
from commbench.units import counted, format_duration, format_size

#: So many doubts stand on the first screen.
MOST_DOUBTS = 3
#: And so many names of hosts or transports.
MOST_NAMED = 3
#: Doubts that change what the figures mean, however few rows they are about; others count where they are about most.
_GRAVE = (
    *("ranks_differ", "traffic", "unverified", "oversubscribed", "emulated", "clock", "one_launch", "few_launches"),
    *("bimodal_launches", "drift", "harness", "ci_wide"),
)
_ALWAYS = frozenset({"ranks_differ", "traffic", "unverified", "oversubscribed", "emulated", "clock", "one_launch"})
_BYTES_PER_S = 8e9
"""Bits per second of 1 GB/s."""


def find_conclusion(runs: Sequence[Run]) -> list[Finding]:
    """What to say first: how far the runs came, what to set, how fast the network is, who is slow, what is doubtful."""
    kinds = (_state, _settings, _slow, _bandwidth, _latency, _doubts)
    found = [[(run, finding) for run in runs for finding in kind(run)] for kind in kinds]
    if not any(found):
        return [Finding(label="Result", texts=["Nothing has been measured yet."], is_lead=True)]
    if len(runs) == 1:
        return [finding for of_kind in found for _, finding in of_kind]
    return [*_conditions(runs), *(_together(of_kind) for of_kind in found if of_kind)]


def _together(found: Sequence[tuple[Run, Finding]]) -> Finding:
    """What was found of one kind in several runs, a line for each."""
    first = found[0][1]
    return Finding(
        label=first.label,
        texts=[f"{run.name}: {'; '.join(finding.texts).replace('.; ', '. ')}" for run, finding in found],
        details=list(dict.fromkeys(detail for _, finding in found for detail in finding.details)),
        tone=first.tone,
        more=first.more,
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


def _bandwidth(run: Run) -> Iterable[Finding]:
    """The best bandwidth of each backend, beside the link's rate where one rank a host has it to itself."""
    best = {backend: _best(rows) for backend, rows in _by_backend(run, lambda row: row.busbw_GBps is not None)}
    if not best:
        return
    texts = [f"{backend} {digits(row.busbw_GBps)} GB/s{_of_link(run, row)}" for backend, row in best.items()]
    alike = list(dict.fromkeys(_what(row) for row in best.values()))
    sizes = alike[0] if len(alike) == 1 else "; ".join(f"{backend}: {_what(row)}" for backend, row in best.items())
    yield Finding(
        label="Bandwidth",
        texts=texts,
        details=[f"The largest bus bandwidth ({sizes})."],
        is_lead=not run.recommendation and not run.findings.suspects,
    )


def _best(rows: Iterable[Row]) -> Row:
    """The row to judge a backend by: all-reduce of all ranks where it was timed."""
    order = list(OPERATIONS)
    return min(
        rows,
        key=lambda row: (
            row.operation != "all_reduce",
            row.pattern != "flat",
            order.index(row.operation),
            -(row.busbw_GBps or 0.0),
        ),
    )


def _what(row: Row) -> str:
    pattern = "" if row.pattern == "flat" else f" {row.pattern}"
    size = f" of {format_size(row.message_bytes)}" if row.message_bytes else ""
    return f"{row.operation}{pattern}{size}"


def _of_link(run: Run, row: Row) -> str:
    """What share of its link's rate that is; nothing where the rate does not bound it."""
    limit = limit_of(row, run.info)
    if limit is None or not limit.rate_bps:
        return ""
    share = (row.busbw_GBps or 0.0) * _BYTES_PER_S / limit.rate_bps
    return f", {100 * share:.0f} % of the link's {limit}"


def _latency(run: Run) -> Iterable[Finding]:
    """Half a round trip of the smallest message, of each backend."""
    timed = _by_backend(run, lambda row: row.operation == "latency" and row.time_us is not None)
    least = {backend: min(rows, key=lambda row: row.message_bytes or 0) for backend, rows in timed}
    if least:
        sizes = " and ".join(dict.fromkeys(format_size(row.message_bytes or 0) for row in least.values()))
        yield Finding(
            label="Latency",
            texts=[f"{backend} {format_time_us(row)}" for backend, row in least.items()],
            details=[f"Half the round trip of {sizes}, with its 95 % interval."],
        )


def _by_backend(run: Run, is_wanted: Any) -> list[tuple[str, list[Row]]]:  # noqa: ANN401 - a predicate of rows
    by_backend: dict[str, list[Row]] = {}
    for row in run.whole_rows:
        if row.status == "ok" and is_wanted(row):
            by_backend.setdefault(row.backend, []).append(row)
    return list(by_backend.items())


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


def _doubts(run: Run) -> Iterable[Finding]:
    rows: list[Flagged] = [*([] if run.prediction_rows else run.rows), *run.training_rows]
    warnings = grave_warnings(run, rows)
    if warnings:
        more = ("conditions", f"and {counted(len(warnings) - MOST_DOUBTS, 'more doubt')}")
        yield Finding(
            label="Doubts",
            texts=[_sentence(f"{warning}.") for warning in warnings[:MOST_DOUBTS]],
            tone="doubt",
            more=more if len(warnings) > MOST_DOUBTS else None,
        )


def grave_warnings(run: Run, rows: Sequence[Flagged]) -> list[str]:
    """What a reader must know before anything is believed: what failed, then grave doubts, then those of most rows."""
    most = len(rows) / 2
    counts = Counter(flag for row in rows for flag in flags_of(row))
    shown = [flag for flag in _GRAVE if counts[flag] > most or (counts[flag] and flag in _ALWAYS)]
    kept = [_Doubted(";".join(flag for flag in flags_of(row) if flag in shown), row.status, row.reason) for row in rows]
    known = MEANINGS if run.training_rows else FLAGS
    return warnings_for(kept, run.info, meanings={flag: known[flag] for flag in shown if flag in known})


# ---------------------------------------------------------------------------------------------------------- facts


def find_facts(run: Run) -> list[Fact]:
    """The conditions that a reader looks for first; those that the run does not state are left out."""
    environment = run.info.get("environment") or {}
    hosts = environment.get("hosts") or []
    facts = {
        "hosts": _hosts([str(host.get("hostname")) for host in hosts]),
        "ranks": _ranks(run),
        "processor": _joined(f"{host.get('cpu_model')}, {host.get('cpus_allowed')} CPUs" for host in hosts),
        "GPUs": _joined(str(gpu.get("name")) for host in hosts for gpu in host.get("gpus") or ()),
        "network": _network(run),
        "software": _software(environment),
        "sampling": _sampling(run),
    }
    return [Fact(name, text) for name, text in facts.items() if text]


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _hosts(names: Sequence[str]) -> str:
    listed = ", ".join(names) if len(names) <= MOST_NAMED + 1 else f"{names[0]}, {names[1]}, … {names[-1]}"
    return f"{len(names)}: {listed}" if names else ""


def _ranks(run: Run) -> str:
    ranks, each = run.info.get("world_size"), run.info.get("ranks_per_node")
    return f"{ranks}{f', {each} a host' if each else ''}" if ranks else ""


def _network(run: Run) -> str:
    transports = list(dict.fromkeys(record.transport for record in run.records if record.transport))
    crossed = f"by {', '.join(transports[:MOST_NAMED])}{', …' if len(transports) > MOST_NAMED else ''}"
    link = link_of(run.info, transports[-1] if transports else "")
    return f"{link}{f', {crossed}' if transports else ''}"


def _software(environment: Any) -> str:  # noqa: ANN401 - JSON
    versions = environment.get("versions") or {}
    found = [f"{name} {versions[name]}" for name in ("commbench", "torch") if name in versions]
    found += [str(environment[name]) for name in ("mpi_library", "nccl_library") if environment.get(name)]
    return ", ".join([*found, *([f"Python {versions['python']}"] if "python" in versions else [])])


def _sampling(run: Run) -> str:
    launches = run.info.get("launches") or []
    budget = run.info.get("budget")
    parts = [f"budget {budget}"] if budget else []
    parts += [counted(len(launches), "launch")] if launches else []
    seconds = sum(launch.get("seconds", 0.0) for launch in launches)
    return ", ".join([*parts, *([f"{format_duration(seconds)}"] if seconds else [])])


def when(info: Any) -> str:  # noqa: ANN401 - JSON
    """The moment a run began: ``21 November 2026, 11:08 UTC``; empty where it is not stated."""
    try:
        began = datetime.fromisoformat(str(info.get("started")))
    except ValueError:
        return ""
    return f"{began.day} {began:%B %Y, %H:%M} {began.tzname() or ''}".strip()
