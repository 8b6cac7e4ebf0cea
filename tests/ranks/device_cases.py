"""Run under mpirun on GPUs: measure an NCCL all_reduce in every cadence and buffer mode through the
whole engine.
"""

import statistics
from dataclasses import asdict, replace

from measuring import measure
from reporting import connect, report_and_exit

from commbench.backends import open_backend
from commbench.collectives.cases import Sweep
from commbench.engine.session import Session
from commbench.engine.timing.loops import Progress
from commbench.stats.budgets import BUDGETS

#: Sizes by buffers: small messages would rotate hundreds of sets, each with a graph of its own,
#: which takes minutes where ranks share a GPU.
SIZES = {"hot": (1024, 1 << 20), "rotated": (1 << 20,)}


def main() -> None:
    """Print rank 0's record of each case as one line of JSON."""
    control = connect()
    communicator = open_backend("nccl", control)
    session = Session(
        control=control, budget=replace(BUDGETS["quick"], slice_s=0.5), progress=Progress()
    )
    in_place = "both" if control.size > 1 else "out"  # NCCL does nothing for one rank in place
    cases = []
    for buffers, sizes in SIZES.items():
        sweep = Sweep(
            sizes=sizes,
            backends=("nccl",),
            in_place=in_place,
            cadences=("isolated", "pipelined", "graph"),
            buffers=(buffers,),
        )
        cases += sweep.cases(control.size)
    results = {
        "records": [],
        "l2_bytes": communicator.cache_bytes(),
        "gpu": communicator.gpu,
    }
    for case in cases:
        record = measure(case, communicator, session, launch=0)
        if record:
            fields = {
                "cadence": case.mode,
                "buffers": case.buffers,
                "message_bytes": case.message_bytes,
            }
            fields |= {
                name: getattr(record, name)
                for name in ("status", "reason", "wrong", "batch", "flags")
            }
            fields |= {"clocks": asdict(record.clocks) if record.clocks else None}
            fields["time_us"] = statistics.median(record.times_us) if record.times_us else None
            results["records"].append(fields)
    communicator.close()
    report_and_exit(results, control)


if __name__ == "__main__":
    main()
