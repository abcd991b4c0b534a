"""After a failure: an evaluation that fails costs a score, and a run that fails tells why and can be saved."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import repertory
from repertory.engines import make_driver, processes, supervisor
from repertory.engines.driver import Driver
from repertory.engines.inline import InlineHost
from repertory.engines.supervisor import WorkerFailed
from repertory.environments import factory
from repertory.errors import EnvironmentFailure
from repertory.runs.config import change
from repertory.runs.launch import prepare
from repertory.runs.presets import defaults
from repertory.topologies.graph import Workers

SPOILED = f"{Path(__file__).parents[1] / 'fault_environments.py'}:spoiled"
SMALL = {"batch_size": 8, "learning_starts": 100, "replay_ratio": 1.0, "updates_per_call": 1}


def driver_of(topology: str, engine: str, mark: Path, where: str = "", fault: str = "raise") -> Any:
    options = change(
        defaults(SPOILED, topology=topology),
        {
            "engine": engine,
            "actors": 1 if topology == "single" else 2,
            "envs_per_actor": 1,
            "env_steps": 10**6,
            "eval_episodes": 2,
            "eval_max_steps": 20,
            "env_option": (f"mark={mark}", f"where={where}", f"fault={fault}"),
            "network": {"hidden": [8]},
            "agent": SMALL,
            "restarts": 1,
        },
    )
    return make_driver(engine, prepare(options)[1])


def play(driver: Any, until: Callable[[], Any], seconds: float = 90) -> None:
    """Rounds, not for ever."""
    end = time.monotonic() + seconds
    for _ in driver.rounds():
        if until():
            return
        assert time.monotonic() < end, driver.notes()


def supervisor_of(driver: Driver) -> supervisor.Supervisor:
    assert isinstance(driver.host, processes.ProcessesHost)
    return driver.host.supervisor


def copied(state: Any) -> Any:
    """What a checkpoint has, without the run's own memory."""
    if isinstance(state, dict):
        return {name: copied(part) for name, part in state.items()}
    return np.copy(state) if isinstance(state, np.ndarray) else state


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


@pytest.mark.parametrize("topology", ["single", "collectors"])
def test_evaluation_that_fails_in_one_thread_costs_a_score_and_the_next_has_new_environments(
    topology: str, mark: Path
) -> None:
    with closing(driver_of(topology, "inline", mark)) as driver:
        driver.start()
        play(driver, lambda: driver.counters.env_steps >= 150)
        mark.touch()
        driver.ask(0)
        mark.unlink()
        assert driver.next_evaluation() is None
        assert not driver.evaluating
        (note,) = driver.notes()
        assert note.startswith(f"evaluation at {driver.counters.env_steps} env steps failed: environment 0 of worker")
        assert 'raise RuntimeError("out of milk")' in note
        driver.ask(1)
        assert driver.next_evaluation().env_steps == driver.counters.env_steps
        assert driver.notes() == []
        play(driver, lambda: driver.counters.env_steps >= 200)


