"""Tests of reading other tools' output: formats, units, sizes, missing facts, and truncated
files.
"""

import contextlib
import re

import pytest
from builders import make_info, make_launches, summarise_run
from fields import fields_of
from hypothesis import given
from hypothesis import strategies as st
from places import HERE

from commbench.engine.records import Row
from commbench.errors import InputError
from commbench.interop.imports.gathering import TOOLS, Imported, Source, import_outputs
from commbench.interop.imports.reading import ImportOptions
from commbench.report.text_formats import render
from commbench.results.tables import table_csv, table_of

DATA = HERE / "data" / "imports"
FILES = sorted(fields_of(DATA.iterdir(), "name"))
#: Files that do not state their operation, all_reduce.
UNNAMED = ("nccl_tests_old.txt", "nccl_tests_wrong.txt")
ALL_REDUCE, JSON, IMB, OLD = (
    (DATA / name).read_text()
    for name in ("nccl_tests_all_reduce.txt", "nccl_tests.json", "imb.txt", "nccl_tests_old.txt")
)


def load(*names: str, tool: str | None = None, **options: object) -> Imported:
    """Import kept outputs."""
    sources = [Source(name=name, data=(DATA / name).read_bytes()) for name in names]
    return import_outputs(sources, tool=tool, options=ImportOptions(**options))


def load_text(text: str, **options: object) -> Imported:
    """Import a text."""
    source = Source(name="out.txt", data=text.encode())
    return import_outputs([source], options=ImportOptions(**options))


def rows_of(imported: Imported) -> list[Row]:
    """Return the rows of the imported records."""
    return summarise_run(imported.records, imported.info)


def check(row: Row, **expected: object) -> None:
    """Compare columns of a row."""
    assert expected == {name: getattr(row, name) for name in expected}


def values_of(imported: Imported, name: str) -> set[object]:
    """Return the values of a field of the imported cases."""
    return {getattr(record.case, name) for record in imported.records}


def left_out(imported: Imported) -> str:
    """Return all reasons for omissions."""
    return "; ".join(reason for reading in imported.readings for reason in reading.left_out)


def assumed(imported: Imported) -> str:
    """Return all assumptions."""
    return "; ".join(text for reading in imported.readings for text in reading.assumed)


# --------------------------------------------------------------------------------------- nccl-tests


#: Files that do not state their ranks, by the number of these.
RANKS = {"param_old.txt": 8, "omb_py.txt": 4, "osu_allgather_full.txt": 4, "osu_old.txt": 4}
RANKS |= {"osu_non_blocking.txt": 4, "osu_validated.txt": 4}


@pytest.mark.parametrize("name", FILES)
def test_rows_have_all_that_the_output_states(name):
    """Read sizes, times, checks, ranks, libraries and conditions of each kept output."""
    heading, *lines = (DATA.parent / "imported.csv").read_text().splitlines()
    operation = "all_reduce" if name in UNNAMED else None
    rows = rows_of(load(name, ranks=RANKS.get(name), operation=operation))
    _, *found = table_csv(table_of(Row, rows)[heading.split(",")[1:]]).splitlines()
    assert [line for line in lines if line.startswith(f"{name},")] == [
        f"{name},{each}" for each in found
    ]


def test_early_rccl_tests_state_repetitions_behind_colons():
    """Read the repetitions, and a count that was edited to a rounded one."""
    text = ALL_REDUCE.replace("nThread 1 ", "nThread: 1 ").replace("warmup iters", "warmupIters")
    text = text.replace(" iters: 20 agg iters: 1 ", " iters: 20 ").replace("2097152", "2.1e+06")
    records = load_text(text).records
    assert [(20, 1)] * 6 == [(record.batch, record.stated.repetitions) for record in records]


@pytest.mark.parametrize("half", [0, 1])
def test_a_blank_half_is_not_the_other_one(half):
    """Read the half that a row has as out of place or in place, by where it stands."""
    halves = ["    32.10    8.17   12.25       0", "    31.50    8.32   12.48       0"]
    text = ALL_REDUCE.replace(halves[half], " " * 32)
    found = {(r.case.message_bytes, r.case.in_place) for r in load_text(text).records}
    assert {(8, False), (8, True), (262144, half == 0)} | {
        (8388608, False),
        (8388608, True),
    } == found


