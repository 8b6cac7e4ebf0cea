#!/bin/bash
# Try all that needs a GPU on a machine with one: the tests, both ways to NCCL on one rank and on two that share the GPU,
# what a call costs the host, top-k selection, and training with every hook. A step that fails does not end the others.
#
#   OUT=results/one_gpu benchmarks/launch/one_gpu.sh
#
# Variables: OUT, where to (results/one_gpu); VENV, the environment to use (.venv; empty: what is on the PATH); SECONDS_EACH,
# the most that a step may take (150).
# Out come a run directory or a CSV file for each step, its words in NAME.log, and steps.txt with how each ended.
set -u
[ -z "${VENV-.venv}" ] || export PATH="$PWD/${VENV-.venv}/bin:$PATH"
out=${OUT:-results/one_gpu}
mkdir -p "$out"

step() {
    local name=$1 begun=$SECONDS
    shift
    timeout -k 10 "${SECONDS_EACH:-150}" "$@" >"$out/$name.log" 2>&1
    echo "$name: exit $? after $((SECONDS - begun)) s" | tee -a "$out/steps.txt"
}

collectives=(python -m commbench run collectives --backend nccl,torch-nccl --in-place both --sizes 8,64K,16M --launches 3)
hooks=none,passthrough,fp16,bf16,topk:0.01,topk:1,randomk:0.01,powersgd:2

nvidia-smi >"$out/nvidia-smi.txt" 2>&1
step tests python -m pytest -m gpu -rs tests
step one_rank "${collectives[@]}" -n 1 --out "$out/collectives_1rank"
step two_ranks "${collectives[@]}" -n 2 --out "$out/collectives_2ranks"
step types python -m commbench run -c all_reduce --backend nccl --dtype float64,float16,bfloat16,int32,int8 \
    --sizes 64K -n 2 --launches 2 --out "$out/types_2ranks"
step cadences python -m commbench run -c all_reduce --backend nccl --cadence isolated,pipelined,graph \
    --buffers hot,rotated --sizes 8,64K,16M -n 1 --launches 3 --out "$out/cadences_1rank"
step algorithms python -m commbench run -c all_reduce,all_gather --backend nccl,torch-nccl \
    --algorithm auto,ring/ll,ring/simple,tree/simple,nvls --sizes 64K -n 2 --launches 2 --out "$out/algorithms_2ranks"
step host_call_cost python benchmarks/host_call_cost.py --out "$out/host_call_cost.csv"
for mib in 25 100; do
    step "selection_$mib" python benchmarks/cuda_selection.py --mib "$mib" --out "$out/selection_${mib}mib"
done
step training python -m commbench train --backend nccl --hook "$hooks" -n 2 --bucket-cap-mb default,5 --launches 2 \
    --out "$out/train_2ranks"
grep -q -v 'exit 0 ' "$out/steps.txt" && exit 1
exit 0
