"""Tests of settings as lines to paste."""

import ast

import pytest
from deciding import FIVE
from training_builders import make_training_case

from commbench.ddp.plan.cases import TrainingCase
from commbench.tuner.snippet import keep_snippet, snippet_of


@pytest.mark.parametrize(
    ("case", "lines"),
    [
        (FIVE, ["model = DistributedDataParallel(model, bucket_cap_mb=5)"]),
        (
            make_training_case(cap="1+5+0.5", bucket_view=True, static_graph=True),
            [
                (
                    "model = DistributedDataParallel(model, bucket_cap_mb_list=[1, 5, 0.5], "
                    "gradient_as_bucket_view=True, static_graph=True)"
                )
            ],
        ),
        (
            make_training_case("topk:0.01:values=float16:feedback=true:dense_below=1000"),
            [
                "model = DistributedDataParallel(model)",
                'TopK(density=0.01, dense_below=1000, feedback=True, values="float16").register(model)',
            ],
        ),
        (make_training_case("powersgd:2"), ["PowerSGD(rank=2).register(model)"]),
        (
            make_training_case("bf16", precision="amp-fp16", accumulation=4),
            [
                'scaler = torch.amp.GradScaler("cpu")',
                "BF16().register(model, scaler=scaler)",
                'with torch.autocast("cpu", dtype=torch.float16):',
                "# step the optimiser every 4 batches;",
            ],
        ),
    ],
)
def test_snippets_say_all_that_was_chosen(case: TrainingCase, lines: list[str]) -> None:
    """Write Python that makes the same configuration."""
    snippet = snippet_of(case)
    ast.parse(snippet)
    assert set(lines) <= set(snippet.splitlines())


def test_snippet_knows_the_device() -> None:
    """Use CUDA's autocast on a GPU."""
    assert 'torch.autocast("cuda"' in snippet_of(make_training_case(precision="amp-bf16"), device="NVIDIA H100")


@pytest.mark.parametrize("hook", ["passthrough", "fp16", "bf16", "topk:0.1", "randomk:0.1", "powersgd:2"])
def test_snippet_imports_what_there_is(hook: str) -> None:
    """Name hooks as the library does."""
    hooks = pytest.importorskip("commbench.hooks")
    (imported,) = [
        name.name
        for node in ast.walk(ast.parse(snippet_of(make_training_case(hook))))
        if isinstance(node, ast.ImportFrom) and node.module == "commbench.hooks"
        for name in node.names
    ]
    assert hasattr(hooks, imported)


def test_keep_snippet_is_ddp_as_it_is() -> None:
    """Paste the default where the default is kept."""
    ast.parse(keep_snippet())
    assert "DistributedDataParallel(model)  # keep the default" in keep_snippet()
