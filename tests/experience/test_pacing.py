"""Pacing: the replay ratio holds whatever the speeds, and nothing is caught up in a burst."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from repertory.roles.batches import Pacing


def learn(pacing: Pacing, env_steps: int, per_call: int, most_calls: int = 10**9) -> int:
    """What a learner does: whole calls, as long as as many updates are owed; returns how many it made."""
    calls = 0
    while calls < most_calls and pacing.owed(env_steps) >= per_call:
        pacing.made(per_call)
        calls += 1
    return calls


@settings(deadline=None, max_examples=200)
@given(
    ratio=st.sampled_from([0.1, 0.25, 1.0, 4.0, 8.0, 33.3, 128.0]),
    batch_size=st.sampled_from([1, 8, 32, 100]),
    learning_starts=st.integers(0, 500),
    per_call=st.integers(1, 16),
    strides=st.lists(st.integers(1, 64), min_size=1, max_size=60),
)
def test_ratio_is_kept_within_one_call_at_any_speed_of_playing(
    ratio: float, batch_size: int, learning_starts: int, per_call: int, strides: list[int]
) -> None:
    pacing = Pacing(ratio, batch_size, learning_starts)
    env_steps = 0
    for stride in strides:
        env_steps += stride
        learn(pacing, env_steps, per_call)
        due = max(0.0, (env_steps - learning_starts) * ratio / batch_size)
        assert due - per_call - 1 < pacing.updates <= due


@pytest.mark.parametrize(("ratio", "per_call"), [(8.0, 1), (8.0, 16), (0.5, 4)])
def test_ratio_is_exact_in_the_long_run(ratio: float, per_call: int) -> None:
    pacing = Pacing(ratio, 32, 1000)
    for env_steps in range(0, 200_001, 8):
        learn(pacing, env_steps, per_call)
    np.testing.assert_allclose(pacing.updates * 32 / (200_000 - 1000), ratio, rtol=2e-3)


def test_slow_learner_catches_up_with_what_it_owes_and_no_more() -> None:
    pacing = Pacing(8.0, 32, 0)
    for env_steps in range(1001):
        learn(pacing, env_steps, per_call=1, most_calls=1 if env_steps % 10 == 0 else 0)
    learn(pacing, 1000, per_call=1)
    assert pacing.updates == 250


@pytest.mark.parametrize("learning_starts", [0, 1, 1000])
def test_nothing_is_owed_until_learning_starts(learning_starts: int) -> None:
    pacing = Pacing(32.0, 32, learning_starts)
    assert all(pacing.owed(env_steps) == 0 for env_steps in range(learning_starts + 1))
    assert pacing.owed(learning_starts + 1) == 1


def test_late_start_owes_only_what_came_after_it() -> None:
    pacing = Pacing(8.0, 32, 50_000)
    burst = [learn(pacing, env_steps, per_call=1) for env_steps in range(49_990, 50_100)]
    assert max(burst) == 1
    assert sum(burst) == (50_099 - 50_000) * 8 // 32


@settings(deadline=None, max_examples=300)
@given(
    ratio=st.sampled_from([0.1, 0.25, 1.0, 3.0, 8.0, 33.3, 128.0]) | st.floats(0.01, 500.0),
    batch_size=st.integers(1, 300),
    learning_starts=st.integers(0, 500),
    made=st.integers(0, 10**6),
    more=st.integers(1, 64),
)
@example(ratio=0.7, batch_size=7, learning_starts=100, made=14, more=4)  # 7 / 0.7 is 10, and 10 · 0.7 / 7 is not 1
@example(ratio=0.7, batch_size=7, learning_starts=100, made=7, more=16)
def test_due_at_is_the_first_env_step_at_which_so_many_updates_are_owed(
    ratio: float, batch_size: int, learning_starts: int, made: int, more: int
) -> None:
    pacing = Pacing(ratio, batch_size, learning_starts, made)
    at = pacing.due_at(more)
    assert pacing.owed(at) >= more
    assert pacing.owed(at - 1) < more
