"""Tests of the page's content for each type of run."""

import dataclasses
import re
import shlex
from typing import Any

import pytest
from builders import MIB, STEADY, make_case, make_launches, make_record
from kept import KEPT_RUNS, RESULTS
from matrices import make_hosts, make_matrix, touching
from pages import make_run, read
from training_builders import (
    launches_of,
    make_training_case,
    make_training_launches,
    make_training_record,
)

from commbench.analysis.runs import network_model
from commbench.engine.flags import FLAGS
from commbench.engine.records import Overlap, Record
from commbench.report.columns import MOST_LINES
from commbench.report.formats import between
from commbench.report.page.conclusion import find_conclusion
from commbench.report.page.conditions import find_facts, words_of
from commbench.results import load_run
from commbench.tuner.snippet import keep_snippet


def test_collectives_are_tables_of_numbers_and_flags() -> None:
    """Show time, interval, busbw and explained flags; state the best bandwidth first."""
    sizes = [make_case(message_bytes=size) for size in (1024, MIB)]
    page = read(make_run([record for case in sizes for record in make_launches(STEADY[:3], case)]))
    heading, *lines = page.table_with("busbw")
    assert [
        "size",
        "backend",
        "time us",
        "95 % CI us",
        "p95 us",
        "algbw GB/s",
        "busbw GB/s",
        "flags",
    ] == heading
    assert [("1 KiB", "mpi", "9.97"), ("1 MiB", "mpi", "9.97")] == [
        tuple(line[:3]) for line in lines
    ]
    assert "few_launches" in lines[0][-1]
    assert FLAGS["few_launches"].description in page.text
    assert re.search(r"Bandwidth mpi 105 GB/s \[10\d, 10\d\] at 1 MiB", page.text)
    assert "Bus bandwidth of all_reduce, the best of its 2 sizes." in page.text
    assert page.text.index("Bus bandwidth is size over time") > page.text.index("Collectives")
    assert "overhead" not in heading


def test_bandwidth_stands_beside_the_rate_of_the_link_only_where_it_is_bound_by_it() -> None:
    """State the share of the link only for one rank per host."""
    case = make_case(message_bytes=MIB, backend="gloo")
    records = make_launches([10_000.0] * 6, case, transport="tcp/eth0")
    environment = {"hosts": [{"hostname": "a"}, {"hostname": "b"}], "emulated": {"rate": "1gbit"}}
    bound = read(make_run(records, environment=environment, nodes=2, ranks_per_node=1))
    shared = read(make_run(records, environment=environment, nodes=1, ranks_per_node=2))
    assert (
        "gloo 0.105 GB/s [0.105, 0.105] at 1 MiB, 84 % of the link's 1gbit (emulated)" in bound.text
    )
    assert "of the link's" not in shared.text
    both = make_launches(
        [10_000.0] * 6, make_case("bibandwidth", message_bytes=MIB), transport="tcp/eth0"
    )
    page = read(make_run(both, environment=environment, nodes=2, ranks_per_node=1))
    assert "84 % of both ways of 1gbit (emulated)" in page.text


def test_figures_of_the_first_screen_come_with_their_own_warnings() -> None:
    """Warn about the stated row, although most rows have no warning."""
    sizes = [make_case(message_bytes=2**power) for power in range(10, 15)]
    sound = [record for case in sizes for record in make_launches(STEADY, case)]
    best = make_launches(STEADY, make_case(message_bytes=MIB), flags=["bimodal"])
    quick = make_launches(STEADY, make_case("latency", message_bytes=8), harness_us=4.4)
    page = read(make_run([*sound, *best, *quick]))
    first = page.text.partition("Collectives")[0]
    assert "mpi: times are bimodal within a launch." in first
    assert "mpi: 44 % is time of commbench's loop around an empty call." in first
    assert ["4.40"] == [line[-2] for line in page.table_with("size", "overhead")[1:]]


