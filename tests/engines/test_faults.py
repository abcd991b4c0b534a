"""Workers are killed, stopped, crashed, and their environments fail: the run goes on, and says why."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import repertory
from fault_environments import Control
from faults import ENVIRONMENT, Fault, Outcome, lane_problems, run_faults, slot_problems
from inline_runs import inline_run, lanes_of, play, turns, unrolls_of
from repertory.engines.supervisor import WorkerFailed
from repertory.experience.lanes import FINAL, TERMINATED, LaneStorage
from repertory.experience.priorities import PriorityTree
from repertory.experience.replay import Prioritization, Replay
from repertory.runs import checkpoint
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

ONE_NUMBER = EnvironmentSpec(ObservationSpec((1,), "float32", (Part("number", 1),)), 2, False)
ENVIRONMENTS = ENVIRONMENT.rpartition(":")[0]


def check(outcome: Outcome) -> None:
    assert outcome.all_problems() == []


def test_single_survives_faults_of_the_worker_that_does_everything(tmp_path: Path) -> None:
    faults = [
        Fault("agent", "kill", 0.4),
        Fault("agent", "hang", 0.2),
        Fault("agent", "exception", 0.2),
        Fault("evaluator", "kill", "evaluating"),
        Fault("agent", "stop", 0.1),
        Fault("agent", "kill", "saving"),
    ]
    check(run_faults("single", faults, tmp_path))


def test_collectors_that_share_a_process_fail_and_start_again_together(tmp_path: Path) -> None:
    faults = [
        Fault("collector", "exception", 0.3, rank=1),
        Fault("collector", "kill", 0.2, rank=2),
        Fault("collector", "hang", 0.2, rank=3),
        Fault("collector", "stop", "saving"),
    ]
    shared = {"actors": 4, "heartbeat_s": 3.0, "topology": {"actors_per_process": 2}}
    check(run_faults("collectors", faults, tmp_path, **shared))


def test_collectors_survive_faults_of_every_role(tmp_path: Path) -> None:
    faults = [
        Fault("learner", "kill", 0.5),
        Fault("collector", "stop", "saving", rank=1),
        Fault("memory", "crash", 0.2),
        Fault("evaluator", "exception", "evaluating"),
        Fault("collector", "kill", 0.1),
    ]
    check(run_faults("collectors", faults, tmp_path))


def test_apex_keeps_its_priorities_through_faults(tmp_path: Path) -> None:
    faults = [Fault("memory", "kill", 0.7), Fault("learner", "crash", 0.2), Fault("memory", "kill", "saving")]
    check(run_faults("apex", faults, tmp_path))


def test_gorila_survives_faults_of_server_and_worker(tmp_path: Path) -> None:
    faults = [Fault("server", "kill", 0.4, rank=1), Fault("worker", "kill", 0.2, rank=1), Fault("server", "stop", 0.1)]
    check(run_faults("gorila", faults, tmp_path))


def test_hogwild_survives_faults_of_its_workers(tmp_path: Path) -> None:
    faults = [
        Fault("worker", "kill", 0.4, rank=1),
        Fault("evaluator", "kill", "evaluating"),
        Fault("worker", "crash", 0.1),
    ]
    check(run_faults("hogwild", faults, tmp_path))


def test_all_reduce_begins_together_after_faults_of_a_replica(tmp_path: Path) -> None:
    faults = [
        Fault("replica", "kill", 0.4, rank=1),
        Fault("replica", "stop", 0.3, rank=1),
        Fault("replica", "kill", "saving"),
    ]
    outcome = run_faults("all_reduce", faults, tmp_path)
    check(outcome)
    assert all("replica" in harm.named for harm in outcome.harms)


def test_a3c_survives_faults_of_its_workers(tmp_path: Path) -> None:
    faults = [
        Fault("worker", "kill", 0.3, rank=1),
        Fault("worker", "exception", 0.1),
        Fault("worker", "kill", "saving"),
    ]
    check(run_faults("a3c", faults, tmp_path))


def test_ga3c_survives_faults_of_every_role(tmp_path: Path) -> None:
    faults = [
        Fault("trainer", "kill", 0.4, rank=1),
        Fault("agent", "kill", "saving", rank=1),
        Fault("predictor", "crash", 0.3, rank=1),
        Fault("adjuster", "kill", 0.1),
        Fault("agent", "exception", 0.2),
        Fault("predictor", "exception", 0.2),
        Fault("trainer", "exception", 0.1),
        Fault("adjuster", "exception", 0.1),
        Fault("trainer", "stop", 0.2),
    ]
    check(run_faults("ga3c", faults, tmp_path))


def test_impala_drops_half_unrolls_and_learns_from_whole_ones_through_faults(tmp_path: Path) -> None:
    faults = [
        Fault("actor", "kill", 0.4, rank=1),
        Fault("learner", "kill", 0.3),
        Fault("actor", "hang", 0.2),
        Fault("learner", "crash", "saving"),
    ]
    check(run_faults("impala", faults, tmp_path))


def test_learners_that_average_begin_together_after_faults_of_one(tmp_path: Path) -> None:
    faults = [Fault("learner", "kill", 0.3, rank=1), Fault("actor", "kill", 0.2), Fault("learner", "kill", "saving")]
    check(run_faults("impala-2-learners", faults, tmp_path))


@pytest.mark.parametrize("name", ["seed_rl", "seed_rl-dqn"])
def test_central_inference_and_what_it_remembers_survive_faults(name: str, tmp_path: Path) -> None:
    faults = [
        Fault("inference", "kill", 0.3),
        Fault("actor", "kill", 0.2, rank=1),
        Fault("learner", "kill", 0.2),
        Fault("inference", "exception", 0.2),
        Fault("learner", "exception", 0.1),
        Fault("inference", "stop", 0.1),
    ]
    check(run_faults(name, faults, tmp_path))


def test_groups_of_environments_survive_faults_of_policy_and_rollout_workers(tmp_path: Path) -> None:
    faults = [
        Fault("policy_worker", "kill", 0.3),
        Fault("policy_worker", "exception", 0.2),
        Fault("rollout_worker", "kill", 0.2),
        Fault("rollout_worker", "exception", 0.2, rank=1),
        Fault("rollout_worker", "stop", 0.1),
        Fault("learner", "kill", 0.3),
    ]
    check(run_faults("sample_factory", faults, tmp_path))


def test_failing_environment_is_named_with_worker_seed_and_step_and_no_nan_is_learned(tmp_path: Path) -> None:
    kinds = ("exception", "nan observation", "nan reward", "hang")
    faults = [Fault("worker", kind, 0.2, rank=number % 2) for number, kind in enumerate(kinds)]
    outcome = run_faults("parameter_server", faults, tmp_path)
    check(outcome)
    assert outcome.result["restarts"] >= 4
    for path in checkpoint.whole(outcome.directory.checkpoints):
        for name, array in checkpoint.load(path)["learner"]["learned"].items():
            assert np.isfinite(array).all(), name


SHORT: dict[str, Any] = {
    "topology": "collectors",
    "actors": 2,
    "envs_per_actor": 1,
    "env_steps": 6000,
    "eval_episodes": 1,
    "eval_max_steps": 20,
    "eval_every": 5000,
    "quiet": True,
    "name": "run",
    "network_options": {"hidden": (16, 16)},
    "agent_options": {"batch_size": 16, "learning_starts": 200, "replay_ratio": 2.0},
}


def events(run: Path) -> str:
    path = run / "events.jsonl"
    return path.read_text() if path.exists() else ""


def test_run_with_an_environment_that_raises_now_and_then_completes(tmp_path: Path) -> None:
    options = {**SHORT, "env_option": ("chance=0.001",), "runs_dir": tmp_path}
    run = repertory.train(f"{ENVIRONMENTS}:unlucky", **options)
    told = events(run.directory)
    assert run.result["status"] == "completed"
    assert 6000 <= run.result["env_steps"] <= 6002
    assert run.result["restarts"] >= 1
    assert told.count("raised RuntimeError: out of luck") >= 1
    assert "environment 0 of worker" in told
    assert 'raise RuntimeError(\\"out of luck\\")' in told


@pytest.mark.parametrize("code", [0, 2, 3])
def test_environment_that_ends_its_process_costs_a_restart_whatever_the_exit_code(code: int, tmp_path: Path) -> None:
    options = {**SHORT, "env_steps": 1000, "env_option": (f"code={code}", f"mark={tmp_path / 'mark'}")}
    run = repertory.train(f"{ENVIRONMENTS}:quitting", **options, runs_dir=tmp_path)
    assert run.result["status"] == "completed"
    assert run.result["restarts"] in (1, 2), "both actors may get there before one leaves its mark"
    assert f"ended with exit code {code}; started again" in events(run.directory)


def test_script_that_calls_train_without_a_guard_is_told_so_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    wishes = "topology='collectors', env_steps=500, quiet=True"
    script.write_text(f"import repertory\nrepertory.train('CartPole-v1', {wishes})\n")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "put the call under if __name__ == '__main__':" in done.stderr.splitlines()[-1]


def test_worker_that_never_starts_ends_the_run_with_its_own_traceback(tmp_path: Path) -> None:
    options = {
        **SHORT,
        "env_option": (f"home={os.getpid()}",),
        "runs_dir": tmp_path,
        "restarts": 2,
    }
    with pytest.raises(WorkerFailed, match="failed 3 times without getting to work") as failure:
        repertory.train(f"{ENVIRONMENTS}:homesick", **options)
    assert 'raise RuntimeError("far from home")' in str(failure.value)
    assert "environment 0 of worker" in str(failure.value)
    assert '"status": "failed"' in (tmp_path / "run/result.json").read_text()
    servers = psutil.Process().children()
    assert not [worker for server in servers for worker in server.children()]


def test_fault_checks_see_a_stitched_episode() -> None:
    """The walk along the lanes must be able to fail: two episodes joined, an age skipped, a lost end."""
    with closing(inline_run("collectors")) as driver:
        play(driver, 700)
        wiring, lanes = driver.wiring, lanes_of(driver.wiring)
        assert lane_problems(wiring, 0) == []
        before = {name: array.copy() for name, array in lanes.arrays.items()}
        at = (0, 30 + int(np.argmax(lanes.flags[0, 30:] == 0)))
        assert at[1] + 1 < lanes.head[0]
        spoils: dict[str, Any] = {
            "observation": lanes.observation[1, 7],
            "age": lanes.age[at] + 1,
            "flags": FINAL,
            "action": 1 - lanes.action[at],
        }
        for name, value in spoils.items():
            lanes.arrays[name][at] = value
            assert lane_problems(wiring, 0) != [], name
            lanes.arrays[name][...] = before[name]
        assert lane_problems(wiring, 0) == []


def test_fault_checks_see_a_stitched_unroll() -> None:
    """The same for slots; no worker learns, so that the poles fall soon."""
    learning = {"unroll": 40, "batch_unrolls": 2}
    with closing(inline_run("impala", agent=learning, actors=1, envs_per_actor=1)) as driver:
        wiring, (actor,) = driver.wiring, turns(driver)["actor 0"]
        unrolls, slot, end = unrolls_of(wiring), 0, 0
        arrays = unrolls.arrays
        for _ in range(2_000):
            actor.step()
            ready = unrolls.ready()
            if len(ready):
                slot = int(ready[0])
                assert slot_problems(wiring, slot) == []
                end = int(np.argmax(arrays["flags"][slot, :, 0] == TERMINATED))
                if 0 < end < 38:  # a step before it, and two behind
                    break
                unrolls.free(ready)
        assert arrays["flags"][slot, end : end + 2, 0].tolist() == [TERMINATED, FINAL]
        far = arrays["observation"][slot, end, 0] + 1
        inner, over = (slot, end - 1, 0), (slot, end, 0)
        spoils: list[tuple[str, tuple[int, int, int], Any]] = [
            ("observation", inner, far), ("age", inner, arrays["age"][inner] + 1), ("age", (slot, end + 2, 0), 5),
            ("flags", inner, FINAL), ("flags", inner, TERMINATED), ("flags", over, 0), ("flags", (slot, end + 1, 0), 0),
            ("reward", inner, 0), ("log_prob", inner, 0.1), ("action", inner, 1 - arrays["action"][inner]),
        ]  # fmt: skip
        for name, at, value in spoils:
            before = arrays[name][at].copy()
            arrays[name][at] = value
            assert slot_problems(wiring, slot) != [], (name, at, value)
            arrays[name][at] = before
        assert slot_problems(wiring, slot) == []


def test_reader_of_a_replay_takes_over_the_priorities_of_the_one_before() -> None:
    """As a memory server does that is started again, while the lanes were written on."""
    lanes = LaneStorage(ONE_NUMBER, 1, 64)
    leaves = np.zeros(PriorityTree.padded(64))

    def play(steps: int) -> None:
        for _ in range(steps):
            over = np.zeros(1, bool)
            one = np.zeros((1, 1), np.float32)
            lanes.append(np.zeros(1, np.int64), np.zeros(1, np.int8), np.ones(1, np.float32), over, over, one, None, 0)

    lanes.begin(np.zeros(1, np.int64), np.zeros((1, 1), np.float32), None)
    play(60)
    first = Replay(lanes, prioritization=Prioritization(1.0), guard=4, leaves=leaves)
    first.refresh()
    slots = np.arange(30, 60)
    first.update_priorities(np.zeros(30, np.int64), slots, np.arange(30, 60, dtype=np.float32))
    play(20)  # slots 0 to 15 are overwritten by 64 to 79, and no reader looks
    second = Replay(lanes, prioritization=Prioritization(1.0), guard=4, leaves=leaves)
    second.refresh()
    kept = leaves[:64]
    assert np.allclose(kept[30:60], np.arange(30, 60)), "what was learned is kept"
    assert second.highest >= 59, "new steps come first"
    assert (kept[60:64] >= 59).all(), "steps of the meantime"
    assert (kept[16:21] == 0).all(), "no step that is about to be overwritten is sampled"
    assert second.tree is not None
    assert second.tree.total == pytest.approx(kept.sum())


def test_lane_of_a_writer_that_was_killed_between_its_last_two_writes_is_whole() -> None:
    """Its episode had ended, but `start` had not moved: interrupting it must not end it twice."""
    lanes = LaneStorage(ONE_NUMBER, 1, 16)
    lane, one = np.zeros(1, np.int64), np.zeros((1, 1), np.float32)
    lanes.begin(lane, one, None)
    lanes.append(lane, np.zeros(1, np.int8), np.ones(1, np.float32), np.ones(1, bool), np.zeros(1, bool), one, None, 0)
    lanes.start[0] = 0
    lanes.interrupt()
    assert (int(lanes.head[0]), int(lanes.start[0])) == (2, 2)
    assert lanes.flags[0, :3].tolist() == [TERMINATED, FINAL, 0]


def test_control_orders_reach_one_process_once(tmp_path: Path) -> None:
    control = Control(tmp_path / "control")
    control.order(17, "hang")
    assert [control.obey(3), control.obey(17), control.obey(17)] == [0, 2, 0]
