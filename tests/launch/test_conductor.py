"""Tests of the conductor with simulated ranks: every way in which a launch can end."""

import json
import shutil

import pytest
from builders import read_info
from conducting import ALL, CASES, EVERYTHING, measured, run
from fields import fields_of
from launching import Recorder, ScriptLauncher, make_request, mpirun

from commbench.errors import InputError, LaunchError

pytestmark = pytest.mark.usefixtures("forks", "mark")


#: Foreign and torn lines on both streams.
NOISE = (
    'print(\'hello\'); print(\'{"frame":"record","rec\', flush=True);'
    " sys.stderr.write('@commbench Heartbeat {')\n"
)
#: Later launches keep the settings of the first.
CHECK = """
assert plan.launch == 0 or all(plan.fixed[c.key].warmups == 7 for c in plan.cases)
assert plan.launch == 1 or not plan.fixed
"""


@pytest.mark.parametrize("script", [ALL, CHECK + ALL, NOISE + ALL + NOISE])
def test_a_run_measures_every_case_in_every_launch(tmp_path, script):
    """Exit with 0 after measuring every case in every launch, whatever else ranks write."""
    code, info, display = run(tmp_path, script)
    assert (0, "complete") == (code, info["status"])
    assert EVERYTHING == sorted(measured(tmp_path))
    assert ["ok", "ok"] == fields_of(info["launches"], "status")
    assert [(done, 8) for done in range(8)] == display.progress
    names = ("world_size", "nodes", "ranks_per_node", "relative_half_width", "tick_us")
    assert [2, 1, 2, 0.5, 0.01] == [info[name] for name in names]
    assert 5 == len((tmp_path / "collectives.csv").read_text().splitlines())


def test_wrong_data_is_found_at_the_end(tmp_path):
    """Finish the run, then exit with 4 for wrong data, also when nothing is left to measure."""
    script = ALL.replace("measured(i)", "measured(i, status='wrong' if i == 1 else 'ok')")
    assert 4 == run(tmp_path, script)[0]
    assert 8 == len(measured(tmp_path))
    launcher = ScriptLauncher(ALL)
    assert 4 == run(tmp_path, launcher)[0]
    assert 0 == launcher.started


#: The first case hangs.
HANG = f"""
session()
for i, c in enumerate(plan.cases):
    if c.key == {CASES[0].key!r}:
        begin(i); beat(0, 1); time.sleep(600)
    measured(i)
end(is_complete=True)
"""
#: Ignores SIGTERM, and has a child in another session.
STUBBORN = """
import signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, '-c', 'import time; time.sleep(600)']
subprocess.Popen(sleep, start_new_session=True)
"""


def test_a_launch_that_ignores_sigterm_is_killed(tmp_path, monkeypatch):
    """Kill the launcher and its child."""
    monkeypatch.setattr("commbench.launch.process.GRACE_S", 0.5)
    request = make_request(CASES, case_timeout_s=0.5)
    assert 3 == run(tmp_path, STUBBORN + HANG, request, fail_fast=True)[0]


def test_a_hang_costs_its_case_only(tmp_path):
    """Continue with new ranks after a hang."""
    code, info, _ = run(tmp_path, HANG, make_request(CASES, case_timeout_s=0.5))
    assert 3 == code
    assert info["reason"].startswith("1 case failed; first cause: no progress for 0.5 s")
    assert ["hung"] + 6 * ["ok"] == sorted(status for _, _, status in measured(tmp_path))


#: Rank 1 refuses the first two cases; rank 0 waits for it in the second.
REFUSALS = """
def refuse(case):
    say(RankError(rank=1, host="n0", case=case, message=f"no {case}.", is_of_case=True))
session()
refuse(0); measured(0)
begin(1); refuse(1); beat(0, 1); time.sleep(600)
"""


def test_a_rank_that_refuses_a_case_alone_says_why(tmp_path):
    """Name the refusal of the case that hangs, and none of a case before."""
    request = make_request(CASES, case_timeout_s=0.5)
    info = run(tmp_path, REFUSALS, request, fail_fast=True)[1]
    assert "no progress for 0.5 s: rank 1 on host n0 raised no 1, in" in info["reason"]
    assert 1 == info["launches"][0]["failed_rank"]["rank"]


