"""Tests of reasons for missing predictions: similar reasons are merged, different ones stay
separate.
"""

from commbench.analysis.prediction.forecast import (
    COLUMNS,
    CollectiveForecast,
    StepForecast,
    row_to_json,
)
from commbench.errors import InputError
from commbench.findings import Finding, UnpredictedError
from commbench.report.prediction import unpredicted
from commbench.results.tables import rows_csv


def collective(operation: str, ranks: int) -> CollectiveForecast:
    """Return a row without a prediction."""
    subject = f"mpi {operation}"
    reason = Finding(code="links_unmeasured", subject=subject)
    return CollectiveForecast(
        operation=operation, backend="mpi", world_size=ranks, status="unsupported", reason=reason
    )


ROWS = [collective("all_reduce", 8), collective("all_reduce", 64), collective("all_gather", 16)]


def test_one_sentence_for_all_ranks():
    """Give the reason of an operation once for all numbers of ranks."""
    named = [(finding.subject, finding.numbers["ranks"]) for finding in unpredicted(ROWS)]
    assert [("mpi all_reduce", "8, 64"), ("mpi all_gather", "16")] == named


def test_different_reasons_stay_apart():
    """Print equal reasons once, and keep other codes and parameters separate."""
    fp16 = UnpredictedError(
        "operation_unmeasured", "gloo all_reduce", dtype="float16", backend="gloo", operation="x"
    )
    bf16 = UnpredictedError(
        "operation_unmeasured", "gloo all_reduce", dtype="bfloat16", backend="gloo", operation="x"
    )
    errors = [InputError("Measure it."), InputError("Measure it."), fp16, bf16]
    rows = [StepForecast(hook="fp16", world_size=2, reason=Finding.of(error)) for error in errors]
    found = unpredicted([*rows, StepForecast(hook="none")])
    expected = ["Measure it.", str(fp16), str(bf16)]
    assert [("fp16", reason) for reason in expected] == [
        (each.subject, each.numbers["reason"]) for each in found
    ]


def test_files_hold_the_sentence():
    """Write the sentence to JSON and CSV, and nothing for predicted rows."""
    plain = row_to_json(ROWS[0])
    assert str(ROWS[0].reason) == plain["reason"]
    assert "" == row_to_json(CollectiveForecast())["reason"]
    assert str(ROWS[0].reason) in rows_csv([plain], COLUMNS).replace('"', "")
