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
from repertory.engines import make_engine, processes, supervisor
from repertory.engines.inline import InlineEngine
from repertory.engines.processes import ProcessesEngine
from repertory.engines.supervisor import CompanyFailed
from repertory.environments import factory
from repertory.errors import EnvironmentFailure
from repertory.runs.config import change
from repertory.runs.presets import defaults
from repertory.runs.staging import stage

SPOILED = f"{Path(__file__).parent / 'fault_environments.py'}:spoiled"
SMALL = {"batch_size": 8, "learning_starts": 100, "replay_ratio": 1.0, "updates_per_call": 1}


def engine_of(topology: str, engine: str, mark: Path, where: str = "", fault: str = "raise") -> Any:
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
    _, plan, agent = stage(options)
    return make_engine(engine, plan, agent)


def play(engine: Any, until: Callable[[], Any], seconds: float = 90) -> None:
    """Rounds, not for ever."""
    end = time.monotonic() + seconds
    for _ in engine.rounds():
        if until():
            return
        assert time.monotonic() < end, engine.notes()


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "mark"


@pytest.mark.parametrize("topology", ["single", "collectors"])
def test_evaluation_that_fails_in_one_thread_costs_a_score_and_the_next_has_new_environments(
    topology: str, mark: Path
) -> None:
    with closing(engine_of(topology, "inline", mark)) as engine:
        engine.start()
        play(engine, lambda: engine.counters.env_steps >= 150)
        mark.touch()
        engine.ask(0)
        mark.unlink()
        assert engine.answer() is None
        assert not engine.evaluating
        (note,) = engine.notes()
        assert note.startswith(f"evaluation at {engine.counters.env_steps} env steps failed: environment 0 of worker")
        assert 'raise RuntimeError("out of milk")' in note
        engine.ask(1)
        assert engine.answer().env_steps == engine.counters.env_steps
        assert engine.notes() == []
        play(engine, lambda: engine.counters.env_steps >= 200)


