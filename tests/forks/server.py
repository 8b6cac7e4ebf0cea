"""Runs Python programs as forks of one process that has imported torch, numba and commbench, which
takes seconds.

``python server.py DIRECTORY`` returns when a process in the background listens on the socket
``DIRECTORY/socket``. That process ends when its stdin closes. ``client.py`` asks for programs. MPI
is not imported here: its library reads the environment of a program when it is loaded.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from client import FORWARDED, end_as

#: What programs under test import, where it is installed.
IMPORTED = (
    *(
        "torch",
        "torch._dynamo",
        "torch.distributed.run",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
    ),
    *(
        "commbench.cli.measure",
        "commbench.cli.train",
        "commbench.report.page",
    ),
    *("commbench.launch.rank", "commbench.launch.conductor", "commbench.launch.standalone"),
    *(
        "commbench.backends.gloo",
        "commbench.ddp.session",
        "commbench.ddp.inspect",
        "commbench.tuner.plans",
    ),
    *(
        "commbench.hooks",
        "commbench.hooks.topk",
        "commbench.hooks.int8",
        "commbench.hooks.powersgd",
    ),
)
HEADER_BYTES = 8
PR_SET_PDEATHSIG = 1
#: Namespaces of an emulated host or of a node of the tests' Slurm; that of mounts comes last, as it
#: holds /proc.
NAMESPACES = ("ipc", "net", "pid", "time", "uts", "mnt")


@dataclass
class Program:
    """A program that a client asks for."""

    executable: str
    """Path of the client, by which the program starts others."""
    arguments: list[str]
    """What follows ``python`` on the command line: ``-m MODULE ...``, ``-c CODE ...`` or
    ``SCRIPT ...``."""
    environment: dict[str, str]
    directory: str
    cores: list[int]

    def run(self) -> None:
        """Run the program as a new process would."""
        os.chdir(self.directory)
        os.environ.clear()
        os.environ.update(self.environment)
        os.sched_setaffinity(0, self.cores)
        sys.executable = self.executable
        if "PYTHONPATH" in os.environ:
            sys.path[1:1] = os.environ["PYTHONPATH"].split(os.pathsep)
        if self.arguments[0] == "-m":
            sys.path[0] = self.directory
            sys.argv = self.arguments[1:]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        elif self.arguments[0] == "-c":
            sys.path[0] = ""
            sys.argv = ["-c", *self.arguments[2:]]
            sys.modules["__main__"] = ModuleType("__main__")
            names = vars(sys.modules["__main__"])
            exec(self.arguments[1], names)  # noqa: S102 - as the interpreter does
        else:
            sys.path[0] = str(Path(self.arguments[0]).parent)
            sys.argv = self.arguments
            runpy.run_path(sys.argv[0], run_name="__main__")


def import_everything() -> None:
    """Import what is installed, and load the compiled loop."""
    for name in IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    load_native_loop()
    load_hooks()
    assert "mpi4py.MPI" not in sys.modules


def load_native_loop() -> None:
    """Let numba load the loop from its cache, or compile it."""
    try:
        from commbench.engine.timing import native
        from commbench.engine.timing.loops import Call, Progress
        from commbench.engine.timing.sync import Synchroniser
    except ImportError:
        return
    import numpy as np

    control = None
    instant = np.zeros(1, dtype=np.int64)
    timer = native.NativeTimer(
        Synchroniser(control, "none"), Progress(), barrier=(), broadcast=(), instant=instant
    )
    function = native.address_of(ctypes.CDLL(None).abs)
    timer.run([Call(run=lambda: None, rows=[(function, 0)])], 1, 1)


def load_hooks() -> None:
    """Let numba load the work of hooks from its cache, or compile it."""
    try:
        import torch

        from commbench.hooks import chunks, quantisers, selectors
    except ImportError:
        return
    for module in (chunks, quantisers, selectors):
        module.prepare(torch.device("cpu"))


class Server:
    """Forks a program per client, passes signals to it, returns its exit status, and kills it if
    the client ends.
    """

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        self._clients = {}
        self._processes = {}

    def serve(self) -> Program | None:
        """Serve until stdin closes; return None then, and in each fork its program."""
        while True:
            for key, _ in self._selector.select():
                source = key.fileobj
                if source == 0:
                    return None
                if source is self._listener:
                    client, _ = self._listener.accept()
                    self._selector.register(client, selectors.EVENT_READ)
                elif isinstance(source, socket.socket):
                    if source in self._processes:
                        self._pass_signals(source)
                    elif source.fileno() >= 0 and (program := self._start(source)):
                        return program
                else:
                    self._finish(int(source))

    def _start(self, client: socket.socket) -> Program | None:
        """Fork the program of a client; return it in the fork."""
        header, descriptors, _, _ = socket.recv_fds(client, HEADER_BYTES, 3)
        if not header:
            self._selector.unregister(client)
            client.close()
            return None
        with client.makefile("rb") as stream:
            program = Program(**json.loads(stream.read(int(header))))
        credentials = client.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
        )
        server, process = os.getpid(), os.fork()
        if process == 0:
            end_with_parent()
            if os.getppid() != server:
                os._exit(1)
            self._leave(descriptors)
            enter_namespaces(struct.unpack("3i", credentials)[0])
            return program
        for descriptor in descriptors:
            os.close(descriptor)
        self._processes[client] = process
        handle = os.pidfd_open(process)
        self._clients[handle] = client
        self._selector.register(handle, selectors.EVENT_READ)
        return None

    def _leave(self, descriptors: Sequence[int]) -> None:
        """Adopt the client's standard streams in a fork, and close everything of the server.

        The fork stays in the session of the server: where the kernel schedules sessions apart,
        ranks in sessions of their own do not yield to each other.
        """
        os.setpgrp()
        for handle in self._clients:
            os.close(handle)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(  # noqa: SIM115
            2, "w", buffering=1, errors="backslashreplace", closefd=False
        )
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr

    def _pass_signals(self, client: socket.socket) -> None:
        """Send the program the signals that its client received.

        SIGKILL if the client has ended.
        """
        numbers = client.recv(64)
        if not numbers:
            self._selector.unregister(client)
        for number in numbers or [signal.SIGKILL]:
            os.kill(self._processes[client], number)

    def _finish(self, handle: int) -> None:
        """Send a client the exit status of its program."""
        self._selector.unregister(handle)
        os.close(handle)
        client = self._clients.pop(handle)
        _, status = os.waitpid(self._processes.pop(client), 0)
        with contextlib.suppress(OSError):
            client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        with contextlib.suppress(KeyError):
            self._selector.unregister(client)
        client.close()


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def enter_namespaces(process: int) -> None:
    """Enter the namespaces of a process; for a process namespace return in a further fork."""
    own, other = Path("/proc/self/ns"), Path(f"/proc/{process}/ns")
    names = [name for name in NAMESPACES if (own / name).readlink() != (other / name).readlink()]
    handles = [os.open(other / name, os.O_RDONLY) for name in names]
    for name, handle in zip(names, handles, strict=True):
        if ctypes.CDLL(None).setns(handle, 0):
            raise OSError(f"namespace {name} cannot be entered")
        os.close(handle)
    if "pid" in names:
        continue_in_fork()


def continue_in_fork() -> None:
    """Continue in a fork; the parent passes signals on and exits as the fork does."""
    process = os.fork()
    if process == 0:
        end_with_parent()
        return
    for number in FORWARDED:
        signal.signal(number, lambda received, _: os.kill(process, received))
    _, status = os.waitpid(process, 0)
    end_as(os.waitstatus_to_exitcode(status))


def run_and_end(program: Program) -> NoReturn:
    """Run a program and exit as the interpreter does, without freeing every object, which takes a
    second.
    """
    status = 0
    try:
        program.run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def main() -> None:
    """Serve in the background; each fork runs its program."""
    import_everything()
    server = Server(Path(sys.argv[1]) / "socket")
    gc.freeze()
    if os.fork():
        os._exit(0)
    os.setsid()
    program = server.serve()
    if program:
        run_and_end(program)
    os._exit(0)  # taking torch apart takes a second


if __name__ == "__main__":
    main()
