"""Tests of the recipes of docs/extending.md: all are applied to a copy of the package, and their
results are used.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from builders import read_rows
from fields import fields_of
from launching import succeeded
from places import ROOT

from commbench.hooks.registry import make_hook

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
#: A step of a recipe: the line that says what to do with a file, and the code.
STEP = re.compile(
    r"^((?:New file|Append to|Import in) `[^\n]*):\n\n```python\n(.*?)^```",
    re.MULTILINE | re.DOTALL,
)
INSTRUCTION = re.compile(
    r"(?P<action>New file|Append to|Import in) (?:`(?P<name>\w+)` in )?"
    r"`(?P<file>[\w./]+\.py)`"
)
#: The program of the recipe for a launcher: it starts ranks on this host.
START = f"""#!{sys.executable}
import os, socket, subprocess, sys
ranks, program = int(sys.argv[2]), sys.argv[3:]
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
started = []
for rank in range(ranks):
    place = dict(START_RANK=rank, START_RANKS=ranks, START_LOCAL_RANK=rank, START_LOCAL_RANKS=ranks)
    place |= dict(RANK=rank, WORLD_SIZE=ranks, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    place = {{name: str(value) for name, value in place.items()}}
    started.append(subprocess.Popen(program, env=os.environ | place))
sys.exit(max(rank.wait() for rank in started))
"""


class Copy:
    """A copy of the package with all recipes applied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "commbench", folder / "commbench")
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
        for words, code in STEP.findall(PAGE):
            step = INSTRUCTION.fullmatch(words)
            assert step, f"not understood: {words}"
            file = folder / step["file"]
            if step["action"] == "New file":
                assert not file.exists()
                file.write_text(code)
                continue
            source = file.read_text()
            if step["name"]:
                source = with_element(source, step["name"], code)
            elif step["action"] == "Import in":
                imports = [node for node in ast.parse(source).body if hasattr(node, "module")]
                lines = source.splitlines(keepends=True)
                lines.insert(imports[-1].end_lineno or 0, code)
                source = "".join(lines)
            else:
                source = f"{source}\n\n{code}"
            file.write_text(source)

    def run(self, *command: str, path: Path | None = None) -> str:
        """Return what a Python command prints that uses the copy; it must succeed."""
        environ = {**os.environ, "PYTHONPATH": str(self.folder), "OMPI_MCA_btl": "^ofi"}
        environ["PATH"] = f"{path}:{environ['PATH']}" if path else environ["PATH"]
        return succeeded(sys.executable, *command, cwd=self.folder, env=environ)

    def measure(
        self, out: Path, options: str, role: str = "rank", path: Path | None = None
    ) -> list[dict[str, str]]:
        """Return the rows of a run with these options, by default on this process as the only
        rank.
        """
        line = f"-m commbench run {options} --sizes 1K --role {role} --out {out}"
        self.run(*line.split(), path=path)
        return read_rows(out)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return the copy."""
    return Copy(tmp_path_factory.mktemp("copy"))


def with_element(source: str, name: str, code: str) -> str:
    """Return a module's source with one more element in the collection ``name``, which an
    assignment or a loop names, or one more field in the class of that name.
    """
    value = None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            lines = source.splitlines(keepends=True)
            return "".join([*lines[: node.end_lineno], code, *lines[node.end_lineno :]])
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if name in [getattr(target, "id", "") for target in targets]:
            value = getattr(node, "value", None) or getattr(node, "iter", None)
    while not isinstance(value, (ast.Tuple, ast.Dict, ast.List)):
        value = value.args[-1] if isinstance(value, ast.Call) else value.generators[0].iter
    lines = source.encode().splitlines(keepends=True)
    place = sum(map(len, lines[: value.end_lineno - 1])) + value.end_col_offset - 1
    head, tail = source.encode()[:place].decode(), source.encode()[place:].decode()
    comma = "" if re.search(r"[,(\[{]\s*$", head) else ","
    return f"{head}{comma}\n{code.rstrip()},\n{tail}"


def test_every_step_is_applied():
    """Apply all Python code of the page except the hook in a file."""
    others = re.findall(r"^```python\n(.*?)^```", STEP.sub("", PAGE), re.MULTILINE | re.DOTALL)
    assert ["# compress.py"] == [code.splitlines()[0] for code in others]


def test_the_hooks_of_a_file_are_made(tmp_path):
    """Make the hook and the factory's hook that the page shows."""
    pytest.importorskip("torch")
    (code,) = re.findall(r"^```python\n(# compress.py\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "compress.py").write_text(code)
    for name in ("half", "make_counter"):
        assert f"compress.py:{name}" in PAGE
        assert make_hook(f"{tmp_path}/compress.py:{name}") is not None


@pytest.mark.programs
def test_an_operation_is_measured(copy, tmp_path):
    """Measure the new operation with each of its reductions, and list it."""
    pytest.importorskip("mpi4py", reason="connects the only rank")
    rows = copy.measure(tmp_path, "-c reduce_broadcast --backend mpi --redop sum,max")
    assert {("reduce_broadcast", "sum", "ok"), ("reduce_broadcast", "max", "ok")} == set(
        fields_of(rows, "operation", "redop", "status")
    )
    assert "reduce_broadcast" in copy.run("-m", "commbench", "run", "--help")


@pytest.mark.programs
def test_a_backend_is_measured(copy, tmp_path):
    """Verify and measure an operation of the new backend.

    State as unsupported what it leaves out.
    """
    pytest.importorskip("mpi4py", reason="connects the only rank")
    rows = copy.measure(tmp_path, "-c all_reduce,all_gather --backend memcpy")
    assert [("memcpy", "memory", "ok", "0"), ("memcpy", "", "unsupported", "")] == fields_of(
        rows, "backend", "transport", "status", "wrong"
    )


@pytest.mark.slow
def test_a_hook_is_swept(copy):
    """Accept the new hook on the command line, predict its messages, average a gradient, and write
    the snippet.
    """
    pytest.importorskip("torch")
    program = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from commbench.ddp.plan.cases import TrainingSweep
from commbench.hooks import make_hook
from commbench.hooks.message import BucketShape
from commbench.hooks.registry import read_hook
from commbench.tuner.snippet import snippet_of

sweep = TrainingSweep(workload="mlp", bucket_caps=["default"], hooks=["scaled:scale=4"])
(case,) = (case for case in sweep.cases(ranks=2, batch=8) if case.hook == "scaled")
bucket = BucketShape(shapes=[(10,)], world_size=2)
print(case.hook, case.hook_options)
messages = read_hook("scaled", options=case.options).messages(bucket)
print([message.message_bytes for message in messages])
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(3, 1))
hook = make_hook(case.hook, density=case.density, options=case.options).register(model)
model(torch.ones(1, 3)).sum().backward()
print(hook.scale, model.module.weight.grad.tolist())
dist.destroy_process_group()
print(snippet_of(case))
"""
    sent, message_bytes, gradient, *snippet = copy.run("-c", program).splitlines()
    assert ("scaled scale=4", "[40]") == (sent, message_bytes)
    assert "4.0 [[1.0, 1.0, 1.0]]" == gradient
    assert "from commbench.hooks import Scaled" in snippet
    assert "Scaled(scale=4.0).register(model)" in snippet


@pytest.mark.slow
def test_a_workload_is_loaded(copy):
    """Load the new workload by its name, as two ranks see it, and list it."""
    pytest.importorskip("torch")
    program = """
