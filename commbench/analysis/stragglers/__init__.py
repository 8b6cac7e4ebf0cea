"""Stragglers: hosts, ranks, links and groups of a run that are slower than their peers, and
by how much.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commbench.analysis.stragglers.cases import group_levels, rank_levels
from commbench.analysis.stragglers.judging import (
    ALPHA,
    RELEVANT,
    Family,
    Search,
    Straggler,
    joined,
)
from commbench.analysis.stragglers.matrix import judge_matrix
from commbench.engine.records import Record
from commbench.results.info import RunInfo, network_records, shares_gpu
from commbench.results.pairs import Matrix

__all__ = ["ALPHA", "RELEVANT", "Family", "Search", "Straggler", "find_stragglers"]


def find_stragglers(matrices: Sequence[Matrix], records: Iterable[Record], info: RunInfo) -> Search:
    """Find slow hosts, ranks and links in the matrices and the other records of a run.

    If nothing is slow, the probability of any false alarm is at most `ALPHA`, divided evenly over
    the matrices and the other comparisons. Ranks that share a GPU are not judged, because a rank
    that waits for its turn is no straggler.

    Args:
        matrices: from `commbench.results.pairs.matrices`.
        records: of ``samples.jsonl``.
        info: contents of ``run.json``; ``ranks`` names each rank's host, ``ranks_per_gpu`` says
            whether they share GPUs.
    """
    matrices = [matrix for matrix in matrices if not shares_gpu(matrix.case.backend, info)]
    records = network_records(records, info)
    levels = [*rank_levels(records, info), *group_levels(records, info)]
    share = ALPHA / max(1, len(matrices) + len(levels))
    searches = [judge_matrix(matrix, share) for matrix in matrices]
    searches.append(Search(families=[level(share) for level in levels]))
    return joined(searches)
