"""The pages agree with the code: columns, commands, options, exit codes, targets and links."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from commbench import errors
from commbench.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("*/README.md")), *sorted((ROOT / "docs").glob("*.md"))]
GROUP: Any = typer.main.get_command(app)
CODE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def load_generator() -> ModuleType:
    """Return docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the words after ``commbench`` of every command line in a page's code blocks and back-quoted phrases."""
    lines = [line for block in CODE.findall(text) for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", CODE.sub("", text))
    command = re.compile(rf"(?:\S+ .*-m |\S*/)?commbench ((?:{'|'.join(GROUP.commands)})\b.*)")
    for line in lines:
        found = command.match(line)
        if found:
            yield shlex.split(found[1], comments=True)


COMMANDS = [words for page in PAGES for words in commands_in(page.read_text(encoding="utf-8")) if len(words) > 1]


def test_columns_page_is_up_to_date() -> None:
    """Find in docs/columns.md what docs/generate.py makes of the code."""
    generator = load_generator()
    assert generator.PAGE.read_text(encoding="utf-8") == generator.render(), "run python docs/generate.py"


@pytest.mark.parametrize("name", GROUP.commands)
def test_every_command_and_option_has_help(name: str) -> None:
    """Leave no command, argument or option unexplained."""
    command = GROUP.commands[name]
    assert command.help
    assert [] == [parameter.name for parameter in command.params if not getattr(parameter, "help", None)]


@pytest.mark.parametrize("name", GROUP.commands)
def test_readme_shows_every_command(name: str) -> None:
    """Show each command at work on the first page."""
    assert name in {words[0] for words in commands_in(README)}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_in_pages_are_understood(words: list[str]) -> None:
    """Parse every command line that a page shows with arguments: its options exist and its arguments suffice."""
    name, *arguments = words
    assert name == GROUP.commands[name].make_context(name, arguments).info_name


def test_exit_codes_in_readme() -> None:
    """List in the README the exit code of every exception, and 0 and the signals'."""
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.CommbenchError)
    ]
    raised = {kind.exit_code for kind in kinds}
    table = README.split("### Exit codes")[1].split("##")[0]
    listed = {int(code) for cell in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in cell.split(",")}
    assert raised | {0, 130, 143} == listed


def test_make_targets_in_pages_exist() -> None:
    """Name only targets that the Makefile has, and let it list all that it has."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    phony = set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split())
    texts = [*(page.read_text(encoding="utf-8") for page in PAGES), (ROOT / ".ci/run").read_text(encoding="utf-8")]
    named = {target for text in texts for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)}
    assert phony == targets
    assert set() == named - targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Follow every relative link of a page."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert [] == [link for link in links if "://" not in link and not (page.parent / link).exists()]