def test_a_conductor_inside_a_rank_hands_its_place_to_nobody(tmp_path, monkeypatch):
    """Start ranks without the variables of the rank that the conductor is."""
    for name in ("TORCHELASTIC_RUN_ID", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.setenv(name, "0")
    script = (
        "from commbench.launch.identity import identify\nassert not identify(os.environ).launcher\n"
    )
    assert 0 == run(tmp_path, script + ALL)[0]


def test_another_number_of_ranks_is_refused(tmp_path):
    """Measure nothing on more or fewer ranks than sizes were planned for."""
    with pytest.raises(InputError, match=r"3 ranks .* started 2"):
        run(tmp_path, ALL, make_request(CASES, ranks=3))
    assert [] == measured(tmp_path)


def test_a_launcher_that_stays_without_ranks_says_why(tmp_path, monkeypatch, stub):
    """Read the launcher's message about a rank if all ranks are silent and it does not end; the
    kernel tells whether it has killed one.
    """
    monkeypatch.setattr("commbench.launch.watchdog.SILENCE_S", 0.2)
    monkeypatch.setattr("commbench.launch.supervisor.STACKS_S", 0.1)
    stub("commbench.launch.supervisor.memory_kills", 0)
    stub("commbench.launch.clues.memory_kills", 1)
    ended = "rank : 0 (local_rank: 0) exitcode : -9 (pid: 7)"
    says = f"print('{ended}', file=sys.stderr, flush=True)\n"
    request = make_request(CASES, case_timeout_s=0.5)
    info = run(tmp_path, says + HANG, request, fail_fast=True)[1]
    assert "rank 0 was killed by signal 9 (killed), by the kernel" in info["reason"]


def test_a_launcher_that_cannot_start_is_partial(tmp_path, monkeypatch):
    """Quote the launcher's message or its absence, name no rank that has not begun yet, and record
    no failed case; resume later.
    """
    code, info, _ = run(tmp_path, "beat(0); sys.exit('not enough slots')")
    assert (3, []) == (code, measured(tmp_path))
    assert "the launcher ended with exit status 1: not enough slots" == info["reason"]
    launcher = ScriptLauncher(ALL)
    monkeypatch.setattr(launcher, "command", lambda *_, **__: ["/gone"])
    code, info, _ = run(tmp_path, launcher)
    assert 3 == code
    assert "partial" == info["status"]
    assert "/gone" in info["reason"]
    assert 0 == run(tmp_path, ALL)[0]
    assert EVERYTHING == sorted(measured(tmp_path))


@pytest.mark.mpi
def test_an_mpi_that_does_not_start_gives_the_reason(tmp_path, monkeypatch):
    """Print the error of MPI_Init."""
    monkeypatch.setenv("OMPI_MCA_pml", "nosuch")
    code, _, display = run(tmp_path, mpirun(), make_request(CASES[:1], ranks=1, launches=1))
    assert 3 == code
    assert "An error occurred in MPI_Init_thread" in "\n".join(display.lines)


def test_results_that_vanish_lose_nothing(tmp_path):
    """Rewrite the results if their directory is removed during a run, and resume."""
    out = tmp_path / "run"
    with pytest.raises(LaunchError, match="has vanished or been replaced while the run went on"):
        run(out, ALL, display=Recorder(lambda: shutil.rmtree(out), when=3))
    info = read_info(out)
    assert ("partial", 2) == (info["status"], len(measured(out)))
    assert "has vanished" in info["reason"]
    assert 0 == run(out, ALL)[0]
    assert EVERYTHING == sorted(measured(out))


VISITED = (
    "session()\nfor i in range(len(plan.cases)): measured(i, share=0.5, visit=1,"
    " visit_lengths=[3])\n"
)


@pytest.mark.parametrize(
    ("end", "code", "failed"),
    [
        ("begin(1)\nfail(1, 'ValueError: boom')\nsys.exit(1)", 3, 1),
        ("sys.exit(1)", 0, 0),
        ("end(is_complete=True)\n", 0, 0),
    ],
    ids=["within a visit", "between visits", "time limit"],
)
def test_a_launch_that_ends_in_later_visits(tmp_path, end, code, failed):
    """Keep finished visits; fail the case of a crash within a visit, and measure it on resume."""
    request = make_request(CASES, launches=1)
    ended, info, display = run(tmp_path, VISITED + end, request)
    assert code == ended
    assert failed == [status for _, _, status in measured(tmp_path)].count("failed")
    assert ("partial" if code else "complete") == info["status"]
    assert ("exit" in end) == bool(display.warnings)
    ended, info, display = run(tmp_path, ALL, request)
    assert 0 == ended
    assert "complete" == info["status"]
    assert failed == len(display.records)


def test_what_ranks_refuse_is_bad_input(tmp_path):
    """Raise the sentence with which ranks refuse a plan; name a rank that refuses it alone."""
    refuse = "fail(1, 'Install numba.', is_bad_input=True)\n"
    with pytest.raises(InputError, match=r"^rank 1 on host n1: Install numba\.$"):
        run(tmp_path / "alone", f"{refuse}sys.exit(1)")
    with pytest.raises(InputError, match=r"^Install numba\.$"):
        run(tmp_path / "both", f"{refuse}{refuse.replace('1', '0')}sys.exit(1)")
    assert "partial" == read_info(tmp_path / "both")["status"]


def test_a_run_does_not_go_on_under_other_conditions(tmp_path):
    """Refuse to resume under other conditions, and leave the run unchanged."""
    assert 3 == run(tmp_path, "session(); measured(0); sys.exit(1)", fail_fast=True)[0]
    before = (measured(tmp_path), read_info(tmp_path)["launches"])
    with pytest.raises(InputError, match="cpu_model: abacus vs slide rule"):
        run(tmp_path, ALL.replace("session()", "session(cpu_model='slide rule')"))
    info = read_info(tmp_path)
    assert (*before, "partial") == (measured(tmp_path), info["launches"], info["status"])


def test_a_complete_run_that_is_refused_stays_as_it_was(tmp_path):
    """Restore run.json if adding launches to a complete run is refused."""
    assert 0 == run(tmp_path, ALL, make_request(CASES, launches=1))[0]
    file = tmp_path / "run.json"
    changes = {"launcher": "another", "budget": "another", "reason": "as it was"}
    before = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps(before))
    other = ALL.replace("session()", "session(cpu_model='slide rule')")
    with pytest.raises(InputError, match="cpu_model: abacus vs slide rule"):
        run(tmp_path, other, make_request(CASES, launches=2))
    assert before == json.loads(file.read_text())


