"""A DDP training whose ranks share one GPU, or use the CPUs where there is none.

``commbench tune -- torchrun --nproc-per-node 2 benchmarks/trainings/one_gpu.py --steps 400`` tunes
it. NCCL takes each rank for a host of its own and joins them by TCP. At the end each rank prints a
digest of its parameters.
"""

import argparse
import hashlib
import os
import socket
import sys

rank = int(os.environ.get("RANK", "0"))
for name, value in {
    "NCCL_HOSTID": f"{socket.gethostname()}-{rank}",
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_NVLS_ENABLE": "0",
}.items():
    os.environ.setdefault(name, value)

import torch  # noqa: E402 - NCCL reads the variables when torch loads it
import torch.distributed as dist  # noqa: E402 - as above
from torch import nn  # noqa: E402 - as above
from torch.nn.parallel import DistributedDataParallel  # noqa: E402 - as above

parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--width", type=int, default=1024)
options = parser.parse_args()

if torch.cuda.is_available():
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
else:
    torch.set_num_threads(1)
    device = torch.device("cpu")
    dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [nn.Linear(options.width, options.width) for _ in range(8)]
model = DistributedDataParallel(nn.Sequential(*layers).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(64, options.width, device=device)
for _ in range(options.steps):
    optimizer.zero_grad()
    model(data).square().mean().backward()
    optimizer.step()
parameters = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
sys.stdout.write(f"DIGEST {rank} {hashlib.sha256(parameters).hexdigest()}\n")
sys.stdout.flush()
dist.destroy_process_group()
