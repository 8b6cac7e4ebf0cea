"""The measured network at other numbers of ranks and other rates of the links, where its algorithm is known."""

from __future__ import annotations

@dataclass(frozen=True, kw_only=True)
class LargerNetwork:
    """A network of so many ranks over links of some rate: what `commbench.prediction.network.Network` asks for."""

    curves: Mapping[tuple[str, str], GrowingCurve]
    """By operation and data type, all of one backend and pattern."""
    world_size: int
    servers: int
    rate_bps: float | None = None
    """None: as measured."""
    crowded: bool = False
    """As for `GrowingCurve.estimate`."""
    _known: dict[tuple[str, str, float], float] = field(default_factory=dict, repr=False, compare=False)

    def time_us(self, operation: str, dtype: str, message_bytes: float) -> float:
        """How long one operation alone is predicted to take, in microseconds.

        Raises:
            InputError: nothing is known about that operation, or its algorithm is too uncertain.
        """
        key = operation, dtype, message_bytes
        if key not in self._known:
            curve = curve_for(self.curves, operation, dtype)
            self._known[key] = curve.estimate(message_bytes, self.world_size, self.rate_bps, crowded=self.crowded).time_us
        return self._known[key]
