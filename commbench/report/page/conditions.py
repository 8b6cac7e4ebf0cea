"""The conditions of a run on a page: hosts, network, software, versions, variables, launches, and
how to repeat it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple

from commbench.analysis.prediction.links import link_of
from commbench.ddp.plan.cases import setting_name
from commbench.findings import Finding, Value, shared_cause
from commbench.launch.clues import name_rank
from commbench.report.columns import (
    Cell,
    Column,
    Flagged,
    Table,
    make_table,
    make_tables,
    number,
    plain_table,
    status_cell,
    tone_of,
)
from commbench.report.formats import grouped
from commbench.report.page.parts import Code, Fact
from commbench.report.state import tools_of
from commbench.results import Run
from commbench.results.files import FILES
from commbench.results.info import Launch, RunInfo, is_live
from commbench.schema import LARGEST
from commbench.system.environment import differing
from commbench.system.host import Host
from commbench.system.topology import Emulated
from commbench.units import counted, format_duration, format_size, format_time

#: The most names of hosts or transports in a fact.
MOST_NAMED = 3
#: The most subjects in a line of rows without a result.
MOST_SUBJECTS = 6


def find_facts(run: Run) -> list[Fact]:
    """Return the main conditions of a run; conditions that the run does not state are left out."""
    environment = run.info.get("environment") or {}
    hosts = environment.get("hosts") or []
    processors, gpus = [], []
    for host in hosts:
        processors.append(f"{host.get('cpu_model')}, {host.get('cpus_allowed')} CPUs")
        gpus += [str(gpu.get("name")) for gpu in host.get("gpus") or ()]
    facts = {
        "hosts": _hosts([str(host.get("hostname")) for host in hosts]),
        "ranks": _ranks(run.info),
        "processor": "; ".join(dict.fromkeys(processors)),
        "GPUs": "; ".join(dict.fromkeys(gpus)),
        "network": _network(run),
        "software": _software(environment),
        "sampling": _sampling(run.info),
        "measured by": ", ".join(tools_of(run)),
    }
    return [Fact(name, text) for name, text in facts.items() if text]


def _hosts(names: Sequence[str]) -> str:
    if not names:
        return ""
    if len(names) <= MOST_NAMED + 1:
        return f"{len(names)}: {', '.join(names)}"
    return f"{len(names)}: {names[0]}, {names[1]}, … {names[-1]}"


def _ranks(info: RunInfo) -> str:
    ranks, per_host = info.get("world_size"), info.get("ranks_per_node")
    if not ranks:
        return ""
    if not per_host:
        return str(ranks)
    return f"{ranks}, {per_host} a host"


def _network(run: Run) -> str:
    """Return the links of known rate, slowest first, and the transports, in a fixed order."""
    transports = sorted({record.transport for record in run.records if record.transport})
    rates: dict[str, float] = {}
    for transport in transports or [""]:
        link = link_of(run.info, transport)
        if link.rate_bps is not None:
            rates[str(link)] = link.rate_bps
    parts = sorted(rates, key=lambda name: (rates[name], name))
    if transports:
        parts.append(f"by {', '.join(transports[:MOST_NAMED])}")
    if len(transports) > MOST_NAMED:
        parts.append("…")
    return ", ".join(parts)


def _software(environment: Mapping[str, Any]) -> str:
    versions = environment.get("versions") or {}
    parts = [f"{name} {versions[name]}" for name in ("commbench", "torch") if name in versions]
    for library in ("mpi_library", "nccl_library"):
        if environment.get(library):
            parts.append(str(environment[library]))
    if "python" in versions:
        parts.append(f"Python {versions['python']}")
    return ", ".join(parts)


def _sampling(info: RunInfo) -> str:
    launches = info.get("launches") or []
    seconds = sum(launch.get("seconds", 0.0) for launch in launches)
    parts = []
    if info.get("budget"):
        parts.append(f"budget {info['budget']}")
    if launches:
        parts.append(counted(len(launches), "launch"))
    if seconds:
        parts.append(format_duration(seconds))
    return ", ".join(parts)


def when(info: Any) -> str:  # noqa: ANN401 - JSON
    """Return the start of a run, e.g. ``21 November 2026, 11:08 UTC``; empty if unknown."""
    try:
        began = datetime.fromisoformat(str(info.get("started")))
    except ValueError:
        return ""
    return f"{began.day} {began:%B %Y, %H:%M} {began.tzname() or ''}".strip()


# ------------------------------------------------------------------------------------- several runs


def runs_table(runs: Sequence[Run]) -> Table:
    """Tabulate the runs: what each measured, where, when, and its state."""
    columns: list[Column[Run]] = [
        Column("run", "name"),
        Column("began", lambda run: when(run.info)),
        _entry("suite"),
        number("ranks", lambda run: run.info.get("world_size")),
        number("hosts", lambda run: run.info.get("nodes")),
        _entry("budget"),
        number("launches", lambda run: len(run.info.get("launches") or ()), text_of=str),
        Column("commit of commbench", lambda run: str(run.info.get("git_commit") or "")[:12]),
        _entry("status"),
        Column("directory", "path"),
    ]
    return make_table("The runs", [("", run) for run in runs], columns)


def _entry(name: str) -> Column[Run]:
    return Column(name, lambda run: run.info.get(name) or "")


def differences_table(runs: Sequence[Run]) -> Table | None:
    """Tabulate the conditions in which runs differ, a column for each run.

    None if no stated condition differs.
    """
    differences = differing([run.info.get("environment") or {} for run in runs])
    if not differences:
        return None
    lines = []
    for name, texts in differences.items():
        stated = ["not stated" if text is None else text for text in texts]
        lines.append([name, *stated])
    headings = ["condition", *(run.name for run in runs)]
    return plain_table(headings, lines, title="Conditions that differ")


# -------------------------------------------------------------------------------------------- hosts


def condition_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate for each run the conditions of all hosts, those in which hosts differ, versions and
    variables.
    """
    tables = []
    for run in runs:
        of_run = _tables_of(run.info.get("environment") or {})
        if len(runs) > 1:
            of_run = [replace(table, title=f"{run.name}: {table.title}") for table in of_run]
        tables += of_run
    return tables


