"""What commbench shows to the outside: tables of kept runs, help texts, options and answers to bad input.

Everything is observed through the command line, so that a change of the code behind it needs no change here.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import typer

from commbench import cli

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
KEPT = sorted(path.parent.name for path in RESULTS.glob("*_*_2026112[12]/samples.jsonl"))
BENCH, TRAINED = "bench_xeon2core_20261121", "train_resnet18_1gbit_xeon2core_20261121"
#: Variables that would make this process a rank of a launch, or change how help is drawn.
FOREIGN = ("OMPI_COMM_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_", "PBS_", "FORCE_COLOR", "GITHUB_ACTIONS")
#: Digits of a number that is compared: fewer say little and stand in sentences too.
SIGNIFICANT = 3
#: Rows behind the tables: too many to record.
SAMPLES = ("repetitions", "steps", "samples")

#: Command lines that are refused; {bench} and {trained} are kept runs.
BAD_INPUT = """
run -c allreduce
run --backend smoke
run --dtype float8
run --redop mean
run --pattern star
run --sync never
run --loop endless
run --in-place yes
run --cadence slow
run --buffers warm
run --algorithm rings
run -c broadcast --root two
run --world-sizes two
run -n 2 --world-sizes 2,4
run -c broadcast --root 7 -n 2
run slow
run bad.py
run --budget long
run --launches 0
run --format html
run --launcher slurm
run --launcher /absent/mpirun
run --launcher torchrun --bind-to core
run --ranks-per-node 1 -n 2
run --role boss
run --sizes 8X
run --sizes=-8
run --sizes 0
run --sizes 64:8
run --sizes 6
run --sizes 8 -b 8
run -b 8 -e 64 -f 1
run -m 64:8
run -n 3
run -n 0
run -n 2 --case-timeout 0
run -n 2 --time-limit -1
run --hostfile absent
run --out foreign -n 2
run --out bad.py -n 2
run --bogus
run -n two
dance
bench --budget long
bench --backend smoke
bench -n 3
bench --bogus
bench --launches none
report
report foreign
report absent
report {bench} --format html
report --terminal absent
compare
compare one
compare absent foreign
compare {bench} foreign
compare {bench} {trained}
compare {bench} {trained} --threshold -1
compare {bench} {trained} --format html
import
import absent.txt
import bad.py
import bad.py --tool perf
import bad.py --out foreign
export
export {bench}
export {bench} --format xml
export absent --format parquet --out new
export foreign --format openmetrics --out new
predict
predict absent --world-size 8
predict foreign --world-size 8
predict {bench} --world-size none
predict {bench} --world-size 8:4
predict {bench} --world-size 0
predict {bench} --world-size 8 --rate fast
predict {bench} --world-size 8 --hook topk
predict {bench} --world-size 8 --hook gzip
predict {bench} --bogus
train --hook gzip
train --hook topk
train --hook topk:2
train --hook fp16:0.1
train --bucket-cap-mb small
train --bucket-cap-mb 0
train --bucket-cap-mb default,-1
train --precision fp8
train --accumulation 0
train --budget long
train --backend smoke
train --launches 0
train --max-accuracy-loss much
train --batch 0 -n 2
tune --budget long
tune --bucket-cap-mb small
env --bogus
lab
lab dance
lab run --hosts 0 -- true
lab run --rate fast -- true
lab run --slow host0 -- true
lab run --slow host9=1gbit -- true
lab run --racks 3 -- true
lab run --uplink 1gbit -- true
lab exec --name absent -- true
lab status --name absent
lab link host0 down --name absent
""".strip().splitlines()


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """A directory with a foreign folder and a broken suite, on a machine with two slots and no launcher."""
    here = Path.cwd()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    environment |= {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    slots = mock.patch("commbench.launch.launchers.hosts.local_cpus", return_value=2)
    with tempfile.TemporaryDirectory() as name, mock.patch.dict(os.environ, environment, clear=True), slots:
        home = Path(name)
        (home / "foreign").mkdir()
        (home / "foreign" / "thesis.txt").write_text("not ours")
        (home / "bad.py").write_text("SUITE = 1 / 0")
        os.chdir(home)
        try:
            yield home
        finally:
            os.chdir(here)


def _call(arguments: list[str]) -> tuple[int, str, str]:
    """Run a command line in this process; return exit code, stdout and stderr."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.object(sys, "argv", arguments):
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    out_text, err_text = (re.sub(r"python -m \S*commbench", "commbench", stream.getvalue()) for stream in (out, err))
    return code, out_text, err_text


