"""The command line: every command is a function of a module here, and this module registers them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from commbench import __version__
from commbench.cli import compare as comparing
from commbench.cli import exchange as exporting
from commbench.cli import exchange as importing
from commbench.cli import lab
from commbench.cli import measure as measuring
from commbench.cli import predict as predicting
from commbench.cli import report as reading
from commbench.cli import train as training
from commbench.cli import tune as tuning
from commbench.cli.conduct import complain
from commbench.errors import CommbenchError
from commbench.launch.signals import leave_by_exit

app = typer.Typer(
    name="commbench",
    help="Time collectives and real DDP training; recommend settings, with confidence intervals.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    result_callback=lambda code, **_: sys.exit(code),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for command in (
    measuring.bench,
    measuring.run,
    training.train,
    tuning.tune,
    predicting.predict,
    comparing.compare,
    reading.report,
    exporting.export,
    reading.env,
):
    app.command()(command)
app.command("import")(importing.import_)
app.add_typer(lab.app, name="lab")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        sys.stdout.write(f"commbench {__version__}\n")
        raise typer.Exit


@contextlib.contextmanager
def _ending_with_its_reader() -> Iterator[None]:
    """Exit silently with 141 when the reader of stdout closes the pipe, as tools do that SIGPIPE ends."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as ending:
        if not any(isinstance(each, BrokenPipeError) for each in (ending, ending.__context__)):
            raise
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # where the interpreter flushes its buffers at exit
        sys.exit(128 + signal.SIGPIPE)


def main() -> None:
    """Run the command line and exit with its code (see `commbench.errors`)."""
    leave_by_exit()
    try:
        with _ending_with_its_reader():
            app()
    except CommbenchError as error:
        complain(error)
        sys.exit(error.exit_code)
