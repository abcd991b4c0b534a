"""Target prefetch changes nothing but the time that an update takes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from naive import make_spec
from repertory.agents.agent import Agent
from repertory.agents.networks import NetworkOptions
from repertory.agents.q_learning import QLearningOptions, make_q_learning
from repertory.channels.channel import allocate
from repertory.channels.counters import Counters, WorkerStats
from repertory.channels.slots import BatchReader, BatchSlots, BatchWriter
from repertory.experience.replay import Sample
from repertory.roles import learner as module
from repertory.roles.learner import Learner, TargetPrefetch
from repertory.roles.ports import Unwatched

SPEC, TINY = make_spec(), NetworkOptions(kind="mlp", hidden=(5,))
BATCH, SLOTS = 8, 3


def agent_of(**options: Any) -> Agent:
    """On a tiny network, with steps large enough to tell targets apart."""
    return make_q_learning(QLearningOptions(batch_size=BATCH, learning_rate=0.05, **options), TINY, SPEC)


def sample_of(seed: int, updates: int) -> Sample:
    """Steps for so many updates, one after the other."""
    rng, rows = np.random.default_rng(seed), BATCH * updates
    shape = (rows, *SPEC.observation.seen_shape)
    numbers = np.arange(rows)
    mask = rng.random((rows, SPEC.actions)) < 0.5
    mask[numbers, rng.integers(0, SPEC.actions, rows)] = True
    return Sample(
        observation=rng.normal(size=shape).astype(np.float32),
        action=rng.integers(0, SPEC.actions, rows).astype(np.int32),
        reward=rng.normal(size=rows).astype(np.float32),
        discount=rng.choice([0.0, 0.9], rows).astype(np.float32),
        next_observation=rng.normal(size=shape).astype(np.float32),
        next_action=rng.integers(0, SPEC.actions, rows).astype(np.int32),
        next_mask=mask,
        weight=np.ones(rows, np.float32),
        lane=numbers,
        slot=numbers,
        version=np.zeros(rows, np.int32),
    )


class NoWeights:
    """A channel without a reader."""

    def publish(self, version: int, weights: Any) -> None:
        """Nothing."""

    def latest(self) -> tuple[int, Any]:
        """Never called."""
        raise AssertionError


class Counted(TargetPrefetch):
    """Counts the batches whose values were prefetched."""

    known = 0

    def end(self, *given: Any) -> NDArray[np.float32] | None:
        """As it does."""
        found = super().end(*given)
        self.known += found is not None
        return found


@contextmanager
def learner(agent: Agent, updates: int, looks_ahead: bool) -> Iterator[tuple[Learner, BatchWriter]]:
    """With its slots, which a test fills."""
    slots = BatchSlots("batches", lambda: sample_of(0, updates), SLOTS, updates)
    slots.bind(allocate(slots.fields()))
    reader = slots.reader()
    ahead = Counted(agent, reader) if looks_ahead else None
    ports = (reader, NoWeights(), WorkerStats(allocate(Counters("counters", 1).fields())), Unwatched(), None, ahead)
    made = Learner(agent, agent.init(0), *ports, rate=lambda _: 0.05)
    try:
        yield made, slots.writer()
    finally:
        made.close()


@pytest.mark.parametrize("options", [{}, {"double": False}, {"dueling": True}, {"sarsa": True}])
@settings(deadline=None, max_examples=8)
@given(
    updates=st.integers(1, 5), period=st.integers(1, 12), there=st.lists(st.integers(1, SLOTS), min_size=8, max_size=8)
)
def test_looking_ahead_learns_the_same(options: dict[str, Any], updates: int, period: int, there: list[int]) -> None:
    agent, weights = agent_of(target_period=period, **options), []
    for looks_ahead in (False, True):
        with learner(agent, updates, looks_ahead) as (made, slots):
            for count in there:
                while slots.filled - slots.freed < count:
                    slots.put(sample_of(slots.filled, updates))
                assert made.step()
            weights.append(np.asarray(made.learned.weights))
    np.testing.assert_allclose(weights[1], weights[0], rtol=2e-4, atol=2e-5)


def test_values_are_prefetched_unless_the_target_moves_before_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 20.0)
    with learner(agent_of(target_period=20), 5, True) as (made, slots):
        for _ in range(9):
            while slots.filled - slots.freed < 2:
                slots.put(sample_of(slots.filled, 5))
            made.step()
        assert isinstance(made.prefetch, Counted)
        assert made.prefetch.known == 9 - 3  # the first, and those after 20 and 40 updates


def test_values_that_come_too_late_are_computed_by_the_learner_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    values = module._values

    def late(*given: Any) -> Any:
        gate.wait(20)
        return values(*given)

    monkeypatch.setattr(module, "_values", late)
    with learner(agent_of(target_period=100), 2, True) as (made, slots):
        for seed in range(3):
            slots.put(sample_of(seed, 2))
        for _ in range(3):
            made.step()
        gate.set()
        assert isinstance(made.prefetch, Counted)
        assert made.stats.updates == 6
        assert made.prefetch.known == 0


@pytest.mark.parametrize(
    ("options", "possible"),
    [({}, True), ({"target_tau": 0.1}, False), ({"target": False}, False), ({"noisy": True}, False)],
)
def test_only_a_target_that_stays_can_be_prefetched(options: dict[str, Any], possible: bool) -> None:
    assert agent_of(**options).prefetch_target == possible


def test_thread_keeps_to_its_cores_and_leaves_the_others_alone() -> None:
    before = os.sched_getaffinity(0)
    reader = BatchReader({"weight": np.zeros(1)}, 1, lambda: None)
    ahead = TargetPrefetch(agent_of(), reader, [min(before)])
    assert ahead._thread.submit(os.sched_getaffinity, 0).result(10) == {min(before)}
    assert os.sched_getaffinity(0) == before
    ahead.close()