def _files(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*"))


def answer(line: str) -> dict[str, Any]:
    """Return how a command line is refused: exit code, stderr, whether stdout is empty, and what it wrote."""
    words = line.format(bench=RESULTS / BENCH, trained=RESULTS / TRAINED).split()
    with _scratch() as home:
        before = _files(home)
        code, out, err = _call(["commbench", *words])
        wrote = [name for name in _files(home) if name not in before]
    err = err.replace(str(home), "<tmp>").replace(str(RESULTS), "<results>")
    return {"code": code, "stderr": re.sub(r"\d[\d.]* [KMGT]iB", "<size>", err), "stdout": bool(out), "wrote": wrote}


def commands() -> dict[str, Any]:
    """Return every command by the words that call it; the whole program is ``commbench``."""
    group: Any = typer.main.get_command(cli.app)
    found = {"commbench": group}
    for name, command in group.commands.items():
        found[name] = command
        found |= {f"{name} {inner}": one for inner, one in getattr(command, "commands", {}).items()}
    return found


def help_of(command: str) -> str:
    """Return the help text of a command."""
    words = [] if command == "commbench" else command.split()
    with _scratch():
        code, out, _ = _call(["commbench", *words, "--help"])
    assert code == 0
    return "\n".join(line.rstrip() for line in out.splitlines()) + "\n"


def options_of(command: str) -> dict[str, Any]:
    """Return the parameters of a command: names, default, whether a value follows and how often."""
    return {
        parameter.name: {
            "names": sorted([*parameter.opts, *parameter.secondary_opts]),
            "default": str(parameter.default),
            "flag": bool(getattr(parameter, "is_flag", False)),
            "multiple": bool(getattr(parameter, "multiple", False)),
            "required": parameter.required,
        }
        for parameter in commands()[command].params
    }


#: Command lines that print figures of kept runs.
PRINTED = {
    **{f"report {run}": f"report {RESULTS / run}" for run in KEPT},
    **{f"report as {form}": f"report {RESULTS / BENCH} --format {form}" for form in ("csv", "nccl-tests", "osu")},
    "compare": f"compare {RESULTS / 'quick_xeon2core_20261121'} {RESULTS / BENCH} --force",
    "predict": f"predict {RESULTS / BENCH} --world-size 8:64 --rate 1gbit",
    "predict two": f"predict {RESULTS / TRAINED} {RESULTS / BENCH} --world-size 8:64 --rate 1gbit",
}


def figures_of(line: str) -> list[str]:
    """Return the numbers of three or more digits that a command prints, each once, sorted as text."""
    page = ["--out", "page"] if line.startswith("report") and "--format" not in line else []
    with _scratch():
        code, out, err = _call(["commbench", *line.split(), *page])
    assert out, (line, code, err)
    return sorted({word for word in re.findall(r"\d[\d.]*\d", out) if len(word.replace(".", "")) >= SIGNIFICANT})


def tables_of(run: str) -> dict[str, dict[str, list[Any]]]:
    """Return every table of a kept run as columns, made anew from its samples."""
    from pyarrow import parquet

    with _scratch() as home:
        code, _, err = _call(["commbench", "export", str(RESULTS / run), "--format", "parquet", "--out", "tables"])
        assert (0, "") == (code, err)
        files = sorted((home / "tables").glob("*.parquet"))
        return {file.stem: parquet.read_table(file).to_pydict() for file in files if file.stem not in SAMPLES}
