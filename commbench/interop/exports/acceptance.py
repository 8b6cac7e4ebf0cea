"""The answers to expectations as metrics: what `commbench check` finds, for a dashboard and
alerts.
"""

from __future__ import annotations

from collections.abc import Iterable

from commbench.analysis.expectations import Answer, Outcome
from commbench.interop.exports.samples import Metric, Sample, sample

#: Metrics of the answers, in output order.
ACCEPTANCE = (
    Metric(
        name="commbench_expectation",
        help=(
            "1 for the outcome of the expectation, as commbench check finds it, and 0 for each"
            " other outcome."
        ),
        labels=("expectation", "outcome"),
    ),
)


def samples_of_answers(answers: Iterable[Answer]) -> Iterable[Sample]:
    """Yield a sample for each outcome of each expectation, so that no series ends when the outcome
    changes.

    An expectation that is given twice counts once.
    """
    for text, answer in {answer.expectation.text: answer for answer in answers}.items():
        for outcome in Outcome:
            is_outcome = float(outcome is answer.outcome)
            yield sample(
                "commbench_expectation", {"expectation": text, "outcome": outcome}, is_outcome
            )
