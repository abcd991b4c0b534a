"""Ape-X (Horgan et al. 2018): the ladder of ε, and first priorities from what the actors saw."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inline_runs import inline_run, lanes_of, plan_of, play, roles
from naive import make_spec
from repertory.agents.agent import Transitions
from repertory.experience.lanes import FINAL, LaneStorage
from repertory.experience.replay import Prioritization, Replay
from repertory.roles.actor import Actor
from repertory.roles.batches import MemoryServer
from repertory.roles.gradient_worker import GradientWorker
from repertory.roles.learner import Learner, agent_batch
from repertory.roles.policies import ladder
from repertory.roles.replica import Replica
from repertory.runs.presets import defaults, known

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
    epsilon = plan_of("apex", actors=4).compose().epsilon
    assert epsilon is not None
    for rank in range(4):
        rungs = {epsilon(rank)(env_steps) for env_steps in (0, 1, 1_000, 10**7)}
        assert rungs == {ladder(0.4, 7.0, rank, 4)}


@pytest.mark.parametrize("topology", ["apex", "hogwild"])
def test_each_actor_plays_with_the_rate_of_its_rank(topology: str) -> None:
    driver = inline_run(topology, {"exploration": "ladder"})
    rates = [actor.epsilon(0) for actor in roles(driver, Actor)]
    driver.close()
    assert rates == [ladder(0.4, 7.0, rank, 3) for rank in range(3)]


PAPER = {
    "learning_rate": 6.25e-5,
    "optimizer": "rmsprop",
    "optimizer_epsilon": 1.5e-7,
    "max_gradient_norm": 40.0,
    "target_period": 2_500,
    "n_step": 3,
}


@pytest.mark.parametrize("environment", ["ALE/Pong-v5", "somewhere:Else-v0"])
def test_without_a_preset_and_on_atari_it_learns_as_the_paper_does(environment: str) -> None:
    agent: Any = defaults(environment, topology="apex").agent
    assert {name: getattr(agent, name) for name in PAPER} == PAPER
    assert agent.prioritized
    assert agent.double
    assert agent.dueling


SMALL_PRESETS = [preset.match[0] for name, preset in known().items() if name not in ("atari", "t_maze")]


@pytest.mark.parametrize("environment", SMALL_PRESETS)
def test_a_small_environments_preset_keeps_the_optimizer_that_it_was_measured_with(environment: str) -> None:
    measured, agent = (defaults(environment, topology=name).agent for name in ("collectors", "apex"))
    for name in set(PAPER) - {"n_step"}:
        assert getattr(agent, name) == getattr(measured, name), name


class Seen:
    """Made-up steps of one lane with made-up values, and the same as plain lists."""

    def __init__(self, rng: np.random.Generator, length: int) -> None:
        spec = make_spec(masked=False)
        fields = LaneStorage.fields(spec, 1, length, stores_values=True)
        self.lanes = LaneStorage(spec, 1, length, {name: np.zeros(f.shape, f.dtype) for name, f in fields.items()})
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
    driver = inline_run("apex", agent={"learning_starts": 1_000})
    play(driver, 500)
    lanes, agent = lanes_of(driver.wiring), driver.agent
    weights = agent.init(driver.plan.seed).weights
    assert lanes.value is not None
    for lane in range(lanes.count):
        steps = np.arange(int(lanes.head[lane]))
        steps = steps[(lanes.flags[lane, steps] & FINAL) == 0]
        Q = np.asarray(agent.values(weights, lanes.observation[lane, steps], None, None))
        taken = Q[np.arange(len(steps)), lanes.action[lane, steps]]
        np.testing.assert_allclose(lanes.value[0, lane, steps], taken, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(lanes.value[1, lane, steps], Q.max(axis=1), rtol=1e-4, atol=1e-5)
    driver.close()


def test_errors_of_every_batch_come_back_to_the_replay_once() -> None:
    driver = inline_run("apex")
    memory: MemoryServer = roles(driver, MemoryServer)[0]
    learner: Learner = roles(driver, Learner)[0]
    replay: Any = memory.sampler.experience
    update, told = replay.update_priorities, []
    release, learned = learner.batches.release, []

    def releasing(sample: Any, priority: Any) -> None:
        learned.append([np.array(x).ravel() for x in (sample.lane, sample.slot, priority)])
        release(sample, priority)

    def updating(lane: Any, slot: Any, errors: Any) -> None:
        told.append([np.array(x) for x in (lane, slot, errors)])
        update(lane, slot, errors)
        kept = slot >= replay.low[lane]
        leaves = replay.tree.get(replay.lanes.index(lane, slot))
        last = {(a, b): e for a, b, e in zip(lane.tolist(), slot.tolist(), errors.tolist(), strict=True)}
        want = [(last[pair] + FLOOR) ** ALPHA for pair in zip(lane.tolist(), slot.tolist(), strict=True)]
        np.testing.assert_allclose(leaves[kept], np.array(want)[kept], rtol=1e-6)

    replay.update_priorities = updating
    learner.batches.release = releasing  # type: ignore[method-assign]
    play(driver)
    driver.settle()
    driver.close()
    assert len(told) == driver.counters.updates >= 100
    for sent, received in zip(learned, told, strict=True):
        for one, other in zip(sent, received, strict=True):
            np.testing.assert_array_equal(one, other)
    leaves = replay.tree.get(np.arange(replay.lanes.count * replay.lanes.length))
    assert len(np.unique(leaves[leaves > 0].round(9))) > 500, "hardly two alike"


@pytest.mark.parametrize("topology", ["single", "parameter_server", "all_reduce"])
def test_priority_of_each_step_is_the_error_that_was_found_for_it(topology: str) -> None:
    """Of the first batch, whose errors are those of the initial weights, step by step."""
    driver = inline_run(topology, {}, {"prioritized": True, "n_step": 1}, actors=1, env_steps=10**6)
    learner = roles(driver, (Learner, GradientWorker, Replica))[0]
    replay, release, found = learner.batches.experience, learner.batches.release, []
    start, key = driver.agent.init(driver.plan.seed), jax.random.key(0)  # a key of no meaning: nothing is noisy

    def releasing(sample: Any, priority: Any) -> None:
        release(sample, priority)
        batch = agent_batch(sample.flat())
        for row in range(len(batch.action)):
            one = Transitions(*[None if x is None else x[row : row + 1] for x in batch])
            error = float(driver.agent.gradient(start.weights, start.target, one, key)[1].priority[0])
            leaf = replay.tree.get(replay.lanes.index(sample.lane.ravel()[row : row + 1], sample.slot.ravel()[row]))
            found.append((error, float(leaf[0])))

    learner.batches.release = releasing
    for _ in driver.rounds():
        if found:
            break
    driver.close()
    errors, leaves = np.array(found).T
    assert len(np.unique(errors.round(6))) >= 4
    np.testing.assert_allclose(leaves, (errors + FLOOR) ** ALPHA, rtol=1e-3)
