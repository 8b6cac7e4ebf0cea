"""What commbench does now.

Of the contract only this module names commbench's modules and follows their moves.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import inspect
import io
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
#: Variables that would make this process a rank of a launch.
RANK_PREFIXES = ("OMPI_COMM_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_", "PBS_")
#: So wide is a terminal for help and tables, and for sentences, whose paths differ in length
#: between machines.
HELP_WIDTH, SENTENCE_WIDTH = 100, 4000
#: Written files of these kinds are part of what a command prints.
TEXT_SUFFIXES = (".csv", ".prom", ".conf")

Json = Any
Table = list[dict[str, str]]


# --------------------------------------------------------------------------------------------- runs


def rows_of(run_path: Path) -> dict[str, Table]:
    """Return each table that the records of a run fill, as the cells of its CSV file."""
    from commbench.results import load_run
    from commbench.results.tables import table_csv
    from commbench.tuner.predictions import prediction_table

    run = load_run(run_path)
    tables = {
        "collectives": run.collectives,
        "overlap": run.overlap,
        "pairs": run.pairs,
        "ddp": run.ddp,
        "buckets": run.buckets,
        "predictions": prediction_table(run),
    }
    return {
        name: list(csv.DictReader(io.StringIO(table_csv(table))))
        for name, table in tables.items()
        if len(table)
    }


def documents_of(run_path: Path) -> dict[str, Json]:
    """Return the documents computed from a run besides its tables.

    ``conclusion`` is the recommendation, made again.
    """
    from commbench.analysis.runs import network_model, straggler_findings
    from commbench.results import load_run
    from commbench.tuner.decision import recommend
    from commbench.tuner.predictions import with_search

    run = load_run(run_path)
    found = recommend(run.training_records, run.info) if run.training_records else None
    if found:
        found = with_search(found, run.records, run.training_records, run.info)
    documents: dict[str, Json] = {
        "model": network_model(run).to_json(),
        "findings": straggler_findings(run).to_json(),
        "recommendation": _stored_recommendation(run_path, run.recommendation),
        "conclusion": found.to_json() if found else None,
    }
    return {name: document for name, document in documents.items() if document is not None}


def _stored_recommendation(run_path: Path, read: Any) -> Json:
    """Return the values read from ``recommendation.json``, or None without the file."""
    file = run_path / "recommendation.json"
    if read is None or not file.exists():
        return None
    stored, values = json.loads(file.read_text()), json.loads(json.dumps(read.to_json()))
    return {
        key: stored[key] if key == "paragraph" else _projected(stored[key], values.get(key))
        for key in stored
    }


def _projected(stored: Json, read: Json) -> Json:
    """Return the read values of the keys that are stored, as older files lack some."""
    if isinstance(stored, dict) and isinstance(read, dict):
        return {key: _projected(value, read.get(key)) for key, value in stored.items()}
    if isinstance(stored, list) and isinstance(read, list):
        return [_projected(*pair) for pair in zip(stored, read, strict=True)]
    return read


# ------------------------------------------------------------------------------------- the commands


def _root() -> Any:
    """Return the top command of the command line."""
    import typer.main

    from commbench import cli

    return typer.main.get_command(cli.app)


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*words, name))


@functools.cache
def helps() -> dict[str, str]:
    """Return the ``--help`` texts by the command's words joined by ``_``.

    ``commbench`` for the whole.
    """
    with tempfile.TemporaryDirectory() as home:
        return {
            "_".join(words) or "commbench": _run([*words, "--help"], Path(home), HELP_WIDTH)[1]
            for words, _ in _commands(_root())
        }


@functools.cache
def options() -> dict[str, Json]:
    """Return for each command its options by spelling, and its arguments by position."""
    options_by_command = {}
    for words, command in _commands(_root()):
        described: dict[str, Json] = {}
        arguments = 0
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                name = f"argument {arguments}"
                arguments += 1
            else:
                name = " ".join([*parameter.opts, *parameter.secondary_opts])
            described[name] = {
                "default": _plain(parameter.default),
                "required": parameter.required,
                "takes_value": not getattr(parameter, "is_flag", False),
                "may_be_repeated": (
                    bool(getattr(parameter, "multiple", False)) or parameter.nargs == -1
                ),
                "type": _type_name(parameter),
            }
        options_by_command["_".join(words) or "commbench"] = described
    return options_by_command


def bad_input(line: str) -> dict[str, Json]:
    """Run a command line that is refused; return exit code, output and written files."""
    with _home() as home:
        code, out, err, files = _observe(line, home, SENTENCE_WIDTH)
    return {
        "line": line,
        "exit_code": code,
        "stderr": err,
        "stdout_is_empty": not out,
        "files": list(files),
    }


def printed(line: str) -> dict[str, Json]:
    """Run a command line that succeeds; return exit code, output and written texts."""
    with _home() as home:
        code, out, err, files = _observe(line, home, HELP_WIDTH)
    texts = {name: text for name, text in files.items() if name.endswith(TEXT_SUFFIXES)}
    return {
        "line": line,
        "exit_code": code,
        "stdout": out,
        "stderr": err,
        "files": list(files),
        "texts": texts,
    }


def bad_inputs(lines: Iterable[str]) -> list[dict[str, Json]]:
    """Return `bad_input` of each line."""
    return [bad_input(line) for line in lines]


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    """Return a directory with the files that command lines name, such as invalid programs."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name).resolve()
        (home / "foreign").mkdir()
        (home / "foreign" / "thesis.txt").write_text("not ours")
        (home / "bad.py").write_text("SUITE = 1 / 0")
        (home / "text.txt").write_text("no output of a tool\n")
        (home / "repo").symlink_to(
            REPOSITORY
        )  # so that no line is broken elsewhere where the real path is longer
        yield home


