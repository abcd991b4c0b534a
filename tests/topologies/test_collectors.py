"""Many collectors and one learner: the replay ratio holds whatever their speeds, and a small replay is never empty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inline_runs import channel_of, inline_run, lanes_of, plan_of, turns
from repertory.channels.channel import allocate
from repertory.channels.counters import Counters, WorkerStats
from repertory.roles.batches import Pacing
from repertory.topologies.graph import Worker
from repertory.topologies.parts import replay_of
from repertory.topologies.plan import Context, Plan
from repertory.topologies.playing import CALLS_AHEAD, not_ahead


def may_play(plan: Plan, env_steps: int, updates: int) -> bool:
    """Whether a collector plays on, once there are so many of both."""
    stats = WorkerStats(allocate(Counters("counters", 1).fields()))
    stats.played(env_steps)
    stats.learned(updates)
    return not_ahead(Context(plan, Worker(0, "collector", 0), stats), lambda _: None)()


@settings(deadline=None, max_examples=100)
@given(
    ratio=st.sampled_from([0.1, 1.0, 8.0, 33.3]),
    batch_size=st.sampled_from([8, 32, 128]),
    per_call=st.integers(1, 16),
    actors=st.integers(1, 5),
    updates=st.integers(0, 10**5),
)
def test_collectors_may_always_play_as_far_as_two_more_calls_need_and_hardly_further(
    ratio: float, batch_size: int, per_call: int, actors: int, updates: int
) -> None:
    wishes = {"replay_ratio": ratio, "batch_size": batch_size, "updates_per_call": per_call, "n_step": 1}
    plan = replace(plan_of("collectors", actors=actors, envs_per_actor=2, agent=wishes), env_steps=1 << 60)
    one_on_its_way = Pacing(ratio, batch_size, plan.options.learning_starts, updates + per_call)
    needed = one_on_its_way.due_at(per_call)
    window = range(needed - 1, needed + plan.environments + 1)
    allowed = [may_play(plan, env_steps, updates) for env_steps in window]
    assert allowed[0]
    assert not allowed[-1]
    assert allowed == sorted(allowed, reverse=True)
    later = [may_play(plan, env_steps, updates + 1) for env_steps in window]
    assert sum(later) >= sum(allowed)


SPEEDS = {
    "all alike": {},
    "slow learner": {"learner": 0.02},
    "slow memory": {"memory": 0.05},
    "slow collectors": {"collector": 0.02},
    "one fast collector": {"collector 0": 0.05, "collector 1": 0.05},
}


@pytest.mark.parametrize("per_call", [1, 4])
@pytest.mark.parametrize("speeds", SPEEDS)
def test_replay_ratio_of_collectors_stays_in_its_window_whatever_the_speeds(speeds: str, per_call: int) -> None:
    """Turns in random order, some workers seldom: learning is never ahead of playing, nor beyond its window behind."""
    wishes = {"replay_ratio": 2.0, "batch_size": 8, "updates_per_call": per_call, "learning_starts": 100}
    driver = inline_run("collectors", agent=wishes, env_steps=800)
    plan, counters, rng = driver.plan, driver.counters, np.random.default_rng(per_call)
    slow, workers = SPEEDS[speeds], turns(driver)
    names = list(workers)
    chances = np.array([slow.get(name, slow.get(name.split()[0], 1.0)) for name in names])
    behind = []
    for turn in rng.choice(len(names), 200_000, p=chances / chances.sum()):
        for role in workers[names[turn]]:
            role.step()
        due = (counters.env_steps - 100) * 2.0 / 8
        assert counters.updates <= max(due, 0)
        beyond = counters.env_steps - plan.envs_per_actor
        assert beyond < 0 or may_play(plan, beyond, counters.updates)
        behind.append(due - counters.updates)
        if counters.env_steps >= 800:
            break
    driver.close()
    assert counters.env_steps >= 800, "no worker waited for ever"
    window = CALLS_AHEAD * per_call + (plan.environments + plan.envs_per_actor) * 2.0 / 8
    assert max(behind) <= window
    assert counters.updates * 8 / (counters.env_steps - 100) == pytest.approx(2.0, abs=window * 8 / 700)


@pytest.mark.parametrize("topology", ["collectors", "apex"])
@pytest.mark.parametrize("n_step", [1, 2, 12, 40])
def test_smallest_replay_that_is_not_refused_always_has_a_step_to_sample(topology: str, n_step: int) -> None:
    agent = {"n_step": n_step, "learning_starts": 0, "replay_capacity": 6 * (n_step + 1), "batch_size": 4}
    driver = inline_run(topology, agent=agent)
    lanes, priorities = lanes_of(driver.wiring), channel_of(driver.wiring, "experience").reader().priorities()
    replay = replay_of(driver.plan, lanes, priorities, guarded=True)
    every, none, blank = np.arange(6), np.zeros(6, bool), np.zeros((6, 4), np.float32)
    for _ in range(3 * lanes.length):
        lanes.append(every, np.ones(6, np.int64), np.ones(6, np.float32), none, none, blank, None, 0)
        replay.refresh()
        assert (replay.ready > replay.low).all() or lanes.head[0] <= n_step
    driver.close()
