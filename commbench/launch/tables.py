"""Writes the tables of a run from its records: rows, pairs, the network model, predictions and stragglers."""

from __future__ import annotations

from commbench.analysis.prediction.network import NetworkModel
from commbench.analysis.stragglers import find_stragglers
from commbench.ddp.plan.records import BUCKET_COLUMNS, DDP_COLUMNS
from commbench.engine.records import COLUMNS, OVERLAP_COLUMNS, Row
from commbench.results import Store
from commbench.results.files import BUCKETS, DDP, MODEL, OVERLAP, PAIRS, PREDICTIONS, SUMMARY, encode
from commbench.results.pairs import PAIR_COLUMNS, matrices, pair_columns
from commbench.results.record_types import collective_records, training_records
from commbench.results.sharing import of_interconnect
from commbench.results.summary import overlap_rows, summarise_run
from commbench.results.tables import columns_text, csv_text
from commbench.results.training_summary import bucket_rows, training_rows
from commbench.tuner.accuracy import PREDICTION_COLUMNS, prediction_rows


def write_tables(store: Store) -> list[Row]:
    """Write each table that the records fill, each in one step; return the rows of ``collectives.csv``.

    These are ``collectives.csv``, ``overlap.csv`` for non-blocking collectives, ``pairs.csv`` for matrices,
    ``model.json`` if enough sizes were measured, ``ddp.csv`` and ``buckets.csv`` for training, ``predictions.csv`` for
    tuning. Slow hosts, ranks and links are added to ``run.json``.

    Raises:
        LaunchError: one could not be written; the old file is unharmed.
    """
    collectives, trainings = collective_records(store.records), training_records(store.records)
    rows, overlaps = summarise_run(collectives, store.info), overlap_rows(collectives, store.info)
    predictions = prediction_rows(collectives, trainings, store.info)
    measured = matrices(collectives, store.info)
    model = NetworkModel.fit(of_interconnect(collectives, store.info))
    texts = {}
    if collectives:
        texts[SUMMARY] = csv_text(rows, COLUMNS)
    if overlaps:
        texts[OVERLAP] = csv_text(overlaps, OVERLAP_COLUMNS)
    if measured:
        texts[PAIRS] = columns_text((pair_columns(matrix, store.info) for matrix in measured), PAIR_COLUMNS)
    if model.curves:
        texts[MODEL] = encode(model.to_json(), indent=1) + "\n"
    if trainings:
        texts[DDP] = csv_text(training_rows(trainings, store.info), DDP_COLUMNS)
        texts[BUCKETS] = csv_text(bucket_rows(trainings, store.info), BUCKET_COLUMNS)
    if predictions:
        texts[PREDICTIONS] = csv_text(predictions, PREDICTION_COLUMNS)
    store.write_files(texts)
    if findings := find_stragglers(measured, collectives, store.info).to_json():
        store.update(**findings)
    return rows
