"""Tests of straggler detection in matrices and ordinary cases."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import make_case, make_record, read_info
from effort import repetitions, slack
from fields import fields_of
from matrices import (
    Slowness,
    crossing,
    joined,
    make_hosts,
    make_matrix,
    pairs_of,
    receiving,
    sending,
    touching,
)
from training_builders import run_of

from commbench.analysis.stragglers import straggler_findings
from commbench.analysis.stragglers.judging import ALPHA, Search
from commbench.engine.records import GroupTimes, Record
from commbench.launch.tables import write_tables
from commbench.results import Store, load_run


def search(records: list[Record], info: Any) -> Search:
    """Return the result of a search in some records."""
    return straggler_findings(run_of(records, **info))


def findings_of(hosts: int, ranks_per_host: int = 1, **rule: Any) -> Search:
    """Return the result of a search in one simulated matrix."""
    records = make_matrix(hosts, ranks_per_host, **rule)
    return search(records, make_hosts(hosts, ranks_per_host))


def named(findings: Search) -> list[tuple[str, str]]:
    """Return type and name of all stragglers."""
    return fields_of(findings.stragglers, "kind", "name")


def codes(findings: Search) -> list[str]:
    """Return the codes of what is said."""
    return fields_of(findings.findings(), "code")


def pairs(slow: set[tuple[int, int]], factor: float = 4.0) -> Slowness:
    """Return the rule that these pairs are slow."""
    return lambda a, b: factor if (a, b) in slow else 1.0


def worse(*rules: Slowness) -> Slowness:
    """Return the rule that the worst of several rules decides."""
    return lambda a, b: max(rule(a, b) for rule in rules)


def uplink_of_rank(a: int, b: int) -> float:
    """Return the rule that rank 3 is slow to other hosts."""
    return 3.0 if 3 in {a, b} and 2 not in {a, b} else 1.0


def far_from_adapter(a: int, b: int) -> float:
    """Return the rule that the upper two of four ranks on each host are slow to other hosts."""
    return 1.3 if a // 4 != b // 4 and max(a % 4, b % 4) > 1 else 1.0


@pytest.mark.parametrize(
    ("hosts", "ranks_per_host", "rule", "expected"),
    [
        (2, 8, {"rank_slowness": lambda a, b: 1.5 if a // 4 != b // 4 else 1.0}, ""),  # sockets
        (2, 4, {"rank_slowness": far_from_adapter}, ""),
        (4, 4, {"rank_slowness": far_from_adapter}, ""),
        (
            4,
            4,
            {"rank_slowness": worse(far_from_adapter, touching(5, 2.0))},
            "rank 5 on host2 slow_both, rank 5 on host2 slow_both",
        ),
        (
            4,
            1,
            {"host_slowness": worse(touching(3, 5.0), touching(0, 3.0))},
            "host4 slow_both, host1 slow_both",
        ),
        (5, 1, {"host_slowness": sending(1, 3.0)}, "host2 slow_sends"),
        (5, 1, {"host_slowness": receiving(1, 3.0)}, "host2 slow_receives"),
        (4, 4, {"host_slowness": pairs({(1, 1)}, 1.5)}, "host2 slow_within"),
        (2, 2, {"rank_slowness": uplink_of_rank}, "rank 3 on host2 slow_both"),
        (4, 2, {"rank_slowness": uplink_of_rank}, "rank 3 on host2 slow_both"),
        (1, 8, {"rank_slowness": touching(5, 2.0)}, "rank 5 slow_both"),
        (4, 1, {"host_slowness": pairs({(1, 2)})}, "host2 -> host3 slow_link"),
        (
            4,
            1,
            {"host_slowness": pairs({(1, 2), (2, 1)}), "symmetric": True},
            "host2 - host3 slow_link",
        ),
        (
            6,
            1,
            {"host_slowness": worse(touching(0, 4.0), pairs({(3, 4)}))},
            "host1 slow_both, host4 -> host5 slow_link",
        ),
        (1, 6, {"rank_slowness": pairs({(4, 2)}, 3.0)}, "rank 4 -> rank 2 slow_link"),
    ],
)
def test_what_is_slow_is_named(hosts, ranks_per_host, rule, expected):
    """Name slow hosts, ranks and links with their direction, the worse first, and nothing that they
    explain.
    """
    found = findings_of(hosts, ranks_per_host, **rule).stragglers
    assert expected == ", ".join(f"{straggler.name} {straggler.code}" for straggler in found)
    if "host2" in expected and "host3" in expected:
        assert ([1], [2]) in found[0].links
        assert ("symmetric" in rule) == (([2], [1]) in found[0].links)


@pytest.mark.parametrize(("hosts", "symmetric"), [(3, False), (16, True)])
def test_quarter_rate_host_is_named_and_no_link(hosts, *, symmetric):
    """Name the host at a quarter of the rate with its factor, and none of its links."""
    rule = {"host_slowness": touching(2, 4.0), "symmetric": symmetric}
    (straggler,) = findings_of(hosts, **rule).stragglers
    assert ("host", "host3", "slow_both") == (straggler.kind, straggler.name, straggler.code)
    low, high = straggler.factor.bounds
    assert low < straggler.factor.value < high
    assert pytest.approx(4.0, rel=0.1) == straggler.factor.value


def test_two_hosts_name_no_straggler():
    """Report the slower direction of two hosts, and that the straggler cannot be determined."""
    findings = findings_of(2, host_slowness=sending(1, 3.0))
    (remark,) = findings.findings()
    assert ("slow_way_back", "host2 to host1") == (remark.code, remark.subject)
    assert pytest.approx(3.0, rel=0.1) == remark.numbers["factor"]
    assert ["slow_two_hosts"] == codes(findings_of(2))
    few = findings_of(2, launches=3, host_slowness=sending(1, 3.0))
    assert ["slow_way_back"] == codes(few)
    by_chance = findings_of(2, noise=0.3, seed=8)  # one direction is slower in all six launches
    assert ["slow_two_hosts"] == codes(by_chance)
    assert ["slow_two_hosts"] == codes(findings_of(2, launches=1, host_slowness=sending(1, 3.0)))
    assert ["slow_two_ranks"] == codes(findings_of(1, 2))


@pytest.mark.parametrize(("hosts", "first"), [(4, 2), (8, 4), (9, 3)])
def test_uplink_is_named_once(hosts, first):
    """Name the uplink between two racks instead of all links between them."""
    findings = findings_of(hosts, host_slowness=crossing(first, 4.0))
    (straggler,) = findings.stragglers
    assert "uplink" == straggler.kind
    assert straggler.name.startswith("links between host1, host2")
    assert pytest.approx(4.0, rel=0.1) == straggler.factor.value
    assert ([0], [hosts - 1]) in straggler.links
    assert ([0], [1]) not in straggler.links


# ----------------------------------------------------------------------------------------- no alarm


def test_equal_units_report_the_detectable_difference():
    """Name no straggler among equals, and report comparisons and detectable differences."""
    findings = findings_of(4, 2)
    assert [] == findings.stragglers
    assert 4 + 8 + 12 + 4 == findings.comparisons
    (finding,) = findings.findings()
    assert "slow_none" == finding.code
    said = fields_of(finding.numbers["detectable"], "numbers")
    assert [("host", 4), ("rank", 8), ("link", 12)] == fields_of(said, "kind", "count")
    assert all(0.1 < numbers["slowdown"] < 0.5 for numbers in said)


def test_one_launch_is_too_few():
    """Name no straggler from one launch, and report how many launches are needed."""
    findings = findings_of(4, launches=1, host_slowness=touching(0, 4.0))
    assert [] == findings.stragglers
    hosts, links, hint = findings.findings()
    assert ("host", 4, 1, 5) == tuple(hosts.numbers.values())[:4]
    assert ("slow_unjudged", "link") == (links.code, links.numbers["kind"])
    assert ("slow_hint", "host1") == (hint.code, hint.subject)


def test_wrong_data_is_left_out():
    """Exclude pairs with wrong data."""
    records, info = make_matrix(5), make_hosts(5)
    first, *others = pairs_of(records[0])
    broken = joined([first._replace(time_us=900.0, wrong=1), *others])
    records = [replace(record, pairs=broken) for record in records]
    assert [] == search(records, info).stragglers


@pytest.mark.parametrize(("hosts", "spread"), [(3, 0.1), (8, 0.03)])
def test_equal_hosts_are_left_alone_and_a_slow_one_is_found(hosts, spread):
    """Name a straggler among equal hosts in at most 1 % of runs, plus one for the chosen seeds, and
    the host with 75 % of the others' rate in at least 95 %.
    """
    alarms, hits, runs = 0, 0, repetitions(100)
    for seed in range(runs):
        noise = {"noise": spread, "seed": seed}
        alarms += bool(findings_of(hosts, **noise).stragglers)
        slow = findings_of(8, host_slowness=touching(1, 4 / 3), **noise)
        hits += [("host", "host2")] == named(slow)
    assert ALPHA * runs + 1 >= alarms
    assert (0.95 - slack(0.95, 100)) * runs <= hits


# ----------------------------------------------------------------------------------- ordinary cases


def ordinary(operations: dict[str, list[float]], **changes: Any) -> list[Record]:
    """Return records of operations whose ranks take 100 us times ``factors``, with 2 % noise."""
    random, records = np.random.default_rng(5), []
    for operation, factors in operations.items():
        for size in (1024, 65536):
            for launch in range(6):
                own_us = 100 * np.array(factors) * random.lognormal(0, 0.02, len(factors))
                record = make_record(
                    make_case(operation, message_bytes=size),
                    launch=launch,
                    time_us=100.0,
                    rank_median_us=own_us.tolist(),
                    group_size=len(factors),
                    **changes,
                )
                records.append(record)
    return records


def ordinary_findings(records: list[Record], hosts: int = 4) -> Search:
    """Return the result of a search in ordinary records of four ranks."""
    return search(records, make_hosts(hosts, 4 // hosts))


SLOW = [1.0, 1.0, 1.4, 1.0]
EQUAL = [1.0] * 4


def test_rank_that_takes_long_in_everything_is_named():
    """Name the rank with the longest own time in two types of operation."""
    findings = ordinary_findings(ordinary({"all_reduce": SLOW, "all_gather": SLOW}))
    assert [("rank", "rank 2 on host3")] == named(findings)
    assert "mpi all_reduce, all_gather" == findings.stragglers[0].measured
    assert pytest.approx(1.4, rel=0.1) == findings.stragglers[0].factor.value


def test_rank_that_arrives_late_is_named():
    """Name the rank that arrives last."""
    arrivals = [0.1, 30.2, 0.3, 0.2]
    records = ordinary({"all_reduce": EQUAL, "barrier": EQUAL}, rank_arrival_us=arrivals)
    findings = ordinary_findings(records, hosts=1)
    assert [("rank", "rank 1")] == named(findings)
    assert ["slow_late"] == codes(findings)


@pytest.mark.parametrize(
    "operations",
    [
        {"all_reduce": SLOW, "all_gather": EQUAL},
        {"all_reduce": SLOW},
        {"broadcast": SLOW, "reduce": SLOW},
        {"all_reduce": [1.0, 2.0], "all_gather": [1.0, 2.0]},
    ],
    ids=["one of two", "one kind", "unequal parts", "two ranks"],
)
def test_place_in_an_algorithm_is_no_fault(operations):
    """Name no rank that is slow in one type of operation only."""
    assert [] == ordinary_findings(ordinary(operations)).stragglers


def test_oversubscribed_ranks_are_not_compared():
    """Compare no oversubscribed ranks."""
    records = ordinary({"all_reduce": SLOW, "all_gather": SLOW}, flags=("oversubscribed",))
    assert {} == ordinary_findings(records).to_json()
    assert [] == search([make_record()], make_hosts(2)).findings()


def grouped(factors: list[float]) -> list[Record]:
    """Return records of the pattern node with two ranks per host, whose times are 100 us times
    ``factors``.
    """
    random = np.random.default_rng(6)
    records = []
    for launch in range(6):
        groups = []
        for host, factor in enumerate(factors):
            times_us = (100 * factor * np.exp(random.normal(0, 0.02, 40))).tolist()
            ranks = f"{2 * host}-{2 * host + 1}"
            group = GroupTimes(group=ranks, group_size=2, message_bytes=1024, times_us=times_us)
            groups.append(group)
        records.append(make_record(make_case(pattern="node"), launch=launch, groups=groups))
    return records


def test_slow_group_is_named():
    """Name the group that is slower than its concurrent peers, with its host."""
    findings = search(grouped([1, 1, 1, 1.5]), make_hosts(4, 2))
    assert [("group", "ranks 6-7 on host4")] == named(findings)
    assert [] == search(grouped([1, 1, 1, 1]), make_hosts(4, 2)).stragglers
    assert {} == search(grouped([1, 1.5]), make_hosts(2, 2)).to_json()


def test_a_group_takes_as_long_as_its_row_says():
    """Take the median over visits of a launch, as rows do: one long visit does not outweigh two."""
    records = []
    for record in grouped([1, 1, 1, 1.5]):
        groups = []
        for group in record.groups:
            groups.append(replace(group, times_us=[*group.times_us[:20], *[900.0] * 20]))
        records.append(replace(record, visit_lengths=(10, 10, 20), groups=groups))
    (straggler,) = search(records, make_hosts(4, 2)).stragglers
    assert pytest.approx(1.5, rel=0.02) == straggler.factor.value


def test_what_shows_in_several_cases_is_named_once():
    """Merge what two backends show of a host, the worse first, and count stragglers beyond five."""
    records = []
    for backend in ("mpi", "gloo"):
        case = make_case("bandwidth", backend=backend, pattern="matrix")
        rule = touching(2, 4.0 if backend == "gloo" else 3.0)
        records += make_matrix(4, noise=0.001, host_slowness=rule, case=case)
    info = make_hosts(4)
    (finding,) = search(records, info).findings()
    seen = [observation.numbers["measured"] for observation in finding.numbers["seen"]]
    assert ["gloo bandwidth 1 KiB", "mpi bandwidth 1 KiB"] == seen
    many = findings_of(12, host_slowness=lambda a, b: 3.0 if a % 2 and b % 2 else 1.0)
    assert ["slow_link"] * 5 + ["slow_more"] == codes(many)
    assert len(many.stragglers) - 5 == many.findings()[5].numbers["more"]


# ----------------------------------------------------------------------------------------- run.json


def test_run_json_lists_the_stragglers(tmp_path):
    """Write stragglers and comparisons to run.json, or nothing without comparisons."""
    with Store.open(tmp_path / "mine", make_hosts(4)) as store:
        store.append(make_record())
        write_tables(store)
        assert "stragglers" not in read_info(tmp_path / "mine")
        for record in make_matrix(4, host_slowness=touching(3, 4.0)):
            store.append(record)
        write_tables(store)
    info = read_info(tmp_path / "mine")
    (straggler,) = info["stragglers"]
    assert ("host", "host4") == (straggler["kind"], straggler["name"])
    assert ["kind", "name", "factor", "ci", "evidence"] == list(straggler)
    assert 4 + 6 == info["straggler_comparisons"]
    assert [] == info["straggler_remarks"]
    assert (
        info["stragglers"]
        == straggler_findings(load_run(tmp_path / "mine")).to_json()["stragglers"]
    )
