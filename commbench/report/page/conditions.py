"""The conditions of a run on a page: hosts, network, software, versions, variables, launches, and
how to repeat it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from operator import methodcaller
from typing import Any

from commbench.analysis.prediction.links import link_of
from commbench.ddp.plan.cases import setting_name
from commbench.findings import Finding, shared_cause
from commbench.report.columns import (
    Column,
    Flagged,
    Table,
    make_table,
    make_tables,
    plain_table,
    prefixes,
)
from commbench.report.formats import digits, listed, ranks_on_hosts
from commbench.report.page.parts import Code
from commbench.results import Run
from commbench.results.info import Launch, RunInfo, environment_of, is_live, is_watched
from commbench.results.tables import rows_by
from commbench.schema import LARGEST
from commbench.system.environment import differing
from commbench.units import counted, format_duration, format_size, format_time, percent

#: The most names of hosts or transports in a fact.
_MOST_NAMED = 4
#: The most subjects in a line of rows without a result.
MOST_SUBJECTS = 6


def subtitle(run: Run) -> str:
    """Return where and when a run was measured, and its status."""
    ranks = ranks_on_hosts(run.info.get("world_size"), run.info.get("nodes"))
    parts = (ranks, _when(run), run.info.get("status"))
    return " · ".join(filter(None, parts))


def _when(run: Run) -> str:
    """Return the start of a run, e.g. ``21 November 2026, 11:08 UTC``; empty if unknown."""
    try:
        began = datetime.fromisoformat(str(run.info.get("started")))
    except ValueError:
        return ""
    return f"{began.day} {began:%B %Y, %H:%M} {began.tzname() or ''}".strip()


def find_facts(run: Run) -> dict[str, str]:
    """Return the main conditions of a run by name; what it does not state is left out."""
    environment = environment_of(run.info)
    hosts = environment.get("hosts", [])
    facts = {}
    if hosts:
        names = [str(host.get("hostname")) for host in hosts]
        facts["hosts"] = f"{len(hosts)}: {_brief(names)}"
    ranks, per_host = run.info.get("world_size"), run.info.get("ranks_per_node")
    if ranks and per_host:
        facts["ranks"] = f"{ranks}, {per_host} a host"
    processors = [
        f"{host.get('cpu_model')}, {counted(host.get('cpus_allowed'), 'CPU')}" for host in hosts
    ]
    gpus = [str(gpu.get("name")) for host in hosts for gpu in host.get("gpus", ())]
    facts["processor"] = "; ".join(dict.fromkeys(processors))
    facts["GPUs"] = "; ".join(dict.fromkeys(gpus))
    facts["network"] = _network(run)
    facts["software"] = _software(environment)
    facts["sampling"] = _sampling(run.info)
    return {name: text for name, text in facts.items() if text}


def _brief(names: Sequence[str]) -> str:
    more = ["…"] if len(names) > _MOST_NAMED else []
    return ", ".join([*names[:_MOST_NAMED], *more])


def _network(run: Run) -> str:
    """Return the links of known rate, slowest first, and the transports, in a fixed order."""
    transports = sorted({record.transport for record in run.records if record.transport})
    rates = {}
    for transport in transports or [""]:
        link = link_of(run.info, transport)
        if link.rate_bps is not None:
            rates[str(link)] = link.rate_bps
    parts = sorted(rates, key=lambda name: (rates[name], name))
    if transports:
        parts.append(f"by {_brief(transports)}")
    return ", ".join(parts)


def _software(environment: Mapping[str, Any]) -> str:
    versions = environment.get("versions", {})
    parts = [f"{name} {versions[name]}" for name in ("commbench", "torch") if name in versions]
    for library in ("mpi_library", "nccl_library"):
        if environment.get(library):
            parts.append(str(environment[library]))
    if "python" in versions:
        parts.append(f"Python {versions['python']}")
    return ", ".join(parts)


def _sampling(info: RunInfo) -> str:
    launches = info.get("launches", [])
    seconds = sum(launch.get("seconds", 0.0) for launch in launches)
    parts = []
    if info.get("budget"):
        parts.append(f"budget {info['budget']}")
    if launches:
        parts.append(counted(len(launches), "launch"))
    if seconds:
        parts.append(format_duration(seconds))
    return ", ".join(parts)


def _entry(heading: str, name: str = "", **options: Any) -> Column[Any]:
    """Return a column of an entry of ``run.json``."""
    return Column(heading, methodcaller("get", name or heading), **options)


# ------------------------------------------------------------------------------------- several runs


def runs_table(runs: Sequence[Run]) -> Table:
    """Tabulate the runs: what each measured, where, when, and its state."""
    columns = [
        _entry("began"),
        _entry("suite"),
        _entry("ranks", "world_size", is_number=True),
        _entry("hosts", "nodes", is_number=True),
        _entry("budget"),
        _entry("launches", "count", is_number=True),
        _entry("commit of commbench", "git_commit"),
        _entry("status"),
        _entry("directory"),
    ]
    rows = []
    for run in runs:
        count = len(_launches(run))
        own = {"began": _when(run), "count": count, "directory": run.path}
        rows.append((run.name, {**run.info, **own}))
    return make_table("The runs", rows, columns)


def differences_tables(runs: Sequence[Run]) -> Iterator[Table]:
    """Tabulate the conditions in which runs differ, a column for each run; no table if no stated
    condition differs.
    """
    lines = []
    for name, texts in differing([environment_of(run.info) for run in runs]).items():
        lines.append([name, *(text or "not stated" for text in texts)])
    if lines:
        headings = ["condition", *(run.name for run in runs)]
        yield plain_table(headings, lines, title="Conditions that differ")


# -------------------------------------------------------------------------------------------- hosts


def condition_tables(runs: Sequence[Run]) -> Iterator[Table]:
    """Tabulate for each run the conditions of all hosts, those in which hosts differ, versions and
    variables.
    """
    for run, prefix in prefixes(runs):
        for table in environment_tables(environment_of(run.info)):
            yield replace(table, title=f"{prefix}{table.title}")


def environment_tables(environment: Mapping[str, Any]) -> list[Table]:
    """Tabulate the facts of all hosts, those in which hosts differ, versions and variables."""
    # the topology, which run.json has, is a section of its own
    hosts = []
    for host in environment.get("hosts", ()):
        hosts.append(dict(fact_of(name, host[name]) for name in host if name != "topology"))
    shared = {}
    varied = []
    for name in dict.fromkeys(name for host in hosts for name in host):
        texts = {host.get(name, "") for host in hosts}
        if len(texts) > 1:
            varied.append(Column(name, methodcaller("get", name, "")))
        else:
            shared[name] = texts.pop()
    title = "The host"
    if len(hosts) > 1:
        title = f"What all {len(hosts)} hosts have in common"
    tables = [plain_table(["fact", "value"], shared.items(), title=title)]
    if len(hosts) > 1:
        rows = [("", host) for host in hosts]
        tables.append(make_table("Where the hosts differ", rows, varied, rest_in="run.json"))
    for title, name in (("Versions", "versions"), ("Variables that matter", "variables")):
        lines = [(key, str(text)) for key, text in (environment.get(name) or {}).items()]
        tables.append(plain_table(["name", "value"], lines, title=title))
    return [table for table in tables if table.lines]


def fact_of(name: str, value: object) -> tuple[str, str]:
    """Return a fact's name without the unit, and its value with the unit."""
    for suffix, text_of in _UNITS.items():
        if name.endswith(suffix) and isinstance(value, int | float) and abs(value) <= LARGEST:
            return name.removesuffix(suffix).replace("_", " "), text_of(value)
    return name.replace("_", " "), _words(value)


