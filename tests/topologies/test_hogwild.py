"""Asynchronous methods without locks: returns and updates are the papers', and the shared vector survives its writers.

Mnih et al. 2016 (one-step Q and Sarsa: algorithm 1; n-step Q: algorithm S2), Niu et al. 2011 (Hogwild).
"""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inline_runs import channel_of, inline_run, plan_of, play, roles, turns
from naive import Habits, Play, Step, make_spec, poisoned_lanes
from repertory.agents.agent import LearnerState, Transitions
from repertory.channels.snapshot import SharedState
from repertory.engines.driver import Driver
from repertory.experience.replay import Replay, Sample
from repertory.roles.hogwild_worker import HogwildWorker, Segments

GAMMA = 0.9
CALM = Habits(terminates=0.0, truncates=0.0, waits=0.0, interrupts=0.0)


def play_in(count: int, length: int, seed: int = 0, habits: Habits = CALM) -> Play:
    return Play(poisoned_lanes(make_spec(), count, length), np.random.default_rng(seed), habits)


def twin_returns(segment: list[Step]) -> list[tuple[float, float, NDArray[Any]]]:
    """Algorithm S2: for i from t - 1 down to t_start, R ← r_i + γ R.

    R begins with 0 for a terminal s_t, else with max_a Q(s_t, a; θ⁻), of which only the factor and s_t are kept:
    R = sum + factor · max_a Q(s_t, a; θ⁻). Where episodes end inside the segment, it begins anew.
    """
    returns = []
    for i in reversed(range(len(segment))):
        step = segment[i]
        if i == len(segment) - 1 or step.ended:
            R, factor, s_t = 0.0, 0.0 if step.terminated else 1.0, step.next_observation
        R = step.reward + GAMMA * R
        factor = GAMMA * factor
        returns.append((R, factor, s_t))
    return returns[::-1]


def assert_like_twin(sample: Sample | None, segments: list[list[Step]]) -> None:
    steps = [
        (lane, step, want)
        for lane, steps in enumerate(segments)
        for step, want in zip(steps, twin_returns(steps), strict=True)
    ]
    if not steps:
        assert sample is None
        return
    assert sample is not None
    assert list(zip(sample.lane.tolist(), sample.slot.tolist(), strict=True)) == [
        (lane, s.slot) for lane, s, _ in steps
    ]
    for row, (_, step, (R, factor, s_t)) in enumerate(steps):
        np.testing.assert_array_equal(sample.observation[row], step.observation)
        np.testing.assert_array_equal(sample.next_observation[row], s_t)
        assert sample.action[row] == step.action
        np.testing.assert_allclose(sample.reward[row], R, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(sample.discount[row], factor, rtol=1e-6)
        assert sample.weight[row] == 1.0


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 3),
    rate=st.sampled_from([0.0, 0.1, 0.4]),
    ticks=st.lists(st.integers(1, 5), min_size=1, max_size=40),
)
def test_every_state_of_a_segment_gets_the_longest_return_that_it_allows(
    seed: int, count: int, rate: float, ticks: list[int]
) -> None:
    play = play_in(count, 40, seed, Habits(terminates=rate, truncates=rate))
    replay = Replay(play.lanes, n_step=5, discount=GAMMA)
    taken = [0] * count
    for pause in ticks:
        for _ in range(pause):
            play.tick()
        segments = [naive.steps[done:] for naive, done in zip(play.naive, taken, strict=True)]
        taken = [len(naive.steps) for naive in play.naive]
        assert_like_twin(replay.unroll(), segments)