def test_what_nccl_tests_lack_or_add():
    """Ask for the operation, which old versions do not print; omit what has no case."""
    with pytest.raises(InputError, match="--operation"):
        load("nccl_tests_old.txt")
    omitted = left_out(load("nccl_tests_broadcast.txt"))
    assert "f8e4m3" in omitted
    assert "broadcast in place" in omitted
    assert "'nan'" in left_out(load("nccl_tests.json"))


def test_operations_in_graphs_are_of_that_cadence():
    """Read the cadence of CUDA graphs from text and JSON."""
    texts = [(DATA / name).read_text() for name in ("nccl_tests_all_reduce.txt", "nccl_tests.json")]
    for text, old, new in zip(
        texts, ("graph: 0", '"graph":0'), ("graph: 20", '"graph":20'), strict=True
    ):
        assert [{"pipelined"}, {"graph"}] == [
            values_of(load_text(each), "mode") for each in (text, text.replace(old, new))
        ]


GROUPS = ("Rank  3 Group  0", "Rank  3 Group  1")
BLOCKING = ("# Using devices", "# Blocking Enabled: {} \n# Using devices")
NO_BARRIER = BLOCKING[1].format("wait after each inner iteration, no barrier")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ALL_REDUCE.replace(*GROUPS), "2 groups"),
        (ALL_REDUCE.replace("  time   algbw", "cputime   algbw"), "CPU"),
        (ALL_REDUCE.replace("all_reduce_perf", "hypercube_perf"), "hypercube_perf"),
        (ALL_REDUCE.replace(BLOCKING[0], NO_BARRIER), "-z 2"),
        (JSON[: JSON.index("experiment_name")], "is no JSON of nccl-tests"),
        (re.sub(r'"results":\[.*\],"out_of', '"results":[],"out_of', JSON), "list of results"),
        (re.sub("(?m)^ .*\n", "", ALL_REDUCE), "no row"),
        (JSON.replace('"-I","1"', '"-a","0"'), "-a 0"),
        (JSON.replace('"-I","1"', '"-a","2"'), "-a 2"),
        (f"$ ./all_reduce_perf -a 2 -g 4\n{ALL_REDUCE}", "-a 2"),
        (
            JSON.replace('"-I","1"', '"-z","2"').replace(
                '"blocking_collectives":"false"', '"blocking_collectives":"true"'
            ),
            "-z 2",
        ),
    ],
)
def test_nccl_tests_of_what_has_no_counterpart_is_left_out(text, words):
    """Omit averages over groups, times of the CPU, of one rank or of the fastest, other operations,
    unknown cadence and half a file, with reasons.
    """
    with pytest.raises(InputError, match=words):
        load_text(text)


def test_processes_that_each_ran_alone_are_no_launches():
    """Refuse the output of nccl-tests built without MPI under mpirun."""
    twice = re.sub(r"Rank  [1-3]", "Rank  0", ALL_REDUCE)
    alone = "\n".join(
        line for line in ALL_REDUCE.split("\n") if not re.search(r"Rank  [1-3]", line)
    )
    other = alone.replace("Pid   4242", "Pid   4243").replace("90.12", "90.13")
    for each in (twice, alone + other):
        with pytest.raises(InputError, match="alone"):
            load_text(each)
    assert {1} == set(fields_of(load_text(alone).records, "group_size"))


def test_nccl_tests_state_how_they_waited():
    """Read -z 1 and 3 as isolated, and print the assumption."""
    old, blocking = BLOCKING
    barrier = blocking.format("wait and barrier after each outer iteration; time excludes barrier")
    imported = load_text(ALL_REDUCE.replace(old, barrier))
    assert {"barrier"} == values_of(imported, "sync")
    assert "-z 0" in assumed(load_text(ALL_REDUCE))
    assert "-a 1" in assumed(load_text(ALL_REDUCE))
    slowest = load_text(f"$ mpirun -n 4 all_reduce_perf_mpi --average=3\n{ALL_REDUCE}")
    assert "-a 1" not in assumed(slowest)
    assert "slowest rank" in slowest.records[0].stated.time


