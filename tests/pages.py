"""Parsing of pages as a browser does, and runs to draw."""

from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import networks
from builders import STEADY, make_case, make_info, make_launches, make_record
from training_builders import run_of

from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.report.figures.drawing import Drawing
from commbench.report.page.contents import make_page
from commbench.report.page.writing import render
from commbench.results import Run
from commbench.tuner.conclusion import recommend

HOST = "<script>alert(1)</script>"
FORMULA = "=cmd()"
VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}


class Reader(HTMLParser):
    """Parses a page: balance, ids, links, and table cells by heading."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open = []
        self.faults = []
        self.attributes = []
        self.texts = []
        self.tables = []
        self.feed(html)
        self.close()
        self.ids = [text for _, name, text in self.attributes if name == "id"]
        links = {"href", "src", "xlink:href"}
        self.links = [text for _, name, text in self.attributes if name in links]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an opened tag."""
        if tag not in VOID:
            self.open.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        """Compare a closed tag with the open one."""
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        """Collect text, also of the current cell."""
        if self.open and not {"style", "script", "nav"} & set(self.open):
            self.texts.append(data)
        if {"td", "th"} & set(self.open) and self.tables:
            self.tables[-1][-1][-1] += data

    @property
    def text(self) -> str:
        """Return the visible text without the table of contents, with single spaces."""
        return " ".join(" ".join(self.texts).split())

    def table_with(self, *headings: str) -> list[list[str]]:
        """Return the rows of the first table with these headings."""
        for lines in self.tables:
            if all(any(text in cell for cell in lines[0]) for text in headings):
                return lines
        raise LookupError(headings)


def make_run(
    records: Sequence[Record] = (),
    training: Sequence[TrainingRecord] = (),
    path: str = "results/mine",
    **info: Any,
) -> Run:
    """Return a run with these records and the conclusion of training ones."""
    ended = {"status": "complete", "started": "2026-11-21T11:08:59+00:00"}
    run = run_of(records, training=training, **{**ended, **info})
    recommendation = recommend(training, run.info) if training else None
    return replace(run, path=Path(path), recommendation=recommendation)


def html_of(runs: Sequence[Run], drawings: Sequence[Drawing] = ()) -> str:
    """Return the page of runs as HTML."""
    return render(make_page(runs, drawings))


def read(*runs: Run) -> Reader:
    """Return the page of runs, without figures."""
    reader = Reader(html_of(runs))
    assert [] == reader.faults
    assert [] == reader.open
    return reader


def make_hostile() -> Run:
    """Return a run with harmful text in every foreign field."""
    host = {"hostname": HOST, "cpu_model": FORMULA, "kernel": '"><img src=x onerror=alert(2)>'}
    records = [
        *make_launches(STEADY),
        make_record(make_case("all_gather"), status="failed", reason=f"{HOST} died"),
        make_record(make_case("reduce", redop="sum", root=0)),
    ]
    return make_run(
        records,
        environment={
            "hosts": [host],
            "versions": {"torch": HOST},
            "variables": {"NCCL_X": FORMULA},
        },
        argv=["commbench", "run", "</script><script>alert(3)</script>"],
        ranks=[{"rank": 0, "host": HOST}],
        launches=[
            {
                "stage": HOST,
                "launch": 0,
                "seconds": 1.0,
                "startup_s": 0.1,
                "measuring_s": 0.8,
                "other_s": 0.1,
                "status": "failed",
                "reason": FORMULA,
                "failed_rank": {"rank": 0, "host": HOST, "state": "died", "case": ""},
            }
        ],
    )


def write_run(folder: Path, records: Sequence[Record], **info: Any) -> Path:
    """Write a run's two files from which all others are made."""
    return networks.write_run(folder, records, **make_info(status="complete", **info))
