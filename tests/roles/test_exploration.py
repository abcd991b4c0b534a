"""Exploration: the schedule, legal and uniform chance, and actors and evaluators that play by the rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.agents.networks import NetworkOptions
from repertory.agents.q_learning import QLearningOptions, make_q_learning
from repertory.channels.channel import allocate
from repertory.channels.counters import Counters, WorkerStats
from repertory.channels.latest import Lent
from repertory.environments import factory
from repertory.environments.factory import Environments, seeds
from repertory.experience.lanes import LaneStorage
from repertory.roles.actor import Actor
from repertory.roles.evaluator import Evaluator
from repertory.roles.policies import LocalPolicy, generator, linear, random_actions
from repertory.roles.ports import Stopwatch
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

TAXI = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gym.registry)


@pytest.mark.parametrize(
    ("env_steps", "value"),
    [(0, 1.0), (1, 0.9905), (50, 0.525), (99, 0.0595), (100, 0.05), (101, 0.05), (10**9, 0.05)],
)
def test_linear_falls_from_start_to_end_and_stays(env_steps: int, value: float) -> None:
    assert linear(1.0, 0.05, 100, env_steps) == pytest.approx(value)


def test_linear_without_steps_is_at_its_end_at_once() -> None:
    assert linear(1.0, 0.1, 0, 0) == 0.1


def test_streams_of_other_keys_are_other_streams() -> None:
    first, again, other = (generator(*key).random(4) for key in ((1, 2, 3), (1, 2, 3), (1, 3, 2)))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def assert_uniform(counts: NDArray[np.int64]) -> None:
    """Each count within five standard deviations of its mean: a fair coin fails once in a million times."""
    share, draws = 1 / len(counts), counts.sum()
    assert (np.abs(counts - draws * share) <= 5 * np.sqrt(draws * share * (1 - share))).all()


def test_random_actions_are_uniform() -> None:
    actions = random_actions(np.random.default_rng(0), 1_000_000, 6, None)
    assert_uniform(np.bincount(actions, minlength=6))


def test_random_actions_are_legal_and_uniform_over_the_legal_ones() -> None:
    rng = np.random.default_rng(0)
    kinds = np.array([[1, 0, 0, 0], [0, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 1]], bool)
    kind = rng.integers(0, len(kinds), 1_000_000)
    actions = random_actions(rng, len(kind), 4, kinds[kind])
    assert kinds[kind, actions].all()
    for index, mask in enumerate(kinds):
        counts = np.bincount(actions[kind == index], minlength=4)
        assert_uniform(counts[mask])


class Referee:
    """Environments that notice illegal actions, and how often the greedy one was not taken."""

    def __init__(self, inner: Environments) -> None:
        self.inner, self.spec, self.count = inner, inner.spec, inner.count
        self.illegal, self.taken = 0, np.zeros(inner.spec.actions, np.int64)
        self.mask: NDArray[np.bool_] | None = None

    def reset(self, seeds: Any) -> Any:
        observation, self.mask = self.inner.reset(seeds)
        return observation, self.mask

    def step(self, actions: NDArray[np.integer[Any]]) -> Any:
        assert self.mask is not None
        self.illegal += int((~self.mask[np.arange(self.count), actions]).sum())
        self.taken += np.bincount(actions, minlength=self.spec.actions)
        result = self.inner.step(actions)
        _, self.mask = result.onward()
        return result

    def render(self) -> Any:
        return self.inner.render()

    def close(self) -> None:
        self.inner.close()


class Steady:
    """A policy that replies with the lowest legal action, after some polls."""

    version = 7
    stores_values = False

    def __init__(self, delay: int = 0) -> None:
        self.delay, self.requests = delay, 0

    def submit(self, observation: Any, mask: NDArray[np.bool_] | None) -> None:  # noqa: ARG002
        assert mask is not None
        self.reply, self.wait = mask.argmax(axis=1), self.delay
        self.requests += 1

    def poll(self) -> NDArray[np.integer[Any]] | None:
        self.wait -= 1
        return self.reply if self.wait < 0 else None

    def extras(self, actions: NDArray[np.integer[Any]]) -> None:
        pass

    def reset(self, environments: Any) -> None:
        pass

    def state(self) -> dict[str, int]:
        return {}

    def load_state(self, state: dict[str, int]) -> None:
        pass


@pytest.fixture
def taxis() -> Iterator[Referee]:
    referee = Referee(factory.make(TAXI, 10, worker=0))
    yield referee
    referee.close()


def actor_of(environments: Referee, policy: Any, epsilon: float) -> Actor:
    lanes = LaneStorage(environments.spec, environments.count, 1000)
    actor = Actor(
        environments,
        policy,
        lanes,
        WorkerStats(allocate(Counters("counters", 1).fields())),
        lambda _: epsilon,
        first_lane=0,
        seed=0,
        rank=0,
        watch=Stopwatch(),
    )
    actor.restart(seeds(0, 0, environments.count, 0))
    return actor


def q_agent(spec: Any) -> Agent:
    return make_q_learning(QLearningOptions(), NetworkOptions(hidden=(4,)), spec)


def test_actor_takes_no_illegal_action(taxis: Referee) -> None:
    assert taxis.spec.masked
    agent, weights = q_agent(taxis.spec), Lent()
    weights.publish(0, agent.init(0).weights)
    actor = actor_of(taxis, LocalPolicy(agent, weights, seed=0, rank=0), 0.3)
    while actor.stats.env_steps < 20_000:
        actor.step()
    assert taxis.illegal == 0
    assert (taxis.taken > 0).all()


def noisy_policy(rank: int = 0) -> LocalPolicy:
    spec = EnvironmentSpec(ObservationSpec((4,), "float32", (Part("number", 4),)), 3)
    agent, weights = make_q_learning(QLearningOptions(noisy=True), NetworkOptions(hidden=(4,)), spec), Lent()
    weights.publish(0, agent.init(0).weights)
    return LocalPolicy(agent, weights, seed=0, rank=rank, stores_values=True)


def replies(policy: LocalPolicy, count: int) -> NDArray[np.float32]:
    """Its values of the same observation, again and again."""
    found = []
    for _ in range(count):
        policy.submit(np.ones((1, 4), np.float32), None)
        policy.poll()
        assert policy.values is not None
        found.append(policy.values[0].copy())
    return np.array(found)


def test_noisy_policy_samples_fresh_noise_for_each_reply_and_goes_on_where_it_was() -> None:
    policy = noisy_policy()
    first = replies(policy, 5)
    assert len(np.unique(first.round(6), axis=0)) == 5, "the same weights and observation, other noise"
    saved = policy.state()
    then = replies(policy, 3)
    resumed = noisy_policy()
    resumed.load_state(saved)
    np.testing.assert_array_equal(replies(resumed, 3), then)
    assert not np.isin(replies(noisy_policy(rank=1), 5), first).any(), "each actor has noise of its own"


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_actor_explores_as_often_as_epsilon_says(taxis: Referee, epsilon: float) -> None:
    actor = actor_of(taxis, Steady(), epsilon)
    other = 0.0
    for _ in range(300):
        assert actor.mask is not None
        lowest, legal = actor.mask.argmax(axis=1), actor.mask.sum(axis=1)
        before = actor.lanes, actor.experience.head.copy()  # type: ignore[attr-defined]
        actor.step()
        taken = actor.experience.action[before[0], before[1] % 1000]  # type: ignore[attr-defined]
        # Chance takes the greedy action, too, once in as many times as there are legal ones.
        other += float(((taken != lowest) / (1 - 1 / np.maximum(legal, 1.0001))).sum())
    assert other / 3000 == pytest.approx(epsilon, abs=0.05)


def test_actor_sends_one_request_and_waits_for_the_reply(taxis: Referee) -> None:
    policy = Steady(delay=2)
    actor = actor_of(taxis, policy, 0.0)
    assert [actor.step() for _ in range(6)] == [False, False, True, False, True, False]
    assert policy.requests == 3
    assert actor.stats.env_steps == 20


class Countdown(gym.Env[Any, Any]):
    """Episodes as long as the seed says, a reward of 1 for each step; later episodes last a step."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        self.left = 1 if seed is None else seed
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:  # noqa: ARG002
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left <= 0, False, {}


