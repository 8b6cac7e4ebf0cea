"""Tests of the messages between ranks and the conductor."""

import io
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_builders import make_bucket

from commbench.collectives.cases import Sweep
from commbench.ddp.plan.cases import TrainingCase
from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.launch.events import (
    CaseFinished,
    CasesEnded,
    CaseStarted,
    EventWriter,
    Heartbeat,
    Notice,
    RankError,
    RankEvent,
    SessionStarted,
    Stack,
    claim_stdout,
    format_short,
    say,
    split_line,
)
from commbench.results.files import encode

BEAT = Heartbeat(rank=1, host="n1", pid=4711, entered=10, left=9, cpu_ms=512, case=3)
ERROR = RankError(
    rank=0,
    host="n0",
    case=2,
    message="two\nlines @commbench",
    is_bad_input=True,
)
STACK = Stack(rank=1, host="n1", thread="t", stack=["a.py:1 in b"], inside=True)
CASE = Sweep(backends=["gloo"], sizes=[8]).cases(2)[0]


@pytest.mark.parametrize("event", [BEAT, ERROR, STACK], ids=["heartbeat", "error", "stack"])
def test_short_events_come_back_as_they_went(event):
    """Read back each event from one line."""
    line = format_short(event)
    assert 1 == line.count("\n")
    assert ("", event) == split_line(line.rstrip("\n"))


def test_a_message_is_found_among_foreign_text():
    """Extract a message from a line with other text before and after it."""
    line = f"warning: slow disk{format_short(BEAT).rstrip()} more"
    assert ("warning: slow disk", BEAT) == split_line(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Segmentation fault",
        "@commbench",
        "@commbench Heartbeat",
        '@commbench Heartbeat {"rank":1,"ho',
        '@commbench Heartbeat {"rank":1}',
        "@commbench Heartbeat [1]",
        "@commbench Greeting {}",
        '@commbench CaseFinished {"rec',
        '{"frame":"end","finished":true}',
    ],
)
def test_foreign_and_torn_lines_are_handed_on(line):
    """Return lines that are no message unchanged."""
    assert (line, None) == split_line(line)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_no_text_upsets_the_reader(text):
    """Accept any text on either stream."""
    split_line(text)
    for name in ("RankError", "SessionStarted", "CaseStarted", "CasesEnded", "CaseFinished"):
        split_line(f"@commbench {name} {text}")


def test_an_error_fits_into_one_write():
    """Truncate a long message to the size that a pipe writes atomically."""
    line = format_short(RankError(rank=0, host="n0", case=0, message="\N{SNOWMAN}\x01" * 100_000))
    assert len(line.encode()) < 4096


def test_messages_go_to_stderr(capfd):
    """Write to file descriptor 2 even if sys.stderr is replaced."""
    say(BEAT)
    assert format_short(BEAT) == capfd.readouterr().err


def plain(event: RankEvent) -> object:
    """Return an event, with its record as text."""
    if isinstance(event, CaseFinished):
        return event.share, encode(event.record.to_json())
    return event


def test_written_events_come_back_as_they_went():
    """Read back all events of a launch, with numpy numbers, of collectives and training."""
    stream = io.StringIO("loading libfoo...")  # half a line of a library comes before
    stream.seek(0, io.SEEK_END)
    measured = Record(case=CASE, launch=1, times_us=np.array([1.5, 2.5]), wrong=np.int64(0))
    case = TrainingCase(workload="tiny", world_size=2, batch_per_rank=8, hook="topk", density=0.01)
    trained = TrainingRecord(
        case=case, launch=1, step_ms=[1.5], metrics=[(3, 0.5)], buckets=[make_bucket()]
    )
    sent = [
        SessionStarted(facts={"ranks": []}),
        CaseStarted(index=4),
        CaseFinished(record=measured),
        CaseFinished(record=trained, share=0.5),
        CasesEnded(is_complete=True),
    ]
    writer = EventWriter(stream)
    for event in (*sent, Notice(text="not for the conductor")):
        writer.on(event)
    received = [split_line(line)[1] for line in stream.getvalue().split("\n")]
    assert list(map(plain, sent)) == [plain(event) for event in received if event]


def test_claimed_stdout_is_ours_alone(capfd):
    """Redirect a library's output to stderr, and keep stdout for events."""
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
