"""Command lines of the contract: ``<repo>`` is this repository, and each runs in a directory of its
own.
"""

BENCH = "<repo>/results/bench_xeon2core_20261121"
QUICK = "<repo>/results/quick_xeon2core_20261121"
MATRIX = "<repo>/results/matrix_slow_host_xeon2core_20261121"
PATTERNS = "<repo>/results/patterns_1gbit_xeon2core_20261121"
DIGITS = "<repo>/results/train_digits_100mbit_xeon2core_20261121"
TRAINED = "<repo>/results/train_quick_xeon2core_20261121"
RESNET = "<repo>/results/train_resnet18_1gbit_xeon2core_20261121"
PAIR = "<repo>/results/self_check_xeon2core_20261121/pair1"
OVERLAP = "<repo>/tests/contract/runs/overlap"
TUNED = "<repo>/tests/contract/runs/tuned"
THEIRS = "<repo>/tests/data/imports"

#: What cannot be read or is refused; the directory holds ``foreign/thesis.txt``, ``bad.py`` and
#: ``text.txt``.
BAD_INPUT = (
    # the command line itself
    "--bogus",
    "dance",
    "lab dance",
    # run
    "run --bogus",
    "run -n two",
    "run --seed x",
    "run -c allreduce",
    "run --backend smoke",
    "run --backend mpi,,gloo",
    "run --dtype float8",
    "run --redop mean",
    "run --pattern star",
    "run --sync never",
    "run --loop endless",
    "run --cadence slow",
    "run --buffers warm",
    "run --algorithm magic",
    "run --in-place yes",
    "run -c broadcast --root two",
    "run -c broadcast --root 7 -n 2",
    "run --world-sizes two",
    "run -n 2 --world-sizes 2,4",
    "run slow",
    "run bad.py",
    "run absent.py",
    "run --budget long",
    "run --launches 0",
    "run --energy -1",
    "run --format html",
    "run --launcher slurm",
    "run --launcher /absent/mpirun",
    "run --launcher torchrun --bind-to core",
    "run --bind-to chair",
    "run --ranks-per-node 1 -n 2",
    "run --ranks-per-node 0",
    "run --role boss",
    "run --sizes 8X",
    "run --sizes 8,,16",
    "run --sizes=-8",
    "run --sizes 0",
    "run --sizes 64:8",
    "run --sizes 6",
    "run --sizes 8 -b 8",
    "run --sizes 8 -m 8",
    "run -b 8 -e 64 -f 1",
    "run -b 64 -e 8",
    "run -m 64:8",
    "run -n 3",
    "run -n 0",
    "run -n 2 --case-timeout 0",
    "run -n 2 --time-limit -1",
    "run --hostfile absent",
    "run --out foreign -n 2",
    "run --out bad.py -n 2",
    "run --like absent",
    "run --like foreign",
    # bench
    "bench extra",
    "bench --budget long",
    "bench --launches 0",
    "bench --backend smoke",
    "bench --format html",
    "bench -n 3 --no-train --backend mpi",
    "bench --out foreign -n 2 --no-train --backend mpi",
    "bench --like absent",
    # train
    *(
        f"train -n 2 {words}"
        for words in (
            "--hook nonsense",
            "--hook topk:0",
            "--hook topk:2",
            "--hook randomk:nan",
            "--hook topk",
            "--bucket-cap-mb 0",
            "--bucket-cap-mb=-1",
            "--bucket-cap-mb abc",
            "--bucket-cap-mb nan",
            "--precision fp8",
            "--bucket-view maybe",
            "--static-graph 1",
            "--batch 0",
            "--batch few",
            "--accumulation 0",
            "--world-size 0",
            "--steps 0",
            "--threads 0",
            "--launches 0",
            "--confirm-launches 0",
            "--budget endless",
            "--backend mpi",
        )
    ),
    # tune
    *(
        f"tune -n 2 {words}"
        for words in (
            "--allow passthrough",
            "--allow topk:2",
            "--allow none,,fp16",
            "--bucket-cap-mb fast",
            "--budget endless",
            "--steps 0",
            "--steps 5",
            "--batch -1",
            "--confirm-launches 0",
            "--time-limit -3",
            "--max-accuracy-loss -1",
            "--backend mpi",
        )
    ),
    "tune -n 1",
    # predict
    f"predict {QUICK}",
    "predict --world-size 8",
    "predict absent --world-size 8",
    "predict foreign --world-size 8",
    f"predict {QUICK} --world-size 8:1024",
    *(
        f"predict {QUICK} --rate 1gbit --world-size {words}"
        for words in (
            "many",
            "1,8",
            "8:20000",
            "64:8",
            "8:16:1",
            "8,,16",
            "''",
            "8 --sizes 0",
            "8 --sizes 4,7",
            "8 --sizes ''",
            "8 --sizes big",
            "8 --hook ''",
            "8 --hook nope",
            "8 --hook fp16",
            "8 --format osu",
            "8 --ranks-per-node 0",
            "8 --workload bert",
        )
    ),
    f"predict {PATTERNS} --world-size 8",
    f"predict {QUICK} --world-size 8 --rate ''",
    f"predict {QUICK} --world-size 8 --rate fast",
    # compare
    "compare one",
    "compare absent foreign",
    f"compare {PAIR}/a foreign",
    f"compare {PAIR}/a {QUICK}",
    f"compare {PAIR}/a {TRAINED} --force",
    f"compare {PAIR}/a {PAIR}/b --threshold much",
    f"compare {PAIR}/a {PAIR}/b --threshold 5",
    f"compare {PAIR}/a {PAIR}/b --threshold 1%",
    f"compare {PAIR}/a {PAIR}/b --format xml",
    f"compare {PAIR}/a {PAIR}/b --out absent/x.html",
    f"compare --baseline {PAIR}/a {PAIR}/a {PAIR}/b",
    # report
    "report",
    "report foreign",
    "report absent",
    "report bad.py",
    f"report {QUICK} --format html",
    f"report {QUICK} --model --terminal",
    f"report {QUICK} --model --format csv",
    f"report {QUICK} --terminal --out pages",
    f"report {QUICK} {BENCH} --model",
    f"report {QUICK} --out bad.py",
    # export
    f"export {QUICK}",
    f"export {QUICK} --format excel",
    "export foreign --format openmetrics",
    "export absent --format parquet",
    f"export {QUICK} --format openmetrics --out a.txt",
    f"export {QUICK} --format openmetrics --out missing/a.prom",
    f"export {QUICK} --format nccl-tuner --out a.conf",
    # env
    "env --bogus",
    "env extra",
    # import
    "import",
    "import nothing.txt --out theirs",
    "import foreign --out theirs",
    "import text.txt --out theirs",
    f"import {THEIRS}/osu_validated.txt --out theirs",
    f"import {THEIRS}/imb.txt -n 0 --out theirs",
    f"import {THEIRS}/imb.txt --tool x --out theirs",
    f"import {THEIRS}/imb.txt --dtype x --out theirs",
    f"import {THEIRS}/imb.txt --operation x --out theirs",
    f"import {THEIRS}/param.txt --backend x --out theirs",
    f"import {THEIRS}/imb.txt --out foreign",
    # lab
    *(
        f"lab {command} {words}{tail}"
        for command, tail in (("run", " -- true"), ("up", ""))
        for words in (
            "--hosts 0",
            "--hosts 201",
            "--ranks-per-host 0",
            "--rate fast",
            "--rate 101gbit",
            "--slow host0",
            "--slow host9=1gbit",
            "--slow host1=fast",
            "--slow host1=1gbit --slow host1=2gbit",
            "--racks 3",
            "--racks 0",
            "--uplink 1gbit",
            "--racks 2 --uplink fast",
        )
    ),
    "lab run -- true",
    "lab up",
    "lab exec -- true",
    "lab exec",
    "lab status",
    "lab link host0 down",
    "lab link host0",
    "lab down",
    "lab down --all",
)

