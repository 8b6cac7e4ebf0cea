"""Tests of runs as metrics: their content, and text that Prometheus' tools and parsers accept."""

import shutil
import stat
from collections import Counter

import pytest
from builders import STEADY, make_case, make_launches, make_record
from kept import load_kept
from launching import finished
from pages import make_run
from places import RESULTS
from training_builders import make_training_case, make_training_launches

from commbench.analysis.expectations import Outcome, judge, parse_expectation
from commbench.analysis.stragglers import straggler_findings
from commbench.interop.exports.measures import MEASURES, Sample, samples_of
from commbench.interop.exports.openmetrics import render_openmetrics, write_openmetrics

#: Kept runs that have something of every kind of metric.
SOAK = "soak_200mbit_xeon2core_20261128"
KEPT = (
    "bench_xeon2core_20261128",
    "matrix_slow_host_xeon2core_20261128",
    "patterns_1gbit_xeon2core_20261128",
    SOAK,
)


def values(samples: list[Sample], name: str) -> dict[tuple[str, ...], float]:
    """Return the values of a metric by its labels."""
    return {
        tuple(sample.labels.values()): sample.value for sample in samples if sample.name == name
    }


def parse(text: str) -> list[tuple[str, dict[str, str], float]]:
    """Return name, labels and value of each sample, as Prometheus' own library reads them."""
    parser = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="needs prometheus-client"
    )
    return [
        (sample.name, sample.labels, sample.value)
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    ]


# ------------------------------------------------------------------------------------- what is said


def test_times_are_in_seconds_and_bandwidths_in_bytes():
    """Convert microseconds, GB/s, milliseconds and MB into base units."""
    training = make_training_launches([20.0] * 6, make_training_case())
    run = make_run(make_launches([100.0] * 6, make_case(message_bytes=10**6)), training)
    samples = samples_of(run)
    labels = ("mpi", "all_reduce", "flat", "", "2", "float32", "1000000", "")
    assert labels in values(samples, "commbench_collective_seconds")
    expected = {
        "collective_seconds": 100e-6,
        "collective_ci_low_seconds": (run.rows[0].time_us_ci_low or 0.0) * 1e-6,
        "collective_bus_bytes_per_second": 10e9,
        "run_start_timestamp_seconds": 1795259339.0,
        "training_step_seconds": 20e-3,
        "training_sent_bytes": 34.8e6,
    }
    found = {each.name.removeprefix("commbench_"): each.value for each in samples}
    assert pytest.approx(expected) == {name: found[name] for name in expected}


def test_a_case_without_a_time_says_so():
    """Give wrong and hung cases no bandwidth, count them, and mark them not ok."""
    records = [
        make_record(make_case(message_bytes=8), status="hung", reason="rank 1"),
        *make_launches([5.0] * 6, make_case(message_bytes=64), status="wrong"),
    ]
    samples = samples_of(make_run([*records, *make_launches(STEADY)]))
    assert [0.0, 0.0, 1.0] == list(values(samples, "commbench_collective_ok").values())
    assert 1 == len(values(samples, "commbench_collective_bus_bytes_per_second"))
    counts = values(samples, "commbench_cases")
    expected = {"ok": 1, "unsupported": 0, "failed": 0, "hung": 1, "wrong": 1}
    assert {("collective", status): count for status, count in expected.items()} == counts


def test_cases_that_differ_in_little_are_told_apart():
    """Name non-default settings in ``variant``, and the start method only if nothing else
    differs.
    """
    cases = [
        make_case(),
        make_case(in_place=False),
        make_case(redop="max"),
        make_case("broadcast", root=1),
        make_case("latency"),
        make_case("latency", sync="barrier"),
    ]
    records = [
        record for case in cases for record in make_launches(STEADY, case, sync=case.sync or "none")
    ]
    labels = list(values(samples_of(make_run(records)), "commbench_collective_ok"))
    assert len(cases) == len(set(labels))
    variants = {variant for *_, variant in labels}
    assert {"", "out of place", "max", "root 1", "barrier, native"} <= variants


def test_the_slow_host_is_said_once_at_its_worst():
    """Name a slow host once, with the larger factor of both backends."""
    run = load_kept("matrix_slow_host_xeon2core_20261128")
    samples = samples_of(run)
    worst = max(straggler.factor.value for straggler in straggler_findings(run).stragglers)
    assert {("host", "host3"): worst} == values(samples, "commbench_slow_factor_ratio")
    assert {(): straggler_findings(run).comparisons} == values(samples, "commbench_slow_compared")


def test_the_recommendation_of_a_kept_run():
    """Return verdict, setting and speedup with interval of recommendation.json."""
    run = load_kept(KEPT[0])
    samples, stated = samples_of(run), run.recommendation
    (labels,) = values(samples, "commbench_recommendation_info")
    assert (stated.workload, str(stated.world_size), stated.verdict) == labels[:3]
    speedups = []
    for name in ("speedup_ratio", "speedup_ci_low_ratio", "speedup_ci_high_ratio"):
        speedups += values(samples, f"commbench_recommendation_{name}").values()
    assert [stated.speedup, *stated.speedup_ci] == speedups


