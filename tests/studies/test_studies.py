"""Studies: real runs with tiny budgets; interrupted, failing and repeated ones."""

from __future__ import annotations

import errno
import json
import math
import random
import re
import shlex
import shutil
import signal
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

import repertory
from commands import result, until, words
from repertory import cli
from repertory.runs.config import from_dict, options_for, to_dict
from repertory.runs.presets import defaults
from repertory.studies import statistics
from repertory.studies.entrants import CompareOptions
from repertory.studies.plan import StudyDirectory
from repertory.studies.results import EVALUATION_KEYS, TRIAL_KEYS, Results, Trial, read_trial
from repertory.studies.runner import Runner, cause_of
from repertory.studies.statistics import require
from study_commands import StudyProcess, finished, last_line, refusal, stamps, table

TINY = words("--cold --evaluations 4 --set eval_episodes=2 --set eval_max_steps=30 --set network.hidden=(16,16)")
TWO = ["compare", "CartPole-v1", "--topologies", "single,hogwild", "--seeds", "2", "--seconds", "2", *TINY]
RUNS = {"single-s0", "hogwild-s0", "single-s1", "hogwild-s1"}

ENVIRONMENT = """
import multiprocessing
from pathlib import Path
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

class Moody(CartPoleEnv):
    def step(self, action):
        if multiprocessing.parent_process() is None and Path("broken").exists():
            raise RuntimeError("no luck in the main process")
        return super().step(action)

def make():
    return Moody()
"""


@pytest.fixture(scope="module", autouse=True)
def quick_page() -> Iterator[None]:
    """A report that is quickly written: what stands in it is tested elsewhere."""
    stub = types.ModuleType("repertory.studies.page")
    stub.write = _write_page  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "repertory.studies.page", stub)
        patch.setattr("repertory.studies.page", stub, raising=False)
        patch.setattr(statistics, "require", lambda: None)
        yield


