"""The contents of a page from runs and their figures: its sections in order, with the tables of
training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from commbench.analysis.env import variable_findings
from commbench.analysis.expectations import Answer
from commbench.findings import Finding, Numbers
from commbench.report import collectives
from commbench.report.advice import advise_run
from commbench.report.columns import prefixes
from commbench.report.env import env_tables
from commbench.report.expectations import answer_sentences, answer_table
from commbench.report.figures.drawing import Drawing
from commbench.report.findings import (
    model_error,
    origins,
    section_warnings,
    setting,
    soak,
    stragglers,
    time_spent,
    unmetered,
    watched,
)
from commbench.report.model import model_tables
from commbench.report.page import conditions
from commbench.report.page.conclusion import find_conclusion, snippet_codes
from commbench.report.page.parts import Page, Section, named
from commbench.report.soak import soak_tables
from commbench.report.topology import topology_remarks
from commbench.report.training import training_tables, tuning_cost, watched_tables
from commbench.results import Run
from commbench.results.info import environment_of

#: The most names of runs in a title.
_MOST_NAMED = 3


def make_page(
    runs: Sequence[Run],
    drawings: Sequence[Drawing],
    answers: Sequence[Answer] = (),
) -> Page:
    """Build the contents of a page.

    Args:
        runs: one, or several to overlay.
        drawings: their figures.
        answers: to expectations of the only run.
    """
    sections = []
    if len(runs) > 1:
        tables = [conditions.runs_table(runs), *conditions.differences_tables(runs)]
        sections.append(Section("runs", "The runs and their conditions", tables=tables))
    if answers:
        tables = [answer_table(answers)]
        sections.append(Section("expectations", "Expectations", answer_sentences(answers), tables))
    collective_tables = [
        *env_tables(runs),
        *collectives.growth_tables(runs),
        *collectives.collective_tables(runs),
        *collectives.overlap_tables(runs),
    ]
    sections += [
        Section("soak", "Soak", _each(runs, soak), list(soak_tables(runs))),
        Section(
            "collectives",
            "Collectives",
            _each(runs, collectives.group_sentences),
            collective_tables,
            _warnings(runs, "collectives"),
        ),
        Section(
            "pairs",
            "Pairs of ranks",
            _each(runs, stragglers),
            list(collectives.pair_tables(runs)),
            _warnings(runs, "pairs"),
        ),
        Section(
            "training",
            "Training with DDP",
            _each(runs, _verdict),
            [*watched_tables(runs), *env_tables(runs, of_training=True), *training_tables(runs)],
            _warnings(runs, "training"),
            [code for run, prefix in prefixes(runs) for code in snippet_codes(run, prefix)],
        ),
        Section("prediction", "Prediction", _each(runs, model_error), model_tables(runs)),
        Section(
            "launches",
            "Launches",
            _each(runs, _course),
            conditions.launch_tables(runs),
        ),
        Section("topology", "Topology", _topology(runs)),
        Section(
            "missing",
            "What was not measured",
            _each(runs, _missing),
            conditions.missing_tables(runs),
        ),
        Section(
            "conditions",
            "Conditions",
            tables=list(conditions.condition_tables(runs)),
            warnings=_each(runs, lambda run: advise_run(run.info)),
        ),
        Section(
            "repeat",
            "How to repeat it",
            _each(runs, _origin),
            codes=list(conditions.commands(runs)),
        ),
    ]
    visible = []
    for section in sections:
        section.figures += [drawing for drawing in drawings if drawing.section == section.name]
        if section.has_content:
            visible.append(section)
    title = f"{len(runs)} runs"
    if len(runs) <= _MOST_NAMED:
        title = " and ".join(run.name for run in runs)
    return Page(
        title=title,
        subtitle=conditions.subtitle(runs[0]) if len(runs) == 1 else "",
        findings=find_conclusion(runs),
        facts=conditions.find_facts(runs[0]) if len(runs) == 1 else {},
        sections=visible,
        time=collectives.explain_time(runs),
    )


def _each(runs: Sequence[Run], find: Callable[[Run], Iterable[Finding]]) -> list[str]:
    """Return the sentences about each run, with its name unless all runs have them."""
    return named((run.name, [finding.in_full for finding in find(run)]) for run in runs)


def _warnings(runs: Sequence[Run], section: str) -> list[str]:
    return _each(runs, lambda run: section_warnings(run, section))


def _verdict(run: Run) -> list[Finding]:
    return [*watched(run), *setting(run), *tuning_cost(run)]


def _course(run: Run) -> list[Finding]:
    return [*time_spent(run), *variable_findings(run.info), *origins(run)]


def _missing(run: Run) -> list[Finding]:
    return [*conditions.left_out(run), *unmetered(run)]


def _topology(runs: Sequence[Run]) -> list[str]:
    """Return the remarks on what slows communication in the hosts' topology, each once with its
    hosts.
    """
    texts = []
    for run in runs:
        for host in environment_of(run.info).get("hosts", ()):
            topology = host.get("topology")
            remarks = topology_remarks(topology) if topology else []
            texts.append((str(host.get("hostname")), [str(remark) for remark in remarks]))
    return named(texts)


def _origin(run: Run) -> list[Finding]:
    """Return the seed, commit and directory of a run."""
    how = []
    if run.info.get("seed") is not None:
        how.append(f"seed {run.info['seed']}")
    if run.info.get("git_commit"):
        how.append(f"commbench at commit {run.info['git_commit']}")
    numbers: Numbers = {"how": tuple(how or ["this command"]), "path": str(run.path)}
    return [Finding("origin", numbers=numbers)]