def test_each_expectation_has_its_outcome():
    """Give the outcome of each expectation the value 1, and every other outcome 0."""
    run = make_run(make_launches([100.0] * 6, make_case(message_bytes=8)))
    bounds = {"<= 120us": "met", "<= 80us": "not met"}
    texts = {f"all_reduce@8: time {bound}": outcome for bound, outcome in bounds.items()}
    texts |= {"all_gather@8: time <= 1us": "not tested"}
    samples = samples_of(run, judge(run, [parse_expectation(text) for text in texts]))
    outcomes = values(samples, "commbench_expectation")
    assert texts == {text: outcome for (text, outcome), value in outcomes.items() if value == 1}
    assert {(text, str(outcome)) for text in texts for outcome in Outcome} == set(outcomes)
    assert {0.0, 1.0} == set(outcomes.values())


# ----------------------------------------------------------------------------------------- the text


@pytest.mark.parametrize("name", KEPT)
def test_lines_are_well_formed_and_no_series_comes_twice(name):
    """Write every sample with its metric's labels, no series twice, and pass promtool's check."""
    run = load_kept(name)
    answers = judge(run, [parse_expectation(text) for text in ("wrong = 0", "stragglers = none")])
    text = render_openmetrics(samples_of(run, answers), benchmark="nightly")
    samples = parse(text)
    for metric, labels, _ in samples:
        assert ["benchmark", *MEASURES[metric].labels] == list(labels)
    series = Counter((metric, *labels.items()) for metric, labels, _ in samples)
    assert {1} == set(series.values())
    assert text.endswith("\n# EOF\n")
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool: Debian's package prometheus")
    done = finished(promtool, "check", "metrics", input=text)
    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


def test_labels_are_escaped():
    """Escape quotes, backslashes and line feeds in labels."""
    name = 'C:\\new "model"\n} 1\ncommbench_run_complete{'
    run = make_run(training=make_training_launches([20.0] * 6, make_training_case(workload=name)))
    samples = parse(render_openmetrics(samples_of(run), benchmark='a"b'))
    workloads = {labels.get("workload") for _, labels, _ in samples}
    assert {name, None} == workloads
    assert {'a"b'} == {labels["benchmark"] for _, labels, _ in samples}


# ------------------------------------------------------------------------------------------- a soak


def test_a_soak_names_its_events_and_drift():
    """State the number of events by kind, the longest by rank and the drift as a share."""
    run = load_kept(SOAK)
    text = render_openmetrics(samples_of(run), benchmark="b")
    lines = [
        line[15:].rsplit(" ", 1) for line in text.splitlines() if line.startswith("commbench_soak")
    ]
    case = 'benchmark="b",case="gloo all_reduce 64 KiB float32 sum"'
    spike = 'benchmark="b",kind="spike"'
    assert [
        'seconds{benchmark="b"}',
        f"events{{{spike}}}",
        'events{benchmark="b",kind="failed"}',
        'events{benchmark="b",kind="hung"}',
        f'longest_event_seconds{{{spike},scope="system",ranks="",host=""}}',
        f'longest_event_seconds{{{spike},scope="rank",ranks="1",host="host1"}}',
        f"drift_ratio{{{case}}}",
        f"drift_ci_low_ratio{{{case}}}",
        f"drift_ci_high_ratio{{{case}}}",
    ] == [series for series, _ in lines]
    stated = [1188.969, 2, 0, 0, 60.48, 10.252, -0.000930566, -0.00428562, 0.0023589]
    assert pytest.approx(stated, rel=1e-5) == [float(value) for _, value in lines]


# ----------------------------------------------------------------------------------------- the file


def test_the_command_writes_the_outcomes(tmp_path, commbench):
    """Write the outcome of an expectation of the command line."""
    done = commbench(
        f"export {RESULTS / KEPT[2]} --format openmetrics --out a.prom --expect wrong=0"
    )
    assert (0, "", "Written: a.prom\n") == (done.code, done.err, done.out)
    outcomes = {
        labels["outcome"]: value
        for name, labels, value in parse((tmp_path / "a.prom").read_text())
        if name == "commbench_expectation"
    }
    assert {"not met": 0.0, "not tested": 0.0, "not shown": 0.0, "met": 1.0} == outcomes


def test_the_file_is_for_others_to_read(tmp_path):
    """Write one file readable by every user, under its name or the suite's."""
    run = make_run(make_launches(STEADY))
    given = write_openmetrics(run, tmp_path / "commbench_nightly.prom")
    chosen = write_openmetrics(run, tmp_path)
    assert ["commbench_collectives.prom", "commbench_nightly.prom"] == sorted(
        each.name for each in tmp_path.iterdir()
    )
    assert {0o644} == {stat.S_IMODE(each.stat().st_mode) for each in (given, chosen)}
    assert 'benchmark="nightly"' in given.read_text()
    assert 'benchmark="collectives"' in chosen.read_text()
