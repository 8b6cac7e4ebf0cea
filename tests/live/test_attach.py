"""Tests of attaching live tuning to training processes, with a stand-in for torch and with
torch.
"""

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import RANK_PREFIXES
from launching import assert_code, finished
from places import ROOT

from commbench.live.command import SITE
from commbench.live.options import VARIABLE, LiveOptions, say

#: A package tree with the names that are watched, and a commbench that prints what it is given.
FAKES = {
    "torch/__init__.py": "",
    "torch/nn/__init__.py": "",
    "torch/nn/parallel/__init__.py": (
        "from torch.nn.parallel.distributed import DistributedDataParallel"
    ),
    "torch/nn/parallel/distributed.py": (
        """
class DistributedDataParallel:
    def __init__(self, module, device_ids=None, *, bucket_cap_mb=None):
        if module is None:
            raise TypeError("no module")
        self.module, self.cap = module, bucket_cap_mb
"""
    ),
    "deepspeed/__init__.py": "",
    "deepspeed/runtime/__init__.py": "",
    "deepspeed/runtime/engine.py": (
        "class DeepSpeedEngine:\n    def __init__(self):\n        self.module = 1"
    ),
    "commbench/__init__.py": "",
    "commbench/live/__init__.py": "",
    "commbench/live/imports.py": SITE.with_name("imports.py").read_text(),
    "commbench/live/adopt.py": (
        """
print("attached", flush=True)
def take(made):
    print("take", type(made).__name__, vars(made), flush=True)
    return "it is no DDP model" if type(made).__name__ == "DeepSpeedEngine" else ""
"""
    ),
}
DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\n"


def run_python(
    home: Path, script: str, fakes: Mapping[str, str] = FAKES, **environ: str
) -> "subprocess.CompletedProcess[str]":
    """Run a script as a training process: in a Python that sees our directory, ``home`` and its
    fakes.
    """
    for name, text in fakes.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    environment = {"PYTHONPATH": f"{SITE}{os.pathsep}{home}", VARIABLE: "{}", **environ}
    for name, value in os.environ.items():
        if not name.startswith((*RANK_PREFIXES, "RANK")):
            environment.setdefault(name, value)
    return finished(sys.executable, "-c", script, env=environment, cwd=home)


# ------------------------------------------------------------------------------------ what is taken


def test_a_model_is_taken_when_it_is_complete(tmp_path):
    """Attach to each DDP object once, with positional or keyword arguments, or of a subclass.

    Its class shows the arguments of DDP to those that look for one.
    """
    script = """
import inspect
class Own(DDP):
    def __init__(self, module):
        super().__init__(module, bucket_cap_mb=2)
DDP(1), DDP(module=2, bucket_cap_mb=3), Own(4)
print(inspect.getfullargspec(DDP)[0])
"""
    done = run_python(tmp_path, DDP + script)
    assert ("", 0) == (done.stderr, done.returncode)
    assert [
        "attached",
        "take DistributedDataParallel {'module': 1, 'cap': None}",
        "take DistributedDataParallel {'module': 2, 'cap': 3}",
        "take Own {'module': 4, 'cap': 2}",
        "['self', 'module', 'device_ids']",
    ] == done.stdout.splitlines()


def test_a_constructor_that_raises_is_as_without_us(tmp_path):
    """Raise DDP's own error, and attach nothing."""
    done = run_python(tmp_path, f"{DDP}DDP(None)")
    assert 1 == done.returncode
    assert "" == done.stdout
    assert "TypeError: no module" == done.stderr.splitlines()[-1]


def test_a_warning_of_a_constructor_names_the_line_of_the_script(tmp_path):
    """Report a deprecated argument where it stands, as filters by module need it."""
    warns = """
import warnings
class DistributedDataParallel:
    def __init__(self):
        warnings.warn("deprecated", stacklevel=2)
"""
    fakes = FAKES | {"torch/nn/parallel/distributed.py": warns}
    done = run_python(tmp_path, f"{DDP}DDP()", fakes)
    assert "<string>:2: UserWarning: deprecated" == done.stderr.strip()


