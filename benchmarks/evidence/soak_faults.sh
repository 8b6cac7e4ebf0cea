#!/usr/bin/env bash
# Runs a soak of 12 minutes on four emulated hosts, with two faults: the link of host3 is cut for half a minute, and rank 1
# is stopped for ten seconds. As root:
#   bash benchmarks/evidence/soak_faults.sh commbench run -c all_reduce --sizes 64K --backend gloo --soak 12min
set -euo pipefail

commbench lab run --name faults --hosts 4 --rate 200mbit -- "$@" &

# Send a signal to rank 1 and what it has started.
signal_rank() {
    for environment in $(grep -lzs '^OMPI_COMM_WORLD_RANK=1$' /proc/[0-9]*/environ); do
        kill "-$1" "$(basename "$(dirname "$environment")")" || true
    done
}

sleep 240
commbench lab link --name faults host3 down
sleep 30
commbench lab link --name faults host3 up
sleep 210
signal_rank STOP
sleep 10
signal_rank CONT
wait $!