@pytest.mark.parametrize("end", [(True, False), (False, True)], ids=["terminated", "truncated"])
@pytest.mark.parametrize(("first", "second"), itertools.product(range(5), repeat=2))
def test_returns_of_a_segment_with_ends_at_every_position(end: tuple[bool, bool], first: int, second: int) -> None:
    play = play_in(1, 64)
    replay = Replay(play.lanes, n_step=5, discount=GAMMA)
    lane = np.array([0])
    for t in range(5):
        if not play.frames[0]:
            play.begin(lane)
        ends = end if t in (first, second) else (False, False)
        play.step(lane, np.array([ends[0]]), np.array([ends[1]]))
    assert_like_twin(replay.unroll(), [play.naive[0].steps])
    assert replay.unroll() is None


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 3), sarsa=st.booleans())
def test_one_step_methods_learn_from_every_step_once_as_soon_as_it_is_whole(seed: int, count: int, sarsa: bool) -> None:
    play = play_in(count, 40, seed, Habits(interrupts=0.0))
    replay = Replay(play.lanes, n_step=1, discount=GAMMA, next_actions=sarsa)
    segments = Segments(replay, 5, whole=False)
    seen: list[tuple[int, int]] = []
    for _ in range(150):
        play.tick()
        taken = segments.take()
        if taken is None:
            continue
        sample = taken[0]
        for row in np.flatnonzero(sample.weight):
            lane, slot = int(sample.lane[row]), int(sample.slot[row])
            seen.append((lane, slot))
            want = play.naive[lane].expected(slot, 1, GAMMA, sarsa)
            assert sample.reward[row] == np.float32(want.reward)
            assert sample.discount[row] == np.float32(want.discount)
            assert sample.next_action[row] == want.next_action
            np.testing.assert_array_equal(sample.next_observation[row], want.next_observation)
    whole = {
        (lane, step.slot)
        for lane, naive in enumerate(play.naive)
        for index, step in enumerate(naive.steps)
        if naive.is_complete(index, 1, sarsa)
    }
    assert len(seen) == len(set(seen))
    assert set(seen) == whole


@pytest.mark.parametrize("whole", [False, True])
def test_update_is_due_after_so_many_steps_or_when_the_episode_ends(whole: bool) -> None:
    play = play_in(1, 64, 3, Habits(terminates=0.1, truncates=0.1, waits=0.0, interrupts=0.0))
    segments = Segments(Replay(play.lanes, n_step=5 if whole else 1, discount=GAMMA), 5, whole=whole)
    since = updates = 0
    for _ in range(500):
        before = len(play.naive[0].steps)
        play.tick()
        if len(play.naive[0].steps) == before:
            continue
        since += 1
        taken = segments.take()
        due = since == 5 or play.naive[0].steps[-1].ended
        assert (taken is not None and taken[1]) == due
        if whole and due:
            assert taken is not None
            assert int((taken[0].weight > 0).sum()) == since
        since, updates = (0, updates + 1) if due else (since, updates)
    assert updates > 80


@pytest.mark.parametrize("whole", [False, True])
def test_ends_in_several_environments_do_not_shorten_a_segment(whole: bool) -> None:
    """An update is due when one of them has taken so many steps; final observations are no steps."""
    play = play_in(3, 64, 3, Habits(terminates=0.2, truncates=0.2, waits=0.0, interrupts=0.0))
    segments = Segments(Replay(play.lanes, n_step=5 if whole else 1, discount=GAMMA), 5, whole=whole)
    began, updates, lengths = [0] * 3, 0, set()
    for _ in range(500):
        play.tick()
        done = [len(naive.steps) for naive in play.naive]
        since = [now - then for now, then in zip(done, began, strict=True)]
        taken = segments.take()
        assert (taken is not None and taken[1]) == (max(since) >= 5)
        if max(since) >= 5:
            began, updates = done, updates + 1
            lengths.add(max(since))
    assert lengths == {5}
    assert updates > 40


@pytest.mark.parametrize("method", ["one_step_q", "n_step_q", "sarsa", "replay"])
def test_worker_applies_the_sum_of_its_steps_gradients(method: str) -> None:
    """Step by step by hand, with the weights of the segment's start; sums in another order, so 1e-4 of a change."""
    driver = inline_run("hogwild", {"method": method, "target_steps": 50}, actors=1, envs_per_actor=1, env_steps=10**6)
    actor, worker = turns(driver)["worker 0"]
    assert isinstance(worker, HogwildWorker)
    agent, store, taken = driver.agent, shared_state(driver), []
    take = worker._take
    worker._take = lambda: taken.append(take()) or taken[-1]  # type: ignore[func-returns-value,method-assign]
    key, checked = jax.random.key(0), 0
    start = copied(store.live())
    while checked < 40:
        updates = worker.stats.updates
        actor.step()
        target = np.array(store.live().target)
        worker.step()
        if worker.stats.updates == updates:
            continue
        total: Any = 0.0
        for sample, _ in filter(None, taken):
            rows = np.flatnonzero(sample.weight)
            for row in rows:
                one = Transitions(*[None if x is None else x[row : row + 1] for x in sample[:8]])
                gradient = agent.gradient(start.weights, target, one, key)[0]
                total = total + np.asarray(gradient) / (len(rows) if method == "replay" else 1)
        after = agent.optimizer_step(start, agent.clip(jnp.asarray(total)))
        change = np.abs(np.asarray(after.weights) - np.asarray(start.weights)).max()
        np.testing.assert_allclose(store.live().weights, after.weights, rtol=0, atol=1e-4 * change)
        taken.clear()
        start, checked = copied(store.live()), checked + 1
    driver.close()


