"""Draws in proportion to priorities, against running sums over all leaves."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from repertory.experience.priorities import MOST_WAITING, PriorityTree

# One list; just two levels; rows that do not come out even; three levels.
CAPACITIES = [1, 2, 33, 1024, 1025, 5000, 40_000]
EDGES = np.array([0.0, 2.0**-60, 0.5, 1 - 2.0**-30, 1 - 2.0**-53])


def spread_values(rng: np.random.Generator, count: int, zeros: float, decades: float) -> NDArray[np.float64]:
    """Priorities over so many decades, some of them 0."""
    values = 10.0 ** rng.uniform(-decades, decades, count)
    return np.where(rng.random(count) < zeros, 0.0, values)


def assert_draws_invert_the_distribution(
    priorities: NDArray[np.float64], uniforms: NDArray[np.float64], drawn: NDArray[np.int64]
) -> None:
    """Each drawn leaf has the uniform between its two bounds, up to rounding, and a priority above 0."""
    bounds = np.concatenate([[0.0], np.cumsum(priorities)])
    bounds /= bounds[-1]
    assert (priorities[drawn] > 0).all()
    assert (bounds[drawn] <= uniforms + 1e-12).all()
    assert (uniforms <= bounds[drawn + 1] + 1e-12).all()


@settings(deadline=None, max_examples=150)
@given(
    capacity=st.sampled_from(CAPACITIES) | st.integers(1, 3000),
    seed=st.integers(0, 2**32 - 1),
    sets=st.lists(st.sampled_from([0, 1, 5, 32, 64, 700]), min_size=1, max_size=6),
    zeros=st.sampled_from([0.0, 0.5, 0.99]),
    decades=st.sampled_from([0.0, 2.0, 12.0, 100.0, 300.0]),
)
@example(capacity=40_000, seed=0, sets=[700] * 6, zeros=0.99, decades=300.0)
def test_any_sequence_of_sets_agrees_with_running_sums_over_all_leaves(
    capacity: int, seed: int, sets: list[int], zeros: float, decades: float
) -> None:
    rng = np.random.default_rng(seed)
    tree, priorities = PriorityTree(capacity), np.zeros(capacity)
    for count in sets:
        leaves = rng.integers(0, capacity, count)
        values = spread_values(rng, count, zeros, decades)
        tree.set(leaves, values)
        for leaf, value in zip(leaves, values, strict=True):
            priorities[leaf] = value
        np.testing.assert_array_equal(tree.get(np.arange(capacity)), priorities)
        if not priorities.any():
            continue
        np.testing.assert_allclose(tree.total, priorities.sum(), rtol=1e-9)
        uniforms = np.concatenate([EDGES, rng.random(100)])
        assert_draws_invert_the_distribution(priorities, uniforms, tree.sample(uniforms))


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_draws_are_as_frequent_as_their_priorities_say(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    tree, priorities = PriorityTree(capacity), spread_values(rng, capacity, 0.3, 1.0)
    priorities[0] = 1.0
    tree.set(np.arange(capacity), priorities)
    draws = 400_000
    bins = np.arange(capacity) * 20 // capacity
    expected = np.bincount(bins, priorities, minlength=20) / priorities.sum() * draws
    counts = np.bincount(bins[tree.sample(rng.random(draws))], minlength=20)
    assert (counts[expected == 0] == 0).all()
    deviations = (counts - expected)[expected > 0] ** 2 / expected[expected > 0]
    assert deviations.sum() < 50  # chi-square with 19 degrees of freedom: one in ten thousand is above


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("value", [1.0, 5e-324, 1e-310, 1e307])
def test_the_only_leaf_with_a_priority_is_always_drawn(capacity: int, value: float) -> None:
    for leaf in {0, capacity // 2, capacity - 1}:
        tree = PriorityTree(capacity)
        tree.set(np.array([leaf]), value)
        assert (tree.sample(np.concatenate([EDGES, np.linspace(0, 1, 100, endpoint=False)])) == leaf).all()


def test_leaves_set_back_to_zero_are_never_drawn() -> None:
    rng = np.random.default_rng(0)
    tree = PriorityTree(40_000)
    tree.set(np.arange(40_000), rng.random(40_000) + 0.1)
    gone = rng.permutation(40_000)[:39_000]
    tree.sample(rng.random(10))
    tree.set(gone, 0.0)
    assert not np.isin(tree.sample(rng.random(100_000)), gone).any()


@pytest.mark.parametrize("capacity", [1, 32, 1024, 4096, 65_536])
def test_a_leaf_owns_its_lower_bound_and_not_its_upper_one(capacity: int) -> None:
    tree = PriorityTree(capacity)
    tree.set(np.arange(capacity), 1.0)
    np.testing.assert_array_equal(tree.sample(np.arange(capacity) / capacity), np.arange(capacity))


def test_a_draw_rounded_past_the_end_of_a_row_takes_its_last_leaf() -> None:
    tree = PriorityTree(2000)
    tree.set(np.arange(2000), 1.0)
    assert tree.sample(np.array([1.0])) == [1999]


def test_a_draw_rounded_past_the_last_priority_steps_back_to_it() -> None:
    tree = PriorityTree(2000)
    tree.set(np.array([3, 700, 1500]), np.array([1.0, 2.0, 1.0]))
    np.testing.assert_array_equal(tree.sample(np.array([np.nextafter(1, 0), 1.0])), [1500, 1500])
    np.testing.assert_array_equal(tree._nearest_positive(np.array([0, 3, 699, 700, 1999])), [3, 3, 3, 700, 1500])


def test_sums_that_wait_for_the_next_draw_are_all_made_up() -> None:
    tree = PriorityTree(5000)
    for leaf in range(2 * MOST_WAITING + 7):
        tree.set(np.array([leaf]), 1.0)
    assert tree.total == 2 * MOST_WAITING + 7


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_restored_tree_continues_bit_for_bit(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    tree, restored = PriorityTree(capacity), PriorityTree(capacity)
    restored.set(np.arange(capacity), 3.0)
    for count in (1, 2, 20, 32, 33, 64, 1000):
        tree.set(rng.integers(0, capacity, count), rng.random(count) + 0.01)
        assert tree.total > 0
    state = {name: array.copy() for name, array in tree.state().items()}
    restored.load_state(state)
    for _ in range(10):
        uniforms, values = rng.random(32), rng.random(32)
        drawn, drawn_restored = tree.sample(uniforms), restored.sample(uniforms)
        np.testing.assert_array_equal(drawn, drawn_restored)
        assert tree.total == restored.total
        tree.set(drawn, values)
        restored.set(drawn_restored, values)


def test_state_is_a_copy() -> None:
    tree = PriorityTree(4)
    state = tree.state()
    tree.set(np.arange(4), 1.0)
    assert state["priorities"].sum() == 0


def test_sums_do_not_drift() -> None:
    rng = np.random.default_rng(0)
    tree = PriorityTree(5000)
    tree.set(np.arange(5000), 1.0)
    for _ in range(300):
        tree.set(rng.integers(0, 5000, 64), 1e15)
        assert tree.total > 1e15
        tree.set(np.arange(5000), 1e-3)
    np.testing.assert_allclose(tree.total, 5.0, rtol=1e-12)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="capacity"):
        PriorityTree(0)
    tree = PriorityTree(2000)
    with pytest.raises(ValueError, match="sum is 0"):
        tree.sample(np.array([0.5]))
    with pytest.raises(IndexError):
        tree.set(np.array([2000]), 1.0)
    with pytest.raises(ValueError, match="priorities for 2000 leaves"):
        tree.load_state(PriorityTree(1999).state())
    tree.set(np.array([7]), np.nan)
    with pytest.raises(ValueError, match="sum is nan"):
        tree.sample(np.array([0.5]))
