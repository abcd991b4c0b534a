"""Munchausen DQN (Vieillard et al. 2020), as a package of its own would bring it: only what differs from DQN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from repertory.agents.agent import Agent, Array, Transitions
from repertory.agents.learning import legal
from repertory.agents.q_learning import Head, Networks, QLearningOptions, make_q_learning
from repertory.agents.registry import AgentKind


@dataclass(frozen=True)
class MunchausenOptions(QLearningOptions):
    """DQN's options, and those of the paper."""

    munchausen_alpha: float = 0.9
    """α: scale of the log-policy in the reward."""
    munchausen_temperature: float = 0.03
    """τ: temperature of the softmax policy."""
    munchausen_clip: float = -1.0
    """l₀: lowest scaled log-policy that is added to a reward."""


def munchausen_targets(
    options: MunchausenOptions, batch: Transitions, slow: jax.Array, slow_next: jax.Array
) -> jax.Array:
    """`[batch]`: equation 1 of the paper; both Q-values `[batch, actions]` are the target network's."""
    tau = options.munchausen_temperature
    log_policy = tau * jax.nn.log_softmax(slow / tau)
    bonus = options.munchausen_alpha * jnp.clip(taken_values(log_policy, batch.action), options.munchausen_clip, 0.0)
    next_policy = jax.nn.softmax(slow_next / tau)
    next_log_policy = tau * jax.nn.log_softmax(slow_next / tau)
    soft_value = jnp.sum(next_policy * (slow_next - next_log_policy), axis=-1)
    return batch.reward + bonus + batch.discount * soft_value


def munchausen_errors(head: Head, networks: Networks, batch: Transitions) -> tuple[jax.Array, jax.Array]:
    assert isinstance(head.options, MunchausenOptions)
    slow = head.expected(networks.target(batch.observation))
    slow_next = legal(head.expected(networks.bootstrap(batch)), batch.next_mask)
    targets = jax.lax.stop_gradient(munchausen_targets(head.options, batch, slow, slow_next))
    rows = networks.online(batch.observation)
    return targets - taken_values(head.expected(rows), batch.action), rows


def taken_values(values: jax.Array, action: Array) -> jax.Array:
    return jnp.take_along_axis(values, jnp.asarray(action)[:, None], axis=-1)[:, 0]


def make_munchausen(options: MunchausenOptions, *given: Any) -> Agent:
    return make_q_learning(options, *given, errors=munchausen_errors)


MUNCHAUSEN = AgentKind(
    "munchausen", "DQN with its log-policy in the reward", MunchausenOptions, make_munchausen, "replay", like="dqn"
)