def shared_state(driver: Driver) -> SharedState:
    """The one live copy."""
    found: SharedState = channel_of(driver.wiring, "learned").sharer()
    return found


def copied(state: LearnerState) -> LearnerState:
    """As it is now."""
    return jax.tree_util.tree_map(jnp.array, state)  # type: ignore[no-any-return]


@pytest.mark.parametrize("method", ["one_step_q", "n_step_q"])
def test_target_is_copied_once_in_so_many_env_steps_of_all_workers(method: str) -> None:
    driver = inline_run("hogwild", {"method": method, "target_steps": 100}, env_steps=1_500)
    live = shared_state(driver).live()
    target, copies = live.target.copy(), []
    workers = turns(driver)
    while driver.counters.env_steps < 1_500:
        for name in ("worker 0", "worker 1", "worker 2"):
            for role in workers[name]:
                role.step()
                if not np.array_equal(live.target, target):
                    np.testing.assert_array_equal(live.target, live.weights)
                    target = live.target.copy()
                    copies.append(driver.counters.env_steps)
    driver.close()
    assert [env_steps // 100 for env_steps in copies] == list(range(1, len(copies) + 1))
    assert len(copies) >= 14
    assert all(env_steps % 100 < 40 for env_steps in copies), "with the next update"


def test_resumed_run_copies_the_target_when_it_is_due_and_not_at_once() -> None:
    options = {"target_steps": 1_000}
    first = inline_run("hogwild", options)
    play(first, 1_200)
    saved = first.settle()
    second = inline_run("hogwild", options, begin=False, env_steps=2_500)
    second.load_state(saved)
    second.start()
    live = shared_state(second).live()
    target = live.target.copy()
    play(second, 1_900)
    np.testing.assert_array_equal(live.target, target)
    assert not np.array_equal(live.weights, target)
    play(second, 2_100)
    assert not np.array_equal(live.target, target)
    first.close()
    second.close()


def test_workers_anneal_to_one_of_three_rates_with_the_papers_chances() -> None:
    """0.1, 0.01 and 0.5 with 0.4, 0.3 and 0.3: of 3,000 workers each share is within five standard deviations."""
    plan, ends = plan_of("hogwild"), []
    for seed in range(1_000):
        epsilon = replace(plan, seed=seed).compose().epsilon
        assert epsilon is not None
        for rank in range(3):
            assert epsilon(rank)(0) == 1.0
            ends.append(epsilon(rank)(10**9))
    for rate, chance in ((0.1, 0.4), (0.01, 0.3), (0.5, 0.3)):
        assert np.isclose(ends, rate).mean() == pytest.approx(chance, abs=0.045)


def test_what_a_worker_adds_is_its_own_step_whatever_others_make_of_the_weights_meanwhile() -> None:
    """A difference of new and old weights would take back what others add between the two looks at them."""
    with closing(inline_run("hogwild", begin=True)) as driver:
        (worker, *_) = roles(driver, HogwildWorker)
        state = jax.tree_util.tree_map(np.array, worker.store.live())
        total = np.random.default_rng(0).normal(size=driver.agent.layout.size).astype(np.float32)
        changes = [
            np.asarray(worker._change(state._replace(weights=state.weights + shift), total, 1e-3)[0])
            for shift in (np.float32(0.0), np.float32(1000.0))
        ]
        assert np.abs(changes[0]).min() > 0
        np.testing.assert_array_equal(changes[0], changes[1])