#: What succeeds without measuring: its numbers are part of the contract.
PRINTED = (
    "--version",
    f"report {BENCH} --format csv",
    f"report {BENCH} --format osu",
    f"report {QUICK} --format nccl-tests",
    f"report {QUICK} --model",
    f"report {QUICK} --terminal",
    f"report {RESNET} --terminal",
    f"report {MATRIX} --format csv",
    f"report {OVERLAP} --format csv",
    f"report {TUNED} --format csv",
    *(
        f"compare {PAIR}/a {PAIR}/b{words}"
        for words in ("", " --format csv", " --format json", " --sort")
    ),
    f"compare {PAIR}/a {PAIR}/a",
    f"compare {PAIR}/b {PAIR}/a --threshold 5%",
    f"compare {QUICK} {BENCH} --force --format csv",
    f"compare {TRAINED} {BENCH} --force --format csv",
    f"predict {QUICK} --world-size 8 --rate 1gbit --format json",
    f"predict {QUICK} --world-size 8:64 --rate 1gbit --format csv",
    f"predict {QUICK} {TRAINED} --world-size 8 --rate 10gbit",
    f"predict {TUNED} --world-size 4,8 --rate 1gbit --format json",
    f"export {BENCH} --format openmetrics --out a.prom",
    f"export {MATRIX} --format openmetrics --out a.prom",
    f"import {THEIRS}/osu_old.txt -n 4 --out theirs",
    f"import {THEIRS}/imb.txt --out theirs",
    f"import {THEIRS}/nccl_tests_all_reduce.txt --out theirs",
    f"import {THEIRS}/param.txt --out theirs",
    f"import {THEIRS}/osu_non_blocking.txt -n 2 --out theirs",
    "run -c all_reduce --backend mpi -n 2 -b 8 -e 32 -f 4 --dry-run",
    "run -c all_reduce,iall_reduce --backend mpi -n 2 -m 8:32 --dry-run --budget standard",
)
