"""Writes the tables of a run from its records: rows, pairs, the network model and
stragglers.
"""

from __future__ import annotations

from commbench.analysis.prediction.network import NetworkModel
from commbench.analysis.soak import soak_of
from commbench.analysis.soak.rows import DriftRow, EventRow, TimelineRow
from commbench.analysis.stragglers import find_stragglers
from commbench.engine.records import Row
from commbench.results import Run, Store
from commbench.results.files import (
    BUCKETS,
    DDP,
    DRIFT,
    EVENTS,
    MODEL,
    OVERLAP,
    PAIRS,
    SUMMARY,
    TIMELINE,
    encode,
)
from commbench.results.info import network_records
from commbench.results.reading import make_run
from commbench.results.summary import variance_components
from commbench.results.tables import table_csv, table_of


def write_tables(store: Store) -> list[Row]:
    """Write each table that the records fill, each in one step.

    Return the rows of ``collectives.csv``.

    These are ``collectives.csv``, ``overlap.csv`` for non-blocking collectives, ``pairs.csv`` for
    matrices, ``model.json`` if enough sizes were measured, ``ddp.csv`` and ``buckets.csv`` for
    training, ``timeline.csv``, ``events.csv`` and ``drift.csv`` for
    a soak. Components of variance and slow hosts, ranks and links are added to ``run.json``.

    Raises:
        LaunchError: one could not be written; the old file is unharmed.
    """
    run = make_run(store.path, store.info, store.records)
    model = NetworkModel.fit(network_records(run.records, run.info))
    texts = _soak_tables(run)
    if run.records:
        texts[SUMMARY] = table_csv(run.collectives)
    if run.overlaps:
        texts[OVERLAP] = table_csv(run.overlap)
    if run.matrices:
        texts[PAIRS] = table_csv(run.pairs)
    if model.curves:
        texts[MODEL] = encode(model.to_json(), indent=1) + "\n"
    if run.training_records:
        texts[DDP] = table_csv(run.ddp)
        texts[BUCKETS] = table_csv(run.buckets)
    store.write_files(texts)
    if run.divided.states or store.info.get("states"):
        store.update(states=run.divided.states)
    if components := variance_components(run.records):
        store.update(components=components)
    if findings := find_stragglers(run.matrices, run.records, run.info).to_json():
        store.update(**findings)
    return run.rows


def _soak_tables(run: Run) -> dict[str, str]:
    """Return the tables of a soak by file; empty for another run."""
    soak = soak_of(run.records, run.info)
    if soak is None:
        return {}
    tables = (
        (TIMELINE, TimelineRow, soak.timeline),
        (EVENTS, EventRow, soak.events),
        (DRIFT, DriftRow, soak.drifts),
    )
    return {name: table_csv(table_of(row_class, rows)) for name, row_class, rows in tables}
