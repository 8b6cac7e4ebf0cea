"""Tests of requested algorithms: parsing, formatting and use."""

import pytest
from fields import fields_of

from commbench.collectives.algorithms import Choice, transport_by
from commbench.collectives.cases import Sweep
from commbench.errors import InputError


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("auto", Choice()),
        ("ring", Choice(algorithm="ring")),
        ("LL128", Choice(protocol="ll128")),
        ("tree/ll", Choice(algorithm="tree", protocol="ll")),
        ("ring/8ch", Choice(algorithm="ring", channels=8)),
        ("ring/simple/16ch", Choice(algorithm="ring", protocol="simple", channels=16)),
        ("4ch", Choice(channels=4)),
    ],
)
def test_what_is_asked_for_is_read_and_written(text, choice):
    """Parse any of the parts, and format them unchanged."""
    assert choice == Choice.parse(text)
    assert choice == Choice.parse(str(choice))
    assert text.lower() == str(choice)


@pytest.mark.parametrize(
    "text", ["", "rings", "ll/ring", "ring/ring", "0ch", "ring/8", "ring/ll/8ch/", "ring//8ch"]
)
def test_what_is_not_understood_is_refused(text):
    """Refuse unknown words, and list the valid ones."""
    with pytest.raises(
        InputError, match=r"is not understood; write auto, or any of ring, tree, .*e\.g\. tree"
    ):
        Choice.parse(text)


def test_nccl_is_asked_by_its_variables():
    """Set only the requested variables of NCCL."""
    assert {"NCCL_ALGO": "tree", "NCCL_PROTO": "ll"} == Choice.parse("tree/ll/2ch").variables
    assert {} == Choice.parse("auto").variables


def test_an_axis_of_algorithms_is_for_operations_that_have_several():
    """Vary the algorithm only if NCCL has several, and keep the keys of default cases."""
    sweep = Sweep(
        operations=("all_reduce", "all_to_all"),
        sizes="1K",
        backends=("nccl",),
        algorithms=("auto", "RING"),
    )
    cases = sweep.cases(2)
    assert [("all_reduce", "auto"), ("all_reduce", "ring"), ("all_to_all", "auto")] == fields_of(
        cases, "operation", "algorithm"
    )
    assert [False, True, False] == ["algorithm" in case.key for case in cases]
    assert "nccl all_reduce 1 KiB float32 sum by ring" == str(cases[1])
    assert 3 == len(set(fields_of(cases, "key")))
    with pytest.raises(InputError, match="is not understood"):
        Sweep(algorithms=("rings",))


@pytest.mark.parametrize(
    ("algorithm", "transport"),
    [
        ("nvls/simple/16ch", "NVLS+P2P/CUMEM"),
        ("nvlstree/simple/16ch", "NVLS+P2P/CUMEM"),
        ("symmetric/allreduce_rsxldmc_agxstmc", "NVLS+P2P/CUMEM"),
        ("symmetric/allreduce_agxll_r", "P2P/CUMEM"),
        ("ring/ll128/8ch", "P2P/CUMEM"),
        ("copy", "P2P/CUMEM"),
        ("", "P2P/CUMEM"),
    ],
)
def test_nvls_is_named_for_algorithms_that_use_it(algorithm, transport):
    """Name NVLS beside the channels' transports, or alone."""
    assert transport == transport_by(algorithm, "P2P/CUMEM")
    assert transport.removesuffix("+P2P/CUMEM").removesuffix("P2P/CUMEM") == transport_by(
        algorithm, ""
    )
