"""Tests of the page's content for each type of run."""

import re

import pytest
from builders import MIB, STEADY, make_case, make_launches, make_record
from kept import load_kept
from matrices import make_hosts, make_matrix, touching
from pages import make_run, read
from training_builders import (
    launches_of,
    make_training_case,
    make_training_launches,
    make_training_record,
)

from commbench.engine.flags import FLAGS
from commbench.engine.records import Overlap
from commbench.report.columns import MOST_LINES
from commbench.report.formats import between
from commbench.report.page.conclusion import find_conclusion
from commbench.report.page.conditions import find_facts, words_of
from commbench.results import Run


def test_collectives_are_tables_of_numbers_and_flags():
    """Show time, interval, busbw and explained flags; state the best bandwidth first."""
    cases = [make_case(message_bytes=size) for size in (1024, MIB)]
    page = read(make_run([record for case in cases for record in make_launches(STEADY[:3], case)]))
    heading, *lines = page.table_with("busbw")
    assert ["size", "backend", "time us"] == heading[:3]
    assert {"95 % CI us", "p95 us", "busbw GB/s"} <= set(heading)
    assert "run" not in heading
    assert [["1 KiB", "mpi", "9.97"], ["1 MiB", "mpi", "9.97"]] == [line[:3] for line in lines]
    assert "few_launches" in lines[0][-1]
    assert FLAGS["few_launches"].description in page.text
    assert re.search(r"105 GB/s \[10\d, 10\d\] at 1 MiB", page.text.partition("Collectives")[0])


@pytest.mark.parametrize(
    ("operation", "ranks_per_node", "is_bound"),
    [("all_reduce", 2, False), ("bibandwidth", 1, True)],
)
def test_bandwidth_stands_beside_the_rate_of_the_link_where_it_is_bound_by_it(
    operation, ranks_per_node, *, is_bound
):
    """State the share of the link, of both its ways if both are used, for one rank per host."""
    case = make_case(operation, message_bytes=MIB)
    records = make_launches([10_000.0] * 6, case, transport="tcp/eth0")
    environment = {"hosts": [{"hostname": "a"}, {"hostname": "b"}], "emulated": {"rate": "1gbit"}}
    page = read(make_run(records, environment=environment, nodes=2, ranks_per_node=ranks_per_node))
    assert is_bound == ("84 % of" in page.text)


def test_figures_of_the_first_screen_come_with_their_own_warnings():
    """Warn about the stated row, although most rows have no warning."""
    best = make_launches(STEADY, make_case(message_bytes=MIB), flags=["bimodal"])
    quick = make_launches(STEADY, make_case("latency", message_bytes=8), harness_us=4.4)
    page = read(make_run([*make_launches(STEADY), *best, *quick]))
    first = page.text.partition("Collectives")[0]
    assert "bimodal" in first
    assert "44 %" in first
    assert ["4.40"] == [line[-2] for line in page.table_with("size", "overhead")[1:]]


def test_recommendation_comes_first_with_what_to_paste():
    """Start with setting, speedup and interval; list every configuration and the lines to paste."""
    training = []
    for phase in ("sweep", "confirm"):
        training += launches_of(20, make_training_case(phase=phase))
        training += launches_of(10, make_training_case("fp16", phase=phase))
    run = make_run(training=training)
    page = read(run)
    assert page.text.index("change to fp16") < page.text.index("Training with DDP")
    assert run.recommendation.reason in page.text
    assert "from commbench.hooks import FP16" in page.text
    lines = page.table_with("hook", "speedup")[1:]
    assert ["none", "fp16"] == [line[0] for line in lines]
    assert "faster" in lines[1]


def test_a_default_that_did_not_train_is_not_recommended():
    """Offer no lines to paste."""
    base, fp16 = (make_training_case(hook, phase="confirm") for hook in ("none", "fp16"))
    broken = make_training_record(base, status="failed", reason="No memory.")
    training = [*launches_of(20), *launches_of(10, make_training_case("fp16"))]
    run = make_run(training=[*training, broken, *launches_of(10, fp16)])
    assert run.recommendation is not None
    page = read(run)
    assert "nothing can be recommended" in page.text
    assert "To paste" not in page.text


def test_matrix_names_the_slow_host_and_lists_the_slowest_pairs_first():
    """Name the slow host on the first screen, list its pairs first, and state no median; warn of
    the matrix as a whole, and not of the spread of unlike pairs.
    """
    slow = make_matrix(4, noise=0.0, host_slowness=touching(2, 4.0), flags=["bimodal", "late"])
    page = read(make_run(slow, **make_hosts(4)))
    first, _, warnings = page.text.partition("Pairs of ranks Slow")
    assert "1 of 1 matrix case" in warnings
    assert "bimodal" not in warnings
    assert "host3" in first
    assert "2.62 to 10.5 GB/s" in first
    assert not any("busbw GB/s" in table[0] for table in page.tables)
    heading, *lines = page.table_with("from", "to")
    assert 12 == len(lines)
    assert all("host3" in line for line in lines[:6])
    ratios = [float(line[heading.index("over the typical")]) for line in lines]
    assert pytest.approx([4.0] * 6 + [1.0] * 6) == ratios
    assert "it was slower than the typical host in" in first


