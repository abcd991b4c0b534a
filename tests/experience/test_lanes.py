"""Lanes: what was written once is read whole, whatever wraps around, ends or is interrupted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naive import Habits, Play, make_spec, poisoned_lanes
from repertory.errors import UserError
from repertory.experience.lanes import FINAL, TERMINATED, TRUNCATED, LaneStorage
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

ATARI = EnvironmentSpec(ObservationSpec((84, 84), "uint8", (Part("pixel", 84 * 84),), stack=4), actions=18)
CALM = Habits(terminates=0.0, truncates=0.0, waits=0.0, interrupts=0.0)


def everything(lanes: LaneStorage) -> np.ndarray[Any, Any]:
    """Numbers of all lanes."""
    return np.arange(lanes.count)


def begun(stack: int = 1, padding: Any = "repeat", count: int = 2, length: int = 8) -> Play:
    """A play in which every lane's first episode has begun."""
    play = Play(poisoned_lanes(make_spec(stack, padding), count, length), np.random.default_rng(0), CALM)
    play.begin(everything(play.lanes))
    return play


def go_on(play: Play, steps: int = 1) -> None:
    """Steps in every lane that end nothing."""
    for _ in range(steps):
        never = np.zeros(play.lanes.count, bool)
        play.step(everything(play.lanes), never, never)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 3),
    stack=st.sampled_from([1, 4]),
    padding=st.sampled_from(["repeat", "zero"]),
    length=st.integers(8, 20),
    ticks=st.integers(1, 150),
)
def test_every_observation_in_the_ring_is_read_back_as_it_was_seen(
    seed: int, count: int, stack: int, padding: Any, length: int, ticks: int
) -> None:
    lanes = poisoned_lanes(make_spec(stack, padding), count, length)
    play = Play(lanes, np.random.default_rng(seed), Habits())
    for _ in range(ticks):
        play.tick()
    for number, naive in enumerate(play.naive):
        assert lanes.head[number] == naive.head
        oldest = naive.head - length + 1
        for step in naive.steps:
            if step.slot < (oldest + stack - 1 if oldest > 0 else 0):
                continue
            lane, slot = np.array([number]), np.array([step.slot])
            at = lanes.index(lane, slot)
            np.testing.assert_array_equal(lanes.stacks(lane, slot, at)[0], step.observation)
            after = lanes.stacks(lane, slot + 1, lanes.index(lane, slot + 1))[0]
            np.testing.assert_array_equal(after, step.next_observation)
            flags = lanes.flags.take(at)[0]
            assert flags == TERMINATED * step.terminated + TRUNCATED * step.truncated
            after_flags = lanes.flags.take(lanes.index(lane, slot + 1))[0]
            assert bool(after_flags & FINAL) == step.ended


@pytest.mark.parametrize("padding", ["repeat", "zero"])
def test_stack_of_a_first_observation_is_padded(padding: str) -> None:
    play = begun(stack=4, padding=padding, count=1)
    first = play.frames[0][0]
    zero, slot = np.zeros(1, np.int64), play.lanes.head
    seen = play.lanes.stacks(zero, slot, play.lanes.index(zero, slot))[0]
    pad = first if padding == "repeat" else np.zeros_like(first)
    np.testing.assert_array_equal(seen, np.stack([pad, pad, pad, first]))


def test_episode_takes_one_slot_more_than_steps() -> None:
    play = begun(count=1)
    go_on(play, 2)
    play.step(np.array([0]), np.array([True]), np.array([False]))
    assert play.lanes.head[0] == 4
    np.testing.assert_array_equal(play.lanes.flags[0, :4], [0, 0, TERMINATED, FINAL])


def test_interrupt_truncates_running_episodes_and_leaves_the_others_alone() -> None:
    play = begun(count=3)
    play.step(np.array([0, 1]), np.zeros(2, bool), np.zeros(2, bool))
    play.step(np.array([1]), np.array([True]), np.array([False]))
    play.interrupt()
    lanes = play.lanes
    np.testing.assert_array_equal(lanes.head, [2, 3, 0])
    np.testing.assert_array_equal(lanes.start, lanes.head)
    np.testing.assert_array_equal(lanes.flags[0, :2], [TRUNCATED, FINAL])
    np.testing.assert_array_equal(lanes.flags[1, :3], [0, TERMINATED, FINAL])


def test_interrupting_twice_is_interrupting_once() -> None:
    play = begun()
    go_on(play)
    play.interrupt()
    before = {name: array.copy() for name, array in play.lanes.arrays.items()}
    play.lanes.interrupt()
    for name, array in play.lanes.arrays.items():
        np.testing.assert_array_equal(array, before[name])


def test_head_moves_only_after_the_step_is_whole() -> None:
    lanes = begun(count=1).lanes

    class Watched(np.ndarray[Any, Any]):
        """Notes what a reader could see at the moment the head moves."""

        def __setitem__(self, key: Any, value: Any) -> None:
            seen.append((lanes.reward[0, 0], lanes.observation[0, 1].copy(), lanes.age[0, 1]))
            super().__setitem__(key, value)

    seen: list[Any] = []
    lanes.head = lanes.head.view(Watched)
    observation = np.full((1, 2, 2), 5.0, np.float32)
    no = np.zeros(1, bool)
    lanes.append(np.array([0]), np.array([1]), np.array([3.0], np.float32), no, no, observation, None, 7)
    assert seen[0][0] == 3.0
    np.testing.assert_array_equal(seen[0][1], observation[0])
    assert seen[0][2] == 1


def test_a_million_atari_steps_fit_into_their_memory() -> None:
    length = LaneStorage.length_for(1_000_000, 8)
    assert 8 * length >= 1_000_000
    fields = LaneStorage.fields(ATARI, 8, length).values()
    assert sum(field.nbytes for field in fields) <= 7.5e9


def test_fields_say_what_is_allocated() -> None:
    lanes = LaneStorage(make_spec(), 2, 8)
    fields = LaneStorage.fields(lanes.spec, 2, 8)
    assert {name: (a.shape, a.dtype) for name, a in lanes.arrays.items()} == {
        name: (field.shape, np.dtype(field.dtype)) for name, field in fields.items()
    }
    assert lanes.nbytes == sum(field.nbytes for field in fields.values())


@pytest.mark.parametrize("actions", [2, 128, 129, 1000])
def test_the_last_action_survives_storing(actions: int) -> None:
    spec = EnvironmentSpec(make_spec().observation, actions)
    lanes = LaneStorage(spec, 1, 4)
    zero, no = np.zeros(1, np.int64), np.zeros(1, bool)
    observation = np.zeros((1, 2, 2), np.float32)
    lanes.begin(zero, observation, None)
    lanes.append(zero, np.array([actions - 1]), np.zeros(1, np.float32), no, no, observation, None, 0)
    assert lanes.action[0, 0] == actions - 1


def test_state_of_other_size_is_refused_in_a_sentence() -> None:
    longer, lanes = LaneStorage(make_spec(), 2, 9), LaneStorage(make_spec(), 2, 8)
    longer.head[:] = 30
    with pytest.raises(UserError, match="resume with the options it was started with"):
        lanes.load_state(longer.state())
    with pytest.raises(UserError, match="resume with the options it was started with"):
        lanes.load_state(LaneStorage(make_spec(), 3, 8).state())
