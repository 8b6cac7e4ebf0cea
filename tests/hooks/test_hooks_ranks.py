"""Tests of hooks on real Gloo ranks: right in every step, equal on all ranks, resumable, with clear
errors; and on the path of devices, where no hook may read a tensor on the host.
"""

import subprocess
import sys
from typing import Any

import cuda_on_host
import pytest
from effort import cases
from fields import fields_of
from gloo_ranks import OF_MEMORIES, RANKS, found_by, rank_environment, run_gloo_ranks

pytest.importorskip("torch")
pytestmark = pytest.mark.programs  # fixtures ask for forks by name

DENSE = ("passthrough", "fp16", "bf16")
LOSSY = (
    "topk",
    "topk exact",
    "topk parameter fp16",
    "topk dense_below",
    "powersgd",
    "powersgd fp16",
    "powersgd bf16",
    "int8",
    "int8 one block",
    "topk aligned",
    "topk aligned exact",
)
#: Hooks with a memory.
MEMORIES = cases(
    ["topk", "powersgd", "int8", "topk aligned"],
    ["topk parameter fp16", "topk momentum", "powersgd fp16"],
)
STEPS, ALL_MEMORIES = cases(["train:10"], ["train:20"])[-1], ":".join(MEMORIES)
#: What works on elements on the path of devices: torch, or kernels compiled for the host.
KINDS = cases(["torch"], ["cuda"] if cuda_on_host.find_compiler() else [])


@pytest.fixture(scope="module")
def start(forked_python, tmp_path_factory):
    """Return ``start(ranks, script, *arguments)``: exit status, output and messages of each
    rank.
    """

    def run(
        ranks: int, script: str, *arguments: str, timeout: float = 250
    ) -> list[tuple[int, str, str]]:
        store = tmp_path_factory.mktemp("store") / "store"
        return run_gloo_ranks(
            forked_python, ranks, script, *arguments, store=store, timeout=timeout
        )

    return run


@pytest.fixture(scope="module")
def checked(start):
    """Return the results of all checks on two ranks."""
    names = ["density_one", "low_rank", "shapes_and_options", "feedback", "without_feedback", STEPS]
    names += ["compression_gradients", "two_models", "chosen_chunks", "dense_start"]
    names += [f"{name}:{ALL_MEMORIES}" for name in ("resume", "scaled", "infinite")]
    return found_by(start(2, "hooks_check.py", *names))


@pytest.fixture(scope="module")
def trained(checked):
    """Return the results of training with each hook on two ranks."""
    return checked["train"]


@pytest.fixture(scope="module")
def checked_by_three(start):
    """Return the results at density 1 on three ranks, where sums depend on their order."""
    return found_by(start(3, "hooks_check.py", "density_one"))


@pytest.fixture(scope="module")
def checked_by_four(start):
    """Return the results of some checks on four ranks."""
    names = ["density_one", "low_rank", "compression_gradients", "chosen_chunks"]
    return found_by(start(4, "hooks_check.py", *names, f"scaled:{ALL_MEMORIES}"))


@pytest.fixture(scope="module")
def on_devices(start):
    """Return the results of all checks on the path of devices, by what works on elements."""
    return found_by(
        start(2, "hooks_device.py", *(f"{kind}:{ALL_MEMORIES}" for kind in KINDS), timeout=280)
    )


@pytest.fixture(scope="module", params=["host", *KINDS])
def checked_by_two(request):
    """Return the results of checks on two ranks, on the host and on the path of devices."""
    if request.param == "host":
        return request.getfixturevalue("checked")
    return request.getfixturevalue("on_devices")[request.param]


@pytest.fixture(
    scope="module", params=["host", *KINDS, pytest.param("four", marks=pytest.mark.slow)]
)
def checked_by_any(request):
    """Return the results of checks on two ranks, as above, and on four."""
    if request.param == "host":
        return request.getfixturevalue("checked")
    if request.param == "four":
        return request.getfixturevalue("checked_by_four")
    return request.getfixturevalue("on_devices")[request.param]


@pytest.fixture(scope="module")
def errors(start):
    """Return the error messages on one rank."""
    return found_by(start(1, "hooks_broken.py", "broken", "registering", "sparse"))


def check_training(results: dict[str, Any]) -> None:
    """Check that no step is wrong, all ranks have the same bits, and bucket sizes vary."""
    assert [] == results["wrong"]
    assert results["agree"]
    assert [576] * 6 == results["buckets"][:6]
    assert 1 < len(set(results["buckets"]))
    assert [] == results["flaws"]


@pytest.mark.parametrize("name", DENSE + LOSSY)
def test_every_step_is_right_on_two_ranks(trained, name):
    """Average in every step what each rank sent of gradient plus residual."""
    check_training(trained[name])


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_step_is_right_for_long(start, ranks):
    """Average correctly over many steps on two, three and four ranks."""
    results = found_by(start(ranks, "hooks_check.py", "train:200"))["train"]
    for name in DENSE + LOSSY:
        check_training(results[name])


@pytest.mark.parametrize("name", ["topk", "topk aligned", "powersgd", "int8"])
def test_first_steps_send_everything(checked, name):
    """Average exactly in the first two steps, and compress in the next ones."""
    *dense, third, fourth = checked["dense_start"][name]
    assert max(dense) < 1e-6
    assert min(third, fourth) > 1e-4


def test_a_fault_is_found(trained):
    """Detect a wrong element of one bucket, and rounding errors of sums that were not kept, which
    shows that the tests above can fail.
    """
    assert 7 == min(trained["corrupt"]["wrong"])
    assert trained["forgetful int8"]["wrong"]


