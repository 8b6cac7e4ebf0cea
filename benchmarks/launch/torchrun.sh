#!/bin/bash
# Time Gloo, and train with DDP, where there is no MPI and no scheduler: start this on every host, e.g. on two
#
#   MASTER_ADDR=node1 NNODES=2 NODE_RANK=0 benchmarks/launch/torchrun.sh                  # on node1
#   MASTER_ADDR=node1 NNODES=2 NODE_RANK=1 benchmarks/launch/torchrun.sh                  # on the other
#
# On one host no variable is needed. What follows the script's name goes to commbench in place of `run --backend gloo`:
# give it alike on every host.
#
# Variables: NPROC, ranks on this host (2); LAUNCHES (6); MASTER_PORT, the first of as many free ports on MASTER_ADDR
# (29500); OUT, the run directory (results/torchrun); VENV, the environment to use (.venv); INTERFACE, the network
# interface to use.
# Out come run.json, samples.jsonl and collectives.csv in OUT on the host with NODE_RANK=0.
set -eu
export PATH="${VENV:-$PWD/.venv}/bin:$PATH"
[ $# -gt 0 ] || set -- run --backend gloo
command=$1
shift

# Each call adds a launch, and intervals over launches need six. A call that fails ends the loop, on every host.
for ((launch = 0; launch < ${LAUNCHES:-6}; launch++)); do
    python -m torch.distributed.run \
        --nnodes "${NNODES:-1}" --node-rank "${NODE_RANK:-0}" --nproc-per-node "${NPROC:-2}" \
        --master-addr "${MASTER_ADDR:-127.0.0.1}" --master-port "$((${MASTER_PORT:-29500} + launch))" \
        -m commbench "$command" --out "${OUT:-results/torchrun}" ${INTERFACE:+--interface "$INTERFACE"} "$@"
done