def _tables_of(environment: Mapping[str, Any]) -> list[Table]:
    tables = []
    hosts = [_facts(host) for host in environment.get("hosts") or ()]
    shared = _shared(hosts)
    if shared:
        title = "The host"
        if len(hosts) > 1:
            title = f"What all {len(hosts)} hosts have in common"
        tables.append(plain_table(["fact", "value"], shared.items(), title=title))
    if len(hosts) > 1:
        tables.append(_varied(hosts, set(shared)))
    for title, name in (("Versions", "versions"), ("Variables that matter", "variables")):
        texts = environment.get(name) or {}
        lines = [(key, str(text)) for key, text in texts.items()]
        if lines:
            tables.append(plain_table(["name", "value"], lines, title=title))
    return tables


def _facts(host: Host) -> dict[str, str]:
    """Return the facts of a host as text, without its topology, which ``run.json`` has."""
    return dict(_fact(name, value) for name, value in host.items() if name != "topology")


def _fact(name: str, value: object) -> tuple[str, str]:
    """Return a fact's name without the unit, and its value with the unit."""
    for suffix, text_of in _UNITS.items():
        if name.endswith(suffix) and isinstance(value, int | float) and abs(value) <= LARGEST:
            return name.removesuffix(suffix).replace("_", " "), text_of(value)
    return name.replace("_", " "), _words(value)


def _size(size_bytes: float) -> str:
    return format_size(int(size_bytes))


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


#: The format of a number, by the suffix of its name.
_UNITS: Mapping[str, Callable[[float], str]] = {
    "_bytes": _size,
    "_s": format_time,
    "_ratio": _percent,
}


