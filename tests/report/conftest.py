"""Shared by tests of figures and pages: PNGs are not drawn if a test only reads the SVG."""

from typing import Any

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def with_png():
    """Draw figures as PNG too."""


@pytest.fixture(autouse=True)
def _without_png(request, monkeypatch):
    """Leave PNGs empty, except in tests that use ``with_png``, because they take as long as
    SVGs.
    """
    if "with_png" in request.fixturenames:
        return
    save = Figure.savefig

    def save_but_png(figure: Figure, target: Any, **options: Any) -> None:
        if options["format"] != "png":
            save(figure, target, **options)

    monkeypatch.setattr(Figure, "savefig", save_but_png)
