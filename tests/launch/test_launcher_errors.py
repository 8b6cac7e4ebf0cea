"""Tests of sentences for launcher errors, on real texts."""

import pytest

from commbench.launch.launcher_errors import explain, find_warning

DAEMON = """
A daemon failed to report back after being spawned. This could
be due to several factors.

  Local host:    vm
  Remote host:   {host}
  Daemon exit status: 255
"""
RESOLVE = "ssh: Could not resolve hostname nosuchhost.invalid: Name or service not known\n"
SLOTS = """
There are not enough slots available in the system to satisfy the 50
slots that were requested by the application:
"""
EXECUTABLE = """
prterun was unable to launch the specified application as it could not
access an executable:

   Executable: /opt/python
   Node: n1
"""
MEMORY = "/dev/shm"  # noqa: S108 - not a file of ours
SHM = """
It appears as if there is not enough space for /dev/shm/sm_segment.vm.0.65b90001.1 (the shared-memory backing
file). It is likely that your MPI job will now either abort or experience
performance degradation.
"""
PORT = (
    "The server socket has failed to listen on any local network address. port: 29555, code: -98,"
    " name: EADDRINUSE"
)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (
            RESOLVE + DAEMON.format(host="nosuchhost"),
            "the host name nosuchhost.invalid does not resolve; correct",
        ),
        (
            "ssh: connect to host 10.9.9.9 port 22: Connection refused",
            "host 10.9.9.9 refuses ssh; start its",
        ),
        (
            "ssh: connect to host n7 port 22: No route to host",
            "host n7 cannot be reached by ssh (No route to host);",
        ),
        (
            "ssh: connect to host n7 port 22: Connection timed out",
            "host n7 cannot be reached by ssh (Connection timed",
        ),
        (
            "me@n7: Permission denied (publickey,password).",
            "ssh to me@n7 is denied (publickey,password); make `ssh",
        ),
        (
            "Host key verification failed.",
            "ssh does not trust a host's key; make `ssh HOST true` work",
        ),
        (
            DAEMON.format(host="n7"),
            "mpirun could not start its daemon on host n7; make `ssh n7 true`",
        ),
        (SLOTS, "mpirun has fewer slots than ranks were asked for; ask for fewer"),
        (EXECUTABLE, "/opt/python cannot be started on host n1; install the same environment"),
        (
            "/usr/bin/python: No module named mpi4py",
            "mpi4py is not installed for the Python that the ranks run;",
        ),
        (PORT, "port 29555, on which ranks are to meet, is in use; end"),
        ("bind: address already in use", "a port on which ranks are to meet is in use; end"),
        (
            SHM,
            (
                f"{MEMORY} is full, which ranks of one host need to exchange messages in memory;"
                " make room"
            ),
        ),
        (
            "write: No space left on device",
            "a disk that ranks or their launcher write to is full; make room",
        ),
        (
            "[W socket.cpp:764] [c10d] The IPv6 network addresses of (n7, 41975) cannot be retrieved",
            "the host name n7 does not resolve; correct /etc/hosts",
        ),
        (
            "[vm:15214] pmix_ifinit: unable to find network interfaces.",
            "no network interface is up; the ranks of one host need the loopback",
        ),
        ("something else", ""),
    ],
)
def test_an_error_of_a_launcher_becomes_a_sentence(output: str, expected: str) -> None:
    """Translate a launcher's error into a sentence with what to do."""
    assert bool(expected) == bool(explain(output.splitlines()))
    assert explain(output.splitlines()).startswith(expected)


def test_a_full_memory_file_system_is_a_warning() -> None:
    """Warn if ranks could not use shared memory."""
    assert find_warning(SHM.splitlines()).startswith(
        f"{MEMORY} is full, so ranks of one host could not"
    )
    assert "" == find_warning(["anything"])
