"""Tests that every command on the pages runs: short, in a directory with the files that the pages
name.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import RANK_PREFIXES
from launching import NO_OFI
from networks import network_info, network_records, training_of, workload_facts, write_run
from slurm import private_slurm

ROOT = Path(__file__).parents[2]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "results/README.md")
    ),
    *sorted((ROOT / "docs").glob("*.md")),
]
#: By its path: a program of this name stands for it in rehearsals.
BASH = shutil.which("bash") or "/bin/bash"
STAND_IN = ROOT / "tests" / "forks" / "stand_in.py"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: A phrase that is a command, and a line of a block that is not marked as one of commands.
COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ |sudo )*(?:commbench|kubectl|make|nvidia-smi|pip|python|qsub|sbatch|srun"
    r" .*commbench) "
)
UNMARKED = re.compile(
    r"^(?:commbench|make|mpirun|python|srun|torchrun) (?!.*\[OPTIONS\])[-\w]", re.MULTILINE
)
#: Commands that are complete without an argument; others without one are mentioned only.
COMPLETE = {"bench", "env", "lab down", "lab status", "lab up", "run", "train", "tune"}
#: Words of the pages for what a reader puts there.
PLACEHOLDERS = {
    "A B": "results/monday results/friday",
    "COMMAND --help": "run --help",
    "COMMAND": "torchrun --nproc-per-node 2 train.py",
    "DIR": "results/mine",
    "FORM": "parquet",
    "FILE": "all_reduce.txt",
    "MHZ": "1000",
    "NAME": "quick",
    "REPOSITORY": str(ROOT),
    "RUN": "results/mine",
    "/old/": "old/",
    "/var/lib/": "",
    "http://server:5000": "sqlite:///mlflow.db",
}
#: A person's own mpirun needs these where she is root.
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
RECIPE = "needs the code of a recipe: tests/project/test_extending.py runs it"
#: Lines with these words are not run here, by reason.
NOT_RUN = {
    "needs a GPU": (
        *(
            "--backend nccl",
            "--backend torch-nccl",
            "--format nccl-tuner",
            "nvidia-smi",
            "host_call_cost.py",
        ),
        *("test_gpu_train.py", "selection.py --gpu"),
    ),
    "installs packages from an index": ("pip install",),
    "needs a cluster that this machine cannot be": (
        "kubectl ",
        "qsub ",
        "--nodes 8",
        "--nodes=8",
        "mpirun -n 64",
    ),
    RECIPE: (
        "--launcher start",
        "--backend memcpy",
        "reduce_broadcast",
        "scaled:scale=4",
        "--workload linear",
    ),
    "writes into the start-up file of a shell": ("--install-completion",),
    "writes into the checkout": ("docs/generate.py",),
    "needs an environment for the job: tests/launch/test_slurm.py runs the like": (
        "sbatch ",
        "srun python",
    ),
    "needs a run that was just measured": ("gzip ",),
}
#: Commands that start ranks or draw figures, on emulated hosts, and in Slurm.
SLOW = re.compile(
    r"commbench (?:bench|env(?! --topology)|lab|predict|report|run|train|tune|watch|check"
    r" (?!\w))|--until-decided"
    r"|python benchmarks|mpirun|torchrun|srun|sbatch|--format tensorboard"
)
LAB = re.compile(r"commbench lab|--hostfile|planted\.py")
SLURM = re.compile(r"srun|sbatch|SBATCH")
#: Kept runs that stand for the directories that the pages name; a folder has a run in it.
KEPT = ROOT / "results"
PAIR = ROOT / "tests" / "data" / "pair"
RUNS = {
    "monday": PAIR / "monday",
    "friday": PAIR / "friday",
    "good/first": PAIR / "monday",
    "new": PAIR / "friday",
}
OTHER_RUN = KEPT / "bench_xeon2core_20261125"
#: A training that knows nothing of commbench, under any launcher.
TRAINING = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

for name, alone, *others in (
    ("RANK", "0", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    ("WORLD_SIZE", "1", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"),
):
    os.environ.setdefault(name, next((os.environ[other] for other in others if other in os.environ), alone))
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29511")
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(200):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
os._exit(0)  # a thread of Gloo may abort a process that returns
"""


