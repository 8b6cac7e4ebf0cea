"""What a record says of each group where a pattern divides the ranks: true size, times, wrong elements, transport."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from commbench.patterns import rank_list
from commbench.preparation import Checked, Prepared
from commbench.records import GroupTimes, Record
from commbench.samples import Samples


def carried_by(transports: Sequence[str], ranks: Sequence[int]) -> str:
    """What carried messages between some ranks, from what each rank of the launch says."""
    return "+".join(dict.fromkeys(transports[rank] for rank in ranks if transports[rank]))


def wrong_record(record: Record, prepared: Prepared, checked: Checked) -> Record:
    """The record of wrong data, with the number of wrong elements in each group where they are reported each."""
    groups = _groups(prepared, checked) if prepared.several else ()
    where = ", ".join(group.group for group in groups if group.wrong)
    reason = f"{checked.wrong} elements differ from the known answer{f' in group {where}' if where else ''}"
    return replace(record, status="wrong", wrong=checked.wrong, reason=reason, groups=groups)


def timed_groups(
    prepared: Prepared, checked: Checked, samples: Samples, transports: Sequence[str], per: int
) -> tuple[GroupTimes, ...]:
    """What each group saw of the same repetitions; nothing where they are not reported each.

    Args:
        prepared: the case.
        checked: what its verification says.
        samples: of all participating ranks.
        transports: what each rank of the launch says.
        per: operations in one repetition.
    """
    if not prepared.several or not samples.valid:
        return ()
    timed = []
    for group, ranks in zip(_groups(prepared, checked), prepared.active, strict=True):
        own, transport = samples.within(ranks), carried_by(transports, ranks)
        timed.append(replace(group, **own.summary(per), transport=transport, flags=own.doubts(per)))
    return tuple(timed)


def _groups(prepared: Prepared, checked: Checked) -> tuple[GroupTimes, ...]:
    """The groups of a case, not yet timed."""
    return tuple(
        GroupTimes(
            group=rank_list(ranks),
            group_size=len(ranks),
            message_bytes=prepared.message_bytes(len(group)),
            wrong=checked.within(group),
        )
        for group, ranks in zip(prepared.groups, prepared.active, strict=True)
    )