@pytest.mark.parametrize(
    ("option", "slowest"),
    [
        ('"-a","1"', False),
        ('"--average=3"', True),
        ('"-a3"', True),
        ('"-a","1","--average","3"', True),
    ],
)
def test_nccl_tests_json_states_what_its_times_mean(option, *, slowest):
    """Read the times as those of the slowest rank."""
    text = JSON.replace('"-I","1"', option)
    row = rows_of(load_text(text))[0]
    check(row, time_us=40.0, time_us_rank_mean=None if slowest else 40.0)
    record = load_text(text).records[0]
    assert slowest is ("slowest rank" in record.stated.time)


def test_ranks_that_are_not_listed_must_be_given():
    """Ask for the number of ranks if their list has gaps, and check it against the busbw."""
    text = "\n".join(line for line in ALL_REDUCE.split("\n") if "Rank  2" not in line)
    with pytest.raises(InputError, match="-n"):
        load_text(text)
    assert "another number" not in assumed(load_text(text, ranks=4))
    assert "another number" in assumed(load_text(text, ranks=8))
    with pytest.raises(InputError, match=r"4 ranks, and -n 2"):
        load("nccl_tests_all_reduce.txt", ranks=2)


# ---------------------------------------------------------------------------------------------- OSU


def test_osu_of_old_versions_with_several_tests():
    """Print assumptions, and omit what has no counterpart."""
    imported = load("osu_old.txt", ranks=4)
    assert "float32" in assumed(imported)
    assert "64 messages" in assumed(imported)
    assert "0 bytes" in left_out(imported)
    assert "Multiple Bandwidth" in left_out(imported)


def test_osu_states_the_overlap():
    """Read the overlap of non-blocking collectives."""
    overlap = load("osu_non_blocking.txt", ranks=2).records[1].overlap
    assert 20.0 == pytest.approx(overlap.percent)


def test_osu_needs_the_ranks():
    """Ask for the number of ranks of a collective; a pair has two."""
    with pytest.raises(InputError, match="all_to_all"):
        load("osu_validated.txt")
    for version in ("v7.4", "(Version 2.1)"):
        text = f"# OSU MPI Latency Test {version}\n# Size  Latency (us)\n8   1.50\n"
        [record] = load_text(text).records
        assert 2 == record.group_size


def test_osu_of_several_numbers_of_ranks_says_so_in_its_commands():
    """Take the ranks from the command above a table, not as launches of one case."""
    table = "# OSU MPI Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n8   {}\n"
    first = f"+ mpirun -npernode 2 -np 4 ./osu_allreduce\n{table.format(1.5)}"
    second = f"$ srun -N2 -n8 ./osu_allreduce -f\n{table.format(2.5)}"
    records = load_text(first + second).records
    assert [(4, [1.5]), (8, [2.5])] == [(r.group_size, r.times_us) for r in records]
    with pytest.raises(InputError, match=r"8 ranks, and -n 4"):
        load_text(first + second, ranks=4)


OSU_TYPES = """
# OSU MPI{device} Allreduce Latency Test v7.5
# Datatype: MPI_INT.
# Size       Avg Latency(us)
4                       1.50
8                       1.60
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)
4                       2.50
8                       2.60
"""


def test_osu_of_several_types():
    """Give each type (-T) its own rows, not launches of another."""
    records = load_text(OSU_TYPES.format(device=""), ranks=4).records
    assert {0} == set(fields_of(records, "launch"))
    times = {(r.case.dtype, r.case.message_bytes): r.times_us[0] for r in records}
    expected = {("int32", 4): 1.5, ("int32", 8): 1.6, ("float32", 4): 2.5, ("float32", 8): 2.6}
    assert expected == times


@pytest.mark.parametrize(
    "title",
    [
        "MPI_Put Latency Test v5.8",
        "MPI_Get-CUDA Bandwidth Test v7.4",
        "OpenSHMEM Broadcast Latency Test v7.4",
        "UPC++ Reduce Latency Test v7.4",
    ],
)
def test_osu_one_sided_and_shared_memory_have_no_counterpart(title):
    """Omit one-sided and shared-memory tests."""
    with pytest.raises(InputError, match="no counterpart"):
        load_text(f"# OSU {title}\n# Size   Latency (us)\n8   1.50\n", ranks=2)


