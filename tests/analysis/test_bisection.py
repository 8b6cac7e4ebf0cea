"""Tests of the search for sets that are slow only together: planted sets, racks, error rates, and
refusals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from builders import make_case
from effort import repetitions
from faking import FakeRun, fake_case

from commbench.analysis.stragglers.bisection import FIRST_LAUNCH, LOOKS, Bisection, Outcome, Step
from commbench.backends.fake import Script
from commbench.collectives.cases import Case
from commbench.collectives.operations import OPERATIONS
from commbench.collectives.patterns import groups_of
from commbench.engine.records import Record, without_result
from commbench.errors import Reason

CASE = make_case("all_to_all", message_bytes=2**20, in_place=False, redop=None)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Hosts of one rank each, and the sets of hosts that are slow if all their members take
    part.
    """

    hosts: int
    slow: Mapping[frozenset[int], float] = field(default_factory=dict)
    noise: float = 0.03
    """Standard deviation of the logarithm of a set's time in a launch, beside the launch's own
    factor."""
    unsteady: float = 1.0
    """How many times noisier sets with the first host are."""
    ranks_per_host: int = 1
    racks: Sequence[str] = ()
    names: Sequence[str] = ()

    @property
    def host_of_rank(self) -> list[str]:
        """Return the host of each rank."""
        names = self.names or [f"node{number}" for number in range(self.hosts)]
        return [name for name in names for _ in range(self.ranks_per_host)]

    def record(self, case: Case, launch: int, seed: int) -> Record:
        """Return a drawn record of a case."""
        (ranks,) = groups_of(case.pattern, self.host_of_rank)
        members = {rank // self.ranks_per_host for rank in ranks}
        factor = max(
            (times for together, times in self.slow.items() if together <= members), default=1.0
        )
        of_launch = np.random.default_rng((seed, launch)).standard_normal()
        of_set = np.random.default_rng((seed, launch, *ranks)).standard_normal()
        time_us = 100 * factor * OPERATIONS[case.operation].busbw_factor(len(ranks))
        time_us *= np.exp(
            0.1 * of_launch + self.noise * (self.unsteady if 0 in members else 1.0) * of_set
        )
        return Record(case=case, launch=launch, times_us=[time_us])

    def bisection(
        self, records: Sequence[Record], factor: float = 1.5, case: Case = CASE
    ) -> Bisection:
        """Return the search after these records."""
        hosts = self.host_of_rank
        return Bisection(
            case, factor, hosts, dict(zip(dict.fromkeys(hosts), self.racks, strict=False)), records
        )

    def search(self, seed: int = 0, factor: float = 1.5) -> tuple[Bisection, Outcome, int]:
        """Measure whatever the search asks for.

        Return it, its outcome, and the number of records.
        """
        records: list[Record] = []
        while True:
            search = self.bisection(records, factor)
            step = search.advance()
            if isinstance(step, Outcome):
                return search, step, len(records)
            done = {(record.case, record.launch) for record in records}
            missing = [
                (c, n)
                for c in step.cases
                for n in range(step.first, step.end)
                if (c, n) not in done
            ]
            assert missing
            records += [self.record(case, launch, seed) for case, launch in missing]


def planted(hosts: int, *sets: Sequence[int], factor: float = 2.5, **options: object) -> Cluster:
    """Return a cluster with slow sets."""
    return Cluster(hosts=hosts, slow={frozenset(members): factor for members in sets}, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hosts", "members"),
    [
        (3, (0, 1, 2)),
        (4, (0, 1, 2, 3)),
        (5, (1, 2, 4)),
        (8, (0, 1, 2, 3)),
        (8, (0, 2, 4, 6)),
        (8, (1, 3, 4, 6, 7)),
        (8, tuple(range(8))),
        (13, (0, 5, 12)),
        (32, (3, 4, 17, 30)),
    ],
)
def test_a_planted_set_is_found(hosts: int, members: tuple[int, ...]) -> None:
    """Name exactly the hosts that are slow only together, and their slowness within its
    interval.
    """
    search, outcome, _ = planted(hosts, members).search()
    assert frozenset(members) == outcome.units
    assert outcome.evidence is not None
    assert outcome.evidence.interval.low < 2.5 < outcome.evidence.interval.high
    (straggler,) = search.findings.stragglers
    assert ", ".join(f"node{number}" for number in members) == straggler.name
    assert " are slow only together: they take {} as long as " in straggler.does


def test_a_slow_pair_is_told_as_a_pair() -> None:
    """Go down to the pair of which every slow set is made, and refer to the matrix of pairs."""
    search, outcome, _ = planted(8, (2, 5)).search()
    assert frozenset({2, 5}) == outcome.units
    (straggler,) = search.findings.stragglers
    assert "the pair node2, node5 is slow by itself" in straggler.name + straggler.does
    assert ["`commbench run matrix` measures every pair"] == search.findings.remarks


def test_a_slow_host_ends_at_a_pair_with_it() -> None:
    """Name a pair with the host whose every pair is slow."""
    _, outcome, _ = planted(8, *((3, other) for other in range(8) if other != 3)).search()
    assert 2 == len(outcome.units)
    assert 3 in outcome.units


@pytest.mark.parametrize("hosts", [3, 4, 9, 32])
def test_a_sound_group_has_no_slow_set(hosts: int) -> None:
    """End after one stage with a sentence that names no host."""
    search, outcome, _ = Cluster(hosts=hosts).search()
    assert (frozenset(), []) == (outcome.units, search.findings.stragglers)
    (remark,) = search.findings.remarks
    assert remark.startswith(f"no slow set: of {CASE}, {hosts} hosts together")


def test_the_racks_of_the_set_are_named() -> None:
    """State the rack that all members share, or the racks that they span."""
    racks = "AAAABBBB"
    search, *_ = planted(8, (0, 1, 3), racks=racks).search()
    assert "node0, node1, node3 (all in rack A)" == search.findings.stragglers[0].name
    search, *_ = planted(8, (2, 3, 4, 5), racks=racks).search()
    assert "node2, node3, node4, node5 (across racks A and B)" == search.findings.stragglers[0].name


def test_halves_follow_the_racks() -> None:
    """Measure in the first stage the whole, halves along the racks, and halves across them."""
    cluster = Cluster(hosts=8, racks="ABABBABA")
    step = cluster.bisection([]).advance()
    assert isinstance(step, Step)
    patterns = ["flat", "ranks:0+2+5+7", "ranks:1+3-4+6", "ranks:0+1+4-5", "ranks:2-3+6-7"]
    assert patterns[:3] == [case.pattern for case in step.cases[:3]]
    assert (FIRST_LAUNCH, FIRST_LAUNCH + LOOKS[0]) == (step.first, step.end)
    for case in step.cases[3:]:
        (ranks,) = groups_of(case.pattern, cluster.host_of_rank)
        assert {"A": 2, "B": 2} == {
            rack: sum(cluster.racks[rank] == rack for rank in ranks) for rack in "AB"
        }


def test_hosts_move_with_all_their_ranks() -> None:
    """Search among hosts, not ranks, if there are several."""
    _, outcome, _ = planted(6, (0, 3, 4), ranks_per_host=2).search()
    assert frozenset({0, 3, 4}) == outcome.units


def test_ranks_of_one_host_are_searched() -> None:
    """Search among ranks on one host, and name them as ranks."""
    cluster = replace(planted(1, ranks_per_host=6), names=["node"])

    @dataclass(frozen=True, kw_only=True)
    class OneHost(Cluster):
        """Ranks on one host, of which some are slow together."""

        def record(self, case: Case, launch: int, seed: int) -> Record:
            """Return a record that is slow with ranks 1, 2 and 3."""
            record = super().record(case, launch, seed)
            (ranks,) = groups_of(case.pattern, self.host_of_rank)
            return (
                replace(record, times_us=[3 * t for t in record.times_us])
                if {1, 2, 3} <= {*ranks}
                else record
            )

    search, *_ = OneHost(hosts=1, ranks_per_host=6, names=cluster.names).search()
    assert "ranks 1-3" == search.findings.stragglers[0].name


def test_too_few_hosts_cannot_be_searched() -> None:
    """Measure nothing on two hosts, of which no part can be compared."""
    search, outcome, count = Cluster(hosts=2).search()
    assert (frozenset(), 0) == (outcome.units, count)
    assert "is searched among 3 hosts or more, and this run has 2" in search.findings.remarks[0]


def test_a_case_without_times_ends_the_search() -> None:
    """Give the reason of a set that could not be measured."""
    cluster = Cluster(hosts=4)
    step = cluster.bisection([]).advance()
    assert isinstance(step, Step)
    records = [
        cluster.record(case, launch, 0)
        for case in step.cases
        for launch in range(step.first, step.end)
    ]
    records[-1] = without_result(records[-1], "failed", Reason.stated("rank 3 left"))
    (remark,) = cluster.bisection(records).findings.remarks
    assert remark.endswith("is failed (rank 3 left)")
    assert "is not finished" in cluster.bisection(records[:-1]).findings.remarks[0]


@pytest.mark.parametrize("unsteady", [1.0, 3.0])
def test_a_sound_group_is_rarely_accused(unsteady: float) -> None:
    """Accuse at most 5 % of sound clusters, also if the noise is unequal and some searches take all
    looks.
    """
    count = repetitions(400)
    cluster = Cluster(hosts=8, noise=0.2 / unsteady, unsteady=unsteady)
    accused = sum(bool(cluster.search(seed, factor=1.05)[1].units) for seed in range(count))
    assert accused <= 0.05 * count


def test_noise_rarely_changes_the_set() -> None:
    """Find the planted set in at least 95 % of noisy searches that name a set, and name one in
    most.
    """
    count = repetitions(200)
    found = [planted(8, (0, 1, 6), noise=0.06).search(seed)[1].units for seed in range(count)]
    named = [units for units in found if units]
    assert len(named) >= 0.9 * count
    assert sum(units == frozenset({0, 1, 6}) for units in named) >= 0.95 * len(named)


def test_a_slowness_below_the_factor_is_none() -> None:
    """Name no set that is slower by less than the factor."""
    assert frozenset() == planted(8, (0, 1, 6), factor=1.3).search()[1].units


@pytest.mark.parametrize(("ranks", "members"), [(4, (0, 1, 2, 3)), (5, (1, 2, 4)), (6, (0, 5))])
def test_sets_are_found_on_the_fake_backend(ranks: int, members: tuple[int, ...]) -> None:
    """Find a planted set with the times that the engine measures of a script."""
    script = Script(slow_together=members, slow_together_factor=2.0, skew_us=0.0)
    run = FakeRun(script=script, ranks=ranks)
    case = fake_case("broadcast", root=0)
    records: list[Record] = []
    while isinstance(step := Bisection(case, 1.5, ["node"] * ranks, {}, records).advance(), Step):
        records += [
            r for launch in range(step.first, step.end) for r in run.launch(step.cases, launch)
        ]
    assert frozenset(members) == step.units
    assert step.evidence is not None
    assert step.evidence.interval.low < 2.0 < step.evidence.interval.high