def _write_page(results: Results, directory: Path) -> Path:
    (directory / "report.html").write_text(results.command)
    return directory / "report.html"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two topologies with two seeds."""
    place = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert cli.main([*TWO, "--quiet"]) == 0
    return place / "studies/compare-cartpole-v1"


@pytest.fixture
def processes() -> Iterator[list[StudyProcess]]:
    """Those started by a test, ended with it."""
    started: list[StudyProcess] = []
    yield started
    for process in started:
        process.end()


# What a study leaves behind


def test_study_holds_every_run_and_both_tables(study: Path) -> None:
    assert {path.name for path in study.iterdir()} == {
        "study.json", "runs", "evaluations.csv", "trials.csv", "report.html",
    }  # fmt: skip
    assert {run.name for run in finished(study)} == RUNS
    trials = table(study / "trials.csv")
    assert tuple(trials[0]) == TRIAL_KEYS
    assert {(row["contestant"], row["seed"], row["status"]) for row in trials} == {
        (name, seed, "completed") for name in ("single", "hogwild") for seed in ("0", "1")
    }
    assert all(float(row["env_steps_per_s"]) > 1 for row in trials)


def test_evaluations_table_is_what_the_runs_say(study: Path) -> None:
    rows = table(study / "evaluations.csv")
    assert tuple(rows[0]) == EVALUATION_KEYS
    for run in finished(study):
        name, _, seed = run.name.rpartition("-s")
        told = [(e["env_steps"], e["seconds"], e["mean"]) for e in result(run)["evaluations"]]
        mine = [row for row in rows if (row["contestant"], row["seed"]) == (name, seed)]
        assert [(int(row["env_steps"]), float(row["seconds"]), float(row["score"])) for row in mine] == told
        assert {row["topology"] for row in mine} == {name}


def test_seconds_decide_when_a_run_ends_and_when_it_is_evaluated(study: Path) -> None:
    for run in finished(study):
        evaluations = result(run)["evaluations"]
        moments = [evaluation["seconds"] for evaluation in evaluations]
        assert 2.0 <= result(run)["seconds"] < 60.0
        assert 1 <= len(moments) <= 5, moments  # 4 asked for, by the clock, and perhaps one at the end
        assert all(moment >= 0.5 * number for number, moment in enumerate(moments[:4], start=1)), moments
        assert not list(run.glob("checkpoints/*/../step-*-2")), "one checkpoint, at the end"
        assert len(list(run.glob("checkpoints/step-*"))) == 1
    assert max(len(result(run)["evaluations"]) for run in finished(study)) >= 2, "not only one at the end"


def test_seed_0_of_all_contestants_comes_before_seed_1_of_any(study: Path) -> None:
    ends = {run.name: (run / "result.json").stat().st_mtime_ns for run in finished(study)}
    assert max(ends["single-s0"], ends["hogwild-s0"]) < min(ends["single-s1"], ends["hogwild-s1"])


def test_study_file_tells_the_words_that_train_each_contestant(study: Path) -> None:
    plan = json.loads((study / "study.json").read_bytes())
    typed = shlex.split(plan["command"])
    assert typed[:2] == ["repertory", "compare"]
    assert cli.parse(CompareOptions, typed[2:], "compare") == cli.parse(CompareOptions, TWO[1:], "compare")
    for row, options in zip(plan["contestants"], plan["options"], strict=True):
        first, command, *rest = shlex.split(row["train"])
        assert (first, command) == ("repertory", "train")
        kind = options_for("dqn", row["topology"])
        again = cli.parse(kind, rest, "train", defaults("CartPole-v1", "dqn", row["topology"]))
        assert to_dict(again) == to_dict(from_dict(options))
    assert [found["repertory"] for found in plan["versions"]] == [repertory.__version__]
    assert "core" in plan["machine"]


def test_same_command_again_repeats_nothing(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.parent.parent)
    before = {run.name: stamps(run) for run in finished(study)}
    table_before = (study / "evaluations.csv").read_bytes()
    assert cli.main([*TWO, "--quiet", "--drop-checkpoints"]) == 0
    assert {run.name: stamps(run) for run in finished(study)} == before
    assert (study / "evaluations.csv").read_bytes() == table_before


def test_other_options_under_the_same_name_are_refused(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(study.parent.parent)
    sentence = refusal(capsys, *TWO, "--seeds", "3")
    assert "studies/compare-cartpole-v1 was begun with other options (seeds was 2, is 3)" in sentence
    sentence = refusal(capsys, "scale", "CartPole-v1", "--name", "compare-cartpole-v1")
    assert "it is of 'repertory compare'" in sentence


def test_two_processes_on_one_study_are_refused(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(study.parent.parent)
    with StudyDirectory(study).hold():
        assert "is being worked on by another process" in refusal(capsys, *TWO, "--quiet")


def test_api_returns_rows_for_a_table(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.parent.parent)
    chosen = {"seeds": 2, "seconds": 2.0, "evaluations": 4, "set": TINY[4::2], "cold": True}
    found = repertory.compare("CartPole-v1", topologies=["single", "hogwild"], **chosen)
    assert found.report is not None
    assert found.report.exists()
    assert [str(row["score"]) for row in found.evaluations] == [
        row["score"] for row in table(study / "evaluations.csv")
    ]
    assert {row["directory"] for row in found.trials} == {f"studies/compare-cartpole-v1/runs/{name}" for name in RUNS}


# Interruption


def test_interrupted_study_goes_on_and_repeats_nothing(tmp_path: Path, processes: list[StudyProcess]) -> None:
    study, wait = tmp_path / "studies/compare-cartpole-v1", random.Random().uniform(0.0, 1.0)
    names = ["single", "collectors", "hogwild"]
    typed = ["compare", "CartPole-v1", "--topologies", ",".join(names), "--seeds", "1", "--seconds", "1", *TINY]
    processes.append(first := StudyProcess(tmp_path, *typed))
    until(lambda: finished(study), timeout=60, what="the first run")
    time.sleep(wait)  # a moment of the second run: in start-up, training, or at its end
    first.process.send_signal(signal.SIGINT)
    assert first.wait() == 130, f"{wait}: {first.said()}"
    first.await_end()
    assert "Traceback" not in first.said()
    done = {run.name: stamps(run) for run in finished(study)}
    assert 1 <= len(done) < 3
    assert f"interrupted: {len(done)} of 3 runs have finished; the same command goes on" in first.said()
    processes.append(second := StudyProcess(tmp_path, *typed))
    assert second.wait() == 0, second.said()
    assert f"{len(done)} of 3 runs are there already" in second.said()
    assert {name: stamps(study / "runs" / name) for name in done} == done
    assert {path.name for path in (study / "runs").iterdir()} == {f"{name}-s0" for name in names}
    assert {row["contestant"] for row in table(study / "evaluations.csv")} == set(names)
    assert [row["status"] for row in table(study / "trials.csv")] == ["completed"] * 3


def test_killed_study_takes_its_run_with_it(tmp_path: Path, processes: list[StudyProcess]) -> None:
    arguments = ["compare", "CartPole-v1", "--topologies", "collectors", "--seconds", "60", *TINY]
    processes.append(driver := StudyProcess(tmp_path, *arguments))
    metrics = tmp_path / "studies/compare-cartpole-v1/runs/collectors-s0/metrics.jsonl"
    until(lambda: metrics.exists() and metrics.stat().st_size, timeout=120, what="a line of metrics")
    assert len(driver.alive()) > 3
    driver.process.kill()
    driver.await_end()


def test_run_that_an_earlier_evaluation_solves_does_not_wait_for_its_last(tmp_path: Path) -> None:
    asked_twice = words("--env-steps 1001 --eval-every 1000 --target-score 1 --topology collectors --quiet --name run")
    process = StudyProcess(tmp_path, "train", "CartPole-v1", *asked_twice)
    try:
        assert process.wait(120) == 0, process.said()
    finally:
        process.end()
    assert result(tmp_path / "runs/run")["status"] == "solved"


# Failure


def test_failing_contestant_is_reported_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moody.py").write_text(ENVIRONMENT)
    (tmp_path / "broken").touch()
    typed = ["compare", "moody.py:make", "--seeds", "1", "--seconds", "1", "--name", "moody", *TINY]
    typed += ["--topologies", "single,hogwild"]
    assert cli.main([*typed, "--json"]) == 0
    said, run = capsys.readouterr(), tmp_path / "studies/moody/runs/single-s0"
    assert "1 of 2 runs failed, single with seed 0 because: " in said.err
    trials = {row["contestant"]: row for row in last_line(said.out)["trials"]}
    assert trials["hogwild"]["status"] == "completed"
    assert trials["single"]["status"] == "failed"
    assert "no luck in the main process" in trials["single"]["cause"]
    assert "Traceback" in (run / "stderr.txt").read_text()
    rows = {row["contestant"]: row for row in table(tmp_path / "studies/moody/trials.csv")}
    assert rows["single"]["cause"] == trials["single"]["cause"]

    before = stamps(run)
    (tmp_path / "broken").unlink()
    assert cli.main([*typed, "--quiet"]) == 0
    assert stamps(run) == before, "not tried again unless that is asked for"
    assert cli.main([*typed, "--quiet", "--retry-failed"]) == 0
    assert result(run)["status"] == "completed"
    assert not (run / "failure.json").exists()


def test_study_in_which_nothing_finishes_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moody.py").write_text(ENVIRONMENT)
    (tmp_path / "broken").touch()
    assert cli.main(["compare", "moody.py:make", "--topologies", "single", "--seeds", "1", "--seconds", "1"]) == 1
    said = capsys.readouterr().err
    assert "warm-up 1/1: single" in said
    assert "1 of 1 runs failed" in said
    assert not list(tmp_path.glob("studies/*/warm-up"))
    assert not list(tmp_path.glob("studies/*/report.html"))


@pytest.mark.parametrize(
    ("code", "printed", "cause"),
    [
        (2, "Traceback\n  RuntimeError: coins\nrepertory: out of coins\n", "out of coins"),
        (1, "Traceback\n  ...\nValueError: odd\n\n", "ValueError: odd"),
        (-9, "warning: slow\n", "the process was ended by SIGKILL"),
        (1, "", "the process ended with exit code 1 and said nothing"),
    ],
)
def test_cause_is_in_the_runs_own_words(code: int, printed: str, cause: str) -> None:
    assert cause_of(code, printed) == cause


# Reading runs


def test_runs_of_the_same_settings_are_one_contestant(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", *map(str, sorted(finished(study))), "--json"]) == 0
    trials = last_line(capsys.readouterr().out)["trials"]
    assert {(row["contestant"], row["seed"]) for row in trials} == {
        (name, seed) for name in ("single", "hogwild") for seed in (0, 1)
    }
    assert (tmp_path / "studies/report-cartpole-v1/report.html").exists()
    ours = {(row["contestant"], row["seed"], row["env_steps"], row["score"]) for row in _rows(tmp_path)}
    assert ours == {
        (row["contestant"], row["seed"], row["env_steps"], row["score"]) for row in _rows(study.parent.parent)
    }


def _rows(place: Path) -> list[dict[str, str]]:
    return [row for path in place.glob("studies/*/trials.csv") for row in table(path)]


def test_report_of_a_study_is_made_anew(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.parent.parent)
    before = (study / "trials.csv").read_bytes()
    (study / "trials.csv").unlink()
    (study / "report.html").unlink()
    assert cli.main(["report", "studies/compare-cartpole-v1"]) == 0
    assert (study / "trials.csv").read_bytes() == before
    assert (study / "report.html").exists()


def test_report_of_a_study_whose_runs_are_gone_is_made_from_its_tables(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "kept"
    shutil.copytree(study, copy)
    tables = {name: (copy / name).read_bytes() for name in ("trials.csv", "evaluations.csv")}
    shutil.rmtree(copy / "runs")
    assert cli.main(["report", str(copy)]) == 0
    assert {name: (copy / name).read_bytes() for name in tables} == tables
    assert "single " in capsys.readouterr().out
    (copy / "trials.csv").write_text("contestant,seed\nsingle")
    assert "has no runs to report, neither in runs/ nor in trials.csv" in refusal(capsys, "report", str(copy))
    assert (copy / "evaluations.csv").read_bytes() == tables["evaluations.csv"]


def test_a_report_ends_with_its_answer(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(study)]) == 0
    *_, said, place = capsys.readouterr().out.splitlines()
    assert re.match(r"(`single`|`hogwild`|Both topologies|`single` and).* scored .*2 seeds", said)
    assert place.endswith("report.html")


def test_reports_that_make_no_sense_are_refused(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = study / "runs/single-s0"
    shutil.copytree(run, tmp_path / "other")
    assert "have the same settings and the same seed" in refusal(capsys, "report", str(run), "other")
    changed = (run / "config.json").read_text().replace('"CartPole-v1"', '"Acrobot-v1"')
    (tmp_path / "other/config.json").write_text(changed)
    assert "can't be compared: CartPole-v1, Acrobot-v1" in refusal(capsys, "report", str(run), "other")
    assert "is a study; report it by itself" in refusal(capsys, "report", str(study), "other")
    assert "there is no run 'absent'" in refusal(capsys, "report", "absent")
    assert "whose report this would replace" in refusal(capsys, "report", str(run), "--to", str(study))


def test_report_of_a_study_may_have_another_target(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.parent.parent)
    assert cli.main(["report", str(study), "--target-score", "1", "--to", "elsewhere"]) == 0
    assert all(row["target_seconds"] for row in table(Path("elsewhere/trials.csv")))


def test_last_score_that_is_not_finite_is_not_replaced_by_an_older_one(study: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(study / "runs/single-s1", run)
    told = result(run)
    told["evaluations"].append({**told["evaluations"][-1], "mean": None})
    (run / "result.json").write_text(json.dumps(told))
    trial = read_trial(run, "single", 0)
    assert trial.score is not None
    assert math.isnan(trial.score)
    assert trial.best == max(row["mean"] for row in told["evaluations"][:-1])


def test_study_that_goes_on_elsewhere_says_so(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copied = tmp_path / "studies" / study.name
    shutil.copytree(study, copied)
    plan = json.loads((copied / "study.json").read_text())
    here, plan["machine"] = plan["machine"], f"1{plan['machine']}"  # 12 cores, where here are 2
    (copied / "study.json").write_text(json.dumps(plan))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert cli.main(TWO) == 0
        assert json.loads((copied / "study.json").read_text())["machine"] == f"1{here}; and {here}"
    now = plan["versions"][0]
    plan["machine"], plan["versions"] = here, [{**now, "numpy": "0.1"}]
    (copied / "study.json").write_text(json.dumps(plan))
    for _ in range(2):
        assert cli.main(TWO) == 0
        told = json.loads((copied / "study.json").read_text())
        assert (told["machine"], told["versions"]) == (here, [{**now, "numpy": "0.1"}, now])
    assert capsys.readouterr().err.count("begun elsewhere or with other versions") == 2


def test_run_whose_result_finds_no_room_ends_the_study_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Runner, "_execute", lambda *_: (0, ""))
    assert "its result could not be written; make room" in refusal(capsys, *TWO, "--quiet")
    monkeypatch.setattr(Runner, "_execute", lambda *_: (1, "no"))
    full = OSError(errno.ENOSPC, "No space left on device", "failure.json")
    monkeypatch.setattr("repertory.studies.runner.record_failure", Mock(side_effect=full))
    assert "the study can't go on: [Errno 28] No space left on device: 'failure.json'" in refusal(
        capsys, *TWO, "--quiet"
    )


def test_torn_and_missing_files_are_left_out(study: Path, tmp_path: Path) -> None:
    whole = read_trial(study / "runs/single-s1", "single", 0)
    run = tmp_path / "run"
    shutil.copytree(study / "runs/single-s1", run)
    metrics = (run / "metrics.jsonl").read_bytes()
    (run / "metrics.jsonl").write_bytes(b"}{\n" + metrics[:-20])
    torn = read_trial(run, "single", 0)
    assert torn.evaluations == whole.evaluations
    assert torn.lags == whole.lags[: len(torn.lags)]
    assert len(whole.lags) - len(torn.lags) <= 1
    (run / "result.json").write_text('{"status": "comp')
    cut = read_trial(run, "single", 0)
    assert (cut.status, cut.finished, cut.evaluations, cut.env_steps) == ("interrupted", False, (), 0)
    assert cut.env_steps_per_s == torn.env_steps_per_s is not None
    shutil.rmtree(run)
    assert read_trial(run, "single", 0) == Trial("single", 0, "missing")


def test_speed_leaves_out_what_comes_after_the_budget(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"config": {"seconds": 10.0}}))
    lines = [{"env_steps": 900, "updates": 90, "seconds": 9.0}, {"env_steps": 950, "updates": 90, "seconds": 19.0}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (tmp_path / "result.json").write_text(json.dumps({"status": "completed", "env_steps_per_s": 50.0}))
    trial = read_trial(tmp_path, "single", 0)
    assert (trial.env_steps_per_s, trial.updates_per_s) == (100.0, 10.0)


# Refused before any run


def test_missing_extra_is_named_before_any_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(statistics, "require", require)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'repertory[studies]'" in refusal(capsys, *TWO, "--quiet")
    assert "pip install 'repertory[studies]'" in refusal(capsys, "report", "anything")
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_that_the_disk_cannot_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    full = types.SimpleNamespace(free=1_000)
    monkeypatch.setattr("repertory.studies.runner.shutil", types.SimpleNamespace(disk_usage=lambda _: full))
    assert "give --drop-checkpoints" in refusal(capsys, *TWO, "--quiet")
    assert not list(tmp_path.glob("studies/*/runs/*"))