@pytest.mark.parametrize(
    ("buffers", "device"),
    [
        ("# Rank 0 Memory on HOST (H) and Rank 1 Memory on HOST (H)\n", "cpu"),
        ("# Rank 0 Memory on DEVICE (D) and Rank 1 Memory on HOST (H)\n", "CUDA"),
        ("", "CUDA"),
    ],
)
def test_osu_says_where_buffers_are(buffers, device):
    """Distinguish buffers of host and GPU, and refuse a mixture."""
    text = f"# OSU MPI-CUDA Latency Test v7.4\n{buffers}# Size  Latency (us)\n8   1.50\n"
    assert device == load_text(text).records[0].device
    on_gpu, on_host = (OSU_TYPES.format(device=name) for name in ("-CUDA", ""))
    with pytest.raises(InputError, match=r"CUDA .* cpu"):
        load_text(on_gpu + on_host, ranks=4)


# --------------------------------------------------------------------------------------- IMB, PARAM


def test_imb():
    """State the ranks of cases on fewer than all; omit what has no counterpart."""
    imported = load("imb.txt")
    sizes = {
        (record.case.world_size, record.group_size)
        for record in imported.records
        if record.case.operation == "all_gather"
    }
    assert {(2, 2), (None, 4)} == sizes
    assert "Exchange" in left_out(imported)
    assert "time-out" in left_out(imported)
    assert "int8" in assumed(imported)


def test_imb_states_that_buffers_were_out_of_the_cache():
    """Read the option from the repeated command line."""
    called = "# ./IMB-MPI1 -npmin 2 -off_cache -1 pingpong"
    away = load_text(IMB.replace("# IMB-MPI1 pingpong", called)).records
    assert {"hot"} == values_of(load_text(IMB), "buffers")
    assert {"rotated"} == {record.case.buffers for record in away if record.case.dtype}
    assert {"hot"} == {record.case.buffers for record in away if not record.case.dtype}
    older = IMB.replace("Benchmarks 2021.11,", "Benchmark Suite V3.2,")
    both = load_text(IMB.replace("# IMB-MPI1 pingpong", called) + older).records
    # each run has its own command line
    assert {"hot", "rotated"} == {record.case.buffers for record in both if record.case.dtype}


def test_imb_of_a_root_that_changes_is_left_out():
    """Refuse times of all roots, as of none in particular."""
    text = IMB.replace("# IMB-MPI1 pingpong", "# IMB-MPI1 -root_shift on bcast")
    text = text.replace("Benchmarking Allreduce", "Benchmarking Bcast")
    imported = load_text(text)
    assert "root" in left_out(imported)
    assert "broadcast" not in values_of(imported, "operation")


@pytest.mark.parametrize(
    ("benchmark", "processes", "words"),
    [
        ("Multi-Allreduce", "( 2 groups of 2 processes each", "2 groups"),
        ("Multi-Allreduce", "( 1 groups of 4 processes each", None),
        ("PingPong", "#processes = 4", "2 pairs"),
    ],
)
def test_imb_of_several_groups_or_pairs_is_left_out(benchmark, processes, words):
    """Omit what several groups or pairs measured at the same time; read one group as any table."""
    text = f"# Benchmarking {benchmark}\n# {processes}\n#bytes #repetitions t_max[usec]\n8 10 1.5\n"
    if words is None:
        [record] = load_text(text).records
        assert ("all_reduce", 4) == (record.case.operation, record.group_size)
    else:
        with pytest.raises(InputError, match=words):
            load_text(text)


@pytest.mark.parametrize(
    ("is_stated", "dtypes"), [(True, {"float32", "int8"}), (False, {"float64"})]
)
def test_imb_states_its_types(is_stated, dtypes):
    """Apply --dtype only if the output does not state the type."""
    lines = IMB.split("\n")
    text = "\n".join(line for line in lines if is_stated or "MPI_Datatype" not in line)
    records = load_text(text, dtype="float64").records
    chosen = [r for r in records if r.case.operation in {"all_reduce", "all_gather"}]
    assert dtypes == set(fields_of(chosen, "case.dtype"))


def test_param():
    """Recognise float32 by its element size, and ask for the type otherwise."""
    assert "all_to_allv" in left_out(load("param.txt"))
    [record] = load("param_old.txt", ranks=8, backend="gloo").records
    assert ("gloo", "float32") == (record.case.backend, record.case.dtype)
    with pytest.raises(InputError, match="--dtype"):
        load("param_old.txt", ranks=4)


