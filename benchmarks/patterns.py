"""What does it matter who talks to whom? The same operations within hosts, across them, and where
links are loaded.
"""

from commbench import Sweep

SUITE = [
    # One large all_reduce: over everything, by levels, in each host alone, and one rank of each
    # host (rails).
    Sweep(
        operations=("all_reduce",),
        sizes="64K,16M",
        patterns=("flat", "hierarchical", "node", "cross"),
    ),
    # Links under load: pairs within and between hosts, the two halves of the cluster, a ring, and
    # one busy rank.
    Sweep(
        operations=("bandwidth", "bibandwidth"),
        sizes="1M",
        patterns=("pairs:intra", "pairs:inter", "bisection", "ring", "fan-in", "fan-out"),
    ),
    # The way of a small message: to a neighbour in the host, to another host, and the mean hop
    # around all ranks.
    Sweep(operations=("latency",), sizes="8", patterns=("pairs:intra", "pairs:inter", "ring")),
]
