"""Run on an emulated host with flows such as host0:host1: prints each flow's rate in Mbit/s while all of them send."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

PORT = 9000
WAIT_S = 20
#: All hosts share a clock: when flows begin after they were asked for, when they are measured, and when they end.
BEGIN_S, FROM_S, UNTIL_S, END_S = 1.5, 1.8, 2.6, 2.7


def receive(port: int, asked: float) -> None:
    """Be the far end of a flow: print its rate over the time in which all are measured."""
    with socket.create_server(("", port)) as server:
        server.settimeout(WAIT_S)
        stream, _ = server.accept()
        received, first = 0, 0
        while received == 0 or time.monotonic() < asked + UNTIL_S:
            received += len(stream.recv(1 << 16))
            if time.monotonic() < asked + FROM_S:
                first = received
        print((received - first) * 8e-6 / (UNTIL_S - FROM_S))  # noqa: T201 - the first host reads it


def send(host: str, port: int, asked: float) -> None:
    """Be the near end of a flow."""
    stream = socket.socket()
    while stream.connect_ex((host, port)):
        stream.close()
        if time.monotonic() > asked + WAIT_S:
            sys.exit(f"{host} does not serve")
        time.sleep(0.01)
        stream = socket.socket()
    if (ahead := asked + BEGIN_S - time.monotonic()) < 0:
        sys.exit(f"{host} was reached {-ahead:.1f} s after all flows had begun")
    time.sleep(ahead)
    with contextlib.suppress(ConnectionError):  # the far end has seen enough
        while time.monotonic() < asked + END_S:
            stream.send(bytes(1 << 16))


def main(flows: list[str]) -> None:
    """Print the rates as JSON, in the order of the flows."""
    asked = time.monotonic()
    servers = []
    for index, flow in enumerate(flows):
        near, far = flow.split(":")
        port = str(PORT + index)
        me = [sys.executable, "-I", "-S", __file__]
        agent = os.environ["COMMBENCH_SSH"]
        serve = [agent, far, *me, "receive", port, str(asked)]
        servers.append(subprocess.Popen(serve, stdout=subprocess.PIPE, text=True))
        subprocess.Popen([agent, near, *me, "send", far, port, str(asked)])
    print(json.dumps([float(server.communicate(timeout=WAIT_S)[0]) for server in servers]))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(int(sys.argv[2]), float(sys.argv[3]))
    elif sys.argv[1] == "send":
        send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
    else:
        main(sys.argv[1:])
