"""Tests of ranks that share a GPU: their rows are shown, and nothing is concluded from them."""

import pytest
from builders import MIB, make_case
from fields import fields_of
from laws import sweep
from matrices import make_hosts, make_matrix, touching
from training_builders import run_of

from commbench.analysis.prediction.network import network_model
from commbench.analysis.stragglers import straggler_findings
from commbench.engine.flags import FLAGS
from commbench.engine.records import Record
from commbench.report.figures.matrix import matrix_figures
from commbench.report.figures.sizes import size_charts
from commbench.report.findings import bandwidths, latencies, pairs
from commbench.report.page.conclusion import find_conclusion
from commbench.results import Run
from commbench.results.info import shares_gpu

DOUBT = FLAGS["shared_gpu"].description


def records_of(backend: str) -> list[Record]:
    """Return a matrix with a slow host, and two operations over message sizes."""
    case = make_case("bandwidth", pattern="matrix", message_bytes=MIB, backend=backend)
    matrix = make_matrix(4, host_slowness=touching(2, 4.0), case=case)
    return [
        *matrix,
        *sweep(make_case(backend=backend)),
        *sweep(make_case("latency", backend=backend)),
    ]


def run_on(backend: str, ranks_per_gpu: int | None) -> Run:
    """Return a run of these records."""
    return run_of(records_of(backend), **make_hosts(4, ranks_per_gpu=ranks_per_gpu))


@pytest.mark.parametrize(
    ("backend", "ranks_per_gpu", "shares"),
    [
        ("nccl", 2, True),
        ("torch-nccl", 8, True),
        ("mpi-cuda", 2, True),
        ("nccl", 1, False),
        ("nccl", None, False),
        ("mpi", 2, False),
        ("gloo", 2, False),
    ],
)
def test_only_backends_on_gpus_share_them(backend, ranks_per_gpu, *, shares):
    """Apply the sharing only to backends on GPUs."""
    assert shares == shares_gpu(backend, {"ranks_per_gpu": ranks_per_gpu})


@pytest.mark.parametrize(
    ("backend", "ranks_per_gpu", "counts"),
    [("nccl", 2, False), ("nccl", 1, True), ("mpi", 2, True)],
)
def test_nothing_is_concluded_about_an_interconnect(backend, ranks_per_gpu, *, counts):
    """Keep rows and pairs, but fit no rate, curve, straggler or model."""
    run = run_on(backend, ranks_per_gpu)
    assert 1 == len(run.matrices)
    assert {"all_reduce", "latency", "bandwidth"} == set(fields_of(run.rows, "operation"))
    assert {counts} == {not flags.endswith("shared_gpu") for flags in run.pairs["flags"]}
    made = {
        "rates": [*bandwidths(run), *latencies(run)],
        "pairs": list(pairs(run)),
        "curves": list(size_charts([run])),
        "heat maps": list(matrix_figures([run])),
        "stragglers": straggler_findings(run).stragglers,
        "model": network_model(run).curves,
    }
    assert dict.fromkeys(made, counts) == {
        name: bool(conclusions) for name, conclusions in made.items()
    }


def test_the_first_screen_says_so_alone():
    """Show the warning first, and no bandwidth."""
    (conclusion,) = find_conclusion([run_on("nccl", 2)])
    assert "Warnings" == conclusion.label
    assert any(DOUBT in text for text in conclusion.texts)