import torch
from commbench.ddp.workloads import load_workload
from commbench.errors import InputError

options = {"seed": 1, "world_size": 2, "batch_size": 4}
first, second = (load_workload("linear", rank=rank, **options) for rank in (0, 1))
same = torch.equal(first.model.weight, second.model.weight)
print(same, torch.equal(first.batches[0], second.batches[0]))
print(first.loss(first.model, first.batches[0]).shape)
try:
    load_workload("none_such", seed=1, rank=0, world_size=1)
except InputError as error:
    print(error)
"""
    same, shape, names = copy.run("-c", program).splitlines()
    assert "True False" == same
    assert "torch.Size([])" == shape
    assert "linear" in names


@pytest.mark.slow
def test_a_launcher_starts_ranks(copy, tmp_path):
    """Start two ranks by the new launcher, which connect without MPI and are one launch."""
    pytest.importorskip("torch")
    program = tmp_path / "bin" / "start"
    program.parent.mkdir()
    program.write_text(START)
    program.chmod(0o755)
    options = "-c all_reduce --backend gloo -n 2 --oversubscribe --launcher start --launches 1"
    (row,) = copy.measure(tmp_path / "out", options, role="conductor", path=program.parent)
    assert "2" == row["world_size"]
    assert "1" == row["launches"]
    assert "ok" == row["status"]


@pytest.mark.programs
def test_a_run_has_the_column_the_figure_and_the_sentence(copy):
    """Fill the new column of a kept run, as the last one of its table; draw the new figure;
    conclude its page with the new sentence.
    """
    run = ROOT / "results" / "links_1gbit_xeon2core_20261128"
    program = f"""
from commbench import load_run
from commbench.report.figures import all_figures
from commbench.report.page.conclusion import find_conclusion

run = load_run({str(run)!r})
table = run.collectives
print(table.columns[-1], (table.time_us_max >= table.time_us_p95).all())
(drawing,) = [drawing for drawing in all_figures([run]) if drawing.name == "skew"]
print(len(drawing.png) > 1000)
for entry in find_conclusion([run]):
    if entry.label == "Longest":
        print(*entry.texts)
"""
    column, figure, sentence = copy.run("-c", program).splitlines()
    assert ("time_us_max True", "True") == (column, figure)
    assert " takes " in sentence
    assert sentence.endswith(".")


@pytest.mark.programs
def test_an_import_is_read(copy, tmp_path):
    """Recognise output of the new tool, read its times, and say what was assumed."""
    text = "mybench allreduce on 4 ranks\nbytes  time[usec]\n 1024 12.5\n 2048 15\n"
    (tmp_path / "mybench.txt").write_text(text)
    words = ("import", str(tmp_path / "mybench.txt"), "--out", str(tmp_path / "out"))
    printed = copy.run("-m", "commbench", *words)
    names = ("operation", "world_size", "message_bytes", "time_us")
    rows = [[row[name] for name in names] for row in read_rows(tmp_path / "out")]
    expected = [["all_reduce", "4", "1024", "12.5"], ["all_reduce", "4", "2048", "15.0"]]
    assert expected == rows
    assert "the backend was mpi" in printed