def texts_of(page: str) -> list[str]:
    """Return the commands of a page: its blocks of shell commands, then its phrases."""
    texts = blocks_of(page)
    for phrase in re.findall(r"`([^`\n]+)`", BLOCK.sub("", page)):
        words = phrase.replace("&#124;", "|").partition(" ")[2]
        is_mention = re.fullmatch(r"(?:lab )?[a-z]+(?: --)?", words) and words not in COMPLETE
        if (
            COMMAND.match(phrase)
            and "..." not in phrase
            and not (phrase.startswith("commbench ") and is_mention)
        ):
            texts.append(phrase)
    return texts


def blocks_of(page: str) -> list[str]:
    """Return a page's blocks of shell commands."""
    return [block.strip() for language, block in BLOCK.findall(page) if language in {"sh", "bash"}]


def commands() -> list[str]:
    """Return the commands of all pages, each once."""
    texts = list(
        dict.fromkeys(text for page in PAGES for text in texts_of(page.read_text(encoding="utf-8")))
    )
    lines = {line for text in texts if "\n" in text for line in without_comments(text).splitlines()}
    return [text for text in texts if text not in lines]


def without_comments(text: str) -> str:
    """Return a text without what stands behind a hash sign and two spaces."""
    return re.sub(r" +# .*", "", text)


def filled(text: str) -> str:
    """Return a command with something in place of each placeholder."""
    for word, meaning in PLACEHOLDERS.items():
        text = re.sub(
            rf"(?<![\w$]){re.escape(word)}(?!\w)" if word.isupper() else re.escape(word),
            meaning,
            text,
        )
    return text


def runnable(text: str) -> str:
    """Return the lines of a text that run here."""
    words = [word for group in NOT_RUN.values() for word in group]
    lines = text.replace("\\\n", " ").splitlines()
    return "\n".join(line for line in lines if not any(word in line for word in words))


def parameters(texts: list[str]) -> list[object]:
    """Return each command with the markers for what it needs.

    Commands within sentences are slow, too.
    """
    blocks = {text for page in PAGES for text in blocks_of(page.read_text(encoding="utf-8"))}
    needs = {"lab": LAB, "slurm": SLURM}
    return [
        pytest.param(
            text,
            marks=[
                *([pytest.mark.slow] if text not in blocks or SLOW.search(text) else []),
                *(
                    getattr(pytest.mark, name)
                    for name, pattern in needs.items()
                    if pattern.search(text)
                ),
            ],
            id=" ".join(text.split())[:100],
        )
        for text in texts
    ]


COMMANDS = commands()


@pytest.fixture
def place(tmp_path: Path, forked_python: str) -> Path:
    """Return a directory with the files that the pages name, and a ``bin`` with stand-ins for the
    programs.
    """
    place = tmp_path / "place"
    place.mkdir()
    for name in (
        "benchmarks",
        "commbench",
        "tests",
        "Makefile",
        "setup.cfg",
        "pyproject.toml",
        "constraints.txt",
    ):
        (place / name).symlink_to(ROOT / name)
    (place / "results").mkdir()
    (place / "prometheus" / "node-exporter").mkdir(parents=True)
    (place / ".venv" / "bin").mkdir(parents=True)
    (place / ".venv" / "bin" / "activate").touch()
    examples = ROOT / "tests" / "data" / "imports"
    nccl = (examples / "nccl_tests_all_reduce.txt").read_text()
    osu = "# OSU MPI {} Latency Test v7.4\n# Size       Avg Latency(us)\n4 {}\n1048576 530.26\n"
    files = {
        "train.py": TRAINING,
        "my_training.py": (ROOT / "benchmarks" / "own_model.py").read_text(),
        "lightning_train.py": (ROOT / "benchmarks" / "trainings" / "lightning_fit.py").read_text(),
        "my_model.json": (ROOT / "commbench/ddp/data/traces/many-tiny.json").read_text(),
        "compress.py": code("docs/extending.md", "# compress.py"),
        "my_suite.py": code("benchmarks/README.md", "from commbench import Sweep"),
        "accept.expect": (ROOT / "benchmarks" / "accept_node.expect").read_text(),
        "hosts": "host0 slots=8\nhost1 slots=8\nhost2 slots=8\nhost3 slots=8\n",
        "all_reduce.txt": nccl,
        "nccl.txt": re.sub(r"^#  Rank.*\n", "", nccl, flags=re.MULTILINE),
        "old.txt": (examples / "nccl_tests_old.txt").read_text(),
        "monday_1.txt": nccl,
        "monday_2.txt": f"# Again\n{nccl}",
        "osu_allreduce.txt": osu.format("Allreduce", 1.6),
        "osu_allgather.txt": osu.format("Allgather", 1.7),
    }
    for name, text in files.items():
        (place / name).write_text(text)
    write_programs(place / "bin", forked_python)
    write_program(
        place / "old" / ".venv" / "bin" / "commbench", f'exec {forked_python} -m commbench "$@"'
    )
    return place


