"""Tests of the hooks on a real GPU: selection and whole steps against the host's."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("cupy")

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from commbench.hooks import make_hook, quantisers, selectors
from commbench.hooks.feedback import is_finite
from commbench.hooks.message import QuantisedLayout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="needs a PyTorch that can use the GPU"
    ),
]

MIB = 2**20
DEVICE, HOST = torch.device("cuda", 0), torch.device("cpu")
OPTIONS = {
    "passthrough": {},
    "fp16": {},
    "bf16": {},
    "int8": {"block": "64"},
    "topk": {"density": "0.05"},
    "topk exact": {"density": "0.05", "selection": "exact"},
    "topk float16": {
        "density": "0.05",
        "values": "float16",
        "scope": "parameter",
        "dense_vectors": "true",
    },
    "topk momentum": {"density": "0.05", "momentum": "0.9", "clip": "1.0"},
    "powersgd": {"rank": "2", "start": "1"},
}


@pytest.fixture(scope="module")
def _nccl(tmp_path_factory):
    """Open NCCL on the GPU and Gloo on the host for a single rank."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def draw(n: int, seed: int) -> Any:
    """Return elements of all sizes, some of them equal."""
    numbers = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    return torch.where(numbers.abs() < 0.5, numbers.round(decimals=1), numbers)


@pytest.mark.parametrize("values", ["float32", "float16"])
@pytest.mark.parametrize("mib", [25, 100])
def test_a_gpu_sends_what_the_host_sends(mib, values):
    """Send the host's bytes over three steps, and add up to the same values."""
    n = mib * MIB // 4
    k = n // 100
    nbytes = -(-k * (8 if values == "float32" else 6) // 4) * 4
    made = {
        device: selectors.make_selector(n, k, values, fast=True, device=device)
        for device in (DEVICE, HOST)
    }
    assert isinstance(made[DEVICE], selectors.CudaSelector)
    residuals = {device: torch.zeros(n, device=device) for device in made}
    for step in range(3):
        gradient, payloads, sums = draw(n, step), {}, {}
        for device, selector in made.items():
            payloads[device] = torch.zeros(nbytes, dtype=torch.uint8, device=device)
            sums[device] = torch.zeros(n, device=device)
            sent = gradient.clone().to(device)
            selector.encode(sent, residuals[device], payloads[device])
            selector.add(payloads[device], sums[device])
        for tensors in (payloads, residuals, sums):
            assert torch.equal(tensors[HOST], tensors[DEVICE].cpu())


@pytest.mark.parametrize("block", [5, 256, 4096])
@pytest.mark.parametrize("mib", [1, 25])
def test_a_gpu_quantises_as_the_host(mib, block):
    """Send the host's bytes over three steps, sums included, and keep the same residuals."""
    n = mib * MIB // 4 + 3
    layout = QuantisedLayout.of(n, shards=2, block=block)
    made = {device: quantisers.make_quantiser(layout, device) for device in (DEVICE, HOST)}
    assert isinstance(made[DEVICE], quantisers.CudaQuantiser)
    residuals = {device: torch.zeros(n, device=device) for device in made}
    for step in range(3):
        results = {device: [] for device in made}
        for device, quantiser in made.items():
            payload = torch.zeros((2, layout.row_bytes), dtype=torch.uint8, device=device)
            sums, into = torch.zeros_like(payload), torch.zeros(n, device=device)
            residual = residuals[device]
            quantiser.encode(draw(n, step).to(device), residual, payload)
            for shard in range(2):
                rows = payload[shard].expand(2, -1).contiguous()
                quantiser.combine(
                    rows, sums[shard], divisor=2.0, residual=residual[layout.span(shard)]
                )
            quantiser.decode(sums, into)
            results[device] = [tensor.cpu() for tensor in (payload, sums, into, residual)]
        assert all(torch.equal(*pair) for pair in zip(results[HOST], results[DEVICE], strict=True))


def test_the_stream_under_way_is_used():
    """Wait in another stream for pending work of this stream."""
    n, k = 5_000_000, 50_000
    selector = selectors.make_selector(n, k, "float32", fast=True, device=DEVICE)
    expected, gradient = draw(n, 0), torch.zeros(n, device=DEVICE)
    payload, total = (
        torch.zeros(8 * k, dtype=torch.uint8, device=DEVICE),
        torch.zeros(n, device=DEVICE),
    )
    source = expected.pin_memory()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream(DEVICE)):
        torch.cuda._sleep(50_000_000)
        gradient.copy_(source, non_blocking=True)
        selector.encode(gradient, torch.zeros_like(gradient), payload)
        selector.add(payload, total)
    torch.cuda.synchronize()
    assert k == int((total != 0).sum())


def make_model(device: Any) -> Any:
    """Return the same model on any device, in several buckets."""
    torch.manual_seed(0)
    layers = [
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 48, bias=False),
        nn.Tanh(),
        nn.Linear(48, 9),
    ]
    return DistributedDataParallel(nn.Sequential(*layers).to(device), bucket_cap_mb=0.01)


@pytest.mark.usefixtures("_nccl")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("name", OPTIONS)
def test_steps_are_as_on_the_host(name):
    """Train to the same parameters on the GPU, without host synchronisation, and on the host."""
    trained = []
    for device in (HOST, DEVICE):
        hook = make_hook(name.split(maxsplit=1)[0], options=OPTIONS[name])
        model = make_model(device)
        hook.register(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(8):
            data = torch.randn((16, 64), generator=torch.Generator().manual_seed(step)).to(device)
            optimizer.zero_grad()
            loss = model(data).square().mean()
            if device == DEVICE and step >= 3:  # buckets and plans are made in the first steps
                torch.cuda.set_sync_debug_mode("error")
            try:
                loss.backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            optimizer.step()
        hook.close()
        trained.append(
            torch.cat([parameter.detach().cpu().reshape(-1) for parameter in model.parameters()])
        )
    assert torch.allclose(*trained, rtol=1e-2, atol=2e-3)


@pytest.mark.usefixtures("_nccl")
@pytest.mark.parametrize("name", ["topk", "topk momentum", "powersgd", "int8"])
def test_a_scaler_drops_a_step(name):
    """Drop the updates of a step that the GradScaler skips, decided on the GPU."""
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    hook = make_hook(name.split(maxsplit=1)[0], options=OPTIONS[name])
    hook.register(model := make_model(DEVICE), scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def take_step(factor: float) -> Any:
        optimizer.zero_grad()
        scaler.scale(factor * model(torch.ones((4, 64), device=DEVICE)).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return {key: each.clone() for key, each in hook.state_dict()["memory"]["residual"].items()}

    for _ in range(4):
        before = take_step(1.0)
    after = take_step(torch.inf)
    assert all(torch.equal(before[key], after[key]) for key in before)
    later = take_step(1.0)
    assert any(not torch.equal(before[key], later[key]) for key in before)
    assert all(bool(is_finite(each)) for each in later.values())
    hook.close()
