"""Small companies on CartPole in this process, for tests that look into their mechanisms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.agents import registry
from repertory.engines.plan import Plan
from repertory.engines.rehearsal import Rehearsal
from repertory.roles.ports import Role
from repertory.runs.config import change
from repertory.runs.presets import choose_agent, defaults
from repertory.runs.staging import stage

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


def company(
    topology: str,
    company: dict[str, Any] | None = None,
    agent: dict[str, Any] | None = None,
    *,
    begin: bool = True,
    of: str | None = None,
    **wishes: Any,
) -> Rehearsal:
    """A company with a tiny network, its members built unless told otherwise; nobody has taken a turn.

    `of` names its agent, by default the one that the topology is for.
    """
    plan = small_plan(topology, company, agent, of=of, **wishes)
    rehearsal = Rehearsal(plan, plan.make_agent())
    if begin:
        rehearsal.start()
    return rehearsal


def play(rehearsal: Rehearsal, env_steps: int | None = None, watch: Callable[[], None] = lambda: None) -> None:
    """Rounds until so many env steps are played; `watch` is called after each."""
    goal = rehearsal.plan.env_steps if env_steps is None else env_steps
    for _ in rehearsal.rounds():
        watch()
        if rehearsal.counters.env_steps >= goal:
            return


def roles(rehearsal: Rehearsal, kind: type[Any] | tuple[type[Any], ...]) -> list[Any]:
    """Everybody's roles of these kinds, in the order of ranks."""
    return [role for _, turn in rehearsal._turns for role in turn if isinstance(role, kind)]


def turns(rehearsal: Rehearsal) -> dict[str, list[Role]]:
    """The roles of each member by its name, for tests that let them take turns in an order of their own."""
    by_page = {page.member: acting for page, acting in rehearsal._turns}
    return {str(member): by_page[member.index] for member in rehearsal.stage.members}


def weights_of(rehearsal: Rehearsal) -> NDArray[np.float32]:
    """The weights as they are now."""
    return rehearsal.stage.weights()[1]


def small_plan(
    topology: str,
    company: dict[str, Any] | None = None,
    agent: dict[str, Any] | None = None,
    *,
    of: str | None = None,
    environment: str = "CartPole-v1",
    **wishes: Any,
) -> Plan:
    """The plan of such a company alone."""
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
            "topology": company or {},
            **wishes,
        },
    )
    return stage(options)[1]


def plan_of(topology: str, own: dict[str, Any] | None = None, **wishes: Any) -> Plan:
    """The plan of a topology with the options of its preset, but for its own."""
    chosen = {"engine": "inline", "topology": own or {}, **wishes}
    return stage(change(defaults("CartPole-v1", topology=topology), chosen))[1]
