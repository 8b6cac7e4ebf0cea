"""The conditions of a run that a reader looks for first: hosts, network, software, how much was measured, when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from commbench.prediction.links import link_of
from commbench.report.page.parts import Fact
from commbench.report.state import tools_of
from commbench.store import Run
from commbench.units import counted, format_duration

#: So many names of hosts or transports stand in a fact.
MOST_NAMED = 3


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
        "measured by": ", ".join(tools_of(run)),
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
    """The links of known rate, the slowest first, and what carried the messages, in an order that no chance decides."""
    transports = sorted({record.transport for record in run.records if record.transport})
    links = {link_of(run.info, transport) for transport in transports or [""]}
    rates = {str(link): link.rate_bps for link in links if link.rate_bps is not None}
    known = sorted(rates, key=lambda name: (rates[name], name))
    crossed = f"by {', '.join(transports[:MOST_NAMED])}{', …' if len(transports) > MOST_NAMED else ''}"
    return ", ".join([*known, *([crossed] if transports else [])])


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
