"""Stragglers: hosts, ranks, links and groups of a run that are slower than their peers, and
by how much.
"""

from __future__ import annotations

from commbench.analysis.stragglers.cases import tables_of_peers
from commbench.analysis.stragglers.judging import ALPHA, Family, Search, judged_family
from commbench.analysis.stragglers.matrix import judge_matrix
from commbench.results import Run, once_per_run
from commbench.results.info import network_records


@once_per_run
def straggler_findings(run: Run) -> Search:
    """Find slow hosts, ranks and links in the matrices and the other records of a run.

    If nothing is slow, the probability of any false alarm is at most `ALPHA`, divided evenly over
    the matrices and the other comparisons. Ranks that share a GPU are not judged, because a rank
    that waits for its turn is no straggler.
    """
    tables = tables_of_peers(network_records(run.records, run.info), run.info)
    level = ALPHA / max(1, len(run.linked_matrices) + len(tables))
    families: list[Family] = []
    remarks = []
    for matrix in run.linked_matrices:
        search = judge_matrix(matrix, level)
        families += search.families
        remarks += [remark for remark in search.remarks if remark not in remarks]
    for peers, values in tables:
        kind, code, measured, names = peers
        family = judged_family(kind, names, values, measured, level)
        families.append(family.with_slow([code] * len(family.judgement.slow)))
    return Search(families=families, remarks=remarks)