def test_bandwidth_of_a_backend_that_lacks_the_others_operation_names_its_own() -> None:
    """Name each figure's operation if backends differ in it."""
    records = [
        *make_launches(STEADY),
        *make_launches(STEADY, make_case("all_gather", backend="gloo")),
    ]
    page = read(make_run(records))
    assert "mpi all_reduce 0.102 GB/s" in page.text
    assert "gloo all_gather 0.0512 GB/s" in page.text
    assert "gloo: all_gather of 1 KiB" in page.text
    assert "mpi: all_reduce of 1 KiB" in page.text
    fewer = read(make_run([*make_launches(STEADY), *launches_at_two_sizes("gloo")]))
    assert "mpi 0.102 GB/s" in fewer.text
    assert "mpi: all_reduce of 1 KiB" in fewer.text
    assert "gloo: all_reduce, the best of its 2 sizes" in fewer.text


def launches_at_two_sizes(backend: str) -> list[Record]:
    """Return six launches of an all-reduce of 1 KiB and 1 MiB."""
    return [
        r
        for size in (1024, MIB)
        for r in make_launches(STEADY, make_case(backend=backend, message_bytes=size))
    ]


def test_recommendation_comes_first_with_what_to_paste() -> None:
    """Start with setting, speedup and interval; list every configuration and the lines to paste."""
    training = [
        *launches_of(20),
        *launches_of(10, make_training_case("fp16")),
        *launches_of(20, make_training_case(phase="confirm")),
        *launches_of(10, make_training_case("fp16", phase="confirm")),
    ]
    run = make_run(training=training)
    assert run.recommendation is not None
    page = read(run)
    assert page.text.index("change to fp16") < page.text.index("Training with DDP")
    assert run.recommendation.reason in page.text
    assert "FP16" in run.recommendation.snippet
    assert "from commbench.hooks import FP16" in page.text
    lines = page.table_with("hook", "speedup")[1:]
    assert ["none", "fp16"] == [line[0] for line in lines]
    assert "faster" in lines[1]


def test_what_a_change_does_to_learning_stands_with_the_advice_to_change() -> None:
    """State the cost of compression, or that it is unknown, on the first screen.

    None for buckets.
    """
    down, worse = [3.0, 2.0, 1.0], [3.0, 3.0, 3.0]
    fp16, five = (
        make_training_case("fp16", phase="confirm"),
        make_training_case(cap="5", phase="confirm"),
    )
    base = make_training_case(phase="confirm")
    info = {"environment": {"emulated": {"hosts": 2, "rate": "1gbit"}}}
    known_cost, unknown, buckets = (
        read(
            make_run(
                training=[*launches_of(20, base, losses=own), *launches_of(10, case, losses=other)],
                **info,
            )
        )
        for case, own, other in ((fp16, down, worse), (fp16, (), ()), (five, down, down))
    )
    first = [page.text.partition("To paste")[0] for page in (known_cost, unknown, buckets)]
    assert all("change to" in text for text in first)
    assert "after equal time 3 against" in first[0]
    assert "learnt no more than the default" in first[0]
    assert "What this does to learning was not measured" in first[1]
    assert "learning" not in first[2]
    assert "loss" not in first[2]
    assert all("Warnings: the network was emulated." in text for text in first)


def test_a_default_that_did_not_train_is_not_recommended() -> None:
    """Start with why nothing can be recommended, and offer no lines to paste."""
    broken = make_training_record(
        make_training_case(phase="confirm"), status="failed", reason="No memory."
    )
    training = [*launches_of(20), *launches_of(10, make_training_case("fp16"))]
    run = make_run(
        training=[*training, broken, *launches_of(10, make_training_case("fp16", phase="confirm"))]
    )
    assert run.recommendation is not None
    older = dataclasses.replace(
        run, recommendation=dataclasses.replace(run.recommendation, snippet=keep_snippet())
    )
    for page in (read(run), read(older)):
        assert "nothing can be recommended. The default did not train" in page.text
        assert "keep the default" not in page.text
        assert "To paste" not in page.text


