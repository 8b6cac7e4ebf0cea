"""Tests of the bytes that a process sent, with transfers of known size."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commbench.system import process as traffic

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs Linux")


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return the two ends of a TCP connection within this process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near, far


def drain(end: socket.socket, count: int) -> None:
    """Receive the given number of bytes."""
    while count > 0:
        count -= len(end.recv(1 << 16))


def send(near: socket.socket, far: socket.socket, count: int) -> None:
    """Send the given number of bytes and wait until they arrive."""
    receiver = threading.Thread(target=drain, args=(far, count))
    receiver.start()
    near.sendall(bytes(count))
    receiver.join(60)
    assert not receiver.is_alive()


def open_descriptors() -> list[str]:
    """Return the open file descriptors of this process."""
    return sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only


def test_sent_bytes_of_all_sockets_are_added():
    """Count the bytes that each end of each connection sends, and none that it receives."""
    with connected() as first, connected() as second:
        before = traffic.settled_sent_bytes() or 0
        send(*first, 100_000)
        send(*first[::-1], 200_000)
        send(*second, 4_000_000)
        after = traffic.settled_sent_bytes() or 0
    assert 4_300_000 == pytest.approx(after - before, rel=0.01)


def test_what_is_no_tcp_socket_counts_nothing(tmp_path):
    """Ignore files, pipes, datagrams, Unix sockets and what is closed."""
    near, far = socket.socketpair()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    reading, writing = os.pipe()
    with near, far, datagrams, (tmp_path / "file").open("w") as file:
        near.sendall(bytes(1000))
        ends = (near.fileno(), reading, writing, datagrams.fileno(), file.fileno())
        assert [None] * 5 == [traffic._socket_bytes(end) for end in ends]
    os.close(reading)
    os.close(writing)
    assert traffic._socket_bytes(writing) is None


def test_looking_leaks_no_descriptor_and_closes_none():
    """Keep all file descriptors open and usable, and leak none."""
    with connected() as (left, right):
        before = open_descriptors()
        for _ in range(50):
            traffic.sent_bytes()
        assert before == open_descriptors()
        send(left, right, 10)


def test_where_the_system_does_not_tell_there_is_no_number(stub):
    """Return None, not zero, on an unsupported system."""
    stub("os.listdir", [])
    assert traffic.sent_bytes() is None
    assert traffic.settled_sent_bytes() is None


def test_an_old_kernel_gives_no_sent_bytes(monkeypatch):
    """Return None for a kernel without the counter."""
    with connected() as (near, _):
        assert traffic._socket_bytes(near.fileno()) is not None
        monkeypatch.setattr(traffic, "_TCP_INFO_BYTES", 104)
        assert traffic._socket_bytes(near.fileno()) is None
