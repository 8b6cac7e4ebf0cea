"""The results of a soak as metrics: events by kind, the longest by rank, and drift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from commbench.analysis.soak import Soak
from commbench.analysis.soak.rows import DriftRow, EventRow
from commbench.interop.exports.samples import Metric, Sample, sample
from commbench.results.tables import rows_by

#: Kinds of events, see `EventRow`.
KINDS = ("spike", "failed", "hung")
_EVENT = ("kind", "scope", "ranks", "host")
_DRIFT = "commbench_soak_drift"

#: Metrics of a soak, in output order.
SOAK = (
    Metric(name="commbench_soak_seconds", help="Time from the first visit of a soak to the last."),
    Metric(
        name="commbench_soak_events", help="Spikes and failed launches of a soak.", labels=("kind",)
    ),
    Metric(
        name="commbench_soak_longest_event_seconds",
        help="Duration of the longest event with these labels; no sample without an event.",
        labels=_EVENT,
    ),
    Metric(
        name=f"{_DRIFT}_ratio",
        help="Change of a case's time from the first launch of a soak to the last, as a share.",
        labels=("case",),
    ),
    Metric(
        name=f"{_DRIFT}_ci_low_ratio",
        help=f"Low end of the interval of {_DRIFT}_ratio.",
        labels=("case",),
    ),
    Metric(
        name=f"{_DRIFT}_ci_high_ratio",
        help=f"High end of the interval of {_DRIFT}_ratio.",
        labels=("case",),
    ),
)


def samples_of_soak(soak: Soak | None) -> Iterable[Sample]:
    """Yield the samples of a soak; none for another run."""
    if soak is None:
        return
    yield sample("commbench_soak_seconds", value=soak.seconds)
    yield from _of_events(soak.events)
    for drift in soak.drifts:
        yield from _of_drift(drift)


def _of_events(events: Sequence[EventRow]) -> Iterable[Sample]:
    """Yield the number of events of each kind, 0 too, and the longest with each set of labels."""
    counts = Counter(event.kind for event in events)
    for kind in KINDS:
        yield sample("commbench_soak_events", {"kind": kind}, counts[kind])
    by_labels = rows_by(events, lambda event: tuple(getattr(event, name) for name in _EVENT))
    for labels, members in by_labels.items():
        longest_s = max(event.duration_s or 0.0 for event in members)
        yield sample(
            "commbench_soak_longest_event_seconds",
            dict(zip(_EVENT, labels, strict=True)),
            longest_s,
        )


def _of_drift(drift: DriftRow) -> Iterable[Sample]:
    """Yield the change and its interval; nothing for a case with too few launches."""
    ends = {
        f"{_DRIFT}_ratio": drift.change_percent,
        f"{_DRIFT}_ci_low_ratio": drift.change_percent_ci_low,
        f"{_DRIFT}_ci_high_ratio": drift.change_percent_ci_high,
    }
    for name, percent in ends.items():
        if percent is not None:
            yield sample(name, {"case": drift.case}, percent / 100)