def test_matrix_names_the_slow_host_and_lists_the_slowest_pairs_first() -> None:
    """Name the slow host on the first screen, and list its pairs first."""
    run = make_run(make_matrix(4, host_slowness=touching(2, 4.0)), **make_hosts(4))
    page = read(run)
    assert page.text.index("host3: its links take") < page.text.index("Pairs of ranks")
    lines = page.table_with("from", "to")[1:]
    assert 12 == len(lines)
    assert all("host3" in line for line in lines[:6])
    assert page.table_with("times as long")[1][1] == "host3"
    ratios = [
        float(line[page.table_with("from", "to")[0].index("over the typical")]) for line in lines
    ]
    assert all(ratio > 3 for ratio in ratios[:6])
    assert all(ratio < 1.1 for ratio in ratios[6:])


def test_a_matrix_is_its_pairs_and_never_the_median_of_unlike_ones() -> None:
    """State the range of pair bandwidths, and no median over unlike pairs."""
    page = read(
        make_run(make_matrix(4, noise=0.0, host_slowness=touching(2, 4.0)), **make_hosts(4))
    )
    first = page.text.partition("Pairs of ranks Slow")[0]
    assert "mpi bandwidth 1 MiB: 2.62 to 10.5 GB/s" in first
    assert "Bandwidth mpi" not in first
    assert not any("busbw GB/s" in table[0] for table in page.tables)
    within = read(make_run(make_matrix(3, 2, noise=0.0), **make_hosts(3, 2)))
    assert "mpi bandwidth 1 MiB: 10.5 GB/s between hosts, 35.0 GB/s within hosts" in within.text
    latency = make_matrix(
        3, noise=0.0, case=make_case("latency", pattern="matrix", message_bytes=8)
    )
    assert "mpi latency 8 B: 100 us" in read(make_run(latency, **make_hosts(3))).text


def test_warnings_about_a_matrix_are_those_of_its_pairs() -> None:
    """Ignore the spread of unlike pairs, and count matrices instead of rows."""
    records = make_matrix(4, launches=3, host_slowness=touching(2, 4.0), flags=["bimodal", "late"])
    page = read(make_run(records, **make_hosts(4)))
    warnings = page.text.partition("Pairs of ranks")[2]
    assert "1 of 1 matrix are flagged late" in warnings
    assert "What to try" in page.text.partition("Pairs of ranks Slow")[0]
    steady = read(make_run(make_matrix(4, flags=["late"]), **make_hosts(4)))
    assert "What to try" not in steady.text
    assert "bimodal" not in warnings


@pytest.mark.parametrize("flag", ["throttled", "in_cache"])
def test_warnings_of_most_rows_are_named(flag: str) -> None:
    """Name warnings of all rows, not of a few."""
    records = make_launches(STEADY, flags=(flag,))
    others = [
        record
        for name in ("all_gather", "broadcast")
        for record in make_launches(STEADY, make_case(name))
    ]
    (warnings,) = (
        conclusion
        for conclusion in find_conclusion([make_run(records)])
        if conclusion.label == "Warnings"
    )
    assert [f"1 of 1 row are flagged {flag}: {FLAGS[flag].description}."] == list(warnings.texts)
    assert "Warnings" not in {
        conclusion.label for conclusion in find_conclusion([make_run([*records, *others])])
    }