def test_only_lossy_hooks_have_a_residual(trained):
    """Keep a residual only if not everything is sent."""
    assert [0.0] * len(DENSE) == [trained[name]["residual"] for name in DENSE]
    assert all(trained[name]["residual"] > 0 for name in LOSSY)


@pytest.mark.parametrize(
    "name", ["topk", "topk exact", "topk parameter", "topk whole", "topk aligned"]
)
def test_density_one_is_dense(checked_by_any, checked_by_three, name):
    """Send everything at density 1: the mean, and for top-k the bits of the sum in rank order."""
    for results in (checked_by_any["density_one"][name], checked_by_three["density_one"][name]):
        assert 1e-6 > results["error"]
        assert 0.0 == results["residual"]
        assert results["bits"] or name in {
            "topk whole",
            "topk aligned",
        }  # these are all-reduced


def test_low_rank(checked_by_any):
    """Send everything in the first step and at full rank, and approach the best rank-2
    approximation.
    """
    results = checked_by_any["low_rank"]
    assert 1e-5 > max(results["full"], results["left"], results["everything"])
    assert results["first"] > 1.1 * results["best"]
    assert (
        0.999 * results["best"] < results["later"] < 1.01 * results["best"]
    )  # the best itself is reached to rounding


@pytest.mark.parametrize("check", OF_MEMORIES)
def test_memories(checked_by_two, check):
    """Resume with identical bits, obey a scaler, and keep infinity out of the residual."""
    found = checked_by_two[check]
    assert dict.fromkeys(found, OF_MEMORIES[check]) == found != {}


@pytest.mark.slow
def test_scaler(checked_by_four):
    """Keep every bit under a scaler; on one rank's infinity skip the step and drop all updates."""
    found = checked_by_four["scaled"]
    assert dict.fromkeys(MEMORIES, OF_MEMORIES["scaled"]) == found


def test_asking_is_noticed(on_devices):
    """Detect a host read, which shows that the tests on the path of devices can fail."""
    assert "a hook asks what is in a tensor" in on_devices["torch"]["asked"]


def test_memory_layouts_and_options(checked_by_two):
    """Average correctly in other memory layouts and with DDP's options."""
    errors = checked_by_two["shapes_and_options"]
    assert 20 == len(errors)
    assert dict.fromkeys(errors, pytest.approx(0, abs=1e-5)) == errors


def test_one_percent_needs_feedback(checked):
    """Learn with error feedback as well as without compression, and worse without it."""
    losses = checked["feedback"]
    assert losses["with"] < 1.05 * losses["dense"]
    assert losses["without"] > 1.3 * losses["with"]


def test_without_feedback(checked_by_two):
    """Send the largest elements, without residual."""
    result = checked_by_two["without_feedback"]
    assert 1e-6 > result["error"]
    assert 0 == result["kept"]
    assert 647 <= result["sent"] <= 2 * 647


def test_deep_gradient_compression(checked_by_any):
    """Match a reference of momentum correction, masking, clipping, warm-up and learning-rate
    change.
    """
    results = checked_by_any["compression_gradients"]
    assert 1e-5 > results["error"]
    assert [100, 100, 20, 20, 10, 10, 10] == results["counts"]


def test_all_ranks_send_the_same_chunks(checked_by_any):
    """Choose the chunks with the largest sums of norms on all ranks, and average only these."""
    results = checked_by_any["chosen_chunks"]
    assert all(results["expected"] == chunks for chunks in results["chunks"])
    assert 4 == len(results["expected"])
    assert 1e-6 > results["error"]


def test_two_models_share_a_thread(checked):
    """Serve two models by one thread beside other collectives until both close, and then a
    third.
    """
    results = checked["two_models"]
    assert (True, [True, False]) == (results["shared"], results["alive"])
    assert "powersgd was used after its close" in results["refusal"]
    assert (True, True) == (results["agree"], results["agree later"])


# What a person is told


def test_broken_hooks_are_named(errors):
    """Name the hook and the bucket in an error of ours; pass the state to a person's good hook, and
    its result to DDP.
    """
    broken = errors["broken"]
    assert [[""], ["True"]] == [broken.pop("good"), broken.pop("good doubles")]
    assert 11 == len(broken)
    for texts in broken.values():
        assert "bucket 0" in texts[0]
        for text in texts:
            assert "InputError" in text
            assert "INTERNAL ASSERT" not in text


def test_refused_registrations(errors):
    """Refuse models and states that a hook cannot serve; pass double precision without
    compression.
    """
    texts = errors["registering"]
    assert "" == texts.pop("double passthrough")
    assert 8 == len(texts)
    for text in texts.values():
        assert "InputError: " in text


def test_sparse_gradients_are_refused(errors):
    """Refuse sparse gradients, and ask for dense ones."""
    assert "InputError: Bucket 0 holds sparse gradients" in errors["sparse"][0]


# How processes end


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["topk", "powersgd", "int8"])
def test_processes_end_by_themselves(tmp_path, hook):
    """Exit with 0 and no message after the last line, also with an unclosed thread."""
    command = [sys.executable, str(RANKS / "hooks_end.py"), "good", hook]
    processes = [
        subprocess.Popen(
            command,
            env=rank_environment(rank, 2, tmp_path / "store"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=250)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [b"", b""] == outputs
    assert [0, 0] == fields_of(processes, "returncode")


@pytest.mark.parametrize("hook", [pytest.param("topk", marks=pytest.mark.slow), "powersgd"])
def test_a_lost_rank_is_an_error_not_a_hang(start, hook):
    """Raise an error that another rank probably ended."""
    status, text, _ = start(2, "hooks_end.py", "bereft", hook)[0]
    assert 0 == status
    assert f"LaunchError: Hook {hook} could not exchange bucket" in text
    assert "look at the other ranks' messages" in text
