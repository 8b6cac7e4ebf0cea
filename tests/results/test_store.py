"""Tests of a run's directory: create, append, resume, refuse, read."""

import copy
import dataclasses
import errno
import json
import os
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from builders import KIB, make_info, make_launches, make_record, read_info
from fields import fields_of
from training_builders import make_bucket

from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import GroupTimes, Overlap, Pairs, Record
from commbench.errors import InputError, LaunchError
from commbench.launch.tables import write_tables
from commbench.results import Store, check_out, load_run
from commbench.results.files import encode
from commbench.results.plan import RunRequest, missing_cases
from commbench.results.recommendation import Choice, Recommendation, SafeChoice
from commbench.results.record_types import AnyRecord
from commbench.results.tables import table_csv
from commbench.stats.budgets import BUDGETS


@pytest.fixture
def mine(tmp_path):
    """Return the directory of a run, which is not made yet."""
    return tmp_path / "mine"


def opened(path: Path, **info: Any) -> Store:
    """Return a run, created or resumed."""
    return Store.open(path, make_info(**info))


def make_run(path: Path, records: list[Record], **info: Any) -> Path:
    """Write a closed run."""
    with opened(path, **info) as store:
        for record in records:
            store.append(record)
        write_tables(store)
    return path


def snapshot(path: Path) -> dict[str, tuple[bytes, int]]:
    """Return content and modification time of every file below a path."""
    return {
        str(file): (file.read_bytes() if file.is_file() else b"", file.stat().st_mtime_ns)
        for file in [path, *path.rglob("*")]
    }


def refusal(path: Path, header: dict[str, Any] | None = None) -> str:
    """Return the sentence of a refused opening, and check that nothing changed."""
    before = snapshot(path.parent)
    with pytest.raises(InputError) as caught:
        Store.open(path, make_info() if header is None else header)
    assert before == snapshot(path.parent)
    return str(caught.value)


# -------------------------------------------------------------------------------- create and append


def test_new_run_has_its_header(tmp_path):
    """Create the directory with parents and write the header with schema and run_id."""
    header = make_info()
    del header["run_id"], header["schema"]
    with Store.open(tmp_path / "results" / "mine", header) as store:
        assert not store.resumed
        assert {"schema": 3, "run_id": "mine"} | header == store.info
    assert store.info == read_info(tmp_path / "results" / "mine")


def test_a_run_that_is_discarded_leaves_nothing(tmp_path, mine):
    """Remove a new run without records; keep a resumed one."""
    with Store.open(tmp_path / "deep" / "results" / "new", make_info()) as store:
        store.discard()
    assert [] == list(tmp_path.iterdir())
    make_run(mine, [])
    with opened(mine) as store:
        store.discard()
    assert (mine / "run.json").exists()


def test_visits_of_a_launch_become_one_record(mine):
    """Write a line per visit, and read them as one record per launch."""
    visits = [
        make_record(launch=launch, visit=visit, times_us=[float(visit)], visit_lengths=[1])
        for launch in (0, 1)
        for visit in (1, 2, 3)
    ]
    path = make_run(mine, visits)
    assert 6 == len((path / "samples.jsonl").read_text().splitlines())
    records = load_run(path).records
    assert [0, 1] == fields_of(records, "launch")
    assert [[1.0, 2.0, 3.0]] * 2 == fields_of(records, "times_us")
    assert [3] == fields_of(load_run(path).rows, "visits")
    with opened(path) as store:
        assert list(records) == store.records
        store.append(make_record(launch=1, visit=1, times_us=[7.0], visit_lengths=[1]))
    assert [7.0] == load_run(path).records[-1].times_us


def two_visits() -> list[Record]:
    """Return two visits of one repetition each."""
    return [
        make_record(visit=visit, times_us=[float(visit)], visit_lengths=[1]) for visit in (1, 2)
    ]