def _observe(line: str, home: Path, width: int) -> tuple[int, str, str, dict[str, str]]:
    """Run a line in a directory whose ``repo`` is this repository.

    Print that directory as ``<tmp>``.
    """
    before = set(home.rglob("*"))
    code, out, err = _run(shlex.split(line.replace("<repo>", "repo")), home, width)
    made = {path for path in home.rglob("*") if path.is_file()} - before
    files = {
        str(path.relative_to(home)): _neutral(path.read_text(errors="replace"), home)
        for path in sorted(made)
        if path.suffix != ".pyc"
    }
    return code, _neutral(out, home), _neutral(err, home), files


def _neutral(text: str, home: Path) -> str:
    return text.replace(str(home), "<tmp>").replace(str(REPOSITORY), "<repo>")


def _run(words: Sequence[str], home: Path, width: int) -> tuple[int, str, str]:
    """Run a command line within this process, as user 1000 on a machine with two slots, outside any
    launch.
    """
    from commbench import cli

    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)
    )
    code: object = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for name in os.environ.copy():
            if name.startswith(RANK_PREFIXES):
                patch.delenv(name)
        for name, value in (("COLUMNS", str(width)), ("TERM", "dumb"), ("NO_COLOR", "1")):
            patch.setenv(name, value)
        patch.chdir(home)
        patch.setattr("commbench.launch.launchers.hosts.local_cpus", lambda: 2)
        patch.setattr(os, "geteuid", lambda: 1000)
        patch.setattr(sys, "argv", ["commbench", *words])
        patch.setattr(
            sys.modules["__main__"], "__package__", None
        )  # click reads the name of the program there
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return int(code or 0) if not isinstance(code, str) else 1, texts[0], texts[1]  # type: ignore[call-overload] # an int


# ---------------------------------------------------------------------------------------------- API


def api(recorded: Mapping[str, Json]) -> dict[str, Json]:
    """Return the recorded public names that still exist, each with its parameters and their
    defaults.
    """
    import commbench
    from commbench import hooks

    parameters_by_name: dict[str, Json] = {}
    for module in (commbench, hooks):
        names = [name for name in recorded[module.__name__] if name in module.__all__]
        parameters_by_name[module.__name__] = names
        for name in names:
            value, path = getattr(module, name), f"{module.__name__}.{name}"
            recorded_names = recorded[path]
            current = _parameters(value) if callable(value) else sorted(value)
            parameters_by_name[path] = (
                [entry for entry in current if entry in recorded_names]
                if isinstance(recorded_names, list)
                else current
            )
    return parameters_by_name


def _type_name(parameter: Any) -> str:
    """Return the type of a parameter as Python names it."""
    of = parameter.type_descriptor.annotation
    return of.__name__ if inspect.isclass(of) and "[" not in str(of) else str(of)


def _parameters(of: Any) -> dict[str, str]:
    return {
        name: (
            f"{parameter.kind.name.lower()}, "
            + (
                "required"
                if parameter.default is parameter.empty
                else f"default {_plain(parameter.default)!r}"
            )
        )
        for name, parameter in inspect.signature(of).parameters.items()
    }


def _plain(value: object) -> Json:
    """Return a default as JSON stores it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, frozenset, set)):
        return [_plain(inner) for inner in value]
    return str(value)
