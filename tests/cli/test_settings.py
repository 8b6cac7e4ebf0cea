"""Tests of the options that commands share: where they stand, what they make."""

import re
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner, Result

from commbench.cli.command_line import Given, check_needed, refuse, takes_options
from commbench.cli.options import Settings
from commbench.cli.request import default_out
from commbench.cli.train import short_name
from commbench.collectives.cases import Axes, Sweep
from commbench.ddp.plan.cases import TrainingSweep
from commbench.errors import InputError

#: What a command was called with.
SEEN = []


@takes_options
def command(
    *,
    suite: Annotated[str, typer.Argument()] = "quick",
    axes: Annotated[Axes, Sweep, "dtypes", "sync", "env"],
    trained: Annotated[Axes, TrainingSweep, "bucket_views", "batches"],
    settings: Settings,
    given: Given,
) -> int:
    """Record the call."""
    SEEN.append(locals())
    return 0


def invoked(line: str) -> Result:
    """Return the outcome of a command line."""
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, line.split())


def test_without_options_a_command_gets_the_defaults():
    """Parse an empty command line into defaults; axes without a text have no value."""
    assert 0 == invoked("").exit_code
    assert SEEN.pop() == {
        "suite": "quick",
        "axes": {},
        "trained": {"bucket_views": (False,)},
        "settings": Settings(),
        "given": [],
    }


def test_options_fill_the_parameters_that_stand_for_them():
    """Divide options in any order; read the texts of axes; tell what was typed."""
    line = (
        "-n 4 mine --bucket-view both --out there -d int8,float32 --launcher-arg -x --sync none"
        " --launcher-arg -y --case-timeout 5 --fail-fast --env A=1 --env B=2"
    )
    assert 0 == invoked(line).exit_code
    seen = SEEN.pop()
    expected = Settings(
        ranks=4, out=Path("there"), launcher_arg=["-x", "-y"], case_timeout=5.0, fail_fast=True
    )
    axes = {"dtypes": ("int8", "float32"), "sync": "none", "env": ["A=1", "B=2"]}
    assert (expected, axes) == (seen["settings"], seen["axes"])
    assert {"bucket_views": (False, True)} == seen["trained"]
    assert {"SUITE", "--ranks", "--dtype", "--launcher-arg"} < set(seen["given"])
    assert "--hostfile" not in seen["given"]


def test_a_text_that_is_not_understood_names_its_option():
    """Begin the sentence with the option."""
    with pytest.raises(InputError, match=r"^--batch: few"):
        raise invoked("--batch few").exception


def test_options_exclude_each_other_only_if_typed():
    """Refuse two options that were typed, also with their default values."""
    refuse(("--as",), "--as", ("--soak",), "which measures once")
    refuse(("--soak",), "--as", ("--soak",), "which measures once")
    with pytest.raises(InputError, match="--soak was given with --as"):
        refuse(("--soak", "--as"), "--as", ("--soak",), "which measures once")
    with pytest.raises(InputError, match="--link works only with --expect"):
        check_needed(("--link",), "--link", "--expect")


def test_a_default_directory_is_free(tmp_path, monkeypatch):
    """Number the directory of a further run that begins within the same second."""
    monkeypatch.chdir(tmp_path)
    names = set()
    for _ in range(3):
        path = default_out("import")
        path.mkdir(parents=True)  # raises if it exists
        names.add(path.name)
    assert all(re.match(r"\d{8}T\d{6}Z-import-", name) for name in names)


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        ("resnet18", "resnet18"),
        ("./own.model.py:Model", "own.model"),
        ("trace:kept/12:30/bert.large.json", "bert.large"),
        ("package.finetune", "package.finetune"),
        ("train.sh", "train.sh"),
    ],
)
def test_results_are_named_after_the_workload(workload, name):
    """Keep the name of a module or a file, without what stands before or after it."""
    assert f"tune-{name}" == short_name("tune", workload)