# -------------------------------------------------------------------------------- several, and none


def test_several_outputs_are_launches():
    """Return an interval over several outputs of the same case; a file may hold two."""
    texts = [
        ALL_REDUCE.replace("90.12", f"{time:.2f}") for time in (89.0, 90.0, 91.0, 92.0, 90.5, 91.5)
    ]
    texts[:2] = ["".join(texts[:2])]
    sources = [Source(name=f"{place}.txt", data=each.encode()) for place, each in enumerate(texts)]
    rows = rows_of(import_outputs(sources, options=ImportOptions()))
    row = {(row.in_place, row.message_bytes): row for row in rows}[False, 8388608]
    check(row, launches=6, time_us=90.75, flags="")
    assert row.time_us_ci_low < 90.75 < row.time_us_ci_high


def test_hosts_are_stated_if_all_tables_have_the_same():
    """State no hosts of a file whose tables ran on different ones."""
    same, other = ALL_REDUCE * 2, ALL_REDUCE + ALL_REDUCE.replace("node1", "node2")
    assert [1, None] == [load_text(text).info.get("nodes") for text in (same, other)]


def test_tables_of_another_tool_in_the_file_are_counted():
    """Import the tables of one tool, and name the others with the option for them."""
    text = ALL_REDUCE + (DATA / "osu_old.txt").read_text() + IMB
    imported = load_text(text)
    assert len(load_text(ALL_REDUCE).records) == len(imported.records)
    assert re.findall(r"--tool (\S+?)\b", left_out(imported)) == ["osu", "imb"]


def test_times_of_different_meaning_do_not_mix():
    """Refuse to mix means over ranks and the slowest rank's times."""
    plain = "# OSU MPI Allgather Latency Test v7.4\n# Datatype: MPI_FLOAT.\n# Size  Avg Latency(us)"
    sources = [
        Source(name="full.txt", data=(DATA / "osu_allgather_full.txt").read_bytes()),
        Source(name="plain.txt", data=f"{plain}\n4   4.00\n".encode()),
    ]
    with pytest.raises(InputError, match="import them apart"):
        import_outputs(sources, options=ImportOptions(ranks=4))


@pytest.mark.parametrize(
    "text",
    ["", "\0\1\2", "{}", '{"results": 1, "nccl_version": 2}', "# size\n", "size,time\n8,1\n"],
)
def test_foreign_files_are_refused(text):
    """Refuse a foreign file in one sentence."""
    with pytest.raises(InputError):
        load_text(text)


def times_of(name: str, data: bytes) -> set[tuple[str, int, float]]:
    """Return operation, size and time of each record."""
    options = ImportOptions(ranks=RANKS.get(name), operation="all_reduce")
    records = import_outputs([Source(name=name, data=data)], options=options).records
    return {(r.case.operation, r.case.message_bytes, r.times_us[0]) for r in records}


@pytest.mark.parametrize("name", FILES)
def test_every_cut_is_read_or_refused(name):
    """Return only figures of the whole file wherever it is truncated."""
    data = (DATA / name).read_bytes()
    whole = times_of(name, data)
    for end in range(0, len(data), 37):
        with contextlib.suppress(InputError):
            assert times_of(name, data[:end]) <= whole


@given(data=st.data(), name=st.sampled_from(FILES))
def test_edited_files_are_read_or_refused(data, name):
    """Return records or one sentence for a file edited at random."""
    text = (DATA / name).read_text()
    place = data.draw(st.integers(0, len(text)))
    typed = data.draw(st.text(alphabet='0123456789.-eN/A#"{}[],:\n\t x\x1b', max_size=12))
    removed = data.draw(st.integers(0, 30))
    tool = data.draw(st.sampled_from([None, *TOOLS]))
    source = Source(name=name, data=(text[:place] + typed + text[place + removed :]).encode())
    with contextlib.suppress(InputError):
        assert rows_of(
            import_outputs([source], tool=tool, options=ImportOptions(operation="all_reduce"))
        )


# ------------------------------------------------------------------------------- as people paste it

