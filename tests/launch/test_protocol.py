"""Tests of what travels between ranks and the conductor."""

import io
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commbench.collectives.cases import Sweep
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import Bucket, TrainingRecord
from commbench.engine.records import Record
from commbench.launch.protocol import (
    FrameSink,
    Heartbeat,
    LastWords,
    claim_stdout,
    format_message,
    parse_frame,
    say,
    split_line,
)
from commbench.results.record_types import read_record

BEAT = Heartbeat(rank=1, host="n1", pid=4711, entered=10, left=9, cpu_ms=512, case=3)
WORDS = LastWords(rank=0, host="n0", case=2, text="ValueError: two\nlines @commbench", bad_input=True)
BUCKET = Bucket(size_bytes=8, parameters=1, ready_ms=1.0, start_ms=1.5, done_ms=2.0, comm_ms=0.5, skew_wait_ms=0.0)
CASE = Sweep(backends=["fake"], sizes=[8]).cases(2)[0]


@pytest.mark.parametrize("message", [BEAT, WORDS], ids=["heartbeat", "last words"])
def test_messages_come_back_as_they_went(message: Heartbeat | LastWords) -> None:
    """Carry each kind of message in one line."""
    line = format_message(message)
    assert 1 == line.count("\n")
    assert ("", message) == split_line(line.rstrip("\n"))


def test_a_message_is_found_among_foreign_text() -> None:
    """Tell our message from what another writer has put before and after it on the line."""
    line = f"warning: slow disk{format_message(BEAT).rstrip()} more"
    assert ("warning: slow disk", BEAT) == split_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Segmentation fault",
        "@commbench",
        "@commbench heartbeat",
        '@commbench heartbeat {"rank":1,"ho',
        '@commbench heartbeat {"rank":1}',
        "@commbench heartbeat [1]",
        "@commbench greeting {}",
    ],
)
def test_foreign_and_torn_lines_are_handed_on(line: str) -> None:
    """Give back what is no message, whole."""
    assert (line, None) == split_line(line)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_no_text_upsets_the_reader(text: str) -> None:
    """Survive anything on either stream."""
    split_line(text)
    split_line(f"@commbench error {text}")
    parse_frame(text)
    parse_frame('{"frame":' + text)


def test_last_words_fit_into_one_write() -> None:
    """Cut a long text, so that the line stays below what a pipe takes in one piece."""
    line = format_message(LastWords(rank=0, host="n0", case=0, text="\N{SNOWMAN}\x01" * 100_000))
    assert len(line.encode()) < 4096


def test_messages_go_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    """Write to descriptor 2 whatever sys.stderr is."""
    say(BEAT)
    assert format_message(BEAT) == capfd.readouterr().err


def test_frames_come_back_as_they_went() -> None:
    """Hand a whole launch over, numpy numbers included."""
    stream = io.StringIO()
    sink = FrameSink(stream)
    sink.session({"ranks": []})
    sink.case(4, CASE)
    sink.record(Record(case=CASE, launch=1, times_us=np.array([1.5, 2.5]), wrong=np.int64(0)))  # type: ignore[arg-type]
    sink.end(finished=True)
    frames = [frame for line in stream.getvalue().split("\n") if (frame := parse_frame(line))]
    assert ["session", "case", "record", "end"] == [frame["frame"] for frame in frames]
    assert {"frame": "case", "index": 4, "text": str(CASE)} == frames[1]
    received = read_record(frames[2]["record"])
    assert isinstance(received, Record)
    assert (CASE, 1, [1.5, 2.5], 0) == (received.case, received.launch, received.times_us, received.wrong)
    assert frames[3]["finished"] is True


def test_training_travels_in_the_same_frames() -> None:
    """Hand training over, and know it again."""
    stream = io.StringIO()
    sink = FrameSink(stream)
    case = TrainingCase(workload="tiny", world_size=2, batch_per_rank=8, hook="topk", density=0.01)
    record = TrainingRecord(case=case, launch=1, step_ms=[1.5], metrics=[(3, 0.5)], buckets=[BUCKET])
    sink.case(0, case)
    sink.record(record)
    begun, finished = [frame for line in stream.getvalue().split("\n") if (frame := parse_frame(line))]
    received = read_record(finished["record"])
    assert isinstance(received, TrainingRecord)
    assert (str(case), record.case, [1.5], [(3, 0.5)], [BUCKET]) == (
        *(begun["text"], received.case, received.step_ms, received.metrics, received.buckets),
    )


def test_a_frame_survives_half_a_line_before_it() -> None:
    """Begin on a line of our own where an import has left half a one."""
    stream = io.StringIO()
    stream.write("loading libfoo...")
    FrameSink(stream).end(finished=False)
    frames = [parse_frame(line) for line in stream.getvalue().splitlines()]
    assert [None, {"frame": "end", "finished": False}] == frames


@pytest.mark.parametrize("line", ["", "noise", '{"frame":"record","rec', '{"other":1}', "[1]"])
def test_what_is_no_frame_is_ignored(line: str) -> None:
    """Take torn and foreign lines for noise."""
    assert parse_frame(line) is None


def test_claimed_stdout_is_ours_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """Send a library's output to stderr and frames to stdout."""
    original = os.dup(1)
    try:
        private = claim_stdout()
        os.write(1, b"noise of a library\n")
        private.write('{"frame": "end"}')
        private.close()
    finally:
        os.dup2(original, 1)
        os.close(original)
    out, err = capfd.readouterr()
    assert ('{"frame": "end"}', "noise of a library\n") == (out, err)
