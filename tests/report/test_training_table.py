"""Tests of printing training configurations and recommendations."""

import dataclasses

import pytest
from pages import make_run
from terminals import line_with, printed
from training_builders import (
    launches_of,
    make_training_case,
    make_training_record,
)

from commbench.cli.presentation import print_run
from commbench.cli.terminal import make_console
from commbench.ddp.plan.records import TrainingRecord
from commbench.report.training import training_tables
from commbench.results import Run

FIVE = make_training_case(cap="5")
FP16 = make_training_case("fp16")
LOCAL = make_training_case("local")


def render(run: Run, width: int = 100) -> str:
    """Return the printed tables."""
    return printed(*training_tables([run]), width=width)


def names_in(text: str) -> list[str]:
    """Return hook and bucket size of each table line."""
    lines = [
        line.split()[:2] for line in text.splitlines() if line.split()[:1] in (["none"], ["fp16"])
    ]
    return [" ".join(words) for words in lines]


FULL = [
    *launches_of(
        20,
        sent_bytes=34.8e6,
        losses=[2.0] * 20,
        metric_name="accuracy",
        metrics=[(20, 0.5)],
        target=0.5,
    ),
    *launches_of(
        16, FP16, sent_bytes=17.4e6, expected_bytes=17.4e6, losses=[2.5] * 20, backward_ms=9.0
    ),
    *launches_of(10, LOCAL, backward_ms=6.0),
]


def test_a_line_has_all_that_matters():
    """Print time, speedup, verdict, exposed communication, bytes and losses per configuration."""
    text = render(make_run(training=FULL), width=200)
    words = line_with(text, "fp16", "default", "faster").split()
    expected = "fp16 default 2 16.0 15.9-16.1 1.25 1.25-1.25 faster 62.5 3.00 17.4 2.50 2.50"
    assert expected.split() == words[:13]
    baseline = line_with(text, "none", "default", "19.9-20.1").split()
    assert ["1.00", "50.0", "6.00", "34.8", "2.00", "2.00", "0.500", "0.400"] == baseline[5:]


def test_title_says_what_and_where():
    """Print workload, backend, ranks, batch, dense traffic, launches and metric in the title."""
    title = line_with(render(make_run(training=FULL), width=200), "mlp (")
    for words in ("gloo", "2 ranks", "batch 32", "34.8 MB", "6 launches", "accuracy"):
        assert words in title


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_tables_fit_the_console(width):
    """Omit and name columns that do not fit, and print no escape codes."""
    text = render(make_run(training=FULL), width=width)
    assert width >= max(map(len, text.splitlines()))
    assert "\u2026" not in text
    assert "\x1b" not in text
    assert "15.9-16.1" in text
    assert ("No space for" in text) == (width < 200)


def test_settings_other_than_buckets_stand_beside_the_hook():
    """Print other settings beside the hook."""
    case = make_training_case(
        "topk:0.01:values=float16", precision="amp-bf16", accumulation=2, bucket_view=True
    )
    text = render(
        make_run(training=[make_training_record(dataclasses.replace(case, static_graph=True))]),
        width=200,
    )
    assert "topk:0.01:values=float16 amp-bf16 x2 views static" in text


def test_lines_are_ordered():
    """Sort as ddp.csv."""
    records = [*launches_of(20), *launches_of(25, FIVE), *launches_of(16, FP16)]
    assert ["none default", "none 5", "fp16 default"] == names_in(
        render(make_run(training=records))
    )


def test_step_without_ddp_is_told():
    """Print the local step, and the distance of the default and the fastest."""
    text = " ".join(render(make_run(training=FULL)).split())
    for words in ("10.0 ms", "50 % for default buckets", "62 % for fp16"):
        assert words in text


def test_failed_configuration_says_why(capsys):
    """Print the status instead of the time, and the reason below."""
    broken = make_training_record(FP16, status="hung", reason="rank 1 made no progress for 60 s")
    text = report(make_run(training=[*launches_of(20), broken]), capsys)
    assert ["fp16", "default", "hung"] == line_with(text, "fp16  ", "hung").split()
    assert "Why: rank 1 made no progress for 60 s" in " ".join(text.split())


def test_flags_are_named():
    """Name the flags that not all rows have."""
    copy = make_training_case("fp16", "25")
    records = [*launches_of(20, ranks_agree=False), *launches_of(16, FP16)]
    text = render(make_run(training=records, same_layout={copy.key: FP16.key}), width=200)
    assert "same_layout" in line_with(text, "fp16", " 25 ")
    assert "ranks_differ" in line_with(text, "none", "default", "20.0")


def confirmed() -> list[TrainingRecord]:
    """Return confirmation launches of the default and of faster buckets."""
    five = make_training_case(cap="5", phase="confirm")
    return [*launches_of(20.0, make_training_case(phase="confirm")), *launches_of(15.0, five)]


def report(run: Run, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the report of a run."""
    print_run(run, "table", make_console(width=100))
    return capsys.readouterr().out


def test_recommendation_ends_the_report(capsys):
    """Print recommendation and snippet last."""
    run = make_run(training=[*launches_of(20), *launches_of(15, FIVE), *confirmed()])
    lines = [line.rstrip() for line in report(run, capsys).splitlines()]
    assert "    model = DistributedDataParallel(model, bucket_cap_mb=5)" == lines[-1]
    assert "change to 5 MiB buckets" in " ".join(lines)


@pytest.mark.parametrize(
    ("first_look", "status"), [(6, "complete"), (6, "partial"), (7, "partial")]
)
def test_a_tuning_says_its_answer_last(first_look, status, capsys):
    """Print no advice on single rows of a tuning, and no verdict before the first look."""
    run = make_run(
        training=[launches_of(20)[0], *confirmed()],
        first_look=first_look,
        status=status,
        candidates=[make_training_case().key, FIVE.key],
    )
    text = report(run, capsys)
    answer = "6 of 7 confirmation launches" if first_look == 7 else "change to 5 MiB buckets"
    assert ("change to 5 MiB buckets" in text) == (first_look == 6)
    assert text.index("Results:") < text.index(answer)
    assert "! " not in text