def test_collectives_and_training_are_warned_about_separately() -> None:
    """Show training's warnings separately from those of collectives, and link the rest."""
    records = [
        record
        for power in range(20)
        for record in make_launches(STEADY, make_case(message_bytes=8 << power))
    ]
    training = make_training_launches([20.0, 20.1])
    run = make_run(records, training)
    page = read(run)
    assert "1 of 1 row of training come from fewer than 6 launches" in page.text
    both = make_run(make_launches(STEADY[:2]), training)
    warnings = next(finding for finding in find_conclusion([both]) if finding.label == "Warnings")
    assert warnings.texts[0].startswith(
        "1 of 1 row of training and 1 of 1 row of collectives come from fewer"
    )
    wrong = make_record(
        make_case("all_gather"), status="wrong", wrong=3, reason="3 elements differ"
    )
    warnings = next(
        finding
        for finding in find_conclusion([make_run([wrong], training)])
        if finding.label == "Warnings"
    )
    assert warnings.texts[0].startswith("1 of 1 row of collectives hold wrong data")
    flags = ["one_launch", "clock", "oversubscribed", "unverified", "harness"]
    many = make_run(
        [make_record(make_case(message_bytes=8 << power), flags=flags) for power in range(3)]
    )
    reader = read(many)
    assert reader.text.index("1 more warning and what to try") < reader.text.index("Collectives")
    assert "#collectives" in reader.links
    assert "#collectives" in [link for link in reader.links if link == "#collectives"][1:]


def test_warnings_and_details_of_several_runs_name_their_run() -> None:
    """Add the hidden warnings of all runs, use the worst tone, and name the run of details."""
    flags = ["oversubscribed", "unverified", "late", "bimodal", "unsteady"]
    flagged = [make_record(make_case(message_bytes=8 << power), flags=flags) for power in range(3)]
    runs = [
        make_run(make_launches(STEADY, make_case(message_bytes=MIB)), path="results/monday"),
        make_run(flagged, path="results/friday"),
    ]
    findings = {finding.label: finding for finding in find_conclusion(runs)}
    assert ["friday: All 3 rows "] == [text[:19] for text in findings["Warnings"].texts]
    assert ("collectives", "1 more warning and what to try") == findings["Warnings"].more
    details = [
        detail.partition(".")[0].replace("Bus bandwidth of ", "")
        for detail in findings["Bandwidth"].details
    ]
    assert {"monday: all_reduce of 1 MiB", "friday: all_reduce, the best of its 3 sizes"} <= set(
        details
    )
    slow = make_run(
        make_matrix(4, host_slowness=touching(2, 4.0)), path="results/slow", **make_hosts(4)
    )
    even = make_run(make_matrix(4), path="results/even", **make_hosts(4))
    assert (
        "bad"
        == {finding.label: finding for finding in find_conclusion([even, slow])}["Stragglers"].tone
    )


def test_the_network_is_the_same_whatever_case_came_first() -> None:
    """State rate and transports in a fixed order, or transports alone."""
    hosts = [
        {"hostname": name, "interfaces": [{"name": "eth0", "speed_Mbps": 25000, "mtu": 1500}]}
        for name in ("a", "b")
    ]
    gloo = make_launches(STEADY, make_case(backend="gloo"), transport="tcp/eth0")
    mpi = make_launches(STEADY, transport="ucx/rc")
    runs = [
        make_run(records, environment={"hosts": hosts}, nodes=2)
        for records in ([*gloo, *mpi], [*mpi, *gloo])
    ]
    facts = [{fact.name: fact.text for fact in find_facts(run)}["network"] for run in runs]
    assert ["25gbit (slowest tcp/eth0), by tcp/eth0, ucx/rc"] * 2 == facts
    assert "by ucx/rc" == {f.name: f.text for f in find_facts(make_run(mpi, nodes=2))}["network"]
    assert "network" not in {
        fact.name for fact in find_facts(make_run(training=launches_of(20), nodes=2))
    }


