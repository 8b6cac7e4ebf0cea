"""Tests that every command line of commbench on the pages is understood."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import parse
from places import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(ROOT / name / "README.md" for name in ("benchmarks", "results")),
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: A line of a block that is not marked as one of commands.
UNMARKED = re.compile(
    r"^(?:commbench|make|mpirun|python|srun|torchrun) (?!.*\[OPTIONS\])[-\w]", re.MULTILINE
)
#: A command line, up to what a shell does with its output.
LINE = re.compile(r"(?<![\w/.-])commbench ((?:lab )?[a-z]+ (?:[^|;&>`\n]|>=)+)")
#: Runs with these are only parsed: placeholders, quotes, and the recipes of docs/extending.md.
PARSED = ("--launcher start", "memcpy", "reduce_broadcast", "my_suite.py", "NAME", "RUN", "'")


def code_of(page: Path) -> Iterator[str]:
    """Yield the lines of a page's blocks of shell commands, and its phrases in code."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for language, block in BLOCK.findall(text):
        if language in {"sh", "bash"}:
            yield from re.sub(r" +# .*", "", block).splitlines()
    yield from re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))


def lines() -> list[str]:
    """Return what follows ``commbench`` in the command lines of all pages, each once."""
    found = []
    for page in PAGES:
        for code in code_of(page):
            found += LINE.findall(code.replace("&#124;", "|"))
    return list(dict.fromkeys(line.strip() for line in found))


@pytest.mark.parametrize("line", lines())
def test_options_exist(line):
    """Parse each command line as it stands on the page."""
    parse(shlex.split(line))


def test_a_wrong_option_is_found():
    """Refuse an option that does not exist, also of an inner command."""
    for line in ("run --size 8", "lab run -- commbench train --bogus", "tune --bogus -- train.py"):
        with pytest.raises(Exception, match="No such option"):
            parse(line.split())


@pytest.mark.parametrize(
    "line",
    [line for line in lines() if line.startswith("run ") and not any(w in line for w in PARSED)],
)
def test_values_are_understood(line, commbench):
    """List what each run would measure."""
    (commbench.home / "hosts").write_text("".join(f"host{n} slots=8\n" for n in range(4)))
    done = commbench(f"{line} --dry-run --oversubscribe")
    assert done.code == 0 or re.search("needs (cupy|a GPU)", done.err), done.err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_of_commands_are_marked(page):
    """Mark each block of commands as ``sh``, which makes the tests above read it."""
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        assert language or not UNMARKED.findall(block)
