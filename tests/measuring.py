"""Measures one case at once, outside a run."""

from dataclasses import replace

from commbench.collectives.cases import Case
from commbench.engine.communicator import Communicator
from commbench.engine.measure import CaseRun
from commbench.engine.records import FixedSettings, Record
from commbench.engine.session import Session
from commbench.engine.visits import extended


def measure(
    case: Case,
    communicator: Communicator,
    session: Session,
    *,
    launch: int = 0,
    fixed: FixedSettings | None = None,
) -> Record | None:
    """Measure a case in visits that follow each other; return the record of the launch on rank 0.

    ``fixed`` as of `CaseRun`.
    """
    run = CaseRun(case, communicator, session, launch, fixed)
    record = run.visit()
    while run.visits_made < run.settings.visits:
        more = run.visit()
        if record and more:
            record = extended(record, more)
    return record and replace(record, visit=0)