def code(page: str, marker: str) -> str:
    """Return the Python block of a page that contains a text."""
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    return next(block for language, block in blocks if language == "python" and marker in block)


def write_programs(folder: Path, python: str) -> None:
    """Write the programs that stand for others, and below ``rehearsal`` those that measure
    nothing.
    """
    make = 'exec /usr/bin/make --dry-run "$@"'
    stand_in = f'exec {python} {STAND_IN} {{}} "$@"'
    for name, line in {
        "commbench": stand_in.format("commbench"),
        "python": stand_in.format("python"),
        "make": make,
        "seq": "echo 1",
        "sudo": 'exec "$@"',
        "torchrun": f'exec {python} -m torch.distributed.run "$@"',
        "accelerate": f'exec {python} -m accelerate.commands.accelerate_cli "$@"',
        "tensorboard": f'exec {sys.prefix}/bin/tensorboard --inspect "$@"',
        "osu_allreduce": '[ "$OMPI_COMM_WORLD_RANK" != 0 ] || cat osu_allreduce.txt',
    }.items():
        write_program(folder / name, line)
    inner = 'while [ $# -gt 0 ] && [ "$1" != commbench ]; do shift; done; [ $# = 0 ] || exec "$@"'
    for name in (
        "accelerate",
        "git",
        "kubectl",
        "mpirun",
        "nvidia-smi",
        "python",
        "pip",
        "qsub",
        "sbatch",
        "srun",
    ):
        write_program(folder / "rehearsal" / name, inner)
    for name in ("bash", "sudo", "tensorboard", "torchrun"):
        write_program(folder / "rehearsal" / name, inner)


