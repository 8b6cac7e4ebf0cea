"""Run on an emulated host with flows such as host0:host1: print each flow's rate in Mbit/s while
all flows send.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

PORT = 9000
WAIT_S = 60
#: All hosts share a clock: when flows are measured, and when they end, after they have begun.
FROM_S, UNTIL_S, END_S = 0.3, 1.1, 1.2


def await_start() -> float:
    """Report that this end is ready; return the time at which all flows start."""
    print("ready", flush=True)  # noqa: T201 - the first host reads it
    return float(sys.stdin.readline())


def receive(port: int) -> None:
    """Receive one flow and print its rate over the measured interval."""
    with socket.create_server(("", port)) as server:
        server.settimeout(WAIT_S)
        stream, _ = server.accept()
        begin = await_start()
        received, first = 0, 0
        while received == 0 or time.monotonic() < begin + UNTIL_S:
            received += len(stream.recv(1 << 16))
            if time.monotonic() < begin + FROM_S:
                first = received
        rate_Mbps = (received - first) * 8e-6 / (UNTIL_S - FROM_S)
        print(rate_Mbps)  # noqa: T201 - the first host reads it


def send(host: str, port: int) -> None:
    """Send one flow."""
    end = time.monotonic() + WAIT_S
    stream = socket.socket()
    while stream.connect_ex((host, port)):
        stream.close()
        if time.monotonic() > end:
            sys.exit(f"{host} does not serve")
        time.sleep(0.01)
        stream = socket.socket()
    begin = await_start()
    time.sleep(max(0.0, begin - time.monotonic()))
    with contextlib.suppress(ConnectionError):  # the far end has seen enough
        while time.monotonic() < begin + END_S:
            stream.send(bytes(1 << 16))


def main(flows: list[str]) -> None:
    """Print the rates as JSON, in the order of the flows."""
    far_ends, near_ends = [], []
    for index, flow in enumerate(flows):
        near, far = flow.split(":")
        me, port = [sys.executable, "-I", "-S", __file__], str(PORT + index)
        for host, words, ends in (
            (far, ["receive", port], far_ends),
            (near, ["send", far, port], near_ends),
        ):
            command = [os.environ["COMMBENCH_SSH"], host, *me, *words]
            ends.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
    for end in far_ends + near_ends:
        if end.stdout is None or end.stdout.readline() != "ready\n":
            sys.exit("an end of a flow has ended before it was ready")
    begin = f"{time.monotonic() + 0.1}\n"
    for end in far_ends + near_ends:
        if end.stdin:
            end.stdin.write(begin)
            end.stdin.flush()
    outputs = [end.communicate(timeout=WAIT_S)[0] for end in far_ends + near_ends]
    rates_Mbps = [float(text) for text in outputs[: len(flows)]]
    print(json.dumps(rates_Mbps))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(int(sys.argv[2]))
    elif sys.argv[1] == "send":
        send(sys.argv[2], int(sys.argv[3]))
    else:
        main(sys.argv[1:])
