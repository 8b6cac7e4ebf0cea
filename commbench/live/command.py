"""Starts the command of a training such that commbench tunes or watches the training, and concludes
when it has ended.

The command runs as it would without commbench: in the same terminal, with the same input and
output, and its exit code is passed on. Two variables of its environment bring commbench into its
processes, see ``site/sitecustomize.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from commbench.errors import InputError
from commbench.launch.identity import identify
from commbench.launch.launchers.mpirun import implementation
from commbench.launch.signals import PASSED_ON, passing_on
from commbench.live.options import DONE, VARIABLE, LiveOptions, Mode, say
from commbench.live.run import complete, mode_of
from commbench.results.files import RUN
from commbench.results.info import is_live
from commbench.results.reading import read_info
from commbench.results.writing import check_out

#: The directory that holds ``sitecustomize.py``.
SITE = Path(__file__).parent / "site"
SEARCH_PATH = "PYTHONPATH"
#: The variables by which the processes of the command are reached.
_BOTH = (SEARCH_PATH, VARIABLE)
#: What srun takes for --export where sbatch was given that option.
_SLURM_EXPORT = "SLURM_EXPORT_ENV"
#: Names of Open MPI's launchers begin so; those of other MPI libraries do, too.
_MPIRUNS = ("mpirun", "mpiexec", "orterun")
#: Modules that start another module or script: ``python -m torch.distributed.run train.py``.
STARTERS = ("torch.distributed.", "accelerate.", "mpi4py", "deepspeed.")
#: Of prctl(2): the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1
#: Seconds within which the probe of the process group reports a signal, and time between looks.
PROBE_S, LOOK_S = 0.3, 0.01
#: Bytes that a disk must take at least.
_PROBE_BYTES = 65536


def name_of(command: Sequence[str]) -> str:
    """Return the name of a training: its script or its module, else its program.

    The first of these decides: an argument that ends in ``.py`` or ``.sh``, or ``-m`` before a
    module that starts no other.

    Raises:
        InputError: there is no command.
    """
    if not command:
        raise InputError(
            "No command stands behind --; write your training's, e.g. -- torchrun train.py."
        )
    for option, word in zip(["", *command], command, strict=False):
        if option in {"-m", "--module"} and not word.startswith((*STARTERS, "-")):
            return word
        if word.endswith((".py", ".sh")) and not word.startswith("-"):
            return Path(word).name
    return Path(command[0]).name


def check_run(path: Path, workload: str, mode: Mode = "tune") -> None:
    """Check that a directory can hold the results of a training; write nothing.

    Raises:
        InputError: it holds something else.
    """
    check_out(path)
    if not (path / RUN).exists():
        return
    info = read_info(path)
    if not is_live(info) or mode_of(info) != mode:
        raise InputError(
            f"--out {path} holds a run that commbench {mode} -- COMMAND did not write; choose"
            " another --out."
        )
    before = (info.get("plan") or {}).get("workload")
    if before != workload:
        raise InputError(
            f"--out {path} holds results of {before}, and this is {workload}; choose another --out."
        )


def why_unwritable(path: Path) -> str:
    """Return why a directory cannot be made or written.

    Empty if it can, or if something else is at its place.
    """
    place = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not place.is_dir():
        return ""
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return ""


def attach_to(command: Sequence[str], options: LiveOptions) -> int:
    """Run the command of a training, tune or watch it, and print the conclusion on stderr.

    Return its exit code.

    Raises:
        InputError: the command cannot be started, or ``options.out`` holds something else.
    """
    out = Path(options.out)
    reason = why_unwritable(out)
    if reason:
        reason = f"--out {out} cannot be written ({reason})"
    else:
        check_run(out, options.workload, options.mode)
        try:
            scratch = tempfile.TemporaryDirectory(prefix="commbench-", ignore_cleanup_errors=True)
        except OSError as error:
            reason = f"it needs a temporary directory ({error.strerror})"
    if reason:
        say(f"the training is not {DONE[options.mode]}, because {reason}.")
        return run_command(command, os.environ)
    with scratch as directory:
        concludes = identify(os.environ).rank == 0
        if concludes:
            options = dataclasses.replace(options, witness=str(Path(directory) / "witness"))
        environment = dict(os.environ)
        environment[VARIABLE] = options.dumps()
        environment[SEARCH_PATH] = _search_path(environment.get(SEARCH_PATH, ""))
        if _SLURM_EXPORT in environment:
            environment[_SLURM_EXPORT] = _exported(environment[_SLURM_EXPORT])
        code = run_command(_carrying(command), environment)
        if concludes:
            _conclude(options)
    return code


def _search_path(inherited_path: str) -> str:
    """Return a PYTHONPATH that begins with `SITE`.

    An empty part would stand for the working directory.
    """
    return os.pathsep.join(filter(None, [str(SITE), inherited_path]))


def _carrying(command: Sequence[str]) -> list[str]:
    """Return the command such that its launcher passes both variables to the ranks of all hosts."""
    words = [*command]
    name = Path(words[0]).name
    if name == "srun":
        for place in range(1, len(words)):
            if words[place - 1] == "--export":
                words[place] = _exported(words[place])
            elif words[place].startswith("--export="):
                words[place] = f"--export={_exported(words[place].partition('=')[2])}"
    elif name == "prterun" or (name.startswith(_MPIRUNS) and implementation(words[0]) == "openmpi"):
        missing = [*_BOTH]
        for place in range(1, len(words)):
            if words[place - 1] == "-x":
                words[place] = _own_path_first(words[place])
                missing = [each for each in missing if each != _variable_of(words[place])]
        for each in reversed(missing):
            words[1:1] = ["-x", each]
    return words  # other launchers pass the whole environment


def _exported(variables: str) -> str:
    """Return the value of srun's ``--export`` with both variables.

    A list passes Slurm's own, as NONE does.
    """
    assignments = []
    for each in variables.split(","):
        if each not in {"NONE", "NIL"}:
            assignments.append(_own_path_first(each))
    names = set(map(_variable_of, assignments))
    for each in _BOTH:
        if names.isdisjoint({each, "ALL"}):
            assignments.append(each)
    return ",".join(assignments)


def _variable_of(assignment: str) -> str:
    return assignment.partition("=")[0]


def _own_path_first(assignment: str) -> str:
    """Return an assignment ``NAME=VALUE``; put `SITE` first in the value of PYTHONPATH."""
    if not assignment.startswith(f"{SEARCH_PATH}="):
        return assignment
    return f"{SEARCH_PATH}={_search_path(assignment.partition('=')[2])}"


class GroupProbe:
    """A process in the group of this one, which reports each signal of `PASSED_ON` that it gets."""

    _SCRIPT = f"""
