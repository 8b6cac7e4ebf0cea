"""Tests of the exchange of reducers, and of passes, on one rank."""

import warnings

import pytest
from fields import fields_of
from training_builders import make_training_case

torch = pytest.importorskip("torch")

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from commbench.ddp.plan.arguments import setting_of_model
from commbench.errors import InputError
from commbench.live.adopt import autotune
from commbench.live.passes import Passes
from commbench.live.switching import Switcher


@pytest.fixture
def model():
    """Return a model of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield DistributedDataParallel(torch.nn.Linear(40, 40))
    dist.destroy_process_group()


@pytest.fixture
def switcher(model):
    """Return what exchanges the reducer of the model."""
    return Switcher(model, make_training_case(world_size=1), list(model.parameters()))


def test_a_hook_that_needs_groups_of_its_own_is_not_tried_over_gloo(model, switcher):
    """Refuse int8 and aligned top-k before any collective: one rank may fail alone."""
    groups = len(dist.distributed_c10d._world.pg_names)
    for hook in ("int8", "topk:0.1:exchange=aligned"):
        with pytest.raises(InputError, match="groups of its own"):
            switcher.attempt(model, make_training_case(hook), is_trial=True)
    switcher.attempt(model, make_training_case("fp16"), is_trial=True)
    assert len(dist.distributed_c10d._world.pg_names) == groups


def test_an_exchange_leaves_the_warnings_of_the_script_alone(model, switcher):
    """Show a warning of a loop once: a change of the filters would show it again."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        for cap in ("1", "5", "25"):
            warnings.warn("the loss is large", stacklevel=1)
            setting = make_training_case(bucket_cap_mb=cap, world_size=1)
            assert switcher.exchange(model, setting, is_trial=True)
    assert [str(warning.message) for warning in shown] == ["the loss is large"]


def test_a_model_with_other_parameters_gets_no_reducer(model, switcher):
    """Refuse in our words after a checkpoint has put other parameters in place of all."""
    model.module.load_state_dict({**model.module.state_dict()}, assign=True)
    setting = make_training_case(bucket_cap_mb="5", world_size=1)
    with pytest.raises(LookupError, match="no longer in the model"):
        switcher.exchange(model, setting, is_trial=True)


def test_a_model_of_another_type_gets_no_reducer(model, switcher):
    """Leave the reducer in use: DDP averages gradients of the types that it has registered."""
    model.double()
    setting = make_training_case(bucket_cap_mb="5", world_size=1)
    with pytest.raises(LookupError, match="type or the memory format"):
        switcher.exchange(model, setting, is_trial=True)


def test_an_exchange_leaves_the_size_by_which_torch_compile_divides_graphs(model, switcher):
    """Keep the script's bucket size as an attribute; find the size of the reducer in use."""
    before = model.bucket_bytes_cap
    setting = make_training_case(bucket_cap_mb="5", world_size=1)
    assert switcher.exchange(model, setting, is_trial=False)
    assert before == model.bucket_bytes_cap
    assert "5" == setting_of_model(model)["bucket_cap_mb"]


def test_a_pass_counts_if_the_script_calls_forward_itself(model):
    """Count the pass of ``model(x)`` and that of ``model.forward(x)``."""
    counted = []
    clock = Passes(model, counted.append, list)
    for forward in (model, model.forward):
        forward(torch.ones(2, 40)).sum().backward()
    clock.close()
    assert [each.index for each in counted] == [0, 1]


def call_backward(loss: torch.Tensor) -> None:
    """Begin a backward pass, in Python or in TorchScript."""
    torch.autograd.backward([loss])


def test_a_script_may_compile_a_function_that_calls_backward(model):
    """Compile it by TorchScript while commbench sees such calls."""
    clock = Passes(model, list, list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        backward = torch.jit.script(call_backward)
    backward(model(torch.ones(2, 40)).sum())
    clock.close()
    assert model.module.weight.grad is not None


@pytest.mark.parametrize(("rank", "commit"), [(0, "c0ffee"), (1, None)])
def test_one_rank_asks_git(
    model,
    monkeypatch,
    stub,
    rank,
    commit,
):
    """Start git for commbench's commit only on the rank that writes the run."""
    options = []
    monkeypatch.setattr("commbench.live.adopt.Director", lambda _, given: options.append(given))
    stub("commbench.live.adopt.git_commit", "c0ffee")
    stub("torch.distributed.get_rank", rank)
    autotune(model)
    assert [commit] == fields_of(options, "git_commit")
