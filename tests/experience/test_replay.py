"""Replay: every sample is the naive buffer's, every step has its chance, and none crosses an episode's end."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from naive import Habits, Play, make_spec, poisoned_lanes
from repertory.errors import UserError
from repertory.experience.lanes import LaneStorage
from repertory.experience.replay import Prioritization, Replay, Sample

GAMMA = 0.9
CALM = Habits(terminates=0.0, truncates=0.0, waits=0.0, interrupts=0.0)
ENDS = {"terminated": (True, False), "truncated": (False, True), "both": (True, True)}


def play_in(count: int, length: int, seed: int = 0, habits: Habits = CALM, **spec: Any) -> Play:
    """A play over poisoned lanes."""
    return Play(poisoned_lanes(make_spec(**spec), count, length), np.random.default_rng(seed), habits)


def episode(play: Play, steps: int, end: str | None = "terminated", lane: int = 0) -> None:
    """One episode of that many steps in one lane; without an end it is left running."""
    where = np.array([lane])
    play.begin(where)
    for step in range(steps):
        terminated, truncated = ENDS[end] if end and step == steps - 1 else (False, False)
        play.step(where, np.array([terminated]), np.array([truncated]))


def assert_like_naive(sample: Sample, play: Play, replay: Replay) -> None:
    """Bit for bit; only the order of the n-step sum is free."""
    for row, (lane, slot) in enumerate(zip(sample.lane, sample.slot, strict=True)):
        want = play.naive[lane].expected(int(slot), replay.n_step, GAMMA, replay.next_actions)
        np.testing.assert_array_equal(sample.observation[row], want.observation)
        np.testing.assert_array_equal(sample.next_observation[row], want.next_observation)
        assert sample.next_mask is not None
        np.testing.assert_array_equal(sample.next_mask[row], want.next_mask)
        numbers = (sample.action[row], sample.next_action[row], sample.version[row])
        assert numbers == (want.action, want.next_action, want.version)
        assert sample.discount[row] == np.float32(want.discount)
        np.testing.assert_allclose(sample.reward[row], np.float32(want.reward), rtol=1e-6, atol=1e-6)


def distinct(sample: Sample) -> Sample:
    """Each drawn step once."""
    pairs = np.stack([sample.lane, sample.slot])
    _, first = np.unique(pairs, axis=1, return_index=True)
    return Sample(*[None if x is None else x[first] for x in sample])  # type: ignore[arg-type]


def drawn(sample: Sample) -> set[tuple[int, int]]:
    return set(zip(sample.lane.tolist(), sample.slot.tolist(), strict=True))


@settings(deadline=None, max_examples=120)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 3),
    stack=st.sampled_from([1, 4]),
    padding=st.sampled_from(["repeat", "zero"]),
    dtype=st.sampled_from(["float32", "uint8"]),
    n_step=st.integers(1, 5),
    next_actions=st.booleans(),
    prioritized=st.booleans(),
    room=st.integers(2, 12),
    rate=st.sampled_from([0.02, 0.15, 0.6]),
    pauses=st.lists(st.integers(1, 60), min_size=1, max_size=5),
)
def test_samples_are_the_naive_ones_and_every_possible_step_is_sampled(
    seed: int,
    count: int,
    stack: int,
    padding: str,
    dtype: str,
    n_step: int,
    next_actions: bool,
    prioritized: bool,
    room: int,
    rate: float,
    pauses: list[int],
) -> None:
    habits = Habits(terminates=rate, truncates=rate)
    length = stack + n_step + room
    play = play_in(count, length, seed, habits, stack=stack, padding=padding, dtype=dtype)
    replay = Replay(
        play.lanes,
        n_step=n_step,
        discount=GAMMA,
        next_actions=next_actions,
        prioritization=Prioritization() if prioritized else None,
    )
    for pause in pauses:
        for _ in range(pause):
            play.tick()
        possible = play.candidates(n_step, next_actions)
        if not possible:
            continue
        sample = replay.sample(1500, play.rng, 0.4)
        assert drawn(sample) == possible
        assert_like_naive(distinct(sample), play, replay)


@pytest.mark.parametrize("n", range(1, 6))
@pytest.mark.parametrize("end", ENDS)
def test_n_step_return_with_an_end_at_every_position(n: int, end: str) -> None:
    for before, steps, after in itertools.product((0, 2), range(1, 2 * n + 2), (0, n + 1)):
        play = play_in(1, 64)
        if before:
            episode(play, before, "truncated")
        first = play.naive[0].head
        episode(play, steps, end)
        if after:
            episode(play, after, None)
        replay = Replay(play.lanes, n_step=n, discount=GAMMA)
        rewards = [step.reward for step in play.naive[0].steps if first <= step.slot < first + steps]
        for t in range(steps):
            sample = replay.gather(np.array([0]), np.array([first + t]), np.ones(1, np.float32))
            total, factor, reached = 0.0, 1.0, t
            while reached < min(t + n, steps):
                total, factor, reached = total + factor * rewards[reached], factor * GAMMA, reached + 1
            ends_inside = reached == steps
            bootstraps = not (ends_inside and ENDS[end][0])
            np.testing.assert_allclose(sample.reward[0], total, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(sample.discount[0], factor if bootstraps else 0.0, rtol=1e-6)
            bootstrap_from = play.lanes.observation[0, first + reached]
            np.testing.assert_array_equal(sample.next_observation[0], bootstrap_from)


@pytest.mark.parametrize("n", [1, 3])
def test_no_sample_crosses_an_episodes_end(n: int) -> None:
    lanes = poisoned_lanes(make_spec(masked=False), 1, 40)
    where = np.array([0])
    for number in range(8):
        here = np.full((1, 2, 2), number, np.float32)
        lanes.begin(where, here, None)
        for step in range(1 + number % 4):
            ends = np.array([step == number % 4]), np.array([False])
            if number % 2:
                ends = ends[::-1]
            lanes.append(where, np.array([0]), np.array([10.0**number], np.float32), *ends, here, None, 0)
    sample = Replay(lanes, n_step=n, discount=1.0).sample(500, np.random.default_rng(0))
    np.testing.assert_array_equal(sample.observation, sample.next_observation)
    unit = 10.0 ** sample.observation[:, 0, 0]
    assert set(np.round(sample.reward / unit, 4)) <= {1.0, 2.0, 3.0}


def test_truncated_step_bootstraps_from_its_final_observation() -> None:
    play = play_in(1, 16)
    episode(play, 2, "truncated")
    episode(play, 2, None)
    last = play.naive[0].steps[1]
    sample = Replay(play.lanes, discount=GAMMA).gather(np.array([0]), np.array([1]), np.ones(1, np.float32))
    assert sample.discount[0] == np.float32(GAMMA)
    np.testing.assert_array_equal(sample.next_observation[0], last.next_observation)
    assert not np.array_equal(sample.next_observation[0], play.naive[0].steps[2].observation)


@pytest.mark.parametrize(("end", "discount"), [("terminated", 0.0), ("both", 0.0), ("truncated", GAMMA)])
def test_only_termination_stops_the_bootstrap(end: str, discount: float) -> None:
    play = play_in(1, 16)
    episode(play, 1, end)
    sample = Replay(play.lanes, discount=GAMMA).sample(4, np.random.default_rng(0))
    np.testing.assert_array_equal(sample.discount, np.full(4, discount, np.float32))


def test_next_action_is_minus_one_after_an_end_and_the_action_taken_otherwise() -> None:
    play = play_in(1, 16)
    episode(play, 3, "terminated")
    replay = Replay(play.lanes, next_actions=True)
    sample = replay.gather(np.zeros(3, np.int64), np.arange(3), np.ones(3, np.float32))
    actions = [step.action for step in play.naive[0].steps]
    np.testing.assert_array_equal(sample.next_action, [actions[1], actions[2], -1])


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("prioritization", [None, Prioritization()])
def test_sarsa_leaves_the_truncated_step_out_and_bootstraps_the_others_from_a_known_action(
    n: int, prioritization: Prioritization | None
) -> None:
    play = play_in(1, 32)
    episode(play, 4, "truncated")
    episode(play, 4, None)
    play.interrupt()
    replay = Replay(play.lanes, n_step=n, discount=GAMMA, next_actions=True, prioritization=prioritization)
    sample = distinct(replay.sample(200, np.random.default_rng(0)))
    assert sample.slot.tolist() == [0, 1, 2, 5, 6, 7]
    actions = {step.slot: step.action for step in play.naive[0].steps}
    for slot, action, discount in zip(sample.slot, sample.next_action, sample.discount, strict=True):
        k = min(n, (3 if slot < 4 else 8) - slot)
        assert action == actions[int(slot + k)]
        assert discount == np.float32(GAMMA**k)


@pytest.mark.parametrize("prioritization", [None, Prioritization()])
def test_sarsa_refuses_to_learn_where_every_episode_is_truncated_after_one_step(
    prioritization: Prioritization | None,
) -> None:
    play = play_in(1, 32)
    for _ in range(5):
        episode(play, 1, "truncated")
    replay = Replay(play.lanes, next_actions=True, prioritization=prioritization)
    with pytest.raises(UserError, match="truncated after its first step"):
        replay.sample(4, np.random.default_rng(0))
    episode(play, 2, "truncated")
    assert drawn(replay.sample(4, np.random.default_rng(0))) == {(0, 10)}


def test_uniform_samples_are_uniform_over_steps_of_lanes_filled_unequally() -> None:
    play = play_in(3, 80)
    for _ in range(20):
        episode(play, 1)
    episode(play, 60, lane=1)
    episode(play, 5, None, lane=2)
    possible = sorted(play.candidates(1, False))
    assert len(possible) == 85
    sample = Replay(play.lanes).sample(170_000, np.random.default_rng(0))
    counts = counts_of(sample, possible)
    # 84 degrees of freedom: mean 84, standard deviation 13.
    assert ((counts - 2000) ** 2 / 2000).sum() < 84 + 5 * 13


def counts_of(sample: Sample, possible: list[tuple[int, int]]) -> NDArray[np.float64]:
    """How often each step was drawn; all draws must be among them."""
    keys = sample.lane * 1_000_000 + sample.slot
    counts = np.array([(keys == lane * 1_000_000 + slot).sum() for lane, slot in possible], float)
    assert counts.sum() == len(keys)
    return counts


def prioritized(play: Play, **kwargs: Any) -> Replay:
    return Replay(play.lanes, prioritization=Prioritization(**kwargs))


def steps_of(play: Play) -> tuple[list[tuple[int, int]], NDArray[np.int64], NDArray[np.int64]]:
    """All steps that can be drawn, as pairs and as two columns."""
    possible = sorted(play.candidates(1, False))
    lane, slot = np.array(possible).T
    return possible, lane, slot


def test_prioritised_frequencies_follow_the_errors() -> None:
    play = play_in(2, 40)
    for lane, steps in ((0, 4), (0, 9), (1, 7)):
        episode(play, steps, lane=lane)
    replay = prioritized(play, exponent=0.6)
    possible, lane, slot = steps_of(play)
    errors = np.linspace(0.0, 5.0, len(possible)).astype(np.float32)
    replay.refresh()
    replay.update_priorities(lane, slot, errors)
    p = (errors.astype(float) + 1e-6) ** 0.6
    P = p / p.sum()
    draws = 200_000
    counts = counts_of(replay.sample(draws, np.random.default_rng(1)), possible)
    spread = np.sqrt(draws * P * (1 - P)) + 1.0
    assert (np.abs(counts - draws * P) < 5 * spread).all()


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_undo_the_sampling(beta: float) -> None:
    play = play_in(2, 40)
    for lane, steps in ((0, 6), (1, 8)):
        episode(play, steps, lane=lane)
    replay = prioritized(play, exponent=0.5)
    possible, lane, slot = steps_of(play)
    replay.refresh()
    errors = np.linspace(0.1, 3.0, len(possible)).astype(np.float32)
    replay.update_priorities(lane, slot, errors)
    batches = replay.sample(4 * 8, np.random.default_rng(0), beta).split(4)
    p = (errors.astype(float) + 1e-6) ** 0.5
    P = dict(zip(possible, p / p.sum(), strict=True))
    for lanes, slots, weight in zip(batches.lane, batches.slot, batches.weight, strict=True):
        N = len(possible)
        w = np.array([(N * P[pair]) ** -beta for pair in zip(lanes.tolist(), slots.tolist(), strict=True)])
        np.testing.assert_allclose(weight, w / w.max(), rtol=1e-5)


def shares(replay: Replay) -> dict[tuple[int, int], float]:
    """Each step's priority up to a constant, from the weights that would undo it."""
    sample = distinct(replay.sample(5000, np.random.default_rng(0), importance=1.0))
    share = 1 / sample.weight.astype(float)
    pairs = zip(sample.lane.tolist(), sample.slot.tolist(), strict=True)
    return dict(zip(pairs, share / share.max(), strict=True))