def _words(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        facts = [_fact(str(name), each) for name, each in value.items() if each is not None]
        return ", ".join(f"{name} {text}" for name, text in facts)
    if isinstance(value, list):
        return "; ".join(map(_words, value)) or "none"
    return str(value)


def _shared(hosts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the facts that all hosts have in common."""
    if not hosts:
        return {}
    shared = set(hosts[0].items())
    shared.intersection_update(*(host.items() for host in hosts))
    return {name: text for name, text in hosts[0].items() if (name, text) in shared}


def _varied(hosts: Sequence[Mapping[str, str]], shared: set[str]) -> Table:
    """Tabulate the facts that differ between hosts, a line for each host."""
    names = dict.fromkeys(name for host in hosts for name in host if name not in shared)
    columns = [Column(name, methodcaller("get", name, "")) for name in names]
    rows = [("", host) for host in hosts]
    return make_table("Where the hosts differ", rows, columns, rest_in="run.json")


# ----------------------------------------------------------------------------------------- launches


def launch_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate the outcome of each launch; no table without launches."""
    columns: list[Column[Launch]] = [
        _launch_text("stage"),
        number("launch", methodcaller("get", "launch"), text_of=str),
        _launch_text("environment", "env"),
        Column("began", _began),
        _launch_seconds("took", "seconds"),
        _launch_seconds("starting", "startup_s"),
        _launch_seconds("measuring", "measuring_s"),
        _launch_seconds("other", "other_s"),
        Column("status", _launch_status),
        _launch_text("reason"),
    ]
    return make_tables(
        "Launches", runs, lambda run: run.info.get("launches") or (), columns, rest_in="run.json"
    )


def _launch_text(heading: str, name: str = "") -> Column[Launch]:
    return Column(heading, methodcaller("get", name or heading))


def _launch_seconds(heading: str, name: str) -> Column[Launch]:
    return number(heading, methodcaller("get", name), unit="s")


def _began(launch: Launch) -> str:
    began = str(launch.get("started") or "")
    return began.replace("T", " ").partition("+")[0]


def _launch_status(launch: Launch) -> Cell:
    status = str(launch.get("status") or "")
    return Cell(status, tone=tone_of(status or "ok"))


# ---------------------------------------------------------------------------------- what is missing


class _Missing(NamedTuple):
    """A row without a result, and what it is about."""

    subject: str
    row: Flagged


def missing_table(runs: Sequence[Run]) -> Table | None:
    """Tabulate cases without a result, a line for each reason; None if every case has a result."""
    lines = []
    for run in runs:
        by_cause: dict[tuple[str, str], list[_Missing]] = {}
        for missing in _unmeasured(run):
            row = missing.row
            cause = (row.status, shared_cause(row.reason_code, row.reason))
            by_cause.setdefault(cause, []).append(missing)
        lines += [(run.name, members) for members in by_cause.values()]
    if not lines:
        return None
    columns: list[Column[list[_Missing]]] = [
        Column("status", lambda members: status_cell(members[0].row.status)),
        number("rows", len, text_of=str),
        Column("what", _subjects),
        Column("reason", lambda members: members[0].row.reason),
    ]
    return make_table("Rows without a result", lines, columns)


def _unmeasured(run: Run) -> Iterable[_Missing]:
    for row in run.rows:
        if row.status != "ok":
            words = [row.backend, row.operation]
            if row.pattern != "flat":
                words.append(row.pattern)
            yield _Missing(" ".join(words), row)
    for training in run.training_rows:
        if training.status != "ok":
            yield _Missing(f"{training.workload}, {setting_name(training)}", training)


def _subjects(members: Sequence[_Missing]) -> str:
    """Join distinct subjects; of many, show the first and count the others."""
    distinct = list(dict.fromkeys(missing.subject for missing in members))
    shown = distinct[:MOST_SUBJECTS]
    if len(distinct) > MOST_SUBJECTS:
        shown.append(f"and {len(distinct) - MOST_SUBJECTS} more")
    return "; ".join(shown)


def failed_ranks(run: Run) -> list[Finding]:
    """Return the diagnosis of each failed launch."""
    findings = []
    for launch in run.info.get("launches") or ():
        failed_rank = launch.get("culprit")
        if failed_rank:
            code = "launch_failed_in" if failed_rank.get("case") else "launch_failed"
            numbers: dict[str, Value] = {
                "rank": name_rank(failed_rank.get("rank"), failed_rank.get("host") or ""),
                "state": failed_rank.get("state") or "",
                "case": failed_rank.get("case") or "",
            }
            subject = f"{launch.get('stage')} launch {launch.get('launch')}"
            findings.append(Finding(code, subject, numbers))
    return findings


# -------------------------------------------------------------------------------------------- files


def files_table(runs: Sequence[Run], *, beside: bool) -> Table:
    """Tabulate the files of the runs, with links if the page lies ``beside`` them."""
    rows = []
    for run in runs:
        rows += [(run.name, run.path / name) for name in FILES if (run.path / name).is_file()]
    columns: list[Column[Path]] = [
        Column("file", lambda file: Cell(file.name, link=file.name if beside else "")),
        Column("size", _size_of),
        Column("what it holds", lambda file: FILES[file.name]),
    ]
    return make_table("Files", rows, columns)


def _size_of(file: Path) -> str:
    """Return a file's size in KiB, rounded up."""
    size = file.stat().st_size
    return f"{grouped(-(-size // 1024))} KiB"


def left_out(run: Run) -> list[Finding]:
    """Return what was not measured, each part with the reason."""
    sentences = run.info.get("left_out") or ()
    return [Finding("left_out", numbers={"sentence": sentence}) for sentence in sentences]


def place(run: Run) -> str:
    """Return the numbers of ranks and hosts; empty if unknown."""
    ranks, hosts = run.info.get("world_size"), run.info.get("nodes")
    if not ranks:
        return ""
    if not hosts:
        return counted(ranks, "rank")
    return f"{counted(ranks, 'rank')} on {counted(hosts, 'host')}"


#: The value of ``launcher`` in run.json if the user started the ranks: the command does not contain
#: that.
_OWN_LAUNCHERS = frozenset({"openmpi", "mpich", "slurm"})
#: Options of `commbench lab run` by the entries of ``emulated`` that they set.
_LAB = {"hosts": "--hosts", "rate": "--rate", "racks": "--racks", "uplink": "--uplink"}


def commands(runs: Sequence[Run]) -> list[Code]:
    """Return the command of each run that states its own, ready to paste."""
    codes = []
    for run in runs:
        if not run.info.get("argv"):
            continue
        verb = "import" if run.info.get("imported") else "measure"
        whose = run.name if len(runs) > 1 else "it"
        title = f"To {verb} {whose} again"
        if run.info.get("launcher") in _OWN_LAUNCHERS:
            title += ", by each rank under your launcher"
        codes.append(Code(title=title, text=shlex.join(words_of(run.info))))
    return codes


def words_of(info: RunInfo) -> list[str]:
    """Return the command that repeats a run, with another ``--out``, because the same directory
    would resume the run.

    Args:
        info: the content of ``run.json``.
    """
    if is_live(info) and list(info["argv"][:1]) != ["commbench"]:  # the script tunes itself
        return list(info["argv"])
    command = _into_another([str(word) for word in info["argv"]])
    seed = info.get("seed")
    if seed is not None and not any(word.partition("=")[0] == "--seed" for word in command):
        command[2:2] = ["--seed", str(seed)]
    return [*_lab(info), *command]


def _into_another(words: Sequence[str]) -> list[str]:
    """Replace the run's directory in the command by another one."""
    command: list[str] = []
    for word in words:
        if command[-1:] == ["--out"] or word.startswith("--out="):
            command.append(_another(word))
        else:
            command.append(word)
    return command


def _another(directory: str) -> str:
    return f"{directory.rstrip('/')}_again"


def _lab(info: RunInfo) -> list[str]:
    """Return the ``lab run`` command that encloses the run's command; empty on a real cluster."""
    emulated: Emulated = (info.get("environment") or {}).get("emulated") or {}
    if not emulated:
        return []
    command = ["commbench", "lab", "run"]
    entries: Mapping[str, object] = emulated
    for name, option in _LAB.items():
        if entries.get(name):
            command += [option, str(entries[name])]
    per_host = info.get("ranks_per_node") or 1
    if per_host > 1:
        command += ["--ranks-per-host", str(per_host)]
    for host, rate in (emulated.get("slow") or {}).items():
        command += ["--slow", f"{host}={rate}"]
    return [*command, "--"]
