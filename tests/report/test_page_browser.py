"""Tests of the page in a browser, at desktop and phone width."""

import re
import shutil
from html import escape
from pathlib import Path

import pytest
from effort import cases
from launching import assert_code, finished
from pages import html_of, make_hostile
from places import RESULTS

from commbench.report.page.writing import write_page
from commbench.results import load_run

RUNS = cases(
    ["bench_xeon2core_20261128"],
    ["matrix_slow_host_xeon2core_20261128", "train_resnet18_1gbit_xeon2core_20261128"],
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), "")
DESK, TELEPHONE = 1280, 390

pytestmark = [
    pytest.mark.programs,
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium (on Debian: apt install chromium)"),
]

#: Puts into the page what a person would see: sizes in CSS pixels, figures, and what a click on a
#: heading does.
PROBE = """
<script>
addEventListener("load", () => {
  const report = (name, value) => document.documentElement.setAttribute(`data-${name}`, value);
  report("overflow", document.documentElement.scrollWidth - document.documentElement.clientWidth);
  report("width", innerWidth);
  const figures = [...document.querySelectorAll("figure.drawing svg")];
  report("figures", figures.filter((svg) => svg.getBoundingClientRect().height > 50).length);
  const header = document.querySelector("header").getBoundingClientRect();
  report("first-screen", Math.round(header.bottom));
  const wide = [...document.querySelectorAll("main *")].filter((part) =>
    !part.closest(".scroll, svg, pre") && part.getBoundingClientRect().right > innerWidth + 1);
  report("wide", wide.map((part) => part.tagName).join(" "));
  const table = document.querySelector("table.sortable:has(tbody tr:nth-child(3))");
  const heads = [...table.tHead.rows[0].cells];
  const index = heads.findIndex((head) => head.classList.contains("number"));
  const button = heads[index].querySelector("button");
  const value = (row) => row.cells[index].dataset.value;
  const column = () => [...table.tBodies[0].rows].map(value).join(",");
  report("before", column());
  button.click();
  report("up", column());
  report("sorted", table.tHead.rows[0].cells[index].getAttribute("aria-sort"));
  button.click();
  report("down", column());
  button.click();
  report("after", column());
  button.focus();
  report("focus", document.activeElement === button);
});
</script>
"""


#: A telephone: a frame in a window, which cannot be made so narrow; the frame's findings become
#: those of the window.
FRAME = """
<!DOCTYPE html><html><body><iframe width="{width}" height="800" srcdoc="{html}"></iframe><script>
document.querySelector("iframe").addEventListener("load", (event) => {{
  const found = event.target.contentDocument.documentElement.dataset;
  for (const [name, value] of Object.entries(found)) document.documentElement.dataset[name] = value;
}});
</script></body></html>
"""


class Screen:
    """Opens pages in a browser."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def show(self, html: str) -> tuple[str, str]:
        """Return the loaded page and the console messages."""
        page = self.home / "page.html"
        page.write_text(html, encoding="utf-8")
        options = "headless no-sandbox disable-gpu disable-background-networking no-first-run"
        command = [CHROMIUM, *(f"--{option}" for option in options.split())]
        command += [f"--user-data-dir={self.home / 'profile'}", "--enable-logging=stderr"]
        command += [f"--window-size={DESK},800", "--dump-dom", page.as_uri()]
        done = finished(*command)
        assert_code(done, 0)
        return done.stdout, "\n".join(
            line for line in done.stderr.splitlines() if "CONSOLE" in line
        )

    def probe(self, html: str, width: int) -> dict[str, str]:
        """Return the probe's results in a page of this width, without the page's own policy."""
        probed = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", html)
        probed = probed.replace("</body>", f"{PROBE}</body>")
        framed = FRAME.format(width=width, html=escape(probed)) if width < DESK else probed
        dom, _ = self.show(framed)
        opening = re.search(r"<html[^>]*>", dom)
        return dict(re.findall(r'data-([a-z-]+)="([^"]*)"', opening[0]))


@pytest.fixture
def screen(tmp_path):
    """Return a browser."""
    return Screen(tmp_path)


@pytest.fixture(scope="module", params=RUNS)
def html(request, tmp_path_factory):
    """Return the page of a kept run with its figures."""
    run = load_run(RESULTS / request.param)
    return write_page([run], tmp_path_factory.mktemp("page")).read_text(encoding="utf-8")


def test_page_opens_without_a_word_from_the_console(screen, html):
    """Load the page without errors, warnings or policy violations."""
    dom, messages = screen.show(html)
    assert "" == messages
    assert "aria-sort" in dom.partition("</style>")[2], "the script has run"


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_page_fits_its_window(screen, html, width):
    """Show every figure, scroll tables in their boxes only, and sort by click; at desktop width the
    conclusion and key conditions are on the first screen.
    """
    probed = screen.probe(html, width)
    assert str(width) == probed["width"]
    assert "0" == probed["overflow"]
    assert "" == probed["wide"]
    assert html.count('<figure class="drawing"') == int(probed["figures"]) > 0
    up = [float(value) for value in probed["up"].split(",")]
    assert sorted(up) == up
    assert sorted(up, reverse=True) == [float(value) for value in probed["down"].split(",")]
    assert probed["before"] == probed["after"]
    assert ("ascending", "true") == (probed["sorted"], probed["focus"])
    assert width != DESK or int(probed["first-screen"]) <= 800


def test_hostile_texts_do_nothing(screen):
    """Show scripts in hosts, reasons and commands as text, without dialogue or error."""
    page = html_of([make_hostile()])
    dom, messages = screen.show(page)
    assert "" == messages
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in dom
    assert 1 == dom.count("<script")
