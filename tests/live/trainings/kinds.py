"""Trainings of kinds that profilers and wrappers have broken: ``kinds.py NAME``."""

import collections
import copy
import functools
import gc
import io
import itertools
import os
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from common import (
    RANKS,
    STEPS,
    WIDTH,
    Parts,
    backward,
    batches,
    begin,
    network,
    report,
    sgd,
    train,
    update,
)
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

#: Steps in which a signal comes.
ALARMS = 50


def plain(rank: int) -> list[nn.Module]:
    """Train as the documentation of torch does."""
    return train(DistributedDataParallel(network()), rank)


def thawed(rank: int) -> list[nn.Module]:
    """Freeze a backbone behind the construction of DDP, and thaw it later."""
    model = network()
    ddp = DistributedDataParallel(model, find_unused_parameters=True)

    def freeze(step: int) -> None:
        for parameter in model[:-1].parameters():
            parameter.requires_grad_(step >= STEPS // 2)

    return train(ddp, rank, between=freeze)


def preview(rank: int) -> list[nn.Module]:
    """Call the model once more on rank 0 alone, with gradients, before another collective."""
    ddp = DistributedDataParallel(network())

    def look(step: int) -> None:
        if rank == 0 and step % 10 == 3:
            ddp(torch.ones(2, WIDTH))
        dist.all_reduce(torch.ones(1))

    return train(ddp, rank, between=look)


def nested(rank: int) -> list[nn.Module]:
    """Give the model a nested tensor."""

    def pad(model: Any, data: torch.Tensor) -> torch.Tensor:
        return model.body(torch.nested.to_padded_tensor(data, 0.0)).mean()

    ddp = DistributedDataParallel(Parts(pad, body=network()))
    as_nested = torch.nested.nested_tensor
    return train(ddp, rank, loss=lambda m, x: m(as_nested([x[:3], x[3:]])))


def sparse(rank: int) -> list[nn.Module]:
    """Train an embedding with sparse gradients."""
    words = nn.Embedding(50, WIDTH, sparse=True)
    model = Parts(lambda m, words: m.body(m.words(words)), words=words, body=network())
    return train(
        DistributedDataParallel(model),
        rank,
        loss=lambda m, x: m((x[:, 0].abs() * 10).long() % 50).square().mean(),
    )


def adversaries(rank: int) -> list[nn.Module]:
    """Train two models in turn, and freeze one while the other trains."""
    maker, judge = DistributedDataParallel(network(WIDTH)), DistributedDataParallel(network(1))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.01) for each in (maker, judge)]
    for x in batches(rank):
        judge.requires_grad_(requires_grad=True)
        (judge(x).mean() - judge(maker(x).detach()).mean()).backward()
        update(optimizers[1])
        judge.requires_grad_(requires_grad=False)
        judge.module(maker(x)).mean().backward()
        update(optimizers[0])
    judge.requires_grad_(requires_grad=True)
    return [maker, judge]


def folds(rank: int) -> list[nn.Module]:
    """Train three models in one process, with a new process group each.

    One is destroyed between blocks, the others while ranks agree and shortly after.
    """
    models = []
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # The server of the first group would end with it on rank 0, if this store did not share it.
    is_server = rank == 0
    store = dist.TCPStore(
        address, port, is_master=is_server, wait_for_workers=False, multi_tenant=True
    )
    for fold, steps in enumerate((70, 12, 17)):
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo", store=dist.PrefixStore(str(fold), store), rank=rank, world_size=RANKS
        )
        models.append(DistributedDataParallel(network()))
        train(models[-1], rank, steps=steps)
    return models


def flat(rank: int) -> list[nn.Module]:
    """Keep all gradients in one tensor, and update the parameters from it."""
    ddp = DistributedDataParallel(network())
    parameters = list(ddp.parameters())
    whole = torch.zeros(sum(parameter.numel() for parameter in parameters))
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, whole.split(sizes), strict=True):
        parameter.grad = part.view_as(parameter)
    for x in batches(rank):
        whole.zero_()
        backward(ddp, x)
        with torch.no_grad():
            for parameter, part in zip(parameters, whole.split(sizes), strict=True):
                parameter.sub_(0.05 * part.view_as(parameter))
    return [ddp]


