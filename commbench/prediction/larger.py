"""The measured network at other numbers of ranks and other rates of the links, where its algorithm is known."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from commbench.collectives import OPERATIONS
from commbench.errors import InputError, noting
from commbench.prediction.algorithms import GROWING_PATTERNS
from commbench.prediction.closed_forms import ALGORITHMS
from commbench.prediction.curves import Curve
from commbench.prediction.growing import Estimate, GrowingCurve
from commbench.prediction.hops import MeasuredCurve
from commbench.prediction.links import WITHIN_HOST, link_of
from commbench.prediction.network import SERVERS, CurveKey, NetworkModel
from commbench.records import Record


class Family(NamedTuple):
    """What curves on several numbers of ranks have in common."""

    operation: str
    backend: str
    dtype: str
    pattern: str

    def __str__(self) -> str:
        """Name it for people."""
        pattern = "" if self.pattern == "flat" else f", pattern {self.pattern}"
        return f"{self.backend} {self.operation} of {self.dtype}{pattern}"


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """What of a run tells about its network."""

    model: NetworkModel
    """Its curves."""
    records: Sequence[Record]
    """Of collectives: what carried them."""
    info: Mapping[str, Any]
    """As ``run.json`` holds it."""

    @property
    def ranks_per_node(self) -> int:
        """Most ranks on one host."""
        return int(self.info.get("ranks_per_node") or 1)

    def transport(self, key: CurveKey) -> str:
        """What carried a curve's messages."""
        wanted = key.operation, key.backend, key.pattern
        found = (r for r in self.records if (r.case.operation, r.case.backend, r.case.pattern) == wanted)
        return next((r.transport for r in found if r.status == "ok"), "")

    def spans_hosts(self, key: CurveKey) -> bool:
        """Whether a curve is of as many hosts as its ranks can be on: part of the ranks may fit into one."""
        return self.info.get("nodes", 1) == 1 or key.world_size > self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class GrowingNetwork:
    """All operations of one or more runs of the same kind of hosts, to be predicted elsewhere."""

    curves: Mapping[Family, GrowingCurve]
    unknown: Mapping[Family, str] = field(default_factory=dict)
    """Why others cannot be predicted, a sentence each."""
    ranks_per_node: int = 1
    """Of the runs across hosts; of runs on one host alone the most."""

    @classmethod
    def fit(cls, runs: Iterable[MeasuredRun]) -> GrowingNetwork:
        """Fit what every operation's hop costs, over all runs and numbers of ranks.

        Raises:
            InputError: the runs are of different libraries or numbers of ranks on a host, which do not mix.
        """
        runs = list(runs)
        _check_alike(runs)
        ranks_per_node = _ranks_per_node(runs)
        across: dict[Family, list[MeasuredCurve]] = {}
        inner: dict[Family, Curve] = {}
        within: dict[Family, list[MeasuredCurve]] = {}
        for run in runs:
            for key, curve in run.model.curves.items():
                family = Family(key.operation, key.backend, key.dtype, key.pattern)
                if key.pattern == "node":
                    inner[family] = curve
                elif key.pattern in GROWING_PATTERNS and key.operation in ALGORITHMS:
                    link = link_of(run.info, run.transport(key)) if run.spans_hosts(key) else WITHIN_HOST
                    one = MeasuredCurve(curve=curve, world_size=key.world_size, link=link)
                    (within if link.is_within_host else across).setdefault(family, []).append(one)
        curves: dict[Family, GrowingCurve] = {}
        unknown: dict[Family, str] = {}
        for family in sorted(across | within):
            with noting(functools.partial(unknown.__setitem__, family)):
                measured = across.get(family) or within[family]
                curves[family] = GrowingCurve(
                    operation=family.operation,
                    backend=family.backend,
                    pattern=family.pattern,
                    measured=measured,
                    ranks_per_node=ranks_per_node,
                    inner=inner.get(family._replace(pattern="node")),
                    within=within.get(family, []) if family in across and family.pattern == "flat" else [],
                )
        return cls(curves=curves, unknown=unknown, ranks_per_node=ranks_per_node)

    def at(
        self,
        backend: str,
        world_size: int,
        *,
        pattern: str = "flat",
        rate_bps: float | None = None,
        ranks_per_node: int | None = None,
        crowded: bool = False,
    ) -> LargerNetwork:
        """The network of one backend on so many ranks; arguments as for `GrowingCurve.estimate`.

        With ``ranks_per_node`` it refuses what cannot be predicted for hosts of so many (`GrowingCurve.check_hosts`).

        Raises:
            InputError: nothing of that backend was measured.
        """
        curves = {
            (family.operation, family.dtype): curve
            for family, curve in self.curves.items()
            if (family.backend, family.pattern) == (backend, pattern)
        }
        if not curves:
            raise InputError(
                f"No curve of {backend} was measured, from which larger numbers of ranks could be predicted; measure "
                f"some first: commbench run --backend {backend} -c all_reduce,all_gather --sizes 64K:64M:4."
            )
        return LargerNetwork(
            curves=curves,
            backend=backend,
            world_size=world_size,
            servers=SERVERS.get(backend, 1),
            rate_bps=rate_bps,
            ranks_per_node=ranks_per_node,
            crowded=crowded,
        )


