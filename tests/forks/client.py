"""Stands for ``python``: requests a fork for ``-m``, ``-c`` or a script and exits as it does.

Else runs Python.
"""

import json
import os
import signal
import socket
import sys

# Without pathlib this starts faster.
DIRECTORY = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def run_by_fork(arguments: list[str]) -> int:
    """Run a program on the server; return its exit status, or minus the signal that ended it."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(f"{DIRECTORY}/socket")
    program = {
        "executable": f"{DIRECTORY}/python",
        "arguments": arguments,
        "environment": dict(os.environ),
        "directory": os.getcwd(),  # noqa: PTH109
        "cores": list(os.sched_getaffinity(0)),
    }
    text = json.dumps(program).encode()
    socket.send_fds(client, [b"%8d" % len(text)], [0, 1, 2])
    client.sendall(text)
    for number in FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda received, _: client.sendall(bytes([received])))
    return int(client.recv(16) or 1)


def end_as(status: int) -> None:
    """End with an exit status, or by the signal whose negative number it is."""
    if status < 0:
        if -status in FORWARDED:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def main() -> None:
    """Run what follows ``python`` on the command line."""
    arguments = sys.argv[1:]
    is_program = arguments and (arguments[0] in {"-m", "-c"} or not arguments[0].startswith("-"))
    if not is_program or os.getpid() == 1:
        os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606
    end_as(run_by_fork(arguments))


if __name__ == "__main__":
    main()