import os, signal
while True:
    os.write(1, bytes([signal.sigwait({[*map(int, PASSED_ON)]})]))
"""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._got: set[int] = set()
        """Signals that it has reported, and this process has not handled."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process."""
        end_with_parent = _end_with_parent()

        def set_up() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # they wait for the script
            end_with_parent()

        with contextlib.suppress(OSError):  # without it a signal to the group is passed on, too
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", self._SCRIPT],
                stdin=subprocess.DEVNULL,
                stdout=self._writer,
                stderr=subprocess.DEVNULL,
                preexec_fn=set_up,  # noqa: PLW1509 - it is short
            )

    def has_got(self, number: int) -> bool:
        """Return whether a signal that this process has just got came to the whole group."""
        end_s = time.monotonic() + PROBE_S
        while number not in self._got and time.monotonic() < end_s:
            # Not for long: the handler of another signal may read all reports meanwhile.
            select.select([self._reader], [], [], LOOK_S)
            with contextlib.suppress(BlockingIOError):
                self._got.update(os.read(self._reader, 64))
        is_known = number in self._got
        self._got.discard(number)
        return is_known

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        os.close(self._reader)
        os.close(self._writer)


def _end_with_parent() -> Callable[[], object]:
    """Return a function that lets the process that calls it be killed when its parent ends."""
    return functools.partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)


def _without_coercion(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return an environment without the LC_CTYPE that Python sets where there is no locale."""
    variables = {**environment}
    with contextlib.suppress(OSError):
        if b"\0LC_CTYPE=" not in b"\0" + Path("/proc/self/environ").read_bytes():
            variables.pop("LC_CTYPE", None)
    return variables


def run_command(
    command: Sequence[str], environment: Mapping[str, str], output: IO[str] | None = None
) -> int:
    """Run a command and pass signals on to it; return its exit code, 128 + N after signal N.

    The command shares the process group of this process, as what a caller starts without commbench
    shares its group. So a signal to the whole group, as of Ctrl-C, ``timeout`` or ``killpg``,
    reaches all that the command has started, and is not passed on. The command is killed if this
    process is. Its stdout and stderr go to ``output``, or where those of this process go.

    Raises:
        InputError: it cannot be started.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []
    ignores_children = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    if ignores_children:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else the kernel keeps no exit code
    probe = GroupProbe()
    end_with_parent = _end_with_parent()

    def set_up() -> None:
        end_with_parent()
        if ignores_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        is_for_group = probe.has_got(number)
        if child is None:
            early.append(number)
        elif not is_for_group:
            child.send_signal(number)

    with contextlib.closing(probe), passing_on(pass_on):
        probe.start()
        try:
            child = subprocess.Popen(
                command,
                env=_without_coercion(environment),
                stdout=output,
                stderr=output,
                close_fds=False,  # those of ``<(...)`` and ``3>file``; Python's own stay closed
                preexec_fn=set_up,  # noqa: PLW1509 - it is short
            )
        except OSError as error:
            raise InputError(
                f"The command {command[0]} cannot be started ({error.strerror or error})."
            ) from error
        for number in early:
            child.send_signal(number)
        code = child.wait()
    if code < 0:
        return 128 - code
    return code


def _conclude(options: LiveOptions) -> None:
    """Complete the results and print the conclusion.

    A failure here must not change the exit code.
    """
    results = f"The results in {options.out}"
    try:
        with passing_on(_interrupt):
            lines = complete(options)
    except KeyboardInterrupt:
        lines = [f"{results} were not completed, because a signal came."]
    except Exception as error:  # noqa: BLE001 - as the docstring says
        lines = [f"{results} could not be completed: {str(error) or type(error).__name__}"]
    say("\n".join(lines))


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