@pytest.mark.parametrize("topology", ["single", "collectors"])
def test_evaluator_that_cannot_be_built_in_one_thread_costs_a_score(
    topology: str, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(engine_of(topology, "inline", mark)) as engine:
        broken = {"now": True}
        own = factory.make

        def failing(name: str, count: int, *, worker: int = 0, **wishes: Any) -> Any:
            if broken["now"] and worker >= 1_000_000:
                raise EnvironmentFailure("environment 0 could not be built: no licence")
            return own(name, count, worker=worker, **wishes)

        monkeypatch.setattr(factory, "make", failing)
        engine.start()
        play(engine, lambda: engine.counters.env_steps >= 50)
        engine.ask(0)
        assert engine.answer() is None
        assert f"evaluation at {engine.counters.env_steps} env steps failed: environment 0" in engine.notes()[-1]
        broken["now"] = False
        engine.ask(1)
        assert engine.answer() is not None


@pytest.mark.parametrize("fault", ["raise", "exit"])
def test_evaluation_that_fails_in_its_process_is_withdrawn_and_the_next_is_tried_once(fault: str, mark: Path) -> None:
    mark.touch()
    with closing(engine_of("collectors", "processes", mark, "evaluator", fault)) as engine:
        engine.start()
        play(engine, lambda: engine.counters.env_steps >= 100)
        engine.ask(0)
        play(engine, lambda: not engine.evaluating)
        *before, last = engine.notes()
        assert [note.partition(";")[2].split("\n")[0].strip() for note in before] == ["started again"]
        assert last.startswith("evaluation at ")
        assert "env steps failed: evaluator 0 ended with exit code" in last
        assert "; training goes on" in last
        then = engine.counters.env_steps
        play(engine, lambda: engine.counters.env_steps > then + 100)
        engine.ask(1)
        play(engine, lambda: not engine.evaluating)
        (again,) = engine.notes()
        assert "env steps failed: evaluator 0" in again
        mark.unlink()
        engine.ask(2)
        play(engine, lambda: engine.evaluations._arrays["answered"][0] == engine.evaluations._arrays["asked"][0])
        assert engine.answer().env_steps > then
        engine.settle()
        assert engine.metrics()["restarts"] == 1


@pytest.mark.parametrize("when", ["replaced", "brought back"])
def test_evaluator_that_can_not_be_started_again_costs_a_score_and_the_run_goes_on(
    when: str, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = supervisor.start_worker

    def failing(kit: Any, crew: tuple[int, ...], name: str) -> Any:
        if name.startswith("evaluator"):
            raise CompanyFailed(f"{name} could not be started: no more processes")
        return own(kit, crew, name)

    mark.touch()
    with closing(engine_of("collectors", "processes", mark, "evaluator", "exit")) as engine:
        engine.start()
        if when == "replaced":
            monkeypatch.setattr(supervisor, "start_worker", failing)
        engine.ask(0)
        play(engine, lambda: not engine.evaluating)
        monkeypatch.setattr(supervisor, "start_worker", failing)
        engine.ask(1)
        assert not engine.evaluating
        assert "env steps failed: evaluator 0 could not be started: no more processes; training" in engine.notes()[-1]
        then = engine.counters.env_steps
        play(engine, lambda: engine.counters.env_steps > then + 100)
        assert engine.settle()["env_steps"] > then
        monkeypatch.setattr(supervisor, "start_worker", own)
        mark.unlink()
        engine.start()
        engine.ask(2)
        play(engine, lambda: engine.evaluations._arrays["answered"][0] == engine.evaluations._arrays["asked"][0])
        assert engine.answer() is not None


def test_member_that_was_never_started_counts_as_gone() -> None:
    assert (
        supervisor.Supervisor._gone(supervisor.Supervisor.__new__(supervisor.Supervisor), supervisor.Watched(())) != ""
    )


@pytest.mark.parametrize("topology", ["single", "collectors"])
def test_run_that_an_environment_ends_in_one_thread_is_told_and_settles(topology: str, mark: Path) -> None:
    with closing(engine_of(topology, "inline", mark)) as engine:
        engine.start()
        play(engine, lambda: engine.counters.updates >= 5)
        mark.touch()
        with pytest.raises(EnvironmentFailure):
            play(engine, lambda: False)
        (note,) = engine.notes()
        assert note.startswith("the run ends: environment 0 of worker 0")
        assert 'raise RuntimeError("out of milk")' in note
        state = engine.settle()
        assert state["env_steps"] == engine.counters.env_steps > 100
        assert state["updates"] == engine.counters.updates >= 5
        mark.unlink()
    with closing(engine_of(topology, "inline", mark)) as again:
        again.load_state(state)
        again.start()
        play(again, lambda: again.counters.updates >= state["updates"] + 5)


def failed(mark: Path) -> ProcessesEngine:
    """A company at work, whose collectors have failed more often than they may, after a first saving of the learner."""
    engine: ProcessesEngine = engine_of("collectors", "processes", mark, "collector")
    engine.start()
    play(engine, lambda: engine.counters.updates >= 20 and engine.stage.safe().load().updates > 0)
    mark.touch()
    with pytest.raises(CompanyFailed, match="failed 2 times without getting to work"):
        play(engine, lambda: False)
    return engine


def test_company_that_failed_is_told_and_its_state_goes_on(mark: Path) -> None:
    with closing(failed(mark)) as engine:
        last = engine.notes()[-1]
        assert "; it failed 2 times without getting to work; the run ends" in last
        assert 'raise RuntimeError("out of milk")' in last
        began = time.monotonic()
        state = engine.settle()
        assert time.monotonic() - began < processes.FAILED_SETTLE_S, "who is gone is not waited for"
        assert state["env_steps"] == engine.counters.env_steps >= 100
        assert state["updates"] == engine.stage.safe().load().updates >= 20, "the learner came to rest"
        assert engine.stage.ledger["settled"][engine.stage.indices("learner")] == engine.stage.phase[1]
        state = {**state, "lanes": {name: np.copy(array) for name, array in state["lanes"].items()}}
    mark.unlink()
    with closing(engine_of("collectors", "processes", mark, "collector")) as again:
        again.load_state(state)
        again.start()
        play(again, lambda: again.counters.env_steps >= state["env_steps"] + 50)


def test_last_words_are_not_taken_for_those_of_a_failure_before(mark: Path) -> None:
    """A worker recovers once, fails again and is gone before the driver looks."""
    with closing(engine_of("collectors", "processes", mark, "collector")) as engine:
        engine.start()
        play(engine, lambda: engine.counters.env_steps >= 20)
        (first,) = [one for one in engine.supervisor.watched if str(one.member) == "collector 0"]
        mark.touch()
        first.process.join(60)
        assert first.process.exitcode == 1
        engine.supervisor.check()
        told = [note for note in engine.notes() if note.startswith("collector 0")]
        assert [note.partition(":")[0] for note in told] == [
            "collector 0 met a failure",
            "collector 0 ended with exit code 1",
        ]
        assert all('raise RuntimeError("out of milk")' in note for note in told)


def test_company_that_failed_settles_without_those_who_do_not_come_to_rest(
    mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "FAILED_SETTLE_S", 0.5)
    with closing(failed(mark)) as engine:
        (learner,) = [one for one in engine.supervisor.watched if one.member.role == "learner"]
        os.kill(learner.process.pid, signal.SIGSTOP)
        state = engine.settle()
        assert 0 < state["updates"] == engine.stage.safe().load().updates, "what was put away counts"
        assert engine.counters.updates == state["updates"]


def test_what_happens_while_the_last_checkpoint_is_made_is_among_the_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = InlineEngine.settle

    def failing(engine: InlineEngine) -> dict[str, Any]:
        engine._notes.append("collector 1 was ended by SIGKILL; started again")
        return settle(engine)

    monkeypatch.setattr(InlineEngine, "settle", failing)
    run = repertory.train(
        "CartPole-v1", env_steps=200, checkpoint_every=1000, eval_episodes=1, quiet=True, runs_dir=tmp_path
    )
    events = (run.directory / "events.jsonl").read_text()
    assert "collector 1 was ended by SIGKILL" in events
