"""What do two ranks get from the link between them? Latency, bandwidth one and both ways, and the
ring.
"""

from commbench import Sweep

SUITE = Sweep(
    operations=("latency", "bandwidth", "bibandwidth", "sendrecv"),
    sizes="8:16M:2",
)
