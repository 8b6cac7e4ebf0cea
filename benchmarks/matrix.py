"""Is one host or link slower than its like? Every pair of ranks, in rounds of disjoint pairs.

One rank a host will do.

With n ranks bandwidth takes 2 (n - 1) turns of about a hundredth to a tenth of a second each,
latency half as many: `commbench run matrix --backend gloo` keeps to one backend.
"""

from commbench import Sweep

SUITE = [
    Sweep(operations=("bandwidth",), sizes="1M", patterns=("matrix",)),
    Sweep(operations=("latency",), sizes="8", patterns=("matrix",)),
]
