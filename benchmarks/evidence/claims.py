"""The kept runs, as results/claims.toml lists them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RESULTS = Path(__file__).parents[2] / "results"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a kept run shows."""

    name: str
    """Of its directory: theme, hardware and date."""
    claim: str
    command: str
    """What makes it again."""
    quoted: Sequence[str]
    """Pages of docs/."""

    @property
    def theme(self) -> str:
        """The first part of the name, which runs of several dates have in common."""
        theme, _, _ = self.name.rsplit("_", 2)
        return theme


def read_claims(results: Path = RESULTS) -> dict[str, Claim]:
    """Return the claims by the name of their run, in the order of the file."""
    tables = tomllib.loads((results / "claims.toml").read_text(encoding="utf-8"))
    return {name: Claim(name=name, **entries) for name, entries in tables.items()}
