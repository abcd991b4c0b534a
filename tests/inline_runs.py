"""Small runs on CartPole with all workers in this thread, for tests that look into their mechanisms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.agents import registry
from repertory.channels.channel import Channel
from repertory.channels.lanes import Lanes
from repertory.channels.slots import UnrollSlots
from repertory.engines.driver import Driver
from repertory.engines.inline import InlineHost
from repertory.engines.wiring import Wiring
from repertory.experience.lanes import LaneStorage
from repertory.experience.unrolls import UnrollStorage
from repertory.roles.ports import Role
from repertory.runs.config import change
from repertory.runs.launch import prepare
from repertory.runs.presets import choose_agent, defaults
from repertory.topologies.plan import Plan

SMALL = {
    "batch_size": 8,
    "replay_ratio": 1.0,
    "learning_starts": 200,
    "updates_per_call": 1,
    "n_step": 3,
    "target_tau": 0.0,
    "target_period": 20,
    "replay_capacity": 1_000,
    "learning_rate_steps": 0,
    "learning_rate": 1e-2,
    "epsilon_steps": 1_000,
}
SMALL_CRITIC = {"unroll": 5, "batch_unrolls": 4, "learning_rate": 1e-2, "learning_rate_steps": 0}


def inline_run(
    topology: str,
    own: dict[str, Any] | None = None,
    agent: dict[str, Any] | None = None,
    *,
    begin: bool = True,
    of: str | None = None,
    **wishes: Any,
) -> Driver:
    """A driver of workers with a tiny network, built unless told otherwise; no worker has taken a turn.

    `own` are the topology's own options; `of` names the agent, by default the one that the topology is for.
    """
    plan = small_plan(topology, own, agent, of=of, **wishes)
    driver = Driver(plan, InlineHost(plan))
    if begin:
        driver.start()
    return driver


def play(driver: Driver, env_steps: int | None = None, watch: Callable[[], None] = lambda: None) -> None:
    """Rounds until so many env steps are played; `watch` is called after each."""
    goal = driver.plan.env_steps if env_steps is None else env_steps
    for _ in driver.rounds():
        watch()
        if driver.counters.env_steps >= goal:
            return


def host_of(driver: Driver) -> InlineHost:
    assert isinstance(driver.host, InlineHost)
    return driver.host


def roles(driver: Driver, kind: type[Any] | tuple[type[Any], ...]) -> list[Any]:
    """All workers' roles of these kinds, in the order of workers."""
    host = host_of(driver)
    every = [role for _, turn in host._turns for role in turn] + host._evaluator
    return [role for role in every if isinstance(role, kind)]


def turns(driver: Driver) -> dict[str, list[Role]]:
    """The roles of each worker by its name, for tests that let them take turns in an order of their own."""
    return {str(worker): acting for worker, acting in host_of(driver)._turns}


def weights_of(driver: Driver) -> NDArray[np.float32]:
    """The weights as they are now."""
    return np.array(driver.wiring.topology.weights.latest()[1])


def channel_of(wiring: Wiring, name: str) -> Any:
    """The channel of this name, bound to the run's arrays."""
    found: Channel = next(channel for channel in wiring.topology.channels if channel.name == name)
    return found


def lanes_of(wiring: Wiring) -> LaneStorage:
    """The lanes of all workers."""
    return next(channel for channel in wiring.topology.channels if isinstance(channel, Lanes)).storage()


def unrolls_of(wiring: Wiring) -> UnrollStorage:
    """The unrolls of all workers."""
    return next(channel for channel in wiring.topology.channels if isinstance(channel, UnrollSlots)).storage()


def small_plan(
    topology: str,
    own: dict[str, Any] | None = None,
    agent: dict[str, Any] | None = None,
    *,
    of: str | None = None,
    environment: str = "CartPole-v1",
    **wishes: Any,
) -> Plan:
    """The plan of such a run alone."""
    unrolled = registry.find(of or choose_agent(topology)).learns_from == "unrolls"
    options = change(
        defaults(environment, of, topology),
        {
            "engine": "inline",
            "actors": 3,
            "envs_per_actor": 2,
            "env_steps": 1_500,
            "eval_episodes": 2,
            "network": {"hidden": [8]},
            "agent": {**(SMALL_CRITIC if unrolled else SMALL), **(agent or {})},
            "topology": own or {},
            **wishes,
        },
    )
    return prepare(options)[1]


def plan_of(topology: str, own: dict[str, Any] | None = None, **wishes: Any) -> Plan:
    """The plan of a topology with the options of its preset, but for its own."""
    chosen = {"engine": "inline", "topology": own or {}, **wishes}
    return prepare(change(defaults("CartPole-v1", topology=topology), chosen))[1]
