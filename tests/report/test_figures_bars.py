"""Tests of the charts of bytes and of energy, and of what pages say about energy."""

from builders import KIB, STEADY, make_case, make_launches
from drawings import run_of, training_run_of, values_of
from pages import read
from training_builders import launches_of, make_training_case

from commbench.ddp.plan.records import TrainingRecord
from commbench.engine.records import Record
from commbench.report.figures.bars import energy_charts, traffic_charts
from commbench.report.figures.sizes import size_charts


def metered(energy_of: str = "", **changes: str) -> list[Record]:
    """Return launches of two sizes that use one nanojoule per byte."""
    records = []
    for size in (KIB, 4 * KIB):
        case = make_case(message_bytes=size, **changes)
        records += make_launches(STEADY, case, energy_J=1e-9 * size, energy_of=energy_of)
    return records


def sending(sent: dict[str, float]) -> list[TrainingRecord]:
    """Return launches of each hook with the given bytes; dense gradients have 40 MB."""
    records = []
    for hook, sent_bytes in sent.items():
        case = make_training_case(hook)
        records += launches_of(10.0, case, sent_bytes=sent_bytes, dense_bytes=40e6)
    return records


def test_bytes_stand_beside_the_dense_ones() -> None:
    """Draw a row for each hook, the bytes of a dense all-reduce as a limit, and state the share."""
    (chart,) = traffic_charts([training_run_of(sending({"none": 40e6, "topk:0.01": 0.8e6}))])
    (panel,) = chart.panels
    assert {"none": {0.0: 40.0}, "topk:0.01": {0.0: 0.8}} == values_of(panel)
    assert [40.0] == [limit.value for limit in panel.limits]
    for words in ("topk:0.01", "0.800 MB", "2 %"):
        assert words in chart.caption


def test_energy_runs_over_the_size() -> None:
    """Draw joules of one operation over size, a panel for what was counted."""
    (chart,) = size_charts([run_of(metered("gpu"), "old"), run_of(metered("cpu+gpu"), "new")])
    joules = {KIB: 1.024e-6, 4 * KIB: 4.096e-6}
    _, _, gpus, both = chart.panels
    assert "energy of the GPUs alone, J" == gpus.label
    assert [{"old: mpi": joules}, {"new: mpi": joules}] == [values_of(gpus), values_of(both)]


def test_the_most_frugal_setting_comes_first() -> None:
    """Draw a row for each setting that counts the same, beside the default's energy."""
    records = [
        *launches_of(20.0, energy_J=8.0, energy_of="cpu"),
        *launches_of(10.0, make_training_case("fp16"), energy_J=6.0, energy_of="cpu"),
        *launches_of(9.0, make_training_case("bf16"), energy_J=7.0, energy_of="gpu"),
        *launches_of(9.0, make_training_case("local"), energy_J=5.0, energy_of="cpu"),
    ]
    processors, gpus = energy_charts([training_run_of(records)])
    (panel,) = processors.panels
    assert ["fp16 with default buckets", "default buckets"] == list(values_of(panel))
    assert [8.0] == [limit.value for limit in panel.limits]
    assert "75 %" in processors.caption
    assert ["bf16 with default buckets"] == list(values_of(gpus.panels[0]))


def test_without_counts_there_is_no_figure() -> None:
    """Draw nothing without bytes and energy."""
    bare = training_run_of(launches_of(20.0, sent_bytes=None))
    assert [] == energy_charts([bare])
    assert [] == traffic_charts([bare])


def test_a_page_says_what_its_energies_count() -> None:
    """Name the counters in every row, and nothing without energy."""
    page = read(run_of([*metered("gpu", backend="nccl"), *metered("cpu+gpu")]))
    heading, *lines = page.table_with("energy of")
    place = heading.index("energy of")
    by_backend = {line[1]: line[place] for line in lines}
    assert {"nccl": "the GPUs alone", "mpi": "processors and GPUs"} == by_backend
    trained = training_run_of(launches_of(20.0, energy_J=8.0, energy_of="cpu"))
    bare = training_run_of(launches_of(20.0))
    assert ["energy of" in read(run).text for run in (trained, bare)] == [True, False]


def test_a_page_says_whose_energy_was_not_counted() -> None:
    """State run.json's reason for missing energy."""
    energy = {"counted": [], "missing": {"cpu": "no counters (host0)"}}
    assert "no counters (host0)" in read(run_of(make_launches(STEADY), energy=energy)).text
