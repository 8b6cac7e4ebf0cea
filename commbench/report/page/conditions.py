"""The conditions of a run on a page: hosts, network, software, versions, variables, launches, and
how to repeat it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import methodcaller
from pathlib import Path
from typing import Any

from commbench.analysis.prediction.links import link_of
from commbench.ddp.plan.cases import setting_name
from commbench.findings import Finding, Value, shared_cause
from commbench.launch.diagnosis import name_rank
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
from commbench.results.tables import rows_by
from commbench.schema import LARGEST
from commbench.system.environment import differing
from commbench.system.host import Host
from commbench.system.topology import Emulated
from commbench.units import counted, format_duration, format_size, format_time

#: The most names of hosts or transports in a fact.
MOST_NAMED = 3


def find_facts(run: Run) -> list[Fact]:
    """Return the main conditions of a run; conditions that the run does not state are left out."""
    environment = run.info.get("environment") or {}
    hosts = environment.get("hosts") or []
    facts = {
        "hosts": _hosts([str(host.get("hostname")) for host in hosts]),
        "ranks": _ranks(run),
        "processor": _joined(
            f"{host.get('cpu_model')}, {host.get('cpus_allowed')} CPUs" for host in hosts
        ),
        "GPUs": _joined(str(gpu.get("name")) for host in hosts for gpu in host.get("gpus") or ()),
        "network": _network(run),
        "software": _software(environment),
        "sampling": _sampling(run),
        "measured by": ", ".join(tools_of(run)),
    }
    return [Fact(name, text) for name, text in facts.items() if text]


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _hosts(names: Sequence[str]) -> str:
    listed = (
        ", ".join(names)
        if len(names) <= MOST_NAMED + 1
        else f"{names[0]}, {names[1]}, … {names[-1]}"
    )
    return f"{len(names)}: {listed}" if names else ""


def _ranks(run: Run) -> str:
    ranks, per_host = run.info.get("world_size"), run.info.get("ranks_per_node")
    return f"{ranks}{f', {per_host} a host' if per_host else ''}" if ranks else ""


def _network(run: Run) -> str:
    """Return the links of known rate, slowest first, and the transports, in a fixed order."""
    transports = sorted({record.transport for record in run.records if record.transport})
    links = {link_of(run.info, transport) for transport in transports or [""]}
    rates = {str(link): link.rate_bps for link in links if link.rate_bps is not None}
    links_by_rate = sorted(rates, key=lambda name: (rates[name], name))
    transport_words = (
        f"by {', '.join(transports[:MOST_NAMED])}{', …' if len(transports) > MOST_NAMED else ''}"
    )
    return ", ".join([*links_by_rate, *([transport_words] if transports else [])])


def _software(environment: Any) -> str:  # noqa: ANN401 - JSON
    versions = environment.get("versions") or {}
    parts = [f"{name} {versions[name]}" for name in ("commbench", "torch") if name in versions]
    parts += [
        str(environment[name]) for name in ("mpi_library", "nccl_library") if environment.get(name)
    ]
    return ", ".join([*parts, *([f"Python {versions['python']}"] if "python" in versions else [])])


def _sampling(run: Run) -> str:
    launches = run.info.get("launches") or []
    budget = run.info.get("budget")
    parts = [f"budget {budget}"] if budget else []
    parts += [counted(len(launches), "launch")] if launches else []
    seconds = sum(launch.get("seconds", 0.0) for launch in launches)
    return ", ".join([*parts, *([f"{format_duration(seconds)}"] if seconds else [])])


def when(info: Any) -> str:  # noqa: ANN401 - JSON
    """Return the start of a run, e.g. ``21 November 2026, 11:08 UTC``; empty if unknown."""
    try:
        began = datetime.fromisoformat(str(info.get("started")))
    except ValueError:
        return ""
    return f"{began.day} {began:%B %Y, %H:%M} {began.tzname() or ''}".strip()


Pair = tuple[str, str]


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
    lines = [
        [name, *("not stated" if text is None else text for text in texts)]
        for name, texts in differences.items()
    ]
    if not lines:
        return None
    return plain_table(
        ["condition", *(run.name for run in runs)], lines, title="Conditions that differ"
    )


# -------------------------------------------------------------------------------------------- hosts


def condition_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate for each run the conditions of all hosts, those in which hosts differ, versions and
    variables.
    """
    tables = []
    for run in runs:
        of_run = f"{run.name}: " if len(runs) > 1 else ""
        environment = run.info.get("environment") or {}
        hosts = [_facts(host) for host in environment.get("hosts") or ()]
        shared, several = _shared(hosts), len(hosts) > 1
        if shared:
            title = f"What all {len(hosts)} hosts have in common" if several else "The host"
            tables.append(plain_table(["fact", "value"], shared.items(), title=f"{of_run}{title}"))
        if several:
            tables.append(_varied(f"{of_run}Where the hosts differ", hosts, set(shared)))
        texts_by_title = {
            "Versions": environment.get("versions"),
            "Variables that matter": environment.get("variables"),
        }
        for title, texts in texts_by_title.items():
            lines = [(name, str(text)) for name, text in (texts or {}).items()]
            if lines:
                tables.append(plain_table(["name", "value"], lines, title=f"{of_run}{title}"))
    return tables


