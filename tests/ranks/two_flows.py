"""Run on the first of three emulated hosts: the rate at which it sends to both others at once, and receives."""

import json
import os
import socket
import subprocess
import sys
import threading
import time

PORT = 9000
BYTES = 5_000_000
WAIT_S = 30


def send(stream: socket.socket) -> None:
    """Send, and wait until the other side has everything."""
    stream.sendall(bytes(BYTES))
    stream.recv(1)


def receive(stream: socket.socket) -> None:
    """Receive, and say that everything has come."""
    missing = BYTES
    while missing:
        missing -= len(stream.recv(1 << 20))
    stream.sendall(b"!")


def serve() -> None:
    """Be another host: receive once, then send once."""
    with socket.create_server(("", PORT)) as server:
        for act in (receive, send):
            with server.accept()[0] as stream:
                act(stream)


def connect(host: str) -> socket.socket:
    """Connect to a host as soon as it serves."""
    end = time.monotonic() + WAIT_S
    stream = socket.socket()
    while stream.connect_ex((host, PORT)):
        stream.close()
        if time.monotonic() > end:
            sys.exit(f"{host} does not serve")
        time.sleep(0.01)
        stream = socket.socket()
    return stream


def main() -> None:
    """Print the rates in Mbit/s as JSON: ``out`` and ``in``."""
    hosts = ("host1", "host2")
    agent = os.environ["COMMBENCH_SSH"]
    for host in hosts:
        subprocess.Popen([agent, host, sys.executable, __file__, "serve"])
    rates = {}
    for direction, act in (("out", send), ("in", receive)):
        streams = [connect(host) for host in hosts]
        threads = [threading.Thread(target=act, args=(stream,)) for stream in streams]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rates[direction] = len(hosts) * BYTES * 8e-6 / (time.perf_counter() - start)
    print(json.dumps(rates))  # noqa: T201 - the test reads it


if __name__ == "__main__":
    serve() if sys.argv[1:] else main()
