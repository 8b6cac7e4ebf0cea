"""Tests of the page as a file: valid self-contained HTML, and how it is written."""

import re

import pytest
from builders import MIB, STEADY, make_case, make_launches
from fields import fields_of
from kept import load_kept
from matrices import make_hosts, make_matrix
from pages import FORMULA, HOST, Reader, html_of, make_hostile, make_run, read, write_run

from commbench.engine.flags import FLAGS
from commbench.errors import InputError
from commbench.report.figures import all_figures
from commbench.report.figures.drawing import Drawing
from commbench.report.page import FIGURES, PAGE, write_page
from commbench.results import load_run

# ----------------------------------------------------------------------------------------- its form


#: A kept run of each kind.
DRAWN = (
    "bench_xeon2core_20261128",
    "env_links_200mbit_xeon2core_20261128",
    "learning_text_100mbit_xeon2core_20261128",
    "live_trainer_300mbit_xeon2core_20261128",
    "matrix_slow_host_xeon2core_20261128",
    "patterns_1gbit_xeon2core_20261128",
    "soak_200mbit_xeon2core_20261128",
    "tune_resnet18_batch1_1gbit_xeon2core_20261128",
)


@pytest.mark.kept
@pytest.mark.parametrize("name", DRAWN)
def test_pages_of_kept_runs_are_sound(name):
    """Draw a page: balanced, unique ids, valid links, all files."""
    run = load_kept(name)
    reader = read(run)
    assert len(set(reader.ids)) == len(reader.ids)
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)
    assert {"conditions", "repeat", "launches"} <= set(reader.ids)


def test_texts_of_runs_are_never_markup():
    """Escape hosts, reasons, variables and commands."""
    run = make_hostile()
    html = html_of([run])
    page = read(run)
    assert HOST in page.text
    assert FORMULA in page.text
    assert "<script>alert" not in html
    assert 1 == html.count("<script")
    assert [] == [name for tag, name, _ in page.attributes if name.startswith("on")]
    assert not any(tag in {"img", "b"} for tag, _, _ in page.attributes)


def test_figures_stand_in_their_section_and_ask_nothing_of_the_network():
    """Show a figure in its section with caption and PNG link; link no external address, and forbid
    all loading by policy.
    """
    texts = {"title": "Times", "caption": "What they say.", "alt": "A line."}
    drawing = Drawing(
        paint=lambda figure: figure.subplots().plot([1, 2]),
        name="sizes",
        section="collectives",
        **texts,
    )
    html = html_of([make_run(make_launches(STEADY))], [drawing])
    page = Reader(html)
    assert page.text.index("Collectives") < page.text.index("What they say.")
    assert page.text.index("What they say.") < page.text.index("95 % CI")
    assert "figures/sizes.png" in page.links
    assert [] == [link for link in page.links if "//" in link]
    assert not re.search(r"url\((?!#)|@import|https?://(?!www\.w3\.org/)", html)
    [policy] = [text for tag, _, text in page.attributes if tag == "meta" and "src" in text]
    assert policy.startswith("default-src 'none'")


def test_each_id_and_file_is_there_once():
    """Give figures, parts, sections and PNGs unique names for any run names."""
    names = ("\u043f\u043d", "\u0432\u0442")
    runs = [make_run(make_matrix(3), path=f"results/{name}", **make_hosts(3)) for name in names]
    drawings = all_figures(runs)
    reader = Reader(html_of(runs, drawings))
    assert len(drawings) == len(set(fields_of(drawings, "name"))) == len(runs)
    assert sorted(set(reader.ids)) == sorted(reader.ids)


def test_headings_and_flags_are_explained_and_columns_sorted():
    """Explain headings and flags in text, keep flags out of the tab order, and mark numeric cells
    and headings for the sorting script.
    """
    page = read(make_run(make_launches(STEADY[:3])))
    assert "busbw" in page.text.partition("What the columns mean")[2]
    assert {
        ("abbr", "title", FLAGS["few_launches"].description),
        ("td", "data-value", "9.97"),
        ("th", "class", "number"),
    } <= set(page.attributes)
    assert "abbr" not in {tag for tag, name, _ in page.attributes if name == "tabindex"}
    scopes = {text for tag, name, text in page.attributes if (tag, name) == ("th", "scope")}
    assert {"col"} == scopes


# ------------------------------------------------------------------------------------------ writing


def test_page_and_figures_are_written(tmp_path):
    """Write a page and the figures that it names."""
    larger = make_launches(STEADY, make_case(message_bytes=MIB))
    folder = write_run(tmp_path / "mine", [*make_launches(STEADY), *larger])
    page = write_page([load_run(folder)], folder)
    assert folder / PAGE == page
    html = page.read_text(encoding="utf-8")
    figures = set(fields_of((folder / FIGURES).iterdir(), "name"))
    assert figures
    assert figures == set(re.findall(r'href="figures/([^"]+)"', html))


@pytest.mark.parametrize("place", ["mine", "file/page"])
def test_directory_that_cannot_be_written_is_one_sentence(tmp_path, place):
    """Refuse a directory if a file is in the way."""
    folder = write_run(tmp_path / "mine", make_launches(STEADY))
    (folder / FIGURES).write_text("in the way")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another path"):
        write_page([load_run(folder)], tmp_path / place)


def test_somebody_elses_page_is_left_alone(tmp_path):
    """Keep another tool's report.html and the figures that it links."""
    folder = write_run(tmp_path / "mine", make_launches(STEADY))
    theirs = '<a href="figures/theirs.png">\u00e4</a>'.encode("latin-1")
    (folder / PAGE).write_bytes(theirs)
    with pytest.raises(InputError, match="no page of commbench"):
        write_page([load_run(folder)], folder)
    assert theirs == (folder / PAGE).read_bytes()
    assert not (folder / FIGURES).exists()


def test_runs_of_a_page_are_told_apart(tmp_path):
    """Name a run by its path if the directory of another has the same name."""
    folders = [tmp_path / f"{day}_xeon" / "mine" for day in ("monday", "friday")]
    runs = [load_run(write_run(folder, make_launches(STEADY))) for folder in folders]
    reader = Reader(write_page(runs, tmp_path / "both").read_text(encoding="utf-8"))
    names = list(map(str, folders))
    assert names == [line[0] for line in reader.table_with("run", "busbw")[1:]]