def held(rank: int) -> list[nn.Module]:
    """Update the parameters from gradients that are views of buckets, and that are read once."""
    ddp = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    parameters = list(ddp.parameters())
    gradients = []
    for x in batches(rank):
        backward(ddp, x)
        if len(gradients) < 2 * len(parameters):  # DDP rebuilds its buckets after the first step
            gradients += [parameter.grad for parameter in parameters]
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients[-len(parameters) :], strict=True):
                parameter.sub_(0.05 * gradient)
        ddp.zero_grad()
    return [ddp]


def late_buffer(rank: int) -> list[nn.Module]:
    """Make a buffer in the forward pass, of another size on each rank."""

    def call(model: Any, data: torch.Tensor) -> torch.Tensor:
        if not hasattr(model, "scale"):
            model.register_buffer("scale", torch.full((rank + 1, 1), 1.0 + rank))
        return model.body(data * model.scale[0])

    return train(DistributedDataParallel(Parts(call, body=network())), rank)


def moved_out(rank: int) -> list[nn.Module]:
    """Take the last layer out of the model inside DDP, and call it outside."""
    model = network()
    ddp = DistributedDataParallel(model)
    head = model[-1]
    optimizer = sgd(ddp)
    model[-1] = nn.Identity()
    train(ddp, rank, loss=lambda m, x: head(m(x)).square().mean(), optimizer=optimizer)
    return [ddp, head]