def test_failed_wrong_and_unsupported_rows_are_shown_and_explained() -> None:
    """List rows without results with their status, and their reasons in a section."""
    records = [
        make_record(make_case("all_gather"), status="unsupported", reason="gloo has none"),
        make_record(make_case("broadcast", root=0), status="failed", reason="rank 1 died"),
        make_record(make_case("gather", root=0), status="hung", reason="rank 0 is silent"),
        make_record(make_case(), status="wrong", wrong=3, reason="3 elements differ"),
    ]
    page = read(make_run(records, left_out=["Gloo needs torch."]))
    reasons = {tuple(line) for line in page.table_with("status", "reason", "what")[1:]}
    assert ("failed", "1", "mpi broadcast", "rank 1 died") in reasons
    assert {"unsupported", "failed", "hung", "wrong"} == {line[0] for line in reasons}
    assert "Left out: Gloo needs torch." in page.text
    cells = {cell for table in page.tables for line in table for cell in line}
    assert {"failed", "hung", "wrong", "unsupported"} <= cells
    assert page.text.index("hold wrong data") < page.text.index("Collectives")


def test_model_states_for_each_segment_its_own_error() -> None:
    """State residuals per segment, the held-out error per curve, and no interval of parameters
    fixed at 0.
    """
    run = load_run(next(path for path in KEPT_RUNS if path.name.startswith("bench")))
    heading, *lines = read(run).table_with("start-up", "rate")
    place = {
        text: heading.index(text)
        for text in ("worst residual %", "held-out error %", "start-up us")
    }
    curves = list(network_model(run).curves.values())
    assert any(len(curve.segments) > 1 for curve in curves)
    assert len(curves) == sum(bool(line[place["held-out error %"]]) for line in lines)
    worst = {line[place["worst residual %"]] for line in lines}
    assert len(worst) > len(curves)
    held = [line for line in lines if line[place["start-up us"]] == "0"]
    assert held
    assert all(not line[place["start-up us"] + 1] for line in held)


def test_an_overlap_of_nothing_has_ends_like_any_other() -> None:
    """Show the interval of a percentage always, and of a time only if it is useful."""
    overlaps = [
        Overlap(pure_us=10.0, compute_us=10.0, overall_us=overall)
        for overall in (20.0, 20.0, 21.0, 22.0, 18.8)
    ]
    case = make_case("iall_reduce", redop="sum", in_place=True)
    records = [
        make_record(case, launch=launch, overlap=each)
        for launch, each in enumerate([*overlaps, overlaps[0]])
    ]
    page = read(make_run(records))
    line = page.table_with("overall", "overlap")[1]
    assert ["0", "0\u201312.0"] == line[-2:]
    assert "wide" not in line
    assert ["", "1.00\u20132.00", "wide"] == [
        between(None, 1.0),
        between(1.0, 2.0, 1.5),
        between(1.0, 200.0, 1.5),
    ]


def test_unfinished_run_says_so_first() -> None:
    """State first why a run is unfinished and how to resume it."""
    run = make_run(make_launches(STEADY), status="partial", reason="rank 1 died.")
    page = read(run)
    sentence = (
        "Not finished: rank 1 died. Everything measured is kept; the same command with --out"
        " results/mine"
    )
    assert sentence in page.text
    assert page.text.index(sentence) < page.text.index("Bandwidth")


def test_empty_run_has_a_page_too() -> None:
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
            "run matrix",
            {"environment": {"emulated": EMULATED}, "ranks_per_node": 2},
            f"{LAB} -- commbench run --seed 7 matrix",
        ),
    ],
)
def test_a_run_is_repeated_by_what_its_page_says(
    argv: str, info: dict[str, Any], expected: str
) -> None:
    """State the command with lab and seed, and a new directory."""
    run = make_run(make_launches(STEADY), argv=["commbench", *argv.split()], **info)
    assert expected == " ".join(words_of(run.info))
    assert f"again {expected} " in read(run).text


def without_seed(words: list[str]) -> list[str]:
    """Return a command without its seed."""
    place = words.index("--seed") if "--seed" in words else len(words)
    return [*words[:place], *words[place + 2 :]]