def write_program(path: Path, line: str) -> None:
    """Write a shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def walk(
    text: str, place: Path, *, is_rehearsal: bool = False, **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a text as a person would type it, in the directory ``place``."""
    provide_runs(text, place)
    bins = [place / "bin" / "rehearsal"] if is_rehearsal else []
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(RANK_PREFIXES)
    }
    environment = {
        **inherited,
        **NO_OFI,
        **AS_ROOT,
        "PATH": os.pathsep.join(
            map(str, [*bins, place / "bin", Path(sys.executable).parent, inherited["PATH"]])
        ),
        "PYTHONPATH": str(ROOT),
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "COMMBENCH_BASELINES": "baselines",
        "good": "results/good",
    }
    environment |= {"REHEARSAL": "1"} if is_rehearsal else variables
    command = [BASH, "-e", "-o", "pipefail", "-c", f"{text}\nwait"]
    return subprocess.run(
        command,
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def provide_runs(text: str, place: Path) -> None:
    """Copy each run that a text names and does not make.

    A run that is kept is there in any case.
    """
    made = set(re.findall(r"--out results/([\w-]+)", text))
    named = set(re.findall(r"results/([\w-]+)", text)) | (
        {"good", "mine"} if "good" in text else set()
    )
    for name in named:
        if "commbench predict" in text and name not in made:
            trained = training_of({"none": 420.0, "topk:0.01": 140.0}) if name == "training" else []
            info = network_info(2, facts=workload_facts().to_json())
            write_run(place / "results" / name, network_records((2, 4)), trained, **info)
        elif (KEPT / name).is_dir():
            shutil.copytree(KEPT / name, place / "results" / name)
        elif name == "good":
            shutil.copytree(RUNS["good/first"], place / "results" / "good" / "first")
        elif name not in made:
            shutil.copytree(RUNS.get(name, OTHER_RUN), place / "results" / name)


def in_its_place(text: str) -> str:
    """Return a text that starts what it needs around it: a lab, hosts for its hostfile, an
    allocation of Slurm.
    """
    if re.search(r"commbench lab (?:exec|link|status|down)", text) and "lab up" not in text:
        return (
            "commbench lab up --hosts 4 --rate none\ntrap 'commbench lab down || true'"
            f" EXIT\n{text}"
        )
    if "--hostfile" in text:
        return f"commbench lab run --rate none --ranks-per-host 8 -- bash -e -c {shlex.quote(text)}"
    return text


@pytest.mark.parametrize(
    "text",
    [
        text
        for text in COMMANDS
        if SLOW.search(text) and not any(word in text for word in NOT_RUN[RECIPE])
    ],
    ids=lambda text: " ".join(text.split())[:100],
)
def test_measuring_commands_are_accepted(text: str, place: Path) -> None:
    """List what each command would measure, as it stands on the page."""
    done = walk(filled(text), place, is_rehearsal=True)
    assert 0 == done.returncode, done.stderr + done.stdout[-3000:]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("text", parameters([text for text in COMMANDS if runnable(text)]))
def test_commands_run(text: str, place: Path) -> None:
    """Run each command, shortened, with the files that it names."""
    subprocess.run(["git", "init", "-q"], cwd=place, check=True)
    line = in_its_place(filled(runnable(text)))
    if SLURM.search(text):
        with private_slurm() as cluster:
            conf = cluster.environment()["SLURM_CONF"]
            done = walk(f"salloc -N 2 -n 4 bash -e -c {shlex.quote(line)}", place, SLURM_CONF=conf)
    else:
        done = walk(line, place)
    assert 0 == done.returncode, done.stderr + done.stdout[-3000:]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "is_rehearsal", "sentence"),
    [
        ("commbench run -c all_reduce --size 8", True, "No such option: --size"),
        ("commbench run -c all_reduce --sizes 8:1X", True, "1X"),
        ("commbench run matrix --hostfile absent", True, "absent"),
        ("torchrun --nproc-per-node 2 -m commbench run --bogus", True, "No such option"),
        ("commbench lab run -- commbench train --bogus", True, "No such option"),
        ("commbench tune --bogus -- torchrun train.py", True, "No such option"),
        (
            "commbench run quick --out results/bench_xeon2core_20261125",
            False,
            "bench_xeon2core_20261125",
        ),
        (
            "python benchmarks/evidence/accuracy.py --out results/accuracy_xeon2core_20261125",
            False,
            "not an empty directory",
        ),
        ("commbench report results/mine --bogus", False, "No such option"),
        ("commbench import osu_allreduce.txt", False, "say so with -n"),
    ],
)
def test_a_wrong_command_is_found(
    text: str, is_rehearsal: bool, sentence: str, place: Path
) -> None:
    """Fail at an option that does not exist, a value that is not understood, and a directory that
    is refused.
    """
    done = walk(text, place, is_rehearsal=is_rehearsal)
    assert 2 == done.returncode
    assert sentence in done.stderr


def test_everything_that_is_not_run_is_on_a_page() -> None:
    """Keep no exception for a command that no page has any more."""
    every = "\n".join(COMMANDS)
    assert [] == [word for words in NOT_RUN.values() for word in words if word not in every]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_commands_are_marked(page: Path) -> None:
    """Mark each block of commands as ``sh``, which makes the tests above run it."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    assert [] == [
        line for language, block in blocks if not language for line in UNMARKED.findall(block)
    ]
