"""What tests of figures and pages share: PNGs are not drawn where only the SVG is looked at."""

from typing import Any

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def with_png() -> None:
    """Let figures be drawn as PNG, too."""


@pytest.fixture(autouse=True)
def _without_png(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave PNGs empty, which take as long as SVGs, but in tests that use ``with_png``."""
    if "with_png" in request.fixturenames:
        return
    save = Figure.savefig

    def save_but_png(figure: Figure, target: Any, **options: Any) -> None:
        if options["format"] != "png":
            save(figure, target, **options)

    monkeypatch.setattr(Figure, "savefig", save_but_png)