def _facts(host: Host) -> dict[str, str]:
    """Return the facts of a host as text, without its topology, which ``run.json`` has."""
    return dict(_fact(name, value) for name, value in host.items() if name != "topology")


def _fact(name: str, value: Any) -> Pair:  # noqa: ANN401 - JSON
    """Return a fact's name without the unit, and its value with the unit."""
    for suffix, text_of in _UNITS.items():
        if name.endswith(suffix) and isinstance(value, int | float) and abs(value) <= LARGEST:
            return name.removesuffix(suffix).replace("_", " "), text_of(value)
    return name.replace("_", " "), _words(value)


#: The format of a number, by the suffix of its name.
_UNITS: Mapping[str, Callable[[float], str]] = {
    "_bytes": lambda size: format_size(int(size)),
    "_s": format_time,
    "_ratio": lambda share: f"{100 * share:.2g} %",
}


def _words(value: Any) -> str:  # noqa: ANN401 - JSON
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        facts = (_fact(str(name), each) for name, each in value.items() if each is not None)
        return ", ".join(f"{name} {text}" for name, text in facts)
    if isinstance(value, list):
        return "; ".join(map(_words, value)) or "none"
    return str(value)


def _shared(hosts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the facts that all hosts have in common."""
    return {
        name: text
        for name, text in (hosts[0] if hosts else {}).items()
        if all(h.get(name) == text for h in hosts)
    }


def _varied(title: str, hosts: Sequence[Mapping[str, str]], shared: set[str]) -> Table:
    """Tabulate the facts that differ between hosts, a line for each host."""
    names = dict.fromkeys(name for host in hosts for name in host if name not in shared)
    columns = [Column(name, methodcaller("get", name, "")) for name in names]
    return make_table(title, [("", host) for host in hosts], columns, rest_in="run.json")


# ----------------------------------------------------------------------------------------- launches


def launch_tables(runs: Sequence[Run]) -> list[Table]:
    """Tabulate the outcome of each launch; no table without launches."""
    columns: list[Column[Launch]] = [
        Column("stage", lambda launch: launch.get("stage") or ""),
        number("launch", lambda launch: launch.get("launch"), text_of=str),
        Column("environment", lambda launch: launch.get("env") or ""),
        Column(
            "began",
            lambda launch: str(launch.get("started") or "").replace("T", " ").partition("+")[0],
        ),
        *(_seconds(heading, name) for heading, name in _SPENT.items()),
        Column(
            "status",
            lambda launch: Cell(
                str(launch.get("status") or ""), tone=tone_of(str(launch.get("status") or "ok"))
            ),
        ),
        Column("reason", lambda launch: launch.get("reason") or ""),
    ]
    return make_tables(
        "Launches", runs, lambda run: run.info.get("launches") or (), columns, rest_in="run.json"
    )


_SPENT = {
    "took": "seconds",
    "starting": "startup_s",
    "measuring": "measuring_s",
    "other": "other_s",
}


def _seconds(heading: str, name: str) -> Column[Launch]:
    def value(launch: Launch) -> float | None:
        seconds = launch.get(name)
        return float(seconds) if isinstance(seconds, int | float) else None

    return number(heading, value, unit="s")


# ---------------------------------------------------------------------------------- what is missing


def missing_table(runs: Sequence[Run]) -> Table | None:
    """Tabulate cases without a result, a line for each reason; None if every case has a result."""
    lines = [
        (run.name, members)
        for run in runs
        for members in rows_by(
            _unmeasured(run),
            lambda line: (line[1].status, shared_cause(line[1].reason_code, line[1].reason)),
        ).values()
    ]
    columns: list[Column[list[tuple[str, Flagged]]]] = [
        Column("status", lambda line: status_cell(line[0][1].status)),
        number("rows", len, text_of=str),
        Column("what", lambda line: _listed([subject for subject, _ in line])),
        Column("reason", lambda line: line[0][1].reason),
    ]
    return make_table("Rows without a result", lines, columns) if lines else None


def _unmeasured(run: Run) -> Iterable[tuple[str, Flagged]]:
    for row in run.rows:
        if row.status != "ok":
            words = (row.backend, row.operation, row.pattern if row.pattern != "flat" else "")
            yield " ".join(word for word in words if word), row
    for training in run.training_rows:
        if training.status != "ok":
            yield f"{training.workload}, {setting_name(training)}", training


def _listed(texts: Iterable[str]) -> str:
    """Join distinct texts; of many, show the first and count the others."""
    most = 6
    distinct = list(dict.fromkeys(texts))
    more = [f"and {len(distinct) - most} more"] if len(distinct) > most else []
    return "; ".join(distinct[:most] + more)


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
    lines = [
        [
            *([Cell(run.name)] if len(runs) > 1 else []),
            Cell(name, link=name if beside else ""),
            Cell(_size_of(run.path / name)),
            Cell(content),
        ]
        for run in runs
        for name, content in FILES.items()
        if (run.path / name).is_file()
    ]
    return plain_table(
        [*(["run"] if len(runs) > 1 else []), "file", "size", "what it holds"], lines, title="Files"
    )


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
    on_hosts = f" on {counted(hosts, 'host')}" if hosts else ""
    return f"{counted(ranks, 'rank')}{on_hosts}" if ranks else ""


#: The value of ``launcher`` in run.json if the user started the ranks: the command does not contain
#: that.
_OWN_LAUNCHERS = frozenset({"openmpi", "mpich", "slurm"})
#: Options of `commbench lab run` by the entries of ``emulated`` that they set.
_LAB = {"hosts": "--hosts", "rate": "--rate", "racks": "--racks", "uplink": "--uplink"}


def commands(runs: Sequence[Run]) -> list[Code]:
    """Return the command of each run that states its own, ready to paste."""
    codes = []
    for run in runs:
        if run.info.get("argv"):
            verb = "import" if run.info.get("imported") else "measure"
            whose = f" {run.name}" if len(runs) > 1 else " it"
            each = (
                ", by each rank under your launcher"
                if run.info.get("launcher") in _OWN_LAUNCHERS
                else ""
            )
            codes.append(
                Code(title=f"To {verb}{whose} again{each}", text=shlex.join(words_of(run.info)))
            )
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
        name, is_joined, value = word.partition("=")
        if command and command[-1] == "--out":
            command.append(_another(word))
        else:
            command.append(f"{name}={_another(value)}" if name == "--out" and is_joined else word)
    return command


def _another(directory: str) -> str:
    return f"{directory.rstrip('/')}_again"


def _lab(info: RunInfo) -> list[str]:
    """Return the ``lab run`` command that encloses the run's command; empty on a real cluster."""
    emulated: Emulated = (info.get("environment") or {}).get("emulated") or {}
    if not emulated:
        return []
    entries: Mapping[str, object] = emulated
    options = [
        word
        for name, option in _LAB.items()
        if entries.get(name)
        for word in (option, str(entries[name]))
    ]
    each = info.get("ranks_per_node") or 1
    options += ["--ranks-per-host", str(each)] if each > 1 else []
    slow = (emulated.get("slow") or {}).items()
    options += [word for host, rate in slow for word in ("--slow", f"{host}={rate}")]
    return ["commbench", "lab", "run", *options, "--"]
