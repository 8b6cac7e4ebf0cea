"""Tests that the pages agree with the code: columns, schemas, options, exit codes and links."""

import html
import io
import json
import os
import re
import shlex
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import generate
import pictures
import pytest
import terminal
from builders import read_info
from commands import COMMANDS, parse
from fields import fields_of
from kept import KEPT_RUNS, sample_lines
from launching import finished
from matplotlib.image import imread
from places import ROOT
from reference import leaves
from schemas import SCHEMAS, schema_text

from commbench import errors
from commbench.cli.examples import EXAMPLES

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("*/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
#: Terms of our own: write confirmation launches, sample, speed, same or changed gradients, effect
#: on accuracy, extension, reference run, your script.
PRIVATE_TERMS = re.compile(
    r"fresh (?:launch|block)|\bvisits? (?!N)|states? of the machine|leaves? learning"
    r"|alters? learning|effect on learning|second look|kept run|a person\b"
)
#: Every command by the words that call it: ("run",), ("lab", "run").
LEAVES = dict(leaves(COMMANDS))
#: What is written from the code, by the path of its file.
GENERATED = {
    **{ROOT / "docs" / page: write for page, write in (generate.PAGES | generate.PARTS).items()},
    **{ROOT / "docs/schema" / name: partial(schema_text, name) for name in SCHEMAS},
}


@pytest.mark.parametrize("file", GENERATED, ids=lambda file: file.name)
def test_generated_files_are_up_to_date(file):
    """Find the output of docs/generate.py in the reference pages and the schemas."""
    pytest.importorskip("torch", reason="hooks and workloads are on the pages")
    assert file.read_text(encoding="utf-8") == GENERATED[file](), "run python docs/generate.py"


def test_pages_stay_short():
    """Keep docs/*.md below 35,000 words, of which 12,000 are generated."""
    words = {
        page.name: len(page.read_text("utf-8").split()) for page in (ROOT / "docs").glob("*.md")
    }
    assert sum(words.values()) <= 35_000
    assert sum(words[name] for name in generate.PAGES) <= 12_000


@pytest.mark.parametrize(
    "page",
    [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_pages_use_standard_terms(page):
    """Find no term in the text of a page that has a standard one."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert [] == PRIVATE_TERMS.findall(text)


def names_without_schema(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> set[str]:
    """Return the keys of a JSON value for which its schema has no property."""
    if "$ref" in schema:
        return names_without_schema(value, root["$defs"][schema["$ref"].split("/")[-1]], root)
    if "anyOf" in schema:
        return min((names_without_schema(value, each, root) for each in schema["anyOf"]), key=len)
    if isinstance(value, list) and "items" in schema:
        found = [names_without_schema(item, schema["items"], root) for item in value]
        return set().union(*found)
    if not isinstance(value, dict) or "properties" not in schema:
        return set()
    names = set(value) - set(schema["properties"])
    for key in set(value) & set(schema["properties"]):
        names |= names_without_schema(value[key], schema["properties"][key], root)
    return names


@pytest.mark.kept
@pytest.mark.parametrize("run", KEPT_RUNS, ids=lambda run: run.name)
def test_every_field_of_kept_runs_is_in_a_schema(run):
    """Find each key of run.json and of the lines of samples.jsonl in docs/schema."""
    run_schema, sample_schema = SCHEMAS["run.json"](), SCHEMAS["sample.json"]()
    info = read_info(run)
    assert set() == names_without_schema(info, run_schema, run_schema)
    lines = sample_lines(run)
    for line in lines[:: 1 + len(lines) // 50]:  # some of each run
        assert set() == names_without_schema(json.loads(line), sample_schema, sample_schema)


@pytest.mark.parametrize("name", [*generate.FIGURES, generate.LAUNCH])
def test_figures_are_drawn_from_kept_runs(name):
    """Find the drawings of docs/generate.py in docs/figures, except for a few pixels that depend on
    libraries.
    """
    pytest.importorskip("torch", reason="reads how models are divided")
    kept_drawing = imread(generate.FOLDER / name)
    drawn = imread(io.BytesIO(generate.draw(name)))
    assert kept_drawing.shape == drawn.shape
    assert abs(kept_drawing - drawn).mean() < 0.01, "run python docs/generate.py"


def test_pictures_of_the_page_show_todays_page():
    """Find the digest of the first screen, as it would be written now, in each picture of a
    page.
    """
    digest = pictures.page_digest(generate.newest(pictures.SHOWN))
    for theme in pictures.THEMES:
        picture = pictures.FOLDER / f"page-{theme}.png"
        assert digest == pictures.digest_of(picture), "run python docs/pictures.py"
        assert picture.stat().st_size < 200_000


def test_every_figure_is_made_by_a_program():
    """Leave no file in docs/figures that nothing writes, and show each of them on a page."""
    made = {*generate.FIGURES, generate.LAUNCH}
    made |= {f"page-{theme}.png" for theme in pictures.THEMES}
    casts = set(fields_of(generate.FOLDER.glob("*.cast"), "name"))
    made |= {name.replace(".cast", ".svg") for name in casts}
    assert made | casts == set(fields_of(generate.FOLDER.iterdir(), "name"))
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [] == sorted(name for name in made if f"figures/{name}" not in pages)


@pytest.mark.parametrize(
    "cast", sorted((ROOT / "docs").rglob("*.cast")), ids=lambda cast: cast.name
)
def test_terminals_are_drawn_from_recordings(cast):
    """Draw each kept recording as its SVG, which ends with what the command printed last."""
    pytest.importorskip("pyte")
    drawing = cast.with_suffix(".svg").read_text(encoding="utf-8")
    assert terminal.draw(cast) == drawing
    last = json.loads(cast.read_text(encoding="utf-8").splitlines()[-1])[2].splitlines()[-1]
    assert html.escape(last) in drawing


@pytest.mark.programs
@pytest.mark.parametrize("planted", ["", "[gone](gone.md), [gone](measuring.md#gone)"])
def test_the_site_is_built_without_a_broken_link(tmp_path, planted):
    """Build all pages; name links to a page and to an anchor that do not exist."""
    mkdocs = Path(f"{sys.prefix}-docs", "bin", "mkdocs")
    if not mkdocs.exists():
        pytest.skip(f"needs {mkdocs.name} in an environment of its own: make docs")
    docs = tmp_path / "copy" / "docs"
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("__pycache__"))
    pages = "mkdocs.yml README.md CONTRIBUTING.md CHANGELOG.md results/README.md"
    for name in [*pages.split(), "benchmarks/README.md"]:
        (docs.parent / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, docs.parent / name)
    with (docs / "first-run.md").open("a", encoding="utf-8") as page:
        page.write(f"\n{planted}\n")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = (mkdocs, "build", "--strict", "--site-dir", tmp_path / "site")
    done = finished(*command, cwd=docs.parent, env=environment)
    assert bool(planted) == (done.returncode != 0), done.stderr
    for name in ("gone.md", "measuring.md#gone"):
        assert bool(planted) == (name in done.stderr)
    assert (tmp_path / "site" / "commands.html").exists() or planted


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_a_command_has_help_for_each_option_and_examples(path, commbench):
    """Leave no command, argument or option unexplained.

    Show each command at work in its own help, with options that exist.
    """
    command = LEAVES[path]
    assert command.help
    assert all(parameter.help for parameter in command.params)
    printed = commbench(f"{' '.join(path)} --help").out
    for line, _ in EXAMPLES[" ".join(path)]:
        assert line in printed
        parse(shlex.split(line)[1:])


def test_exit_codes_are_those_of_the_exceptions():
    """State the meaning of the exit code of every exception, of 0, of a regression and of the
    signals.
    """
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    raised = {each.exit_code for each in classes if issubclass(each, errors.CommbenchError)}
    assert raised | {0, 5, 129, 130, 131, 138, 140, 141, 143} == set(errors.EXIT_CODES)


def test_make_targets_in_pages_exist():
    """Name only targets that exist in the Makefile; every target has a help text."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    phony = set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split())
    texts = [
        *(page.read_text(encoding="utf-8") for page in PAGES),
        (ROOT / ".ci/run").read_text(encoding="utf-8"),
    ]
    named = {
        target
        for text in texts
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)
    }
    assert phony == targets
    assert set() == named - targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """Follow every relative link of a page; find the tests and benchmarks that it names."""
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    assert [] == [link for link in links if "://" not in link and not (page.parent / link).exists()]
    named = re.findall(r"\b(?:tests|benchmarks)/[\w/]+\.\w+", text)
    assert [] == [name for name in named if not (ROOT / name).exists()]