def warnings_of(*runs: Run) -> list[str]:
    """Return the warnings of the first screen."""
    return [
        text for found in find_conclusion(runs) if found.label == "Warnings" for text in found.texts
    ]


def test_warnings_count_rows_of_each_kind():
    """Count rows of training beside those of collectives, name what most rows of a kind have, and
    wrong data first.
    """
    training = make_training_launches([20.0, 20.1])
    cases = [make_case(message_bytes=64 << power) for power in range(20)]
    sound = [record for case in cases for record in make_launches(STEADY, case)]
    throttled = make_launches(STEADY, flags=["throttled"])
    wrong = make_record(make_case("all_gather"), status="wrong", wrong=3, reason="3 differ")
    both = "1 of 1 training row and 1 of 1 row"
    assert both in warnings_of(make_run(make_launches(STEADY[:2]), training))[0]
    assert "1 of 1 training row" in warnings_of(make_run(sound, training))[0]
    assert "wrong data" in warnings_of(make_run([wrong], training))[0]
    assert 1 == len(warnings_of(make_run(throttled)))
    assert 0 == len(warnings_of(make_run([*throttled, *sound])))


def test_warnings_and_details_of_several_runs_name_their_run():
    """Name the run of warnings and details, link the hidden ones, and use the worst tone."""
    flags = ["oversubscribed", "unverified", "late", "bimodal", "unsteady"]
    flagged = [make_record(make_case(message_bytes=8 << power), flags=flags) for power in range(3)]
    runs = [
        make_run(make_launches(STEADY, make_case(message_bytes=MIB)), path="results/monday"),
        make_run(flagged, path="results/friday"),
    ]
    warnings = warnings_of(*runs)
    assert all(text.startswith("friday: ") for text in warnings)
    assert "#collectives" in read(*runs).links
    (bandwidth,) = (found for found in find_conclusion(runs) if found.label == "Bandwidth")
    assert {"monday", "friday"} <= {detail.partition(":")[0] for detail in bandwidth.details}
    matrices = [make_matrix(4), make_matrix(4, host_slowness=touching(2, 4.0))]
    mixed = [make_run(matrix, **make_hosts(4)) for matrix in matrices]
    tones = {found.label: found.tone for found in find_conclusion(mixed)}
    assert "bad" == tones["Stragglers"]


def test_the_network_is_the_same_whatever_case_came_first():
    """State rate and transports in a fixed order, or transports alone."""
    interfaces = [{"name": "eth0", "speed_Mbps": 25000, "mtu": 1500}]
    hosts = [{"hostname": name, "interfaces": interfaces} for name in ("a", "b")]
    gloo = make_launches(STEADY, make_case(backend="gloo"), transport="tcp/eth0")
    mpi = make_launches(STEADY, transport="ucx/rc")

    for records in ([*gloo, *mpi], [*mpi, *gloo]):
        facts = find_facts(make_run(records, nodes=2, environment={"hosts": hosts}))
        assert "25gbit (slowest tcp/eth0), by tcp/eth0, ucx/rc" == facts["network"]
    assert "by ucx/rc" == find_facts(make_run(mpi, nodes=2))["network"]
    assert "network" not in find_facts(make_run(nodes=2))


def test_failed_wrong_and_unsupported_rows_are_shown_and_explained():
    """List rows without results with their status, and their reasons in a section."""
    operations = {"unsupported": "all_gather", "failed": "reduce_scatter", "hung": "all_to_all"}
    records = [
        make_record(make_case(operation), status=status, reason=f"{status} here")
        for status, operation in operations.items()
    ]
    records.append(make_record(make_case(), status="wrong", wrong=3, reason="3 differ"))
    page = read(make_run(records, left_out=["Gloo needs torch."]))
    reasons = page.table_with("status", "reason", "what")[1:]
    assert ["failed", "1", "mpi reduce_scatter", "failed here"] in reasons
    statuses = {*operations, "wrong"}
    assert statuses == {line[0] for line in reasons}
    assert statuses <= {cell for table in page.tables for line in table for cell in line}
    assert "Gloo needs torch." in page.text
    assert page.text.index("wrong data") < page.text.index("Collectives")


def test_an_overlap_of_nothing_has_ends_like_any_other():
    """Show the interval of a percentage always, and of a time only if it is useful."""
    case = make_case("iall_reduce", redop="sum", in_place=True)
    records = [
        make_record(
            case,
            launch=launch,
            overlap=Overlap(pure_us=10.0, compute_us=10.0, overall_us=overall_us),
        )
        for launch, overall_us in enumerate((20.0, 20.0, 21.0, 22.0, 18.8, 20.0))
    ]
    line = read(make_run(records)).table_with("overall", "overlap")[1]
    assert ["0", "0-12.0"] == line[-2:]
    assert "wide" not in line
    assert "wide" == between(1.0, 200.0, 1.5)


def test_empty_run_has_a_page_too():
    """Draw a page of an empty run."""
    page = read(make_run())
    assert "Nothing has been measured yet." in page.text
    assert "How to repeat it" in page.text