def test_new_steps_get_the_highest_priority_seen() -> None:
    play = play_in(1, 40)
    episode(play, 3)
    replay = prioritized(play, exponent=1.0)
    replay.refresh()
    replay.update_priorities(np.zeros(3, np.int64), np.arange(3), np.array([9.0, 3.0, 4.5], np.float32))
    replay.update_priorities(np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([1.5], np.float32))
    episode(play, 2)
    found = shares(replay)
    np.testing.assert_allclose([found[0, 4], found[0, 5]], 1.0, rtol=1e-5)
    np.testing.assert_allclose([found[0, slot] for slot in range(3)], [1.5 / 9, 3 / 9, 4.5 / 9], rtol=1e-5)


def test_priorities_of_overwritten_steps_are_ignored() -> None:
    play = play_in(1, 8)
    episode(play, 5, None)
    replay = prioritized(play)
    old = replay.sample(64, np.random.default_rng(0))
    never = np.zeros(1, bool)
    for _ in range(20):
        play.step(np.array([0]), never, never)
    replay.refresh()
    replay.update_priorities(old.lane, old.slot, np.full(64, 1e6, np.float32))
    play.step(np.array([0]), never, never)
    found = shares(replay)
    assert set(found) == play.candidates(1, False)
    np.testing.assert_allclose(list(found.values()), 1.0, rtol=1e-5)


