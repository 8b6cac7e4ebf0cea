"""Tests of why something is not predicted: one sentence for all that it is true of, and others stay apart."""

from commbench.analysis.prediction.forecast import CollectiveOutlook, StepOutlook
from commbench.report.prediction import declined


def collective(operation: str, ranks: int, reason: str) -> CollectiveOutlook:
    """Return a row that is not predicted."""
    return CollectiveOutlook(
        operation=operation, backend="mpi", world_size=ranks, status="unsupported", reason=f"mpi {operation} {reason}"
    )


def test_one_sentence_for_all_ranks_and_operations() -> None:
    """Ranks, sizes, algorithms and operations may differ; how many there are is said."""
    between = "is not predicted for {} ranks: {} differ by a factor of {}; measure it."
    rows = [
        collective("all_reduce", 8, between.format(8, "ring and double tree", 5)),
        collective("all_reduce", 64, between.format(64, "double tree and ring and binomial", 70)),
        collective("all_gather", 16, between.format(16, "ring and recursive doubling", 9)),
    ]
    (said,) = declined(rows)
    assert said == (
        "mpi all_reduce is not predicted for 8 ranks: ring and double tree differ by a factor of 5; measure it. "
        "So it is with 2 more rows: mpi all_gather, mpi all_reduce, on 16 to 64 ranks."
    )


def test_what_is_the_same_is_said_once() -> None:
    """And what is another reason on its own; what is predicted has none."""
    steps = [StepOutlook(hook="topk:0.01", world_size=ranks, reason="Measure topk:0.01.") for ranks in (2, 4)]
    other = StepOutlook(hook="fp16", world_size=2, reason="Nothing is known of float16.")
    assert declined([*steps, other, StepOutlook(hook="none")]) == ["Measure topk:0.01.", "Nothing is known of float16."]
