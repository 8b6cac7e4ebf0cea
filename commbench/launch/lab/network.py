"""The emulated network: switches, a link to every host and rack, and their shaped rates, made by ip
and tc.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence

from commbench.errors import InputError
from commbench.launch.lab.plan import INTERFACE, NETWORK, HostPlan, LabPlan

#: A token bucket lets the bytes of this time pass unshaped, within the bounds that follow. A time
#: below a timer's delay starves a fast link.
BURST_S = 1e-3
#: Whole segments of 64 KiB pass only a bucket of that size; smaller buckets cut them to packets of
#: one MTU.
BURST_BYTES = (16 * 1024, 1024 * 1024)
#: The longest time that a packet waits for the link before it is dropped, as in a switch with deep
#: buffers.
QUEUE_S = 20e-3
#: The bridge of all hosts, or of all racks; switches live in a network namespace of their own.
SWITCH = "switch"
TIMEOUT_S = 60


def build_network(plan: LabPlan, pids: Mapping[str, int]) -> None:
    """Link every host to its switch, and racks to the core, in this process's network namespace.

    Args:
        plan: hosts and rates.
        pids: by host name, a process in the host's network namespace.

    Raises:
        InputError: ip or tc fails.
    """
    run_program(["ip", "-batch", "-"], switch_commands(plan, pids))
    for host in plan.hosts:
        on_host = ["nsenter", f"--target={pids[host.name]}", "--net"]
        commands = [
            "link set lo up",
            f"address add {host.address}/{NETWORK.prefixlen} dev {INTERFACE}",
            f"link set {INTERFACE} up",
        ]
        run_program([*on_host, "ip", "-batch", "-"], commands)
        if host.rate_bps is not None:
            run_program([*on_host, "tc", "-batch", "-"], [shape_command(INTERFACE, host.rate_bps)])
    towards = [(host.name, host.rate_bps) for host in plan.hosts]
    for ends in _uplinks(plan):
        for end in ends:
            towards.append((end, plan.uplink_bps))
    commands = [shape_command(end, rate_bps) for end, rate_bps in towards if rate_bps is not None]
    if commands:
        run_program(["tc", "-batch", "-"], commands)


def change_link(
    before: HostPlan, after: HostPlan, *, on_switch: Sequence[str], on_host: Sequence[str]
) -> None:
    """Bring a host's link from one state to another while the lab runs.

    Args:
        before: the host as it is.
        after: the host as it is to be.
        on_switch: the prefix that runs a command in the switches' network namespace.
        on_host: the prefix that runs a command in the host's network namespace.

    Raises:
        InputError: ip or tc fails.
    """
    for place, device in ((on_switch, before.name), (on_host, INTERFACE)):
        if after.rate_bps is not None:
            run_program([*place, "tc", "-batch", "-"], [shape_command(device, after.rate_bps)])
        elif before.rate_bps is not None:
            run_program([*place, "tc", "-batch", "-"], [f"qdisc del dev {device} root"])
    state = "down"  # the switch's port: the host sees its cable pulled
    if after.is_up:
        state = "up"
    run_program([*on_switch, "ip", "-batch", "-"], [f"link set {before.name} {state}"])


def _uplinks(plan: LabPlan) -> list[tuple[str, str]]:
    """Return the two ends of each rack's link to the core: in the rack, and in the core."""
    if plan.racks == 1:
        return []
    return [(f"uplink{rack}", f"downlink{rack}") for rack in range(plan.racks)]


def switch_commands(plan: LabPlan, pids: Mapping[str, int]) -> list[str]:
    """Return ip's commands for the switches: a port for each host, named after the host, and the
    racks' uplinks.
    """
    commands = [f"link add {SWITCH} type bridge", f"link set {SWITCH} up"]
    for rack, (up, down) in enumerate(_uplinks(plan)):
        commands += [f"link add rack{rack} type bridge", f"link set rack{rack} up"]
        commands += [f"link add {up} type veth peer name {down}"]
        commands += [f"link set {up} master rack{rack} up", f"link set {down} master {SWITCH} up"]
    for host in plan.hosts:
        switch = SWITCH
        if plan.racks > 1:
            switch = f"rack{host.rack}"
        port = f"link add {host.name} type veth peer name {INTERFACE} netns {pids[host.name]}"
        commands += [port, f"link set {host.name} master {switch} up"]
    return commands


def shape_command(device: str, rate_bps: int) -> str:
    """Return tc's command that limits the traffic that ``device`` sends to a rate."""
    bytes_per_s = rate_bps / 8
    burst = min(max(int(bytes_per_s * BURST_S), BURST_BYTES[0]), BURST_BYTES[1])
    limit = burst + max(int(bytes_per_s * QUEUE_S), BURST_BYTES[0])
    return f"qdisc replace dev {device} root tbf rate {rate_bps}bit burst {burst} limit {limit}"


def run_program(command: Sequence[str], lines: Sequence[str] = ()) -> None:
    """Run a program that sets up the lab, with ``lines`` on its stdin.

    Raises:
        InputError: it fails; the sentence quotes its stderr.
    """
    try:
        done = subprocess.run(
            command,
            input="".join(f"{line}\n" for line in lines),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(emulation_error(shlex.join(command), str(error))) from error
    if done.returncode != 0:
        raise InputError(emulation_error(shlex.join(command), done.stderr))


def emulation_error(program: str, output: str) -> str:
    """Return the sentence for a machine that cannot emulate a cluster, with the first line of a
    program's output.
    """
    lines = output.strip().splitlines() or ["nothing"]
    reason = lines[0].strip().rstrip(".")
    return (
        f"A cluster cannot be emulated on this machine: `{program}` said: {reason}; it takes root's"
        " full rights, iproute2, util-linux, and a kernel with network namespaces, veth, bridge and"
        " tbf (--rate none does without tbf)."
    )
