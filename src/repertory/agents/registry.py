"""The agents by name: those of this package, those that other packages bring, and those that a program registers.

An agent is one function from options, network, environment and threads to a record of pure functions (`agent.py`).
A package brings one by an entry point of the group `repertory.agents` that names an `AgentKind`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from repertory.agents import Kinds
from repertory.agents.actor_critic import ActorCriticOptions, make_actor_critic
from repertory.agents.agent import Agent
from repertory.agents.q_learning import QLearningOptions, make_q_learning


@dataclass(frozen=True)
class AgentKind:
    """How agents of one name are made, and what they learn from."""

    name: str
    summary: str
    options: type
    """A frozen dataclass: `QLearningOptions`, `ActorCriticOptions`, or one derived from them."""
    make: Callable[..., Agent]
    """Takes options, network options, the environment's spec and a number of threads."""
    learns_from: Literal["replay", "unrolls"]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Options that this name sets unless the user does."""
    like: str = ""
    """An agent of this package that it can stand in for: the topologies that train that one also train this one."""


def _value_agent(name: str, summary: str, **defaults: Any) -> AgentKind:
    return AgentKind(name, summary, QLearningOptions, make_q_learning, "replay", defaults)


def _actor_critic(name: str, summary: str, **defaults: Any) -> AgentKind:
    return AgentKind(name, summary, ActorCriticOptions, make_actor_critic, "unrolls", defaults)


_RAINBOW = {"double": True, "dueling": True, "prioritized": True, "distributional": True, "noisy": True, "n_step": 3}
_SHARED_RMSPROP = {"reduction": "sum", "optimizer": "shared_rmsprop"}
_A3C = {"unroll": 5, "correction": "none", "optimizer_epsilon": 0.1, "learning_rate": 7e-4, **_SHARED_RMSPROP}
_IMPALA = {"unroll": 20, "correction": "vtrace", "optimizer_epsilon": 0.01, "learning_rate": 6e-4, **_SHARED_RMSPROP}
_APPO = {
    "unroll": 32,
    "batch_unrolls": 32,
    "correction": "vtrace",
    "ratio_clip": 0.1,
    "normalize_advantage": True,
    "entropy": 0.003,
    "max_gradient_norm": 4.0,
    "learning_rate": 1e-4,
    "optimizer_epsilon": 1e-6,
}
_KINDS = Kinds(
    "agent",
    "repertory.agents",
    (
        _value_agent("dqn", "deep Q-network, double by default (Mnih et al. 2015)"),
        _value_agent("rainbow", "DQN with all six improvements (Hessel et al. 2018)", **_RAINBOW),
        _value_agent("sarsa", "bootstraps from the action that was taken next", sarsa=True),
        _actor_critic("a3c", "advantage actor-critic on returns as played (Mnih et al. 2016)", **_A3C),
        _actor_critic("impala", "actor-critic with V-trace (Espeholt et al. 2018)", **_IMPALA),
        _actor_critic("appo", "V-trace and PPO's clip together (Petrenko et al. 2020)", **_APPO),
    ),
)
register, unregister, known, find = _KINDS.register, _KINDS.unregister, _KINDS.known, _KINDS.find
