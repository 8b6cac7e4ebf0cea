"""The command line: this module registers every command, which is a function of another module of
this package.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from commbench import __version__
from commbench.cli.examples import add_examples
from commbench.cli.separator import StartingCommand
from commbench.errors import EXIT_CODES, CommbenchError, InputError, LaunchError
from commbench.launch.signals import leave_by_exit

_make_app = partial(
    typer.Typer,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
#: The module below this package and the function of each command, or its `typer.Typer` of further
#: commands.
_COMMANDS = {
    "bench": ("measure", "bench"),
    "run": ("measure", "run"),
    "train": ("train", "train"),
    "tune": ("tune", "tune"),
    "watch": ("tune", "watch"),
    "predict": ("predict", "predict"),
    "compare": ("compare", "compare"),
    "check": ("check", "check"),
    "report": ("report", "report"),
    "export": ("exchange", "export"),
    "env": ("report", "env"),
    "import": ("exchange", "import_"),
    "lab": ("lab", "app"),
}
#: Errors of writing to a full disk, or to a terminal that is gone.
_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
#: Commands that start another program.
_STARTING = frozenset({"tune", "watch"})


class _LazyGroup(TyperGroup):
    """A group that imports the module of a command when the command, or the list of all commands,
    is needed.
    """

    @property
    def commands(self) -> dict[str, Any]:
        """All commands by name, each imported."""
        return {name: self.get_command(None, name) for name in _COMMANDS}

    @commands.setter
    def commands(self, _: object) -> None:
        """Ignore the empty dictionary that the base class sets."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        module, entry_name = _COMMANDS[cmd_name]
        entry = getattr(import_module(f"commbench.cli.{module}"), entry_name)
        holder = _make_app()
        if isinstance(entry, typer.Typer):
            holder.add_typer(entry, name=cmd_name)
            command = typer.main.get_group(holder).get_command(ctx, cmd_name)
        else:
            holder.command(cmd_name, cls=StartingCommand if cmd_name in _STARTING else None)(entry)
            command = typer.main.get_command(holder)
        add_examples(command, cmd_name)
        return command


app = _make_app(
    name="commbench",
    add_completion=True,
    cls=_LazyGroup,
    help="Time collectives and real DDP training; recommend settings, with confidence intervals.",
    epilog="\n".join(
        ["\b", "Exit codes:", *(f"  {code:<3} {meaning}" for code, meaning in EXIT_CODES.items())]
    ),
    no_args_is_help=True,
    result_callback=lambda code, **_: sys.exit(code),
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    if version:
        sys.stdout.write(f"commbench {__version__}\n")
        raise typer.Exit


@contextlib.contextmanager
def _exit_on_closed_pipe() -> Iterator[None]:
    """Exit silently with 141 when the reader of stdout closes the pipe, as after SIGPIPE."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as ending:
        if not any(isinstance(each, BrokenPipeError) for each in (ending, ending.__context__)):
            raise
        _drop_output(sys.stdout)
        sys.exit(128 + signal.SIGPIPE)


def _drop_output(stream: TextIO) -> None:
    """Let Python flush the stream's buffer to nowhere at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def main() -> None:
    """Run the command line and exit with its code (see `commbench.errors`)."""
    leave_by_exit()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell has closed it, as by >&-
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        # a name that a terminal of another language cannot show must not end a run
        getattr(sys, name).reconfigure(errors="backslashreplace")
    try:
        with _exit_on_closed_pipe():
            app()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            name = str(error.filename)[:40]
            _leave(InputError(f"The name {name}... is too long; choose another."))
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        _drop_output(sys.stdout)
        _leave(LaunchError(f"No output is taken ({error.strerror}); what was measured is kept."))
    except CommbenchError as error:
        _leave(error)


def _leave(error: CommbenchError) -> NoReturn:
    from commbench.cli.conduct import print_error

    try:
        print_error(error)
        sys.stderr.flush()
    except OSError:  # stderr may be on the same full disk
        _drop_output(sys.stderr)
    sys.exit(error.exit_code)