def test_a_finder_of_an_old_kind_is_left_out(tmp_path):
    """Import torch although an object in ``sys.meta_path`` has no ``find_spec``."""
    old = "type('Old', (), {'find_module': lambda *_: None})()"
    done = run_python(tmp_path, f"import sys; sys.meta_path.insert(1, {old})\n{DDP}DDP(1)")
    assert ("", 0) == (done.stderr, done.returncode)


def test_nothing_is_loaded_before_a_model_is_made(tmp_path):
    """Import torch's module without importing commbench."""
    done = run_python(tmp_path, f"{DDP}import sys; print('commbench' in sys.modules)")
    assert ("False\n", "", 0) == (done.stdout, done.stderr, done.returncode)


@pytest.mark.parametrize(
    ("environ", "lines"),
    [
        ({}, 1),
        ({"RANK": "0", "SLURM_PROCID": "3"}, 1),
        ({"RANK": "1"}, 0),
        ({"OMPI_COMM_WORLD_RANK": "1"}, 0),
        ({"PMI_RANK": "1"}, 0),
        ({"SLURM_PROCID": "1"}, 0),
    ],
)
def test_an_engine_that_is_not_tuned_is_named_once(tmp_path, environ, lines):
    """Print the reason in one line on stderr, on rank 0 alone."""
    script = "from deepspeed.runtime.engine import DeepSpeedEngine as E\nE(), E()"
    done = run_python(tmp_path, script, **environ)
    line = "commbench: the training is not tuned, because it is no DDP model.\n"
    assert (lines * line, 0) == (done.stderr, done.returncode)


def test_a_python_without_commbench_trains_on(tmp_path):
    """Name the Python and the reason in one line, once for any number of models."""
    fakes = FAKES | {"commbench/__init__.py": "raise ImportError('no such wheel')"}
    done = run_python(tmp_path, f"{DDP}DDP(1), DDP(2); print('trained')", fakes)
    assert ("trained\n", 0) == (done.stdout, done.returncode)
    assert 1 == len(done.stderr.splitlines())
    assert (
        f"{sys.executable} cannot import commbench (ImportError: no such wheel); install"
        in done.stderr
    )


def test_a_file_of_the_script_stands_for_no_module_of_python(tmp_path):
    """Give commbench Python's own module, and afterwards the script its file of that name."""
    adopt = """
import statistics
print(statistics.fmean([3]))
def take(made):
    return ""
"""
    own = {"statistics.py": "print('own')", "commbench/live/adopt.py": adopt}
    done = run_python(tmp_path, f"{DDP}DDP(1)\nimport statistics", FAKES | own)
    assert ("3.0\nown\n", "", 0) == (done.stdout, done.stderr, done.returncode)


# ------------------------------------------------------------------------- the site's sitecustomize


def test_the_site_customises_as_without_us(tmp_path):
    """Run the site's own sitecustomize, and remove our directory from the path."""
    own = {"sitecustomize.py": "print('own', __name__)\nvalue = 5"}
    script = (
        "import sys, sitecustomize; print(sitecustomize.value, sitecustomize.__file__);"
        " print(sys.path[1])"
    )
    done = run_python(tmp_path, script, own)
    assert [
        "own sitecustomize",
        f"5 {tmp_path}/sitecustomize.py",
        str(tmp_path),
    ] == done.stdout.splitlines()
    assert "" == done.stderr


@pytest.mark.parametrize(
    "text", ["import absent_module", "raise ValueError('broken')", "raise SystemExit(3)"]
)
def test_errors_of_the_site_are_reported_by_python(tmp_path, text):
    """Report errors of the site's sitecustomize as Python does without us."""
    own = {"sitecustomize.py": text}
    ends = []
    for path in (f"{SITE}{os.pathsep}{tmp_path}", str(tmp_path)):
        done = run_python(tmp_path, "print('on')", own, PYTHONPATH=path)
        ends.append((done.returncode, done.stdout, done.stderr.splitlines()[-1]))
    assert ends[0] == ends[1]