def test_a_further_visit_states_only_what_differs(mine):
    """Write a visit whole again after a resume; refuse one whose whole line is missing."""
    visits = two_visits()
    path = make_run(mine, visits)
    with opened(path) as store:
        store.append(dataclasses.replace(visits[1], visit=3))
    samples = path / "samples.jsonl"
    whole, further, again = samples.read_text().splitlines(keepends=True)
    assert {"of", "visit", "times_us"} <= json.loads(further).keys()
    assert "case" not in json.loads(further)
    assert "case" in json.loads(again)
    assert [1.0, 2.0, 2.0] == load_run(path).records[0].times_us
    samples.write_text(further + whole)
    with pytest.raises(InputError, match="refers to a line 0 that is missing"):
        load_run(path)


def test_a_case_that_fails_after_some_visits_is_measured_again(mine):
    """Replace a launch's visits by a later failure, so that the case is repeated."""
    visits = two_visits()
    failure = make_record(status="failed", reason="A rank died.")
    path = make_run(mine, [*visits, failure])
    request = RunRequest(cases=[failure.case], ranks=2, seed=1, budget=BUDGETS["quick"])
    with opened(path) as store:
        assert ["failed"] == fields_of(store.records, "status")
        assert [failure.case] == missing_cases(request, store.records, 0)
        store.append(visits[0])
        assert not missing_cases(request, store.records, 0)
    assert ["ok"] == fields_of(load_run(path).rows, "status")


def test_fields_of_a_later_version_are_ignored():
    """Ignore unknown fields of a record, its case, groups, overlap and pairs."""
    record = make_record(
        groups=[GroupTimes(group="0-1", group_size=2, message_bytes=KIB)],
        overlap=Overlap(pure_us=3.0, compute_us=2.0, overall_us=4.0),
        pairs=Pairs(
            source=[0], target=[1], time_us=[3.0], time_us_p95=[4.0], repetitions=[6], wrong=[None]
        ),
    )
    plain = json.loads(json.dumps(record.to_json()))
    later = copy.deepcopy(plain)
    for place in (later, later["case"], later["groups"][0], later["overlap"]):
        place["colour"] = "red"
    later["pairs"]["colour"] = ["red"]
    assert plain == json.loads(json.dumps(Record.from_json(later).to_json()))


def test_each_record_is_on_disk_when_append_returns(mine, monkeypatch):
    """Sync the file once per record."""
    samples = mine / "samples.jsonl"
    synced = []
    with opened(mine) as store:
        monkeypatch.setattr(os, "fsync", lambda _: synced.append(samples.stat().st_size))
        for launch in range(3):
            store.append(make_record(launch=launch))
    assert 3 == len(set(synced))