def test_conditions_that_change_during_a_run_are_a_warning(tmp_path):
    """Continue if conditions change during a run, and warn once."""
    script = ALL.replace("session()", "session(cpu_model=f'model {plan.launch > 0}')")
    code, _, display = run(tmp_path, script, make_request(CASES, launches=3))
    assert 0 == code
    (warning,) = display.warnings
    assert "cpu_model: model False vs model True" in warning


@pytest.mark.parametrize(("selection", "warnings"), [("torch.topk", 1), ("cupy", 0)])
def test_the_selection_in_use_is_recorded_and_a_slow_one_reported(tmp_path, selection, warnings):
    """Record the selection of hooks, and report once if it is not the compiled one."""
    script = ALL.replace("session()", f"session(selection='{selection}')")
    code, info, display = run(tmp_path, script, make_request(CASES, launches=2))
    assert 0 == code
    assert selection == info["fast_selection"]
    assert warnings == len(display.warnings)


def test_a_time_limit_that_leaves_launches_out_cuts_the_run(tmp_path):
    """Exit with 0 and status cut if each case has a launch; resume measures the rest."""
    slow = ALL.replace("session()", "session(); time.sleep(2)")
    code, info, _ = run(tmp_path, slow, make_request(CASES, time_limit_s=5))
    assert 0 == code
    assert "cut" == info["status"]
    assert 4 == len(measured(tmp_path))
    assert "after 1 of 2 launches" in info["reason"]
    code, info, _ = run(tmp_path, ALL)
    assert (0, "complete", "") == (code, info["status"], info["reason"])
    assert EVERYTHING == sorted(measured(tmp_path))


def test_a_start_that_outlasts_the_time_limit_is_ended(tmp_path):
    """End ranks that have not come together at the time limit, and the run with 3."""
    code, info, _ = run(tmp_path, "time.sleep(60)", make_request(CASES, time_limit_s=0.5))
    assert 3 == code
    assert "partial" == info["status"]
    assert ["cut"] == fields_of(info["launches"], "status")
