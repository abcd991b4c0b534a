"""Ape-X (Horgan et al. 2018): the ladder of ε, and first priorities from what the actors saw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from companies import company, plan_of, play, roles
from naive import make_spec
from repertory.experience.lanes import FINAL, Lanes
from repertory.experience.replay import Prioritization, Replay
from repertory.roles.exploration import ladder
from repertory.roles.memory_server import MemoryServer

GAMMA, ALPHA, FLOOR = 0.9, 0.6, 1e-6


@pytest.mark.parametrize("N", [2, 3, 8, 256, 360])
def test_ladder_is_the_papers(N: int) -> None:
    """ε_i = ε^(1 + α i / (N - 1)) with ε = 0.4 and α = 7."""
    found = [ladder(0.4, 7.0, i, N) for i in range(N)]
    np.testing.assert_allclose(found, 0.4 ** (1 + 7 * np.arange(N) / (N - 1)), rtol=1e-12)
    assert found[0] == pytest.approx(0.4)
    assert found[-1] == pytest.approx(0.4**8)
    assert found == sorted(found, reverse=True)


def test_lone_actor_has_the_ladders_base() -> None:
    assert ladder(0.4, 7.0, 0, 1) == pytest.approx(0.4)


def test_each_actor_stays_on_its_rung_for_the_whole_run() -> None:
    plan = plan_of("apex", actors=4)
    for rank in range(4):
        rungs = {plan.epsilon(env_steps, rank) for env_steps in (0, 1, 1_000, 10**7)}
        assert rungs == {ladder(0.4, 7.0, rank, 4)}


class Seen:
    """Made-up steps of one lane with made-up values, and the same as plain lists."""

    def __init__(self, rng: np.random.Generator, length: int) -> None:
        spec = make_spec(masked=False)
        fields = Lanes.fields(spec, 1, length, valued=True)
        self.lanes = Lanes(spec, 1, length, {name: np.zeros(f.shape, f.dtype) for name, f in fields.items()})
        self.rng = rng
        self.r: dict[int, float] = {}
        self.Q: dict[int, NDArray[np.float32]] = {}
        self.a: dict[int, int] = {}
        self.ends: dict[int, str] = {}
        self.playing = False

    def step(self, end: str = "", known: bool = True) -> None:
        lane, blank = np.array([0]), np.zeros((1, 2, 2), np.float32)
        if not self.playing:
            self.lanes.begin(lane, blank, None)
        slot = int(self.lanes.head[0])
        Q, a, r = self.rng.normal(size=4).astype(np.float32), int(self.rng.integers(4)), float(self.rng.normal())
        values = np.array([[Q[a]], [Q.max()]], np.float32) if known else None
        over, cut = np.array([end == "terminated"]), np.array([end == "truncated"])
        self.lanes.append(lane, np.array([a]), np.array([r], np.float32), over, cut, blank, None, 0, values)
        self.r[slot], self.a[slot], self.ends[slot] = r, a, end
        if known:
            self.Q[slot] = Q
        self.playing = not end

    def twin(self, t: int, n: int, highest: float) -> float:
        """(|r_t + … + γ^(n-1) r_(t+n-1) + γ^n max_a Q(s_(t+n), a) - Q(s_t, a_t)| + floor)^α; unknown = the highest."""
        R, k = 0.0, 0
        while True:
            R += GAMMA**k * self.r[t + k]
            k += 1
            if self.ends[t + k - 1] or k == n:
                break
        end = self.ends[t + k - 1]
        if t not in self.Q or end == "truncated" or (not end and t + k not in self.Q):
            return highest
        ahead = 0.0 if end == "terminated" else GAMMA**k * float(self.Q[t + k].max())
        return (abs(R + ahead - float(self.Q[t][self.a[t]])) + FLOOR) ** ALPHA


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 4),
    length=st.integers(16, 40),
    unknown=st.sampled_from([0.0, 0.3]),
    pauses=st.lists(st.integers(1, 30), min_size=1, max_size=6),
)
def test_first_priority_is_the_error_that_the_actor_saw_and_the_highest_where_it_saw_none(
    seed: int, n: int, length: int, unknown: float, pauses: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    seen = Seen(rng, length)
    replay = Replay(seen.lanes, n_step=n, discount=GAMMA, prioritization=Prioritization(ALPHA, FLOOR))
    assert replay.tree is not None
    want: dict[int, float] = {}
    for pause in pauses:
        for _ in range(pause):
            seen.step(str(rng.choice(["", "", "", "terminated", "truncated"])), rng.random() >= unknown)
        replay.refresh()
        head, ready = int(seen.lanes.head[0]), int(replay.ready[0])
        complete = [t for t in seen.r if t < ready]
        want |= {t: seen.twin(t, n, replay.highest) for t in complete if t not in want}
        kept = [t for t in complete if t > head - length]
        found = replay.tree.get(seen.lanes.index(np.zeros(len(kept), np.int64), np.array(kept, np.int64)))
        np.testing.assert_allclose(found, [want[t] for t in kept], rtol=1e-4, atol=1e-5)
        assert replay.tree.total == pytest.approx(float(np.sum(found)), rel=1e-9), "and nothing else has any"
        errors = rng.exponential(3.0, 1).astype(np.float32)
        if kept:
            replay.update_priorities(np.array([0]), np.array(kept[-1:]), errors)
            want[kept[-1]] = (float(errors[0]) + FLOOR) ** ALPHA


def test_actors_keep_the_values_of_the_weights_that_they_played_with() -> None:
    """By JAX here and by NumPy there: 1e-4."""
    rehearsal = company("apex", agent={"learning_starts": 1_000})
    play(rehearsal, 500)
    lanes, agent = rehearsal.stage.lanes, rehearsal.agent
    weights = agent.init(rehearsal.plan.seed).weights
    assert lanes.value is not None
    for lane in range(lanes.count):
        steps = np.arange(int(lanes.head[lane]))
        steps = steps[(lanes.flags[lane, steps] & FINAL) == 0]
        Q = np.asarray(agent.values(weights, lanes.observation[lane, steps], None, None))
        taken = Q[np.arange(len(steps)), lanes.action[lane, steps]]
        np.testing.assert_allclose(lanes.value[0, lane, steps], taken, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(lanes.value[1, lane, steps], Q.max(axis=1), rtol=1e-4, atol=1e-5)
    rehearsal.close()


def test_errors_of_every_batch_come_back_to_the_memory_once() -> None:
    rehearsal = company("apex")
    memory: MemoryServer = roles(rehearsal, MemoryServer)[0]
    replay: Any = memory.drawer.experience
    update, told = replay.update_priorities, []

    def updating(lane: Any, slot: Any, errors: Any) -> None:
        told.append(np.array(errors))
        update(lane, slot, errors)
        kept = slot >= replay.low[lane]
        leaves = replay.tree.get(replay.lanes.index(lane, slot))
        last = {(a, b): e for a, b, e in zip(lane.tolist(), slot.tolist(), errors.tolist(), strict=True)}
        want = [(last[pair] + FLOOR) ** ALPHA for pair in zip(lane.tolist(), slot.tolist(), strict=True)]
        np.testing.assert_allclose(leaves[kept], np.array(want)[kept], rtol=1e-6)

    replay.update_priorities = updating
    play(rehearsal)
    rehearsal.settle()
    rehearsal.close()
    assert len(told) == rehearsal.counters.updates >= 100
    leaves = replay.tree.get(np.arange(replay.lanes.count * replay.lanes.length))
    assert len(np.unique(leaves[leaves > 0].round(9))) > 500, "hardly two alike"