def fill(*_: object) -> None:
    """Raise as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_leaves_no_half_line(mine, monkeypatch):
    """Report a full disk in one sentence, and keep earlier records."""
    real_write = os.write

    def write_some(descriptor: int, data: bytes) -> None:
        real_write(descriptor, data[:20])
        fill()

    with opened(mine) as store:
        store.append(make_record())
        monkeypatch.setattr(os, "write", write_some)
        with pytest.raises(LaunchError, match=r"samples\.jsonl .*No space left on device"):
            store.append(make_record(launch=1))
        monkeypatch.undo()
        store.append(make_record(launch=2))
        assert [0, 2] == fields_of(store.records, "launch")
    assert [0, 2] == fields_of(load_run(mine).records, "launch")


def test_failed_rewrite_keeps_the_old_file(mine, monkeypatch):
    """Replace the recommendation; keep it and the old run.json if rewriting fails."""
    with opened(mine) as store:
        store.write_recommendation(conclusion("change"))
        store.write_recommendation(conclusion("keep"))
        monkeypatch.setattr(os, "fsync", fill)
        with pytest.raises(LaunchError, match=r"run\.json"):
            store.update(status="complete")
        with pytest.raises(LaunchError, match=r"recommendation\.json"):
            store.write_recommendation(conclusion("change"))
    run = load_run(mine)
    assert (make_info(), conclusion("keep")) == (run.info, run.recommendation)


# ----------------------------------------------------------------------------------------- training


def make_trained(hook: str = "none", losses: Any = ()) -> TrainingRecord:
    """Return the record of a configuration in one launch."""
    case = TrainingCase(workload="tiny", world_size=2, batch_per_rank=8, hook=hook)
    return TrainingRecord(
        case=case,
        launch=0,
        step_ms=[5.0, 6.0],
        block_lengths=[2],
        losses=losses,
        metrics=[(2, 0.5)],
        buckets=[make_bucket()],
    )


def plain(record: AnyRecord) -> Any:
    """Return a record with tuples as lists, as read back."""
    return json.loads(encode(record.to_json()))


def test_both_kinds_of_records_come_back_as_they_were(mine):
    """Store both record types in one file, a line each in order, and read them back."""
    undecodable = make_record(launch=1, status="hung", reason="rank 1 \u2192 \u00e9\n \udcff.")
    arrays = make_trained(hook="fp16", losses=np.array([1.5, 2.5]))
    records = [make_record(), make_trained(), undecodable, arrays]
    with opened(mine) as store:
        for record in records:
            store.append(record)
    with opened(mine) as store:
        read = store.records
    run = load_run(mine)
    written = [plain(record) for record in records]
    assert written == [plain(record) for record in read]
    assert 4 == len((mine / "samples.jsonl").read_text().splitlines())
    assert written[::2] == [plain(record) for record in run.records]
    assert written[1::2] == [plain(record) for record in run.training_records]
    assert 1 == len(run.rows)
    assert 2 == len(run.training_rows)
    assert 2 == len(run.bucket_rows)


@pytest.mark.parametrize(
    ("records", "tables"),
    [
        ([], set()),
        ([make_record()], {"collectives.csv"}),
        ([make_trained()], {"ddp.csv", "buckets.csv"}),
    ],
)
def test_tables_are_written_for_what_there_is(mine, records, tables):
    """Write only the tables of existing record types, as they are read."""
    with opened(mine) as store:
        for record in records:
            store.append(record)
        write_tables(store)
    written = {file.name: file.read_text() for file in (mine).glob("*.csv")}
    run = load_run(mine)
    expected = {
        "collectives.csv": table_csv(run.collectives),
        "ddp.csv": table_csv(run.ddp),
        "buckets.csv": table_csv(run.buckets),
    }
    assert {name: expected[name] for name in tables} == written


def conclusion(verdict: Literal["change", "keep"]) -> Recommendation:
    """Return a recommendation."""
    choice = Choice(bucket_cap_mb="25", hook="none", density=None, precision="fp32", accumulation=1)
    return Recommendation(
        workload="mlp",
        world_size=2,
        baseline=choice,
        best=choice,
        best_uncompressed=choice,
        speedup=np.float64(1.5),
        speedup_ci=(1.4, 1.6),
        verdict=verdict,
        reason="so",
        snippet="",
        safe=SafeChoice(**vars(choice), verdict="keep", snippet=""),
        measured_steps=1,
    )


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_foreign_recommendation_is_refused(mine, content):
    """Refuse a foreign recommendation by its file."""
    path = make_run(mine, [])
    (path / "recommendation.json").write_text(content)
    with pytest.raises(InputError, match="recommendation"):
        load_run(path)


# ------------------------------------------------------------------------------------------- resume


def test_resume_continues_where_it_ended(mine):
    """Read the records, also during the run; keep the first header, and append after them."""
    make_run(mine, make_launches([10.0, 11.0]))
    with opened(mine, argv=["other"]) as store:
        assert store.resumed
        assert 2 == len(store.records)
        assert ["commbench", "run"] == store.info["argv"]
        store.append(make_record(launch=2))
        assert [0, 1, 2] == fields_of(load_run(mine).records, "launch")


def test_resume_after_a_torn_line_loses_and_duplicates_nothing(mine):
    """Drop a line cut anywhere by a crash, and write the next one whole."""
    make_run(mine, make_launches([10.0, 11.0, 12.0]))
    samples = mine / "samples.jsonl"
    whole = samples.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in (last + 1, last + 200, len(whole) - 1):
        samples.write_bytes(whole[:cut])
        assert [0, 1] == fields_of(load_run(mine).records, "launch")
        assert cut == samples.stat().st_size  # reading repairs nothing
        with opened(mine) as store:
            assert [0, 1] == fields_of(store.records, "launch")
            store.append(make_record(launch=2, time_us=12.0))
        assert whole == samples.read_bytes()


def test_crash_before_the_first_line_is_resumed(mine):
    """Start afresh in a directory with only our scaffold."""
    path = mine
    path.mkdir()
    (path / ".lock").touch()
    (path / ".run.json.tmp").write_text('{"sche')
    with opened(path) as store:
        assert not store.resumed
    assert make_info() == load_run(path).info


# ------------------------------------------------------------------------------------------- refuse


@pytest.mark.parametrize(
    ("kept", "asked", "words"),
    [
        ({"world_size": 2, "cases": "a"}, {"world_size": 4, "cases": "f" * 64}, "2 .* 4"),
        ({"model": 10}, {"model": 12}, "parameters is 10 there and 12 here"),
        (
            {"cases": 2, "cases_sha256": "a" * 64},
            {"cases": 2, "cases_sha256": "b" * 64},
            "the cases",
        ),
        ({"cases": 2, "cases_sha256": "a" * 64}, {"cases": 3, "cases_sha256": "b" * 64}, "2 .* 3"),
    ],
)
def test_another_plan_is_refused(tmp_path, mine, kept, asked, words):
    """Refuse another plan, and name the differing entries with short values, without digests."""
    make_run(mine, [], plan=kept)
    sentence = refusal(mine, make_info(plan=asked))
    assert re.search(words, sentence.removeprefix(f"--out {tmp_path}"))
    assert "bb" not in sentence
    assert "fff" not in sentence


def test_equal_plan_in_other_words_is_resumed(mine):
    """Compare plans as JSON, in which tuples are lists."""
    make_run(mine, [], plan={"sizes": [8, 64]})
    Store.open(mine, make_info(plan={"sizes": (8, 64)})).close()


def test_second_opener_is_refused(mine):
    """Refuse a second opener until the first ends, and name the process that holds the run."""
    with opened(mine) as store:
        assert f"process {os.getpid()} " in refusal(mine)
        with pytest.raises(InputError, match=f"process {os.getpid()} "):
            check_out(mine)
        store.append(make_record())
    check_out(mine)
    opened(mine).close()


@pytest.mark.parametrize("exists", [False, True])
def test_place_that_cannot_be_written_is_refused(mine, stub, *, exists):
    """Refuse an unwritable place before creating anything."""
    if exists:
        (mine).mkdir()
    stub("os.access", value=False)
    assert "cannot be written" in refusal(mine)


def test_damaged_line_is_named(mine):
    """Refuse a damaged line in the middle, by its number."""
    path = make_run(mine, make_launches([10.0, 11.0, 12.0]))
    samples = path / "samples.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text(lines[0] + lines[1][:100] + "\n" + lines[2])
    assert "samples.jsonl line 2 is damaged" in refusal(path)
    with pytest.raises(InputError, match="line 2 is damaged"):
        load_run(path)


# --------------------------------------------------------------------------------------- the tables


def test_tables_are_made_once(mine):
    """Keep the rows until a record or a condition is added."""
    with opened(mine) as store:
        store.append(make_record())
        write_tables(store)
        rows = store.run.rows
        store.update(status="partial")
        assert store.run.rows is rows
        assert "partial" == store.run.info["status"]
        store.update(tick_us=1.0)
        assert store.run.rows is not rows
        store.append(make_record(launch=1))
        write_tables(store)
        assert [2] == fields_of(store.run.rows, "launches")
