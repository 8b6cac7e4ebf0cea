"""Writes the tables of a run from its records: rows, pairs, the network model and
stragglers.
"""

from __future__ import annotations

from commbench.analysis.prediction.network import network_model
from commbench.analysis.soak import soak_results
from commbench.analysis.soak.rows import DriftRow, EventRow, TimelineRow
from commbench.analysis.stragglers import straggler_findings
from commbench.results import Store
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
    json_text,
)
from commbench.results.summary import variance_components
from commbench.results.tables import table_csv, table_of
from commbench.schema import JsonObject


def write_tables(store: Store) -> None:
    """Write each table that the records fill, each in one step.

    These are ``collectives.csv``, ``overlap.csv`` for non-blocking collectives, ``pairs.csv`` for
    matrices, ``model.json`` if enough sizes were measured, ``ddp.csv`` and ``buckets.csv`` for
    training, ``timeline.csv``, ``events.csv`` and ``drift.csv`` for
    a soak. Components of variance and slow hosts, ranks and links are added to ``run.json``.

    Raises:
        LaunchError: one could not be written; the old file is unharmed.
    """
    run = store.run
    texts = {}
    soak = soak_results(run)
    if soak:
        texts[TIMELINE] = table_csv(table_of(TimelineRow, soak.timeline))
        texts[EVENTS] = table_csv(table_of(EventRow, soak.events))
        texts[DRIFT] = table_csv(table_of(DriftRow, soak.drifts))
    if run.records:
        texts[SUMMARY] = table_csv(run.collectives)
    if run.overlaps:
        texts[OVERLAP] = table_csv(run.overlap)
    if run.matrices:
        texts[PAIRS] = table_csv(run.pairs)
    model = network_model(run)
    if model.curves:
        texts[MODEL] = json_text(model.to_json())
    if run.training_records:
        texts[DDP] = table_csv(run.ddp)
        texts[BUCKETS] = table_csv(run.buckets)
    store.write_files(texts)
    concluded: JsonObject = {}
    if run.divided.states or store.info.get("states"):
        concluded["states"] = run.divided.states
    if components := variance_components(run.records):
        concluded["components"] = components
    concluded |= straggler_findings(run).to_json()
    if concluded:
        store.update(**concluded)