def test_priorities_given_after_an_unseen_overwrite_do_not_stick() -> None:
    play = play_in(1, 8)
    episode(play, 5, None)
    replay = prioritized(play, exponent=1.0)
    replay.refresh()
    never = np.zeros(1, bool)
    for _ in range(20):
        play.step(np.array([0]), never, never)
    replay.update_priorities(np.zeros(5, np.int64), np.arange(5), np.full(5, 0.25, np.float32))
    found = shares(replay)
    assert set(found) == play.candidates(1, False)
    np.testing.assert_allclose(list(found.values()), 1.0, rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_error_that_is_no_number_leaves_the_priority_as_it_was(bad: float) -> None:
    play = play_in(1, 16)
    episode(play, 3)
    replay = prioritized(play, exponent=1.0)
    replay.refresh()
    replay.update_priorities(np.zeros(3, np.int64), np.arange(3), np.array([0.5, bad, 0.25], np.float32))
    episode(play, 1)
    found = shares(replay)
    np.testing.assert_allclose([found[0, slot] for slot in (0, 1, 2, 4)], [0.5, 1.0, 0.25, 1.0], rtol=1e-5)


def test_split_cuts_a_sample_into_batches_in_order() -> None:
    play = play_in(2, 40)
    for lane in (0, 1):
        episode(play, 12, lane=lane)
    sample = prioritized(play).sample(12, np.random.default_rng(0), 0.4)
    batches = sample.split(3)
    for whole, parts in zip(sample, batches, strict=True):
        assert parts.shape == (3, 4, *whole.shape[1:])
    np.testing.assert_array_equal(batches.slot.ravel(), sample.slot)
    np.testing.assert_array_equal(batches.weight.max(axis=1), np.ones(3))


@pytest.mark.parametrize("prioritization", [None, Prioritization()])
def test_restored_replay_continues_bit_for_bit(prioritization: Prioritization | None) -> None:
    play = play_in(2, 30, seed=3, habits=Habits(), stack=4)
    kwargs: dict[str, Any] = {"n_step": 3, "discount": GAMMA, "prioritization": prioritization}
    replay = Replay(play.lanes, **kwargs)
    for _ in range(100):
        play.tick()
    sample = replay.sample(32, np.random.default_rng(0))
    replay.update_priorities(sample.lane, sample.slot, sample.reward**2)
    for _ in range(7):
        play.tick()
    lanes = LaneStorage(play.lanes.spec, 2, 30)
    lanes.load_state({name: array.copy() for name, array in play.lanes.state().items()})
    restored = Replay(lanes, **kwargs)
    restored.load_state(replay.state())
    # The same player goes on in both: once with the lanes it had, once more with the others.
    follow(play, lanes)
    rngs = np.random.default_rng(5), np.random.default_rng(5)
    for _ in range(20):
        for _ in range(5):
            play.tick()
        samples = [r.sample(16, rng, 0.4) for r, rng in zip((replay, restored), rngs, strict=True)]
        for ours, theirs in zip(*samples, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        for r, drawn_ in zip((replay, restored), samples, strict=True):
            r.update_priorities(drawn_.lane, drawn_.slot, drawn_.reward**2)


def follow(play: Play, lanes: LaneStorage) -> None:
    """From now on, what is told to the play's lanes is told to these, too."""
    originals = {name: getattr(play.lanes, name) for name in ("begin", "append", "interrupt")}

    def both(name: str) -> Any:
        def call(*args: Any) -> None:
            originals[name](*args)
            getattr(lanes, name)(*args)

        return call

    for name in originals:
        setattr(play.lanes, name, both(name))


def test_state_loaded_into_a_replay_in_use_is_taken_over() -> None:
    play = play_in(1, 16)
    episode(play, 2)
    replay = Replay(play.lanes)
    earlier = replay.state()
    episode(play, 2)
    replay.refresh()
    replay.load_state(earlier)
    assert drawn(replay.sample(200, np.random.default_rng(0))) == play.candidates(1, False)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("next_actions", [False, True])
def test_next_gives_every_step_once_and_in_its_lanes_order(n: int, next_actions: bool) -> None:
    for seed in range(5):
        play = play_in(3, 32, seed, Habits())
        replay = Replay(play.lanes, n_step=n, discount=GAMMA, next_actions=next_actions)
        assert replay.next(1) is None
        possible: set[tuple[int, int]] = set()
        taken: list[tuple[int, int]] = []
        for _ in range(100):
            play.tick()
            possible |= set(play.candidates(n, next_actions))
            while (sample := replay.next(2)) is not None:
                assert_like_naive(sample, play, replay)
                taken += zip(sample.lane.tolist(), sample.slot.tolist(), strict=True)
        assert len(taken) == len(set(taken))
        assert possible >= set(taken)
        assert len(possible - set(taken)) < 2
        for lane in range(3):
            slots = [slot for where, slot in taken if where == lane]
            assert slots == sorted(slots)


def test_guard_keeps_a_distance_from_the_writer() -> None:
    play = play_in(1, 16)
    episode(play, 40, None)
    guarded = Replay(play.lanes, guard=5).sample(500, np.random.default_rng(0))
    unguarded = Replay(play.lanes).sample(500, np.random.default_rng(0))
    assert guarded.slot.min() == unguarded.slot.min() + 5


@pytest.mark.parametrize("batches", [1, 4])
def test_prioritised_samples_are_spread_evenly_over_the_sum_of_priorities_in_each_batch(batches: int) -> None:
    play = play_in(2, 40)
    for lane in (0, 1):
        episode(play, 32, lane=lane)
    replay, rng = prioritized(play, exponent=1.0), np.random.default_rng(0)
    for _ in range(20):
        sample = replay.sample(64, rng, 0.4, batches).split(batches)
        order = sample.lane * 32 + sample.slot  # all priorities are equal, so the sum has 64 parts of one step each
        assert sorted(order.ravel().tolist()) == list(range(64)), "one draw from each part"
        for batch in order:
            assert (batch // batches).tolist() == list(range(64 // batches)), "and each batch goes over the whole sum"
