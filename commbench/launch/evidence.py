"""What is kept of a launch that fails: what its ranks said, where they were, and from it the culprit for run.json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from commbench.cases import Case
from commbench.kinds import AnyCase
from commbench.launch.blame import Blame
from commbench.launch.stacks import group_by_place, stack_in, waits_in
from commbench.launch.wire import MAIN, LastWords, Stack

#: How the interpreter begins what it prints of a process that dies of a signal.
_FATAL = "Fatal Python error"


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """Why a launch has failed, as run.json states it."""

    rank: int | None
    """None where no rank can be told to be the cause."""
    host: str
    pid: int | None
    """As its own host numbers it."""
    case: str
    """Empty before the first."""
    state: str
    """What is wrong with the rank, to follow its name: ``is stopped``, ``raised ValueError: ...``."""
    stack: Sequence[str]
    """Where the rank's main thread was, the innermost frame first; empty where that cannot be had."""
    others: Sequence[Mapping[str, object]]
    """What other ranks were doing: ``ranks`` and ``in``."""

    def to_json(self) -> dict[str, object]:
        """All of it."""
        return asdict(self)

    @property
    def waiting(self) -> str:
        """The others in a sentence without its full stop; empty where nothing is known of them."""
        parts = []
        for group in self.others:
            ranks = [str(rank) for rank in group["ranks"]]  # type: ignore[attr-defined]
            is_one = len(ranks) == 1
            parts.append(
                f"rank{'' if is_one else 's'} {', '.join(ranks)} {'was' if is_one else 'were'} in {group['in']}"
            )
        said = "; ".join(parts)
        return said[:1].upper() + said[1:]


class Evidence:
    """What ranks have said."""

    def __init__(self) -> None:
        self.words: list[LastWords] = []
        """Why ranks end themselves, in the order in which they came."""
        self._stacks: dict[tuple[int, str], Stack] = {}

    def hear(self, message: LastWords | Stack) -> None:
        """Keep what a rank says."""
        if isinstance(message, LastWords):
            self.words.append(message)
        else:
            self._stacks[message.rank, message.thread] = message

    def forget_stacks(self) -> None:
        """From here on, only what is told anew counts."""
        self._stacks.clear()

    @property
    def located(self) -> set[int]:
        """The ranks that have told where their main threads are."""
        return {rank for rank, thread in self._stacks if thread == MAIN}

    def convict(
        self, blame: Blame, case: AnyCase | None, processes: Mapping[int, tuple[str, int]], printed: Iterable[str]
    ) -> Culprit:
        """Put together what is known of a failure.

        Args:
            blame: what has ended the launch.
            case: in which it was, if any.
            processes: host and process of each rank that is known.
            printed: what interpreters may have printed of a dying rank.
        """
        host, pid = processes.get(-1 if blame.rank is None else blame.rank, (blame.host, None))
        others = {rank: self._place(rank, case) for rank in sorted(self.located) if rank != blame.rank}
        return Culprit(
            rank=blame.rank,
            host=blame.host or host,
            pid=pid,
            case=str(case or ""),
            state=blame.state,
            stack=self._stack(blame.rank, list(printed)),
            others=group_by_place(others),
        )

    def lines(self) -> list[str]:
        """All stacks, for people."""
        found = []
        for (rank, thread), told in sorted(self._stacks.items()):
            what = "" if thread == MAIN else f", thread {thread}"
            found.append(f"rank {rank} on host {told.host}{what}, most recent call first:")
            found += [f"  {frame}" for frame in told.stack]
        return found

    def _stack(self, rank: int | None, printed: Sequence[str]) -> list[str]:
        """Where a rank was: as it has told, as it raised, or as its interpreter has printed."""
        if rank is None:
            return []
        words = [words for words in self.words if words.rank == rank and words.stack]
        if words:
            return list(words[0].stack)
        if (rank, MAIN) in self._stacks:
            return list(self._stacks[rank, MAIN].stack)
        return stack_in(printed)

    def _place(self, rank: int, case: AnyCase | None) -> str:
        told = self._stacks[rank, MAIN]
        if not isinstance(case, Case):
            return waits_in(told.stack)
        what = f"{case.operation} of {case.backend}"
        return f"{what if told.inside else f'synchronising or preparing for {what}'}, at {waits_in(told.stack)}"


def of_a_crash(lines: Sequence[str]) -> list[str]:
    """What the interpreter has printed of a process that died of a signal; empty where nothing."""
    starts = [index for index, line in enumerate(lines) if _FATAL in line]
    return list(lines[starts[0] :]) if starts else []