def test_without_the_variable_only_the_site_is_customised(tmp_path):
    """Install no hook without our variable."""
    script = "import sys; print(type(sys.meta_path[0]).__name__)"
    done = run_python(tmp_path, script, {"sitecustomize.py": "print('own')"}, **{VARIABLE: ""})
    assert "own" == done.stdout.splitlines()[0]
    assert "Finder" != done.stdout.splitlines()[1]


# --------------------------------------------------------------------------------------- real torch

TRAINING = """
import sys, torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
print("commbench" in sys.modules)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(4, 4)
ddp = DDP(model, bucket_cap_mb=3)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for _ in range(9):
    optimizer.zero_grad()
    ddp(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(type(ddp) is DDP, ddp.bucket_bytes_cap)
print("FSDP", file=sys.stderr, flush=True)
fully_shard(torch.nn.Linear(2, 2), mesh=dist.init_device_mesh("cpu", (1,)))
print("again", file=sys.stderr, flush=True)
FullyShardedDataParallel(torch.nn.Linear(2, 2), device_id=torch.device("cpu"))
"""


@pytest.mark.programs
def test_a_real_training_that_is_not_tuned_is_untouched(tmp_path):
    """Train one rank, and both types of FSDP, unchanged, with a line per reason and no run."""
    pytest.importorskip("torch")
    options = LiveOptions(out=str(tmp_path / "out"), workload="train.py")
    path = os.pathsep.join([str(SITE), str(ROOT)])
    done = run_python(tmp_path, TRAINING, {}, PYTHONPATH=path, **{VARIABLE: options.dumps()})
    assert_code(done, 0)
    assert ["False", f"True {3 << 20}"] == done.stdout.splitlines()
    of_ddp, _, rest = done.stderr.partition("FSDP\n")
    of_fsdp, _, others = rest.partition("again\n")
    assert 1 == len(of_ddp.splitlines())
    assert "one rank" in of_ddp
    line = (
        "commbench: the training is not tuned, because FSDP exchanges gradients itself, without the"
        " buckets of DDP."
    )
    assert [line] == of_fsdp.splitlines()
    assert line not in others
    assert not (tmp_path / "out").exists()


def test_engines_are_named_by_their_packages():
    """Name engines by their classes' packages, also for derived classes."""
    adopt = pytest.importorskip("commbench.live.adopt")
    engine = type("Engine", (), {"__module__": "deepspeed.runtime.engine"})
    own = type("Own", (engine,), {"__module__": "train"})
    horovod = type("SGD", (), {"__module__": "horovod.torch.optimizer"})
    sharded = type("F", (), {"__module__": "torch.distributed.fsdp.fully_sharded_data_parallel"})
    names = ["DeepSpeed", "Horovod", "FSDP"]
    assert names == [adopt.take(made()).partition(" ")[0] for made in (own, horovod, sharded)]


def test_a_tuning_that_cannot_begin_is_a_clause(monkeypatch):
    """Return the reason instead of raising if the variable is invalid."""
    adopt = pytest.importorskip("commbench.live.adopt")
    monkeypatch.setenv(VARIABLE, "{}")
    monkeypatch.setattr(adopt, "why_untouchable", lambda _: "")
    reason = adopt.take(object.__new__(adopt.DistributedDataParallel))
    assert f"commbench could not begin (InputError: {VARIABLE} holds '{{}}'" in reason


