"""How fast is every collective? All of them over the whole range of sizes, on every backend."""

from commbench import Sweep

SUITE = Sweep(
    operations=(
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
        "barrier",
    ),
    sizes="8:64M:2",
)
