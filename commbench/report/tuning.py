"""What a tuning predicted beside what it then measured, and what it cost, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from commbench.prediction.accuracy import Accuracy, PredictionRow, held_out_accuracy
from commbench.report.training import hook_label
from commbench.store import PREDICTIONS
from commbench.units import counted, format_duration, three_digits

#: So many settings that were only predicted are shown; the others are in the file.
MOST_UNMEASURED = 3
_HEADINGS = (
    "step, ms\npredicted",
    "overlap:\n[full, none]",
    "\nmeasured",
    "\nerror",
    "speedup\npredicted",
    "\nmeasured",
    "\nno.",
)


def render_predictions(rows: Sequence[PredictionRow]) -> list[RenderableType]:
    """What was measured and the most promising of the rest, the fastest by prediction first; nothing without rows."""
    if not rows:
        return []
    ranked = sorted(rows, key=lambda row: row.predicted_step_ms or 0.0)
    unmeasured = [row for row in ranked if row.used == "not_measured"]
    hidden = {id(row) for row in unmeasured[MOST_UNMEASURED:]}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("\nhook", no_wrap=True)
    table.add_column("buckets\nMiB", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in ranked:
        if id(row) not in hidden:
            table.add_row(*_cells(row))
    meanings = "no.: launches behind what was measured"
    if any(row.is_fitted for row in rows):
        meanings = f"*: predictions were fitted to this setting; {meanings}"
    parts: list[RenderableType] = [Text(prediction_title(rows), style="bold"), table]
    parts.append(Text(meanings, style="dim"))
    if hidden:
        text = f"{counted(len(hidden), 'more setting')} not measured, slower by prediction"
        parts.append(Text(f"{text}: see {PREDICTIONS}.", style="dim"))
    return parts


def render_cost(conclusion: Mapping[str, Any], launches: Iterable[Mapping[str, Any]] = ()) -> Text:
    """How many steps were made, as a share of a full sweep's, and how long all of it took, the network included.

    Args:
        conclusion: what ``recommendation.json`` holds.
        launches: as ``run.json`` lists them.
    """
    measured, full = conclusion["measured_steps"], conclusion["exhaustive_steps"]
    share = f", {100 * measured / full:.0f} % of the {full} that a full sweep of these settings takes" if full else ""
    launches = list(launches)
    total = sum(launch.get("seconds", 0.0) for launch in launches)
    network = sum(launch.get("seconds", 0.0) for launch in launches if launch.get("stage") == "network")
    time = f", in {format_duration(total)}, {format_duration(network)} of it for the network" if total else ""
    return Text(f"Measured {counted(measured, 'step')}{share}{time}.")


def prediction_title(rows: Iterable[PredictionRow]) -> str:
    """From what the predictions are, and how far off they were."""
    return f"Predicted from the calibration{_said(held_out_accuracy(rows))}"


def _said(accuracy: Accuracy | None) -> str:
    if accuracy is None:
        return ""
    speedup = "" if accuracy.speedup_error is None else f", speedup ±{100 * accuracy.speedup_error:.1f} %"
    return (
        f" (step ±{100 * accuracy.step_error:.1f} %{speedup}: median error at "
        f"{counted(accuracy.settings, 'held-out setting')})"
    )


def _cells(row: PredictionRow) -> tuple[str, ...]:
    bounds = f"[{_number(row.predicted_overlapped_ms)}, {_number(row.predicted_serial_ms)}]"
    error = "*" if row.is_fitted else "" if row.error is None else f"{100 * row.error:+.1f} %"
    return (
        hook_label(row),
        row.bucket_cap_mb,
        _number(row.predicted_step_ms),
        bounds,
        _number(row.step_ms),
        error,
        _ratio(row.predicted_speedup),
        _ratio(row.speedup),
        str(row.launches or ""),
    )


def _number(value: float | None) -> str:
    return "" if value is None else three_digits(value)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
