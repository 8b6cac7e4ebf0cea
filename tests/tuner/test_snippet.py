"""Tests of settings as lines to paste."""

import ast

import pytest
from deciding import FIVE
from training_builders import make_training_case

from commbench.tuner.snippet import keep_snippet, live_snippet, snippet_of


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
                (
                    "TopK(density=0.01, dense_below=1000, feedback=True,"
                    " values='float16').register(model)"
                ),
            ],
        ),
        (make_training_case("powersgd:2"), ["PowerSGD(rank=2).register(model)"]),
        (
            make_training_case("topk:0.01:warmup=0.25+0.06:warmup_steps=100"),
            ["TopK(density=0.01, warmup=(0.25, 0.06), warmup_steps=100).register(model)"],
        ),
        (
            make_training_case(unused_parameters=True),
            ["model = DistributedDataParallel(model, find_unused_parameters=True)"],
        ),
        (
            make_training_case(
                "fp16", broadcast_buffers=False, batched_grad_copy=True, compile="ddp_optimizer"
            ),
            [
                (
                    'torch._dynamo.config.optimize_ddp = "ddp_optimizer"  # before the DDP object'
                    " is made"
                ),
                "# forward_sync_buffers and batched_grad_copy need torch 2.13",
                (
                    "model = DistributedDataParallel(model, forward_sync_buffers=False,"
                    " batched_grad_copy=True)"
                ),
                "FP16().register(model)",
                "model = torch.compile(model)",
            ],
        ),
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
def test_snippets_reproduce_the_configuration(case, lines):
    """Write Python that builds the same configuration."""
    snippet = snippet_of(case)
    ast.parse(snippet)
    assert set(lines) <= set(snippet.splitlines())


@pytest.mark.parametrize("hook", ["passthrough", "fp16", "bf16", "topk:0.1", "powersgd:2"])
def test_snippets_import_existing_hooks(hook):
    """Import hooks by their public names."""
    hooks = pytest.importorskip("commbench.hooks")
    text = snippet_of(make_training_case(hook))
    _, _, imported = text.partition("from commbench.hooks import ")
    assert hasattr(hooks, imported.splitlines()[0])


@pytest.mark.parametrize(
    ("framework", "lines"),
    [
        ("", ["# add to the call of DistributedDataParallel:", "bucket_cap_mb=5,"]),
        ("transformers", ["# add to TrainingArguments:", "ddp_bucket_cap_mb=5,"]),
        (
            "accelerate",
            [
                (
                    "accelerator ="
                    " Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=5)])"
                )
            ],
        ),
        ("lightning", ["trainer = Trainer(strategy=DDPStrategy(bucket_cap_mb=5))"]),
    ],
)
def test_a_change_to_a_script_uses_its_framework(framework, lines):
    """Write only the arguments to add."""
    text = live_snippet(FIVE, make_training_case(), framework=framework)
    assert set(lines) <= set(text.splitlines())
    assert "gradient_as_bucket_view" not in text


@pytest.mark.parametrize("framework", ["", "transformers", "accelerate", "lightning"])
def test_every_change_to_a_script_is_python(framework):
    """Write valid Python for bucket lists, views, defaults and hooks in every framework."""
    own = make_training_case(cap="25")
    hooked = make_training_case("topk:0.01", bucket_view=True)
    for case in (make_training_case(cap="1+5"), hooked, make_training_case()):
        lines = live_snippet(case, own, framework=framework).splitlines()
        ast.parse("\n".join(f"call({line})" if line.endswith(",") else line for line in lines))


def test_changes_to_a_script_are_differences():
    """Remove, keep or change what the script sets, or state that nothing changes."""
    own = make_training_case(cap="25", bucket_view=True)
    for case, name in (
        (make_training_case(bucket_view=True), "bucket_cap_mb"),
        (FIVE, "gradient_as_bucket_view"),
    ):
        assert f"# leave out the argument {name} that the script gives" in live_snippet(case, own)
    assert "# accelerate cannot set bucket_cap_mb_list=[1, 5]" in live_snippet(
        make_training_case(cap="1+5"), make_training_case(), framework="accelerate"
    )
    assert "keep the script as it is" in live_snippet(own, own)
    hooked = live_snippet(
        make_training_case("fp16", "25", bucket_view=True), own, framework="transformers"
    )
    assert "FP16().register(trainer.model_wrapped)" in hooked
    assert "bucket_cap_mb" not in hooked


def test_default_keeps_the_search_that_a_model_needs():
    """Keep find_unused_parameters where the baseline has it, because DDP fails without."""
    assert "DistributedDataParallel(model, find_unused_parameters=True)  #" in keep_snippet(
        unused_parameters=True
    )