@pytest.mark.parametrize(
    ("stream", "maker", "is_left_alone"),
    [
        (0, "train", False),
        (7, "train", True),
        (7, "lightning.pytorch.strategies.ddp", False),
        (7, "lightning_fabric.strategies.ddp", False),
    ],
)
def test_a_model_for_a_cuda_graph_is_left_alone(monkeypatch, stream, maker, *, is_left_alone):
    """Touch no model that a script has made on another stream than the default one; Lightning makes
    all its models so.
    """
    adopt = pytest.importorskip("commbench.live.adopt")
    cuda = SimpleNamespace(current_stream=lambda _: stream, default_stream=lambda _: 0)
    monkeypatch.setattr(adopt, "cuda", cuda)
    model = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    in_maker = {"__name__": maker, "why": adopt.why_untouchable, "model": model}
    why = eval("why(model)", in_maker)  # noqa: S307 - as a module of that name
    assert is_left_alone == ("CUDA graph" in why)


def test_a_model_whose_hooks_are_compiled_gets_none():
    """Touch no model that compiled autograd reduces."""
    adopt = pytest.importorskip("commbench.live.adopt")
    model = SimpleNamespace(_use_python_reducer=True)
    assert "compiled autograd" in adopt.why_untouchable(model)


@pytest.mark.parametrize(
    ("own", "copied"), [({"epoch": 1, "join_hook": 2}, {"epoch": 1}), ((1, "x"), (1, "x"))]
)
def test_a_subclass_is_copied_in_its_own_way(own, copied):
    """Return the state that the model's class gives, without what the tuning has added."""
    director = pytest.importorskip("commbench.live.director").Director
    model = type("Own", (), {"__getstate__": lambda _: own})
    tuned = SimpleNamespace(_model=model(), _clock=lambda: None)
    assert copied == director._state(tuned)


@pytest.mark.parametrize("rank", [0, 2])
def test_only_models_of_rank_0_are_tuned(monkeypatch, rank):
    """Leave the model of a group without rank 0 alone: both would write to one directory."""
    director = pytest.importorskip("commbench.live.director")
    monkeypatch.setattr(director.dist, "get_rank", lambda: rank)
    monkeypatch.setattr(director, "why_held", lambda *_, **__: "")
    tuned = SimpleNamespace(
        _agreement=SimpleNamespace(get_all=lambda _: [("", None, None, ())]),
        _original_of=lambda _: None,
        _model=None,
        _registered=(),
        _is_watched=False,
        _may_begin=lambda _: False,
    )
    ended = SimpleNamespace(keeps_gradients=False)
    instruction = director.Director._first_instruction(tuned, ended, 12)
    assert (rank == 0) == (instruction is None)
    assert rank == 0 or instruction.reason == director.OTHER_GROUP


def test_a_process_without_stdout_ends_after_the_decision(monkeypatch):
    """End all ranks, whatever some have put in place of stdout."""
    director = pytest.importorskip("commbench.live.director")
    codes = []
    monkeypatch.setattr(director.os, "_exit", codes.append)
    monkeypatch.setattr(sys, "stdout", None)
    director.Director._end_process(SimpleNamespace(_programme=None))
    assert [0] == codes


def test_a_script_captures_only_its_own_lines(monkeypatch, capfd):
    """Say nothing in what a script has put in place of stderr; a process without stderr is no
    failure.
    """
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    say("tuning")
    assert ("", "commbench: tuning\n") == (sys.stderr.getvalue(), capfd.readouterr().err)
    monkeypatch.setattr(sys, "__stderr__", None)
    say("tuning")


def test_a_torch_that_is_too_old_is_named(monkeypatch):
    """Leave the model untuned if DDP cannot skip communication, and name the version that can."""
    torch = pytest.importorskip("torch")
    switching = pytest.importorskip("commbench.live.switching")
    model = SimpleNamespace(
        module=torch.nn.Linear(1, 1),
        _join_config=SimpleNamespace(enable=False),
        _get_ddp_logging_data=dict,
    )
    monkeypatch.setattr(switching.DistributedDataParallel, "__init__", lambda _self, _module: None)
    reason = f"torch {torch.__version__} is too old for it: update to 2.7 or newer"
    assert reason == switching.why_untunable(model)