@pytest.mark.kept
@pytest.mark.parametrize("name", [path.name for path in KEPT_RUNS])
def test_kept_runs_are_repeated_by_their_command_in_the_table(name: str) -> None:
    """State the command of results/README.md with the seed and another directory."""
    line = next(
        line
        for line in (RESULTS / "README.md").read_text().splitlines()
        if line.startswith(f"| [{name}]")
    )
    info = load_run(RESULTS / name).info
    words = without_seed(words_of(info))
    command = line.split("`")[1].replace("make bench", "commbench bench")  # which is what it runs
    asked = without_seed(shlex.split(command))
    inner = asked.index("--") + 1 if "--" in asked else 0  # of a lab
    if asked[inner] == "bash":  # a script that prepares the hosts, of which a run knows nothing
        del asked[inner : asked.index("commbench", inner)]
    end = (
        asked.index("--", inner) if "--" in asked[inner:] else len(asked)
    )  # the command of a training follows
    assert [*asked[:end], "--out", f"results/{name}_again", *asked[end:]] == words


def test_conditions_of_hosts_are_stated_once_where_they_are_alike() -> None:
    """State common conditions once and differing ones in a table."""
    hosts = [
        {"hostname": name, "cpu_model": "Fast", "memory_total_bytes": 2**30, "virtualised": True}
        for name in ("a", "b")
    ]
    page = read(make_run(make_launches(STEADY), environment={"hosts": hosts}))
    shared = page.table_with("fact", "value")
    assert ["memory total", "1 GiB"] in shared
    assert ["virtualised", "yes"] in shared
    assert [["a"], ["b"]] == page.table_with("hostname")[1:]


def test_several_runs_are_compared_by_condition_before_anything_else() -> None:
    """List differing conditions first, and add a run column to merged tables."""
    before, after = (
        make_run(
            make_launches(STEADY),
            path=f"results/{name}",
            environment={"hosts": [{"cpu_model": model}]},
        )
        for name, model in (("monday", "Slow"), ("friday", "Fast"))
    )
    page = read(before, after)
    assert ["cpu_model", "Slow", "Fast"] in page.table_with("condition", "monday", "friday")
    assert page.text.index("Unlike in cpu_model") < page.text.index("monday: mpi")
    assert ["monday", "friday"] == [line[0] for line in page.table_with("run", "busbw")[1:]]


def test_one_run_is_never_called_run_1() -> None:
    """Omit the run column for one run."""
    assert not any("run" in table[0] for table in read(make_run(make_launches(STEADY))).tables)


def test_table_holds_no_more_than_a_browser_bears() -> None:
    """Truncate a long table, and state the number of rows and their file."""
    cases = [make_case("broadcast", root=root) for root in range(MOST_LINES + 10)]
    page = read(make_run([make_record(case) for case in cases], world_size=MOST_LINES + 10))
    assert 1 + MOST_LINES == len(page.table_with("busbw"))
    assert "1 000 of 1 010 rows; all of them are in collectives.csv." in page.text


@pytest.mark.kept
@pytest.mark.parametrize(
    ("name", "pasted"),
    [
        ("live_trainer_300mbit_xeon2core_20261125", ["To paste: # add to TrainingArguments:"]),
        (
            "train_resnet18_int8_1gbit_xeon2core_20261125",
            ["To paste, faster but alters learning: from torch"],
        ),
        ("bench_xeon2core_20261125", ["To paste: from torch"]),
        ("train_aligned_8hosts_200mbit_xeon2core_20261124", []),
    ],
)
def test_the_first_screen_has_a_sentence_and_what_to_paste(name: str, pasted: list[str]) -> None:
    """Show one detail of the verdict, fold the others, and offer the lines of a change.

    Nothing for a default.
    """
    verdict = next(
        finding for finding in find_conclusion([load_run(RESULTS / name)]) if finding.is_lead
    )
    assert len(verdict.details) <= 2
    assert verdict.folded
    codes = [f"{code.title}: {code.text}" for code in verdict.codes]
    assert len(pasted) == len(codes)
    assert all(code.startswith(begin) for code, begin in zip(codes, pasted, strict=True))
