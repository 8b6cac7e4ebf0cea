"""The slow one: which hosts, ranks, links and groups of a run differ from their peers, and by how much."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from commbench.analysis.stragglers.cases import group_levels, rank_levels
from commbench.analysis.stragglers.findings import Family, Findings, Straggler, joined
from commbench.analysis.stragglers.judging import ALPHA, RELEVANT
from commbench.analysis.stragglers.matrix import judge_matrix
from commbench.engine.records import Record
from commbench.results.info import RunInfo
from commbench.results.pairs import Matrix
from commbench.results.sharing import of_interconnect, shares_gpu

__all__ = ["ALPHA", "RELEVANT", "Family", "Findings", "Straggler", "find_stragglers"]


def find_stragglers(matrices: Sequence[Matrix], records: Iterable[Record], info: RunInfo) -> Findings:
    """What the matrices and the ordinary records of a run say of its hosts, ranks and links.

    In a run in which all are alike the probability that anything is named is at most `ALPHA`, shared out evenly over
    the matrices and over what is compared in ordinary records. Ranks that take turns on a GPU are not judged: one that
    waits for its turn is no slow one.

    Args:
        matrices: as `commbench.results.pairs.matrices` gives them.
        records: as ``samples.jsonl`` holds them.
        info: as ``run.json`` holds it; ``ranks`` says on which host each rank is, ``ranks_per_gpu`` whether they
            share GPUs.
    """
    matrices = [matrix for matrix in matrices if not shares_gpu(matrix.case.backend, info)]
    records = of_interconnect(records, info)
    levels = [*rank_levels(records, info), *group_levels(records, info)]
    share = ALPHA / max(1, len(matrices) + len(levels))
    found = [judge_matrix(matrix, share) for matrix in matrices]
    return joined([*found, Findings(families=[level(share) for level in levels])])