@pytest.fixture(scope="module")
def countdown() -> Iterator[str]:
    gym.register("Countdown-v0", Countdown)
    yield "Countdown-v0"
    gym.registry.pop("Countdown-v0")


@pytest.mark.parametrize("mode", [None, *gym.vector.AutoresetMode])
def test_evaluator_counts_one_episode_for_each_environment(countdown: str, mode: Any) -> None:
    environments = factory.make(countdown, 4, worker=0, autoreset=mode)
    agent = q_agent(environments.spec)
    lengths = [3, 1, 12, 5]
    calls: list[None] = []
    episodes = Evaluator(agent, environments).evaluate(agent.init(0).weights, lengths, lambda: calls.append(None))
    environments.close()
    np.testing.assert_array_equal(episodes.lengths, lengths)
    np.testing.assert_array_equal(episodes.returns, lengths)
    assert episodes.summary()["episodes"] == 4
    assert len(calls) == 12


def test_evaluator_stops_at_its_limit(countdown: str) -> None:
    environments = factory.make(countdown, 2, worker=0)
    agent = q_agent(environments.spec)
    episodes = Evaluator(agent, environments, max_steps=5).evaluate(agent.init(0).weights, [3, 100])
    environments.close()
    np.testing.assert_array_equal(episodes.lengths, [3, 5])
