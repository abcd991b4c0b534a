"""Sarsa learns what its own exploring policy is worth, also where every episode is cut off by a time limit.

The environment is a table, so the values are known: Q(s, a) = r(s, a) + γ Σ_s' P(s' | s, a) Σ_a' π(a' | s') Q(s', a'),
with π ε-greedy. It never terminates: a limit truncates it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from inline_runs import weights_of
from repertory.engines import make_driver
from repertory.engines.driver import Driver
from repertory.runs.config import change
from repertory.runs.launch import prepare
from repertory.runs.presets import defaults

GAMMA, EPSILON, LIMIT, ENV_STEPS = 0.8, 0.5, 2, 10_000
CHANCES = np.eye(3)[[[1, 0], [2, 0], [0, 0]]]
REWARDS = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])


class Table(gym.Env[Any, Any]):
    """Three states, two actions; starts anywhere, and is cut off after `limit` steps."""

    observation_space = gym.spaces.Discrete(3)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.state, self.left = int(self.np_random.integers(3)), self.limit
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = float(REWARDS[self.state, action])
        self.state = int(self.np_random.choice(3, p=CHANCES[self.state, action]))
        self.left -= 1
        return self.state, reward, False, self.left == 0, {}


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    gym.register("Table-v0", Table)
    yield
    gym.registry.pop("Table-v0")


def on_policy(epsilon: float) -> NDArray[np.float64]:
    """The values of the ε-greedy policy that is greedy in them; ε = 0: the largest values there are."""
    Q = np.zeros((3, 2))
    for _ in range(500):
        V = (1 - epsilon) * Q.max(axis=1) + epsilon * Q.mean(axis=1)
        Q = REWARDS + GAMMA * CHANCES @ V
    return Q


def driver_of(topology: str, agent: dict[str, Any], own: dict[str, Any], limit: int, env_steps: int) -> Driver:
    options = change(
        defaults("Table-v0", "sarsa", topology),
        {
            "engine": "inline",
            "actors": 1 if topology == "single" else 2,
            "envs_per_actor": 8 if topology == "single" else 4,
            "env_steps": env_steps,
            "env_option": (f"limit={limit}",),
            "network": {"hidden": [16]},
            "agent": {
                "batch_size": 64,
                "discount": GAMMA,
                "learning_rate": 0.01,
                "learning_rate_steps": env_steps,
                "learning_starts": 200,
                "replay_ratio": 8.0,
                "replay_capacity": 4_000,
                "target_period": 25,
                "epsilon_start": EPSILON,
                "epsilon_end": EPSILON,
                "loss": "squared",
                **agent,
            },
            "topology": own,
        },
    )
    return make_driver("inline", prepare(options)[1])


def learned_values(driver: Driver, env_steps: int) -> NDArray[np.float64]:
    """What the network says of each state at the end of a run in which the environments are reset now and then."""
    driver.start()
    pauses = 0
    for _ in driver.rounds():
        if driver.counters.env_steps >= env_steps:
            break
        if driver.counters.env_steps >= 1_000 * (pauses + 1):
            pauses += 1
            driver.settle()
            driver.start()
    weights = weights_of(driver)
    driver.close()
    return np.asarray(driver.agent.values(weights, np.arange(3, dtype=np.int32)[:, None], None, None), float)


SETTINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "single": ("single", {}, {}),
    "single, prioritised, 3 steps": ("single", {"n_step": 3, "prioritized": True, "importance_exponent": 1.0}, {}),
    "collectors, 5 steps": ("collectors", {"n_step": 5}, {}),
    "parameter servers": ("parameter_server", {}, {}),
    "hogwild": ("hogwild", {}, {"exploration": "same", "method": "sarsa", "target_steps": 250}),
}


@pytest.mark.parametrize(("topology", "agent", "own"), SETTINGS.values(), ids=SETTINGS)
def test_values_are_those_of_the_exploring_policy_where_every_episode_is_truncated(
    topology: str, agent: dict[str, Any], own: dict[str, Any]
) -> None:
    """The largest values are 1.4 above; with the best action after a truncated step, values came out 0.7 too high."""
    limit = LIMIT if "n_step" not in agent else 4
    Q = learned_values(driver_of(topology, agent, own, limit, ENV_STEPS), ENV_STEPS)
    np.testing.assert_allclose(Q, on_policy(EPSILON), atol=0.25)
    assert (on_policy(0.0) - on_policy(EPSILON)).min() > 1.3
