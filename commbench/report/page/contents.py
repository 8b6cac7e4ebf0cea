"""The contents of a page from runs and their figures: its sections in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from commbench.analysis.env import variable_findings
from commbench.analysis.expectations import Answer
from commbench.collectives.composed import MATRIX
from commbench.findings import Finding, Value
from commbench.report import collectives
from commbench.report.advice import advise_run
from commbench.report.columns import Table
from commbench.report.env import env_tables
from commbench.report.expectations import answer_sentences, answer_table
from commbench.report.figures.drawing import Drawing
from commbench.report.findings import (
    kinds_of,
    model_error,
    origins,
    row_warnings,
    setting,
    soak,
    stragglers,
    time_spent,
    training_warnings,
    unmetered,
    watched,
)
from commbench.report.model import model_tables
from commbench.report.page import conditions
from commbench.report.page.conclusion import BUSBW, find_conclusion
from commbench.report.page.conditions import commands, find_facts, when
from commbench.report.page.parts import Code, Page, Section, named, said
from commbench.report.soak import soak_tables
from commbench.report.state import explain_time
from commbench.report.topology import topology_remarks
from commbench.report.training import training_tables, tuning_cost, watched_tables
from commbench.results import Run
from commbench.results.verdict import snippets

#: The most names of runs in a title.
_MOST_NAMED = 3


def make_page(
    runs: Sequence[Run],
    drawings: Sequence[Drawing],
    answers: Sequence[Answer] = (),
    *,
    beside: bool,
) -> Page:
    """Build the contents of a page.

    Args:
        runs: one, or several to overlay.
        drawings: their figures.
        answers: to expectations of the only run.
        beside: whether the page lies beside the files of its only run.
    """
    several = len(runs) > 1
    trained, measured, pairs = (
        _trained(runs, drawings),
        _measured(runs, drawings),
        _pairs(runs, drawings),
    )
    is_matrix = all(row.pattern == MATRIX for run in runs for row in run.rows)
    sections = [
        *([_compared(runs)] if several else []),
        Section(
            name="expectations",
            title="Expectations",
            sentences=answer_sentences(answers) if answers else [],
            tables=[answer_table(answers)] if answers else [],
        ),
        Section(
            name="soak",
            title="Soak",
            sentences=_each(runs, soak),
            figures=_of(drawings, "soak"),
            tables=soak_tables(runs),
        ),
        *([pairs, measured] if is_matrix else [measured, pairs]),
        trained,
        _predicted(runs),
        Section(
            name="energy",
            title="Energy",
            figures=_of(drawings, "energy"),
            tables=collectives.energy_tables(runs),
        ),
        _launches(runs, drawings),
        Section(name="topology", title="Topology", sentences=_each(runs, _remarks)),
        Section(
            name="missing",
            title="What was not measured",
            sentences=_each(runs, lambda run: [*conditions.left_out(run), *unmetered(run)]),
            tables=_present(conditions.missing_table(runs)),
        ),
        Section(
            name="conditions",
            title="Conditions",
            warnings=_each(runs, lambda run: advise_run(run.info)),
            tables=conditions.condition_tables(runs),
        ),
        _repeat(runs, beside=beside),
    ]
    names = [run.name for run in runs]
    return Page(
        title=" and ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} runs",
        subtitle="" if several else _subtitle(runs[0]),
        findings=find_conclusion(runs),
        facts=[] if several else find_facts(runs[0]),
        sections=[section for section in sections if not section.is_empty],
        time=explain_time(runs),
    )


def _subtitle(run: Run) -> str:
    status = str(run.info.get("status", ""))
    return " · ".join(part for part in (conditions.place(run), when(run.info), status) if part)


def _each(runs: Sequence[Run], sentences_of: Callable[[Run], Iterable[Finding | str]]) -> list[str]:
    """Return the sentences about each run, with its name unless all runs have them."""
    texts = []
    for run in runs:
        texts.append((run.name, [said(each) for each in sentences_of(run) if each]))
    return named(texts)


def _of(drawings: Iterable[Drawing], *sections: str) -> list[Drawing]:
    return [drawing for drawing in drawings if drawing.section in sections]


def _present(*tables: Table | None) -> list[Table]:
    return [table for table in tables if table is not None]


# ----------------------------------------------------------------------------------------- sections


def _compared(runs: Sequence[Run]) -> Section:
    """Return the runs of the page, and the conditions in which they differ."""
    differences = conditions.differences_table(runs)
    code = "conditions_equal"
    if differences is not None:
        code = "conditions_differ"
    return Section(
        name="runs",
        title="The runs and their conditions",
        sentences=[str(Finding(code))],
        tables=_present(conditions.runs_table(runs), differences),
    )


def _measured(runs: Sequence[Run], drawings: Sequence[Drawing]) -> Section:
    has_rates = any(
        row.busbw_GBps is not None and row.pattern != MATRIX for run in runs for row in run.rows
    )
    tables = [
        *env_tables(runs),
        *collectives.growth_tables(runs),
        *collectives.collective_tables(runs),
        *collectives.overlap_tables(runs),
        *collectives.overhead_tables(runs),
    ]
    return Section(
        name="collectives",
        title="Collectives",
        sentences=[*([BUSBW] if has_rates else []), *_each(runs, collectives.group_sentences)],
        warnings=_each(runs, _warnings_of("collectives")),
        figures=_of(drawings, "collectives"),
        tables=tables,
    )


def _warnings_of(section: str) -> Callable[[Run], list[Finding]]:
    """Return the finder of the warnings about one kind of rows."""

    def find(run: Run) -> list[Finding]:
        kinds = [kind for kind in kinds_of(run) if kind.section == section]
        return row_warnings(kinds, run.info)

    return find


def _pairs(runs: Sequence[Run], drawings: Sequence[Drawing]) -> Section:
    return Section(
        name="pairs",
        title="Pairs of ranks",
        sentences=_each(runs, stragglers),
        warnings=_each(runs, _warnings_of("pairs")),
        figures=_of(drawings, "matrix"),
        tables=[*collectives.straggler_tables(runs), *collectives.pair_tables(runs)],
    )


def _trained(runs: Sequence[Run], drawings: Sequence[Drawing]) -> Section:
    return Section(
        name="training",
        title="Training with DDP",
        sentences=_each(runs, _verdict),
        warnings=_each(runs, training_warnings),
        codes=_snippets(runs),
        figures=_of(drawings, "training", "timeline", "learning"),
        tables=[
            *watched_tables(runs),
            *env_tables(runs, of_training=True),
            *training_tables(runs),
        ],
    )


def _verdict(run: Run) -> list[Finding]:
    findings = [*watched(run), *setting(run)]
    if run.recommendation and run.info.get("candidates"):
        findings.append(tuning_cost(run.recommendation, run.info.get("launches") or ()))
    return findings


def _snippets(runs: Sequence[Run]) -> list[Code]:
    """Return the lines to paste of each run with a recommendation."""
    codes = []
    for run in runs:
        if run.decision is None or not run.decision.has_baseline:
            continue
        for title, text in snippets(run.decision):
            if text:
                by = f", by {run.name}" if len(runs) > 1 else ""
                codes.append(Code(title=f"{title}{by}", text=text.rstrip()))
    return codes


def _predicted(runs: Sequence[Run]) -> Section:
    return Section(
        name="prediction",
        title="Prediction",
        sentences=_each(runs, model_error),
        tables=model_tables(runs),
    )


def _launches(runs: Sequence[Run], drawings: Sequence[Drawing]) -> Section:
    return Section(
        name="launches",
        title="Launches",
        sentences=_each(runs, _time_and_variables),
        warnings=_each(runs, conditions.failed_ranks),
        figures=_of(drawings, "launches"),
        tables=conditions.launch_tables(runs),
    )


def _time_and_variables(run: Run) -> list[Finding]:
    return [*time_spent(run), *variable_findings(run.info), *origins(run)]


def _remarks(run: Run) -> list[str]:
    """Return the remarks on what slows communication in the hosts' topology, each once with its
    hosts.
    """
    texts = []
    for host in (run.info.get("environment") or {}).get("hosts") or ():
        topology = host.get("topology")
        remarks = topology_remarks(topology) if topology else ()
        texts.append((str(host.get("hostname")), map(str, remarks)))
    return named(texts)


def _repeat(runs: Sequence[Run], *, beside: bool) -> Section:
    files = conditions.files_table(runs, beside=beside)
    return Section(
        name="repeat",
        title="How to repeat it",
        sentences=_each(runs, lambda run: [_origin(run, beside=beside)]),
        codes=commands(runs),
        tables=[files] if files.lines else [],
    )


#: Code of the origin of a run, by whether it was imported and whether its files lie beside.
_ORIGINS = {
    (False, False): "origin_measured",
    (False, True): "origin_measured_beside",
    (True, False): "origin_imported",
    (True, True): "origin_imported_beside",
}


def _origin(run: Run, *, beside: bool) -> Finding:
    """Return the seed, commit and directory of a run."""
    how = []
    if run.info.get("seed") is not None:
        how.append(f"seed {run.info['seed']}")
    if run.info.get("git_commit"):
        how.append(f"commbench at commit {run.info['git_commit']}")
    code = _ORIGINS[bool(run.info.get("imported")), beside]
    numbers: dict[str, Value] = {"how": tuple(how or ["this command"]), "path": str(run.path)}
    return Finding(code, numbers=numbers)
