"""Values by NumPy are those by JAX: every shape of plain network, every kind of observation, masks, any batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repertory.agents.agent import Agent
from repertory.agents.networks import NetworkOptions
from repertory.agents.q_learning import QLearningOptions, make_q_learning
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

HIDDEN = ((1,), (120, 84), (16, 8, 4))


@cache
def agent_of(hidden: tuple[int, ...], dueling: bool, kind: Any, dtype: Any, stack: int) -> Agent:
    observation = ObservationSpec((2, 3), dtype, (Part(kind, 6),), stack)
    return make_q_learning(
        QLearningOptions(dueling=dueling), NetworkOptions("mlp", hidden), EnvironmentSpec(observation, 4, masked=True)
    )


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    hidden=st.sampled_from(HIDDEN),
    dueling=st.booleans(),
    kind=st.sampled_from(["number", "pixel"]),
    dtype=st.sampled_from(["float32", "uint8"]),
    stack=st.sampled_from([1, 2, 4]),  # of frames 2 × 3: no image, planes first, planes last
    masked=st.booleans(),
    rows=st.sampled_from([1, 2, 64]),
    scale=st.sampled_from([0.1, 1.0]),
)
def test_values_by_numpy_are_those_by_jax(
    seed: int,
    hidden: tuple[int, ...],
    dueling: bool,
    kind: str,
    dtype: str,
    stack: int,
    masked: bool,
    rows: int,
    scale: float,
) -> None:
    """Sums of some hundred products in another order: 1e-5 of the largest value."""
    agent, rng = agent_of(hidden, dueling, kind, dtype, stack), np.random.default_rng(seed)
    assert agent.numpy_forward is not None
    weights = rng.normal(scale=scale, size=agent.layout.size).astype(np.float32)
    shape = (rows, *([stack] if stack > 1 else []), 2, 3)
    seen = rng.integers(0, 256, shape).astype(dtype) if dtype == "uint8" else rng.normal(size=shape).astype(dtype)
    kept = seen.copy(), weights.copy()
    mask = rng.random((rows, 4)) < 0.5 if masked else None
    found = agent.numpy_forward(weights)(seen, mask)
    with jax.disable_jit():  # operations are shared, programs would all have to be compiled
        want = np.asarray(agent.values(weights, seen, mask, None))
        largest = float(np.abs(np.asarray(agent.values(weights, seen, None, None))).max())
    assert found.shape == want.shape == (rows, 4)
    assert found.dtype == np.float32
    legal = np.ones((rows, 4), bool) if mask is None else mask
    np.testing.assert_array_equal(found[~legal], want[~legal])
    np.testing.assert_allclose(found[legal], want[legal], rtol=1e-5, atol=1e-5 * max(largest, 1e-3))
    np.testing.assert_array_equal(seen, kept[0])
    np.testing.assert_array_equal(weights, kept[1])


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_flat_observations_are_read_alike(dtype: Any) -> None:
    kind: Any = "pixel" if dtype == "uint8" else "number"
    spec = EnvironmentSpec(ObservationSpec((6,), dtype, (Part(kind, 6),)), 3)
    agent = make_q_learning(QLearningOptions(), NetworkOptions("mlp", (8,)), spec)
    assert agent.numpy_forward is not None
    weights, rng = np.asarray(agent.init(0).weights), np.random.default_rng(1)
    for rows in (1, 5):
        seen = rng.integers(0, 200, (rows, 6)).astype(dtype)
        want = agent.values(weights, seen, None, None)
        np.testing.assert_allclose(
            agent.numpy_forward(weights)(seen, None), want, rtol=1e-4, atol=1e-5 * np.abs(want).max()
        )


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (QLearningOptions(noisy=True), Part("number", 6)),
        (QLearningOptions(distributional=True), Part("number", 6)),
        (QLearningOptions(), Part("category", 6, 5)),
    ],
    ids=["noisy", "distributional", "categories"],
)
def test_what_needs_more_than_plain_layers_is_left_to_jax(options: QLearningOptions, part: Part) -> None:
    spec = EnvironmentSpec(ObservationSpec((6,), "float32", (part,)), 3)
    assert make_q_learning(options, NetworkOptions("mlp", (8,)), spec).numpy_forward is None