EMULATED = {
    "hosts": 4,
    "rate": "200mbit",
    "slow": {"host3": "50mbit"},
    "racks": 2,
    "uplink": "100mbit",
}


LAB = (
    "commbench lab run --hosts 4 --rate 200mbit --racks 2 --uplink 100mbit --ranks-per-host 2"
    " --slow host3=50mbit"
)


@pytest.mark.parametrize(
    ("argv", "info", "expected"),
    [
        ("bench", {}, "commbench bench --seed 7"),
        ("run --seed 7", {}, "commbench run --seed 7"),
        (
            "run -c latency --out results/mine",
            {},
            "commbench run --seed 7 -c latency --out results/mine_again",
        ),
        ("train --out=mine/", {"seed": 0}, "commbench train --seed 0 --out=mine_again"),
        ("import a.txt --out theirs", {"seed": None}, "commbench import a.txt --out theirs_again"),
        (
            "tune --out mine -- train.py --out checkpoints --seed 3",
            {},
            "commbench tune --seed 7 --out mine_again -- train.py --out checkpoints --seed 3",
        ),
        (
            "watch -- torchrun train.py",
            {"plan": {"live": True, "watch": True}},
            "commbench watch -- torchrun train.py",
        ),
        (
            "run matrix",
            {"environment": {"emulated": EMULATED}, "ranks_per_node": 2},
            f"{LAB} -- commbench run --seed 7 matrix",
        ),
    ],
)
def test_a_run_is_repeated_by_what_its_page_says(argv, info, expected):
    """State the command with lab and seed, and a new directory."""
    run = make_run(make_launches(STEADY), argv=["commbench", *argv.split()], **info)
    assert expected == " ".join(words_of(run.info))
    assert expected in read(run).text


def test_conditions_of_hosts_are_stated_once_where_they_are_alike():
    """State common conditions once and differing ones in a table."""
    shared = {"memory_total_bytes": 2**30, "virtualised": True}
    hosts = [{"hostname": name, **shared} for name in ("a", "b")]
    page = read(make_run(make_launches(STEADY), environment={"hosts": hosts}))
    facts = page.table_with("fact", "value")
    assert ["memory total", "1 GiB"] in facts
    assert ["virtualised", "yes"] in facts
    assert [["a"], ["b"]] == page.table_with("hostname")[1:]


def test_several_runs_are_compared_by_condition_before_anything_else():
    """List differing conditions first, and add a run column to merged tables."""
    runs = []
    for name, model in (("monday", "Slow"), ("friday", "Fast")):
        environment = {"hosts": [{"cpu_model": model}]}
        records = make_launches(STEADY)
        runs.append(make_run(records, path=f"results/{name}", environment=environment))
    page = read(*runs)
    assert ["cpu_model", "Slow", "Fast"] in page.table_with("condition", "monday", "friday")
    assert page.text.index("cpu_model") < page.text.index("mpi all_reduce")
    assert ["monday", "friday"] == [line[0] for line in page.table_with("run", "busbw")[1:]]


def test_table_holds_no_more_than_a_browser_bears():
    """Truncate a long table, and state the number of rows."""
    cases = [make_case("broadcast", root=root) for root in range(MOST_LINES + 10)]
    page = read(make_run([make_record(case) for case in cases], world_size=MOST_LINES + 10))
    assert 1 + MOST_LINES == len(page.table_with("busbw"))
    assert "1000 of 1010" in page.text


@pytest.mark.kept
@pytest.mark.parametrize(
    ("name", "pasted"),
    [
        ("live_trainer_300mbit_xeon2core_20261128", "TrainingArguments"),
        ("train_resnet18_int8_1gbit_xeon2core_20261128", "changed gradients"),
        ("bench_xeon2core_20261128", "from torch"),
        ("train_aligned_8hosts_200mbit_xeon2core_20261128", ""),
    ],
)
def test_the_first_screen_has_a_sentence_and_what_to_paste(name, pasted):
    """Fold most details of the verdict, and offer the lines of a change, nothing for a default."""
    (verdict,) = (found for found in find_conclusion([load_kept(name)]) if found.is_lead)
    assert len(verdict.details) <= 3
    assert verdict.folded
    codes = [f"{code.title}: {code.text}" for code in verdict.codes]
    assert bool(pasted) == len(codes)
    assert all(pasted in code for code in codes)


def test_a_page_says_what_its_energies_count_and_why_one_is_missing():
    """Name the counters in every row, and run.json's reason for missing energy."""
    records = []
    for backend, energy_of in (("nccl", "gpu"), ("mpi", "cpu+gpu")):
        case = make_case(backend=backend)
        records += make_launches(STEADY, case, energy_J=1e-6, energy_of=energy_of)
    energy = {"counted": ["gpu"], "missing": {"cpu": "no counters (host0)"}}
    page = read(make_run(records, energy=energy))
    heading, *lines = page.table_with("energy of")
    place = heading.index("energy of")
    by_backend = {line[1]: line[place] for line in lines}
    assert {"nccl": "gpu", "mpi": "cpu+gpu"} == by_backend
    assert "no counters (host0)" in page.text