#: What stands before a line, by its number: launchers, loggers, containers, quotations. What stands
#: behind ``LINE`` follows it.
PREFIXES = [
    "[1,0]<stdout>:",
    "Thu May  7 10:39:{:02} 2020[1,0]<stdout>:",
    "[prterun-node1-1006@1,0]<stdout>: ",
    "[1,0][node1:1006]<stdout>: ",
    "[1,mpirank:0,algo-1]<stdout>:",
    "[0] ",
    "[0@node17] ",
    "0: ",
    "10.0.0.48: ",
    "[pod/nccl-x7k2p/launcher] ",
    "2026-09-01T10:39:{:02}.123456789Z stdout F ",
    "2026-09-01 10:39:{:02},123 INFO [launcher] ",
    "\x1b[36mworker_1    |\x1b[0m ",
    "[1588847960.0{:02}] ",
    "{:6}\t",
    "        ",
    "&gt; ",
    "\\",
    "\x1b[?25l\x1b[38:5:2mLINE\x1b(B\x1b[m",
    '    "LINE",',
    '{{"log":"LINE\\n","stream":"stdout","time":"2026-09-01T10:39:{:02}.5Z"}}',
    '{{"time":"2026-09-01T10:39:{:02}.5Z","log":"LINE\\n"}}',
    "b'LINE\\n',",
    '<stdout rank="0">LINE&#010;</stdout>',
    "> LINE</span><br>",
    "LINE<br/>",
    "| LINE |",
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", ["nccl_tests_all_reduce.txt", "osu_old.txt", "imb.txt"])
def test_what_stands_around_lines_is_ignored(name, prefix):
    """Find the prefix by the lines that are known, and read the rows as without it."""
    lines = (DATA / name).read_text().splitlines()
    pasted = ""
    for place, line in enumerate(lines):
        before, _, behind = prefix.format(place).partition("LINE")
        pasted += f"{before}{line}{behind}\r\n"
    text = f"\ufeff{pasted}```\nThis is what I get.\n"
    ranks = RANKS.get(name)
    plain, found = load(name, ranks=ranks), load_text(text, ranks=ranks)
    assert plain.records == found.records
    assert left_out(plain) == left_out(found)


def test_ranks_that_write_at_the_same_time_are_told_apart():
    """Read the output of each job, and ignore what other ranks write among the rows."""
    names = ("nccl_tests_all_reduce.txt", "nccl_tests_broadcast.txt")
    lines = [(DATA / name).read_text().splitlines() for name in names]
    mixed = "".join(f"job-0: {a}\njob-1: {b}\n1: 8 of 9\n" for a, b in zip(*lines, strict=False))
    found = values_of(load_text(mixed), "key")
    assert values_of(load(*names), "key") == found


def test_columns_that_a_version_lacks_are_no_crash():
    """Read rows without a bus bandwidth, and refuse an overlap without its parts."""
    assert 6 == len(load_text(ALL_REDUCE.replace("busbw", "other")).records)
    heading = "# OSU MPI Non-blocking Allreduce Latency Test v7.4\n# Size  Overall(us)"
    with pytest.raises(InputError, match="Size, Overall are unknown to commbench"):
        load_text(f"{heading}\n4   5.50\n", ranks=4)


def test_two_tests_in_parts_among_messages():
    """Count the messages that interrupt rows."""
    assert "5 lines of NCCL_DEBUG" == left_out(load("nccl_tests_pasted.txt"))


def test_a_command_says_the_operation_of_old_outputs():
    """Tell the tables below two commands apart, and refuse one of another kind of operation."""
    moved = OLD.replace("sum", "   ")
    both = f"$ all_reduce_perf -b 1M\n{OLD}$ mpirun ./all_gather_perf -g 2\n{moved}"
    operations = fields_of(load_text(both).records, "case.operation")
    assert 4 * ["all_reduce"] + 4 * ["all_gather"] == operations
    named = load_text(OLD + moved, operation="all_reduce")
    assert 4 == len(named.records)
    assert "redop none" in left_out(named)


@pytest.mark.parametrize("style", ["nccl-tests", "osu"])
def test_what_commbench_printed_is_refused(style):
    """Name the run's directory, which has more."""
    rows = summarise_run(make_launches([50.0] * 6), make_info())
    with pytest.raises(InputError, match="commbench printed"):
        load_text(render(rows, style))