def in_threads(rank: int) -> list[nn.Module]:
    """Train two models at once, each in a thread and a process group of its own."""
    models = []
    for _ in "ab":
        models.append(DistributedDataParallel(network(), process_group=dist.new_group([0, 1])))
    threads = [threading.Thread(target=train, args=(model, rank)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [*models]


def handed_over(rank: int) -> list[nn.Module]:
    """Let another thread of rank 1 make some backward passes."""
    ddp = DistributedDataParallel(network())
    optimizer = sgd(ddp)
    with ThreadPoolExecutor(1) as pool:
        for step, x in enumerate(batches(rank)):
            loss = ddp(x).square().mean()
            if rank == 1 and step % 20 == 3:
                pool.submit(loss.backward).result()
            else:
                loss.backward()
            update(optimizer)
    return [ddp]


def detached(rank: int) -> list[nn.Module]:
    """Detach gradients in place, as old scripts do."""
    ddp = DistributedDataParallel(network())

    def detach(_: int) -> None:
        for parameter in ddp.parameters():
            if parameter.grad is not None:
                parameter.grad.detach_()

    return train(ddp, rank, between=detach)


def dropping(rank: int) -> list[nn.Module]:
    """Register a hook of commbench that sends the largest elements of each bucket."""
    from commbench.hooks import TopK  # the other kinds do not know commbench

    ddp = DistributedDataParallel(network())
    TopK(density=0.1).register(ddp)
    return train(ddp, rank)


def by_hand(rank: int) -> list[nn.Module]:
    """Update parameters without an optimiser of torch; rank 1 calls ``forward`` itself at times."""
    ddp = DistributedDataParallel(network())
    for step, x in enumerate(batches(rank)):
        forward = ddp
        if rank == 1 and step % 9 == 4:
            forward = ddp.forward
        backward(forward, x)
        with torch.no_grad():
            for parameter in ddp.parameters():
                parameter.sub_(0.05 * parameter.grad)
                parameter.grad = None
    return [ddp]


def reentrant(rank: int) -> list[nn.Module]:
    """Call ``backward()`` inside ``backward()``, by reentrant checkpoints."""

    def call(model: Any, data: torch.Tensor) -> torch.Tensor:
        data = checkpoint(model.body[:6], data.requires_grad_(), use_reentrant=True)
        return model.body[6:](data)

    return train(DistributedDataParallel(Parts(call, body=network()), static_graph=True), rank)


def sharpness(rank: int) -> list[nn.Module]:
    """Make two synchronised passes a step, as sharpness-aware minimisation does."""
    ddp = DistributedDataParallel(network())
    optimizer = sgd(ddp)
    for x in batches(rank):
        backward(ddp, x)
        shifts = []
        with torch.no_grad():
            for parameter in ddp.parameters():
                shifts.append(0.01 * parameter.grad)
                parameter.add_(shifts[-1])
                parameter.grad = None
        backward(ddp, x)
        with torch.no_grad():
            for parameter, shift in zip(ddp.parameters(), shifts, strict=True):
                parameter.sub_(shift)
        update(optimizer)
    return [ddp]


def complex_numbers(rank: int) -> list[nn.Module]:
    """Train complex parameters."""
    model = nn.Sequential(
        *(nn.Linear(WIDTH, WIDTH, dtype=torch.complex64) for _ in range(4)),
    )
    return train(
        DistributedDataParallel(model),
        rank,
        loss=lambda m, x: m(x.to(torch.complex64)).abs().mean(),
    )


def accumulated(rank: int) -> list[nn.Module]:
    """Accumulate gradients over four batches, three of them without synchronisation; a static graph
    needs it in its first pass.
    """
    models = []
    for is_static in (False, True):
        ddp = DistributedDataParallel(
            network(), gradient_as_bucket_view=True, static_graph=is_static
        )
        optimizer = sgd(ddp)
        for step, x in enumerate(batches(rank, 4 * STEPS)):
            if step % 4:
                with ddp.no_sync():
                    backward(ddp, x)
                continue
            backward(ddp, x)
            update(optimizer)
        models.append(ddp)
    return models


def uneven(rank: int) -> list[nn.Module]:
    """Train on rank 1 alone, by join(), behind an epoch without it."""
    ddp = DistributedDataParallel(network())
    train(ddp, rank)
    with ddp.join():
        train(ddp, rank, steps=40 * rank)
    return [ddp]


def unused(rank: int) -> list[nn.Module]:
    """Leave out another layer on each rank and step."""
    calls = itertools.count(rank)

    def call(model: Any, data: torch.Tensor) -> torch.Tensor:
        left_out = 2 * (next(calls) % 6)
        for number, layer in enumerate(model.body):
            if number != left_out:
                data = layer(data)
        return data

    model = Parts(call, body=network())
    return train(DistributedDataParallel(model, find_unused_parameters=True), rank)


def few(rank: int) -> list[nn.Module]:
    """Make too few steps to tune, and let the DDP object go."""
    model = network()
    train(DistributedDataParallel(model), rank, steps=6)
    return [model]


def imported(rank: int) -> list[nn.Module]:
    """Call torch's function by the name under which the script has imported it."""
    from torch.autograd import backward

    model = network()
    ddp = DistributedDataParallel(model)
    optimizer = sgd(ddp)
    for x in batches(rank, 6):
        backward(ddp(x).square().mean())
        update(optimizer)
    return [model]


def imported_at_times(rank: int) -> list[nn.Module]:
    """Call torch's function by another name on rank 1 in some steps; average each loss."""
    from torch.autograd import backward

    ddp = DistributedDataParallel(network())
    optimizer = sgd(ddp)
    for step, x in enumerate(batches(rank)):
        loss = ddp(x).square().mean()
        if rank == 1 and step % 9 == 4:
            backward(loss)
        else:
            loss.backward()
        dist.all_reduce(loss.detach())
        update(optimizer)
    return [ddp]


class AlarmError(Exception):
    """What the handler of a signal raises."""


def alarmed(rank: int) -> list[nn.Module]:
    """Go on if a signal has raised on rank 1, which comes while a backward pass is under way.

    Later on none comes: a watched training gets a communication hook then, in which it may raise.
    """

    def ring(*_: object) -> None:
        raise AlarmError

    signal.signal(signal.SIGALRM, ring)
    ddp = DistributedDataParallel(network())
    optimizer = sgd(ddp)
    alarms = 0
    if rank == 1:
        # Without Python code, in which the handler would run at once.
        start = functools.partial(signal.setitimer, signal.ITIMER_REAL, 1e-6)
        starts = map(collections.deque(maxlen=1).append, iter(start, None))
        starts = itertools.chain(itertools.islice(starts, ALARMS), itertools.repeat(None))
        last = list(ddp.parameters())[-1]
        last.register_post_accumulate_grad_hook(functools.partial(next, starts))
    for x in batches(rank):
        loss = ddp(x).square().mean()
        try:
            loss.backward()
        except AlarmError:
            alarms += 1
        dist.all_reduce(loss.detach())
        update(optimizer)
    assert alarms == rank * ALARMS
    return [ddp]


def shared_group(rank: int) -> list[nn.Module]:
    """Exchange objects of the script's own between steps, after random pauses."""
    ddp = DistributedDataParallel(network())

    def talk(step: int) -> None:
        time.sleep((step * 7 + rank * 3) % 5 / 1000)
        box = [None] * dist.get_world_size()
        dist.all_gather_object(box, step)

    return train(ddp, rank, between=talk)


def halves(rank: int) -> list[nn.Module]:
    """Call ``backward()`` for each of two outputs that share no parameter."""
    two = Parts(lambda m, x: (m.first(x), m.second(x)), first=network(), second=network())

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        first, second = model(x)
        first.square().mean().backward()
        return second.square().mean()

    return train(DistributedDataParallel(two), rank, loss=loss)


def late_hook(rank: int) -> list[nn.Module]:
    """Register a communication hook after some steps."""
    ddp = DistributedDataParallel(network())

    def register(step: int) -> None:
        if step == 70:
            ddp.register_comm_hook(None, fp16_compress_hook)

    return train(ddp, rank, between=register)


def wrapped_again(rank: int) -> list[nn.Module]:
    """Wrap a model again, as after loading a checkpoint, and count the wrappers that stay."""
    model = network()
    left = nn.ParameterList([torch.zeros(1)])
    for steps in (70, 12, 50):
        ddp = DistributedDataParallel(model)
        before = weakref.ref(ddp)
        train(ddp, rank, steps=steps)
        del ddp
        gc.collect()
        if before() is not None:
            left[0].data += 1
    return [model, left]


def scaled(rank: int) -> list[nn.Module]:
    """Skip steps whose gradients are infinite, and clip the others."""
    ddp = DistributedDataParallel(network())
    optimizer = sgd(ddp)
    scaler = torch.amp.GradScaler("cpu")
    for step, x in enumerate(batches(rank)):
        loss = ddp(x).square().mean()
        if step % 15 == 7:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [ddp]


def compiled(rank: int) -> list[nn.Module]:
    """Compile the module inside DDP, again for each length of a batch, and the optimiser; count the
    graphs.
    """
    graphs = nn.ParameterList([torch.zeros(1)])

    def compile_graph(graph: Any, inputs: Any) -> Any:
        graphs[0].data += 1
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    ddp = DistributedDataParallel(torch.compile(network(), backend=compile_graph, dynamic=False))
    optimizer = sgd(ddp)
    make_step = torch.compile(optimizer.step, backend="eager")
    for step, x in enumerate(batches(rank)):
        backward(ddp, x[step // 25 :])
        make_step()
        optimizer.zero_grad()
    return [ddp, graphs]


def compiled_whole(rank: int) -> list[nn.Module]:
    """Compile the DDP object."""
    ddp = DistributedDataParallel(network())
    train(torch.compile(ddp, backend="eager"), rank)
    return [ddp]


def compiled_step(rank: int) -> list[nn.Module]:
    """Compile the whole step."""
    ddp = DistributedDataParallel(network())
    optimizer = sgd(ddp)

    @torch.compile(backend="eager")
    def make_step(x: torch.Tensor) -> None:
        backward(ddp, x)
        update(optimizer)

    for x in batches(rank):
        make_step(x)
    return [ddp]


def averaged(rank: int) -> list[nn.Module]:
    """Average copies of the DDP object while it trains, and save and load it."""
    ddp = DistributedDataParallel(network())
    means = [AveragedModel(ddp)]

    def average(step: int) -> None:
        if step == 70:
            means.append(copy.deepcopy(means[0]))
            file = io.BytesIO()
            torch.save(ddp, file)
            file.seek(0)
            means.append(AveragedModel(torch.load(file, weights_only=False)))
            assert "_pre_forward" not in vars(means[0].module) | vars(means[2].module)
        for mean in means:
            mean.update_parameters(ddp)

    train(ddp, rank, between=average)
    return [ddp, *means]


def zero(rank: int) -> list[nn.Module]:
    """Divide the optimiser among ranks, which then exchange the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer  # takes a second

    ddp = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
    return train(ddp, rank, optimizer=optimizer)


def workers(rank: int) -> list[nn.Module]:
    """Load data in forked processes that are started again in each epoch."""
    ddp = DistributedDataParallel(network())
    optimizer = sgd(ddp)
    data = TensorDataset(torch.cat([*batches(rank)]))
    for _ in range(4):
        for (x,) in DataLoader(data, batch_size=32, num_workers=1, multiprocessing_context="fork"):
            backward(ddp, x)
            update(optimizer)
    return [ddp]


def closure(rank: int) -> list[nn.Module]:
    """Make several passes a step by LBFGS."""
    ddp = DistributedDataParallel(network())
    options = {"max_iter": 3, "tolerance_grad": 0, "tolerance_change": 0}
    optimizer = torch.optim.LBFGS(ddp.parameters(), lr=0.05, **options)
    for x in batches(rank, 60):

        def evaluate(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss = ddp(x).square().mean()
            loss.backward()
            return loss

        optimizer.step(evaluate)
    return [ddp]


def twice(rank: int) -> list[nn.Module]:
    """Call ``backward()`` twice for one graph; DDP synchronises the first call alone."""

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        value = model(x).square().mean()
        value.backward(retain_graph=True)
        return value

    models = []
    for is_static in (False, True):
        ddp = DistributedDataParallel(network(), static_graph=is_static)
        train(ddp, rank, loss=loss)
        models.append(ddp)
    return models


def penalised(rank: int) -> list[nn.Module]:
    """Penalise the gradient of the inputs, and look at the gradients of the outputs."""
    ddp = DistributedDataParallel(network())
    ddp.register_full_backward_hook(lambda *_: None)

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        output = model(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return output.square().mean() + slope.square().mean()

    return train(ddp, rank, loss=loss)


def adapted(rank: int) -> list[nn.Module]:
    """Train tied adapters of two types of numbers beside a frozen and checkpointed body."""

    def call(model: Any, data: torch.Tensor) -> torch.Tensor:
        narrow = model.down(data).bfloat16()
        wide = model.ups[0](narrow) + model.ups[1](narrow)
        return checkpoint(model.body, data + wide.float(), use_reentrant=False)

    body = network(WIDTH).requires_grad_(requires_grad=False)
    ups = nn.ModuleList([nn.Linear(8, WIDTH, dtype=torch.bfloat16) for _ in "ab"])
    ups[1].weight = ups[0].weight
    model = Parts(call, body=body, down=nn.Linear(WIDTH, 8), ups=ups)
    return train(DistributedDataParallel(model), rank)


def by_own_exchange(rank: int) -> list[nn.Module]:
    """Average gradients by hand, and never let DDP do so."""
    ddp = DistributedDataParallel(network())
    optimizer = sgd(ddp)
    for x in batches(rank):
        with ddp.no_sync():
            backward(ddp, x)
        for parameter in ddp.parameters():
            dist.all_reduce(parameter.grad)
        update(optimizer)
    return [ddp]


def restarted(rank: int) -> list[nn.Module]:
    """Lose a rank in the first attempt, so that torchrun starts all ranks again."""
    ddp = DistributedDataParallel(network())

    def leave(step: int) -> None:
        if rank == 1 and step == 60 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os._exit(7)

    return train(ddp, rank, between=leave)


def leaving(rank: int) -> list[nn.Module]:
    """Leave in the middle with an exit code."""
    ddp = DistributedDataParallel(network())

    def leave(step: int) -> None:
        if step == 60:
            sys.exit(3)

    return train(ddp, rank, between=leave)


if __name__ == "__main__":
    report(*globals()[sys.argv[1]](begin()))