#: The format of a number, by the suffix of its name.
_UNITS: Mapping[str, Callable[[Any], str]] = {
    "_bytes": format_size,
    "_s": format_time,
    "_ratio": partial(percent, places=2),
}


def _words(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        facts = [fact_of(str(name), each) for name, each in value.items() if each is not None]
        return ", ".join(f"{name} {text}" for name, text in facts)
    if isinstance(value, list):
        return "; ".join(map(_words, value)) or "none"
    return str(value)


# ----------------------------------------------------------------------------------------- launches


def launch_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate the outcome of each launch; no table without launches."""
    seconds = {"unit": "s", "text_of": digits, "is_number": True}
    columns = [
        _entry("stage"),
        _entry("launch", is_number=True),
        _entry("environment", "env"),
        _entry("began", "started"),
        _entry("took", "seconds", **seconds),
        _entry("starting", "startup_s", **seconds),
        _entry("measuring", "measuring_s", **seconds),
        _entry("other", "other_s", **seconds),
        _entry("status"),
        _entry("reason"),
    ]
    return make_tables("Launches", runs, _launches, columns, rest_in="run.json")


def _launches(run: Run) -> Sequence[Launch]:
    return run.info.get("launches", ())


# ---------------------------------------------------------------------------------- what is missing


def missing_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate cases without a result, a line for each reason; no table if every case has one."""
    columns = [_entry("status"), _entry("rows", is_number=True), _entry("what"), _entry("reason")]
    return make_tables("Rows without a result", runs, _missing, columns)


def _missing(run: Run) -> Iterator[dict[str, Any]]:
    """Yield what the rows without a result have in common, for each cause."""
    rows: list[tuple[str, Flagged]] = []
    for row in run.rows:
        pattern = "" if row.pattern == "flat" else f" {row.pattern}"
        rows.append((f"{row.backend} {row.operation}{pattern}", row))
    for training in run.training_rows:
        rows.append((f"{training.workload}, {setting_name(training)}", training))
    missing = [(subject, row) for subject, row in rows if row.status != "ok"]
    for members in rows_by(missing, _cause).values():
        _, first = members[0]
        what = listed((subject for subject, _ in members), MOST_SUBJECTS)
        numbers = {"rows": len(members), "what": what}
        yield {"status": first.status, "reason": first.reason, **numbers}


def _cause(missing: tuple[str, Flagged]) -> tuple[str, str]:
    """Return the status of a row without a result, and its reason without what differs."""
    _, row = missing
    return row.status, shared_cause(row.reason_code, row.reason)


def left_out(run: Run) -> Iterator[Finding]:
    """Yield what was not measured, each part with the reason."""
    for sentence in run.info.get("left_out", ()):
        yield Finding("left_out", numbers={"sentence": sentence})


# ------------------------------------------------------------------------------- how to repeat it


#: The value of ``launcher`` in run.json if the user started the ranks: the command does not contain
#: that.
_OWN_LAUNCHERS = frozenset({"openmpi", "mpich", "slurm"})
#: Options of `commbench lab run` by the entries of ``emulated`` that they set.
_LAB = {"hosts": "--hosts", "rate": "--rate", "racks": "--racks", "uplink": "--uplink"}


def commands(runs: Sequence[Run]) -> Iterator[Code]:
    """Yield the command of each run that states its own, ready to paste."""
    for run in runs:
        if run.info.get("argv"):
            verb = "import" if run.info.get("imported") else "measure"
            whose = run.name if len(runs) > 1 else "it"
            title = f"To {verb} {whose} again"
            if run.info.get("launcher") in _OWN_LAUNCHERS:
                title += ", by each rank under your launcher"
            yield Code(title=title, text=shlex.join(words_of(run.info)))


def words_of(info: RunInfo) -> list[str]:
    """Return the command that repeats a run, with another ``--out``, because the same directory
    would resume the run.

    Args:
        info: the content of ``run.json``.
    """
    words = [str(word) for word in info["argv"]]
    if is_live(info) and words[:1] != ["commbench"]:  # the script tunes itself
        return words
    place = len(words)
    if "--" in words:  # behind it stands the command of a training, with options of its own
        place = words.index("--")
    command: list[str] = []
    for word in words[:place]:
        is_out = command[-1:] == ["--out"] or word.startswith("--out=")
        command.append(f"{word.rstrip('/')}_again" if is_out else word)
    seed = info.get("seed")
    has_seed = any(word.partition("=")[0] == "--seed" for word in command)
    if seed is not None and not has_seed and not is_watched(info):
        command[2:2] = ["--seed", str(seed)]
    return [*_lab(info), *command, *words[place:]]


def _lab(info: RunInfo) -> list[str]:
    """Return the ``lab run`` command that encloses the run's command; empty on a real cluster."""
    emulated: Mapping[str, Any] = environment_of(info).get("emulated") or {}
    if not emulated:
        return []
    command = ["commbench", "lab", "run"]
    for name, option in _LAB.items():
        if emulated.get(name):
            command += [option, str(emulated[name])]
    per_host = info.get("ranks_per_node") or 1
    if per_host > 1:
        command += ["--ranks-per-host", str(per_host)]
    for host, rate in (emulated.get("slow") or {}).items():
        command += ["--slow", f"{host}={rate}"]
    return [*command, "--"]
