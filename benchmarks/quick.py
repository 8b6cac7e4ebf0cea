"""What does this machine deliver? The suite of `make bench`: three operations on every backend, 8 B
to 16 MiB.
"""

from commbench import Sweep

SUITE = Sweep(
    operations=("all_reduce", "all_gather", "latency"),
    sizes="8,64,512,4K,16K,64K,256K,1M,4M,16M",
)