@dataclass(frozen=True, kw_only=True)
class LargerNetwork:
    """A network of so many ranks over links of some rate: what `commbench.prediction.network.Network` asks for."""

    curves: Mapping[tuple[str, str], GrowingCurve]
    """By operation and data type, all of one backend and pattern."""
    backend: str
    world_size: int
    servers: int
    rate_bps: float | None = None
    """None: as measured."""
    ranks_per_node: int | None = None
    """None: unchecked."""
    crowded: bool = False
    """As for `GrowingCurve.estimate`."""
    _known: dict[tuple[str, str, float], float] = field(default_factory=dict, repr=False, compare=False)
    _estimates: dict[tuple[str, str, float], Estimate] = field(default_factory=dict, repr=False, compare=False)

    def time_us(self, operation: str, dtype: str, message_bytes: float) -> float:
        """How long one operation alone is predicted to take, in microseconds.

        Raises:
            InputError: nothing is known about that operation, or its algorithm is too uncertain.
        """
        key = operation, dtype, message_bytes
        if key not in self._known:
            curve, place = self.curve(operation, dtype), self._place
            self._known[key] = curve.time_us(message_bytes, self.world_size, self.rate_bps, **place)
        return self._known[key]

    def estimate(self, operation: str, dtype: str, message_bytes: float) -> Estimate:
        """The same with its interval.

        Raises:
            InputError: as `time_us`.
        """
        key = operation, dtype, message_bytes
        if key not in self._estimates:
            curve, place = self.curve(operation, dtype), self._place
            self._estimates[key] = curve.estimate(message_bytes, self.world_size, self.rate_bps, **place)
        return self._estimates[key]

    @property
    def is_least(self) -> bool:
        """Whether its times are the least that is possible; see `Estimate`."""
        place = self.world_size, self.rate_bps, self.ranks_per_node
        return any(curve.starts_are_unknown(*place) for curve in self.curves.values())

    @property
    def _place(self) -> dict[str, Any]:
        return {"ranks_per_node": self.ranks_per_node, "crowded": self.crowded}

    def curve(self, operation: str, dtype: str) -> GrowingCurve:
        """What the prediction of an operation rests on; that of another data type where it only moves data.

        Raises:
            InputError: there is nothing; the sentence names the command that measures it.
        """
        if (operation, dtype) in self.curves:
            return self.curves[operation, dtype]
        others = [curve for (name, _), curve in sorted(self.curves.items()) if name == operation]
        if others and not OPERATIONS[operation].reduces:
            return others[0]
        raise InputError(
            f"Nothing is known of {self.backend} {operation} of {dtype}; measure it: commbench run --backend "
            f"{self.backend} --collective {operation} --dtype {dtype} --sizes 64K:64M:4."
        )


def _ranks_per_node(runs: Sequence[MeasuredRun]) -> int:
    """Of the runs across hosts, which agree; else most on the one host."""
    return max(((run.info.get("nodes", 1) > 1, run.ranks_per_node) for run in runs), default=(False, 1))[1]


def _check_alike(runs: Sequence[MeasuredRun]) -> None:
    """Unlike conditions do not mix."""
    libraries: dict[str, str] = {}
    ranks_per_node: set[int] = set()
    for run in runs:
        for backend, library in (run.info.get("libraries") or {}).items():
            if libraries.setdefault(backend, library) != library:
                raise _unlike(f"libraries ({libraries[backend]} and {library})")
        ranks_per_node |= {run.ranks_per_node} if run.info.get("nodes", 1) > 1 else set()
    if len(ranks_per_node) > 1:
        raise _unlike(f"numbers of ranks on a host ({' and '.join(map(str, sorted(ranks_per_node)))})")


def _unlike(what: str) -> InputError:
    return InputError(f"The runs have different {what}, which do not mix; predict from runs that were measured alike.")
