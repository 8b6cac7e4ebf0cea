"""Tests of hooks of a user's own file: naming, reading and making them.

Those on ranks are in test_train.py.
"""

import json
import shutil

import pytest
from launching import HERE
from training_builders import make_training_case

from commbench.ddp.plan.cases import LOCAL, TrainingCase, hook_position
from commbench.errors import InputError
from commbench.findings import UnpredictedError
from commbench.hooks.message import BucketShape
from commbench.hooks.registry import (
    HOOKS,
    canonical_hook,
    find_file_hooks,
    hook_source,
    make_hook,
    parse_hook,
    read_hook,
)
from commbench.results.recommendation import effect_of
from commbench.tuner.snippet import snippet_of

FILE = HERE / "ranks" / "file_hooks.py"


def test_a_hook_is_named_by_file_and_callable():
    """Name the hook without directories, which differ between machines."""
    fields = {"hook": "file_hooks.py:half", "density": None, "hook_options": ""}
    assert fields == parse_hook(f" {FILE}:half ") == parse_hook("file_hooks.py:half")
    assert (
        "file_hooks.py:half"
        == canonical_hook(f"{FILE}:half")
        == make_training_case(f"{FILE}:half").hook_name
    )


def test_files_are_found_before_anything_starts(tmp_path, monkeypatch):
    """Return absolute paths, and refuse a missing file, a missing name and two hooks of the same
    name.
    """
    shutil.copy(FILE, tmp_path)
    monkeypatch.chdir(tmp_path)
    path = f"{tmp_path}/file_hooks.py:half"
    assert (path,) == find_file_hooks(["none", "file_hooks.py:half", "topk:0.01", path])
    assert () == find_file_hooks(["none", "fp16"])
    for hooks in (
        ["absent.py:half"],
        ["file_hooks.py"],
        ["file_hooks.py:"],
        [path, f"{FILE}:half"],
    ):
        with pytest.raises(InputError):
            find_file_hooks(hooks)


def test_a_case_is_read_back():
    """Read the key of a case whose hook is of a file that this machine lacks."""
    case = make_training_case("elsewhere/mine.py:hook")
    assert case == TrainingCase.from_key(json.loads(json.dumps(case.key)))
    assert case.is_file_hook
    assert not make_training_case("fp16").is_file_hook
    assert len(HOOKS) == hook_position(case.hook) < hook_position(LOCAL)


def test_it_is_lossy_and_its_messages_are_unknown():
    """Treat the effect on learning as unknown, and predict no bytes."""
    case = make_training_case("mine.py:hook")
    assert "lossy" == effect_of(case, make_training_case())
    with pytest.raises(UnpredictedError, match="sends is measured, not predicted"):
        read_hook(case.hook).messages(BucketShape(shapes=[(8,)], world_size=2))


def test_the_snippet_makes_the_hook():
    """Write lines that work for hooks and factories."""
    lines = snippet_of(make_training_case("mine.py:hook", "5", precision="amp-fp16")).splitlines()
    assert "from commbench.hooks import make_hook" in lines
    assert (
        'make_hook("mine.py:hook").register(model, scaler=scaler)  # with the path of your file'
        in lines
    )


@pytest.mark.parametrize("name", ["half", "make", "make_pair", "made", "Made", "make_class"])
def test_hooks_and_factories_are_told_apart(name):
    """Guard a hook that requires two arguments, and what a callable without required arguments
    returns.
    """
    pytest.importorskip("torch")
    source = hook_source(f"file_hooks.py:{name}", [f"{FILE}:other", f"{FILE}:{name}"])
    assert f"{FILE}:{name}" == source
    hook = make_hook(source)
    assert ("fp16" if name == "make_class" else f"file_hooks.py:{name}") == hook.name
    assert make_hook(source) is not hook


@pytest.mark.parametrize("name", ["absent", "NUMBER", "partly", "make_seven", "make_nothing"])
def test_misuse_is_one_sentence(name):
    """Say what is wrong with a callable."""
    pytest.importorskip("torch")
    with pytest.raises(InputError, match=name) as caught:
        make_hook(f"{FILE}:{name}")
    assert "\n" not in str(caught.value)


def test_hooks_are_tried_before_ranks_start(tmp_path, capsys):
    """Import a hook in the inspecting process, and call neither hook nor factory."""
    pytest.importorskip("torch")
    from commbench.ddp.inspect import main

    (tmp_path / "failing.py").write_text("import no_such_module\n")
    hooks = [f"{FILE}:{name}" for name in ("raising", "make_nothing")]
    assert 0 == main(json.dumps({"hooks": hooks}))
    assert {"ok": {}} == json.loads(capsys.readouterr().out)
    assert 2 == main(json.dumps({"hooks": [*hooks, f"{tmp_path}/failing.py:hook"]}))
    assert (
        "failing.py cannot be imported (ModuleNotFoundError"
        in json.loads(capsys.readouterr().out)["error"]
    )
