"""What ``commbench predict`` is asked, from the words of its options."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from commbench.datatypes import DTYPES
from commbench.errors import InputError
from commbench.prediction.links import Link
from commbench.training.cases import TrainingCase, parse_hook
from commbench.units import format_link_rate, format_size, parse_link_rate, parse_sizes

#: Ranks beyond which nothing is predicted, and the fewest that exchange anything.
MOST_RANKS, FEWEST_RANKS = 10_000, 2
_RATE_HINT = "write rates such as 200mbit,1gbit,25gbit, or measured"
_RANKS_HINT = "write ranks such as 8, 6,8 or 8:1024"


def parse_world_sizes(text: str) -> list[int]:
    """Numbers of ranks of a list with ranges, ascending: ``6,8:1024`` (factor 2) or ``8:512:4``.

    Raises:
        InputError: it is no such list, or a number is not between 2 and 10000.
    """
    found: set[int] = set()
    for item in text.split(","):
        if not re.fullmatch(r"[0-9]{1,9}(:[0-9]{1,9}){0,2}", item.strip()):
            raise InputError(f"World sizes {text!r} are not understood; {_RANKS_HINT}.")
        low, high, factor = (*map(int, item.split(":")), *(None, None))[:3]
        if not FEWEST_RANKS <= (low or 0) <= MOST_RANKS or not FEWEST_RANKS <= (high or MOST_RANKS) <= MOST_RANKS:
            raise InputError(f"World sizes {text!r} are not all from {FEWEST_RANKS} to {MOST_RANKS}; choose such.")
        found |= set(_ranks_between(item.strip(), low or 0, high, 2 if factor is None else factor))
    return sorted(found)


def _ranks_between(item: str, low: int, high: int | None, factor: int) -> Iterable[int]:
    """The numbers of one item of a list."""
    if high is not None and high < low:
        raise InputError(f"World sizes {item!r} end below their start; write the fewer ranks first, as in 8:1024.")
    if factor < 2:  # noqa: PLR2004 - the smallest factor that grows
        raise InputError(f"World sizes {item!r} have a factor below 2; write e.g. 8:512:4 for 8, 32, 128 and 512.")
    while low <= (high or low):
        yield low
        low *= factor
        if high is None:
            return


def parse_rates(text: str | None) -> list[float | None]:
    """Bits per second of a list of rates; None, also for ``measured``, is the rate that was measured.

    Raises:
        InputError: one is not a rate.
    """
    rates: list[float | None] = []
    for part in ("measured" if text is None else text).split(","):
        rate = None if part.strip() == "measured" else parse_link_rate(part)
        if (rate is None and part.strip() != "measured") or rate == 0:
            raise InputError(f"The rate {part!r} is not understood; {_RATE_HINT}.")
        rates.append(rate)
    return list(dict.fromkeys(rates))


def parse_hooks(text: str | None, trained: Iterable[str]) -> list[str] | None:
    """The hooks of a list, by name as `TrainingCase.hook_name` has it; None for none.

    Raises:
        InputError: one is no hook, or was not ``trained``.
    """
    if text is None:
        return None
    known = list(dict.fromkeys(trained))
    found = [hook_name(part) for part in text.split(",")]
    for hook in found:
        if hook not in known:
            among = f"only {', '.join(known)} can be" if known else "no training is in these runs"
            raise InputError(f"Steps with hook {hook} were to be predicted, but {among}; train it first, too.")
    return list(dict.fromkeys(found))


def hook_name(text: str) -> str:
    """The name of a hook as typed: ``topk:0.010`` is ``topk:0.01``.

    Raises:
        InputError: it is no hook.
    """
    return TrainingCase(workload="", world_size=FEWEST_RANKS, batch_per_rank=1, **parse_hook(text)).hook_name


def parse_message_sizes(text: str | None, dtypes: Iterable[str]) -> tuple[int, ...] | None:
    """Message sizes in bytes; None for none.

    Raises:
        InputError: one is not a whole number of elements, 1 or more, of every data type.
    """
    if text is None:
        return None
    sizes = parse_sizes(text)
    for dtype in dict.fromkeys(dtypes):
        element_bytes = DTYPES[dtype].itemsize
        wrong = next((size for size in sizes if size == 0 or size % element_bytes), None)
        if wrong is not None:
            raise InputError(
                f"Messages of {format_size(wrong)} were to be predicted, but {dtype}, which was measured, has elements "
                f"of {element_bytes} B; choose multiples of that, such as {format_size(1024)}."
            )
    return sizes


def check_measured_rate(rates_bps: Sequence[float | None], links: Iterable[Link]) -> None:
    """Check that "as measured" means one rate.

    Raises:
        InputError: it is asked for, and the runs were measured over links of several rates.
    """
    found = sorted({link.rate_bps for link in links if link.rate_bps is not None})
    if None not in rates_bps or len(found) < 2:  # noqa: PLR2004 - several
        return
    names = ["links that are not shaped or within one host" if math.isinf(r) else format_link_rate(r) for r in found]
    raise InputError(
        f"The runs were measured over links of different rates ({' and '.join(names)}), so that 'measured' says "
        f"nothing; name the rate to predict for, such as --rate {names[0] if math.isfinite(found[0]) else '1gbit'}."
    )