@pytest.mark.parametrize("topology", ["single", "collectors"])
def test_evaluator_that_cannot_be_built_in_one_thread_costs_a_score(
    topology: str, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(driver_of(topology, "inline", mark)) as driver:
        broken = {"now": True}
        own = factory.make

        def failing(name: str, count: int, *, worker: int = 0, **wishes: Any) -> Any:
            if broken["now"] and worker >= 1_000_000:
                raise EnvironmentFailure("environment 0 could not be built: no licence")
            return own(name, count, worker=worker, **wishes)

        monkeypatch.setattr(factory, "make", failing)
        driver.start()
        play(driver, lambda: driver.counters.env_steps >= 50)
        driver.ask(0)
        assert driver.next_evaluation() is None
        assert f"evaluation at {driver.counters.env_steps} env steps failed: environment 0" in driver.notes()[-1]
        broken["now"] = False
        driver.ask(1)
        assert driver.next_evaluation() is not None


@pytest.mark.parametrize("fault", ["raise", "exit"])
def test_evaluation_that_fails_in_its_process_is_withdrawn_and_the_next_is_tried_once(fault: str, mark: Path) -> None:
    mark.touch()
    with closing(driver_of("collectors", "processes", mark, "evaluator", fault)) as driver:
        driver.start()
        play(driver, lambda: driver.counters.env_steps >= 100)
        driver.ask(0)
        play(driver, lambda: not driver.evaluating)
        *before, last = driver.notes()
        assert [note.partition(";")[2].split("\n")[0].strip() for note in before] == ["started again"]
        assert last.startswith("evaluation at ")
        assert "env steps failed: evaluator 0 ended with exit code" in last
        assert "; training goes on" in last
        then = driver.counters.env_steps
        play(driver, lambda: driver.counters.env_steps > then + 100)
        driver.ask(1)
        play(driver, lambda: not driver.evaluating)
        (again,) = driver.notes()
        assert "env steps failed: evaluator 0" in again
        mark.unlink()
        driver.ask(2)
        play(driver, lambda: driver.wiring.evaluation.replied)
        assert driver.next_evaluation().env_steps > then
        driver.settle()
        assert driver.metrics()["restarts"] == 1


@pytest.mark.parametrize("when", ["replaced", "brought back"])
def test_evaluator_that_can_not_be_started_again_costs_a_score_and_the_run_goes_on(
    when: str, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = supervisor.start_worker

    def failing(given: Any, workers: tuple[int, ...], name: str) -> Any:
        if name.startswith("evaluator"):
            raise WorkerFailed(f"{name} could not be started: no more processes")
        return own(given, workers, name)

    mark.touch()
    with closing(driver_of("collectors", "processes", mark, "evaluator", "exit")) as driver:
        driver.start()
        if when == "replaced":
            monkeypatch.setattr(supervisor, "start_worker", failing)
        driver.ask(0)
        play(driver, lambda: not driver.evaluating)
        monkeypatch.setattr(supervisor, "start_worker", failing)
        driver.ask(1)
        assert not driver.evaluating
        assert "env steps failed: evaluator 0 could not be started: no more processes; training" in driver.notes()[-1]
        then = driver.counters.env_steps
        play(driver, lambda: driver.counters.env_steps > then + 100)
        assert driver.settle()["env_steps"] > then
        monkeypatch.setattr(supervisor, "start_worker", own)
        mark.unlink()
        driver.start()
        driver.ask(2)
        play(driver, lambda: driver.wiring.evaluation.replied)
        assert driver.next_evaluation() is not None


def test_worker_that_was_never_started_counts_as_gone() -> None:
    never = supervisor.Watched((), Workers("actor", 0, list))
    assert supervisor.Supervisor._gone(supervisor.Supervisor.__new__(supervisor.Supervisor), never) != ""


@pytest.mark.parametrize("topology", ["single", "collectors"])
def test_run_that_an_environment_ends_in_one_thread_is_told_and_settles(topology: str, mark: Path) -> None:
    with closing(driver_of(topology, "inline", mark)) as driver:
        driver.start()
        play(driver, lambda: driver.counters.updates >= 5)
        mark.touch()
        with pytest.raises(EnvironmentFailure):
            play(driver, lambda: False)
        (note,) = driver.notes()
        assert note.startswith("the run ends: environment 0 of worker 0")
        assert 'raise RuntimeError("out of milk")' in note
        state = driver.settle()
        assert state["env_steps"] == driver.counters.env_steps > 100
        assert state["updates"] == driver.counters.updates >= 5
        mark.unlink()
    with closing(driver_of(topology, "inline", mark)) as again:
        again.load_state(state)
        again.start()
        play(again, lambda: again.counters.updates >= state["updates"] + 5)


def failed(mark: Path) -> Driver:
    """A run at work, whose collectors have failed more often than they may, after a first saving of the learner."""
    driver: Driver = driver_of("collectors", "processes", mark, "collector")
    driver.start()
    play(driver, lambda: driver.counters.updates >= 20 and driver.wiring.topology.learned.updates > 0)
    mark.touch()
    with pytest.raises(WorkerFailed, match="failed 2 times without getting to work"):
        play(driver, lambda: False)
    return driver


def test_run_that_failed_is_told_and_its_state_goes_on(mark: Path) -> None:
    with closing(failed(mark)) as driver:
        last = driver.notes()[-1]
        assert "; it failed 2 times without getting to work; the run ends" in last
        assert 'raise RuntimeError("out of milk")' in last
        began = time.monotonic()
        state = driver.settle()
        assert time.monotonic() - began < processes.FAILED_SETTLE_S, "dead workers are not waited for"
        assert state["env_steps"] == driver.counters.env_steps >= 100
        assert state["updates"] == driver.wiring.topology.learned.updates >= 20, "the learner came to rest"
        wiring = driver.wiring
        learner = wiring.indices(lambda group: group.name == "learner")
        assert wiring.counters.arrays["settled"][learner] == wiring.phase[1]
        state = copied(state)
    mark.unlink()
    with closing(driver_of("collectors", "processes", mark, "collector")) as again:
        again.load_state(state)
        again.start()
        play(again, lambda: again.counters.env_steps >= state["env_steps"] + 50)


def test_last_words_are_not_taken_for_those_of_a_failure_before(mark: Path) -> None:
    """A worker recovers once, fails again and is gone before the driver looks."""
    with closing(driver_of("collectors", "processes", mark, "collector")) as driver:
        driver.start()
        play(driver, lambda: driver.counters.env_steps >= 20)
        (first,) = [one for one in supervisor_of(driver).watched if str(one.workers[0]) == "collector 0"]
        mark.touch()
        first.process.join(60)
        assert first.process.exitcode == 1
        supervisor_of(driver).check()
        told = [note for note in driver.notes() if note.startswith("collector 0")]
        assert [note.partition(":")[0] for note in told] == [
            "collector 0 met a failure",
            "collector 0 ended with exit code 1",
        ]
        assert all('raise RuntimeError("out of milk")' in note for note in told)


def test_run_that_failed_settles_without_workers_that_do_not_come_to_rest(
    mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FAILED_SETTLE_S", 0.5)
    with closing(failed(mark)) as driver:
        (learner,) = [one for one in supervisor_of(driver).watched if one.group.name == "learner"]
        os.kill(learner.process.pid, signal.SIGSTOP)
        state = driver.settle()
        assert 0 < state["updates"] == driver.wiring.topology.learned.updates, "what was put away counts"
        assert driver.counters.updates == state["updates"]


def test_what_happens_while_the_last_checkpoint_is_made_is_among_the_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = InlineHost.rest

    def failing(host: InlineHost) -> None:
        host._notes.append("collector 1 was ended by SIGKILL; started again")
        rest(host)

    monkeypatch.setattr(InlineHost, "rest", failing)
    run = repertory.train(
        "CartPole-v1", env_steps=200, checkpoint_every=1000, eval_episodes=1, quiet=True, runs_dir=tmp_path
    )
    events = (run.directory / "events.jsonl").read_text()
    assert "collector 1 was ended by SIGKILL" in events
