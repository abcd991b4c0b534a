"""How roles run and edges carry: one process, or the processes of one machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from repertory.agents.agent import Agent
from repertory.engines.company import Answer
from repertory.engines.plan import Plan
from repertory.roles.ledger import Page

ENGINES = ("inline", "processes")


class Engine(Protocol):
    """What a run asks of whatever hosts its roles."""

    agent: Agent
    counters: Page
    dismissed: Callable[[], bool]

    @property
    def restarts(self) -> int:
        """How often a member was started again."""

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation is under way."""

    def start(self) -> None:
        """Begin, or go on after `settle`."""

    def rounds(self) -> Iterator[None]:
        """Runs; yields often, for whoever watches."""

    @property
    def finished_episodes(self) -> int:
        """Episodes of the evaluation under way that have ended."""

    def ask(self, index: int, seconds: float = math.inf, *, urgent: bool = False) -> None:
        """Evaluate the weights of now, for so many seconds at most; `index` chooses the seeds.

        An urgent evaluation takes the place of one that is under way.
        """

    def answer(self) -> Answer | None:
        """The next evaluation that is done."""

    def stop_playing(self) -> None:
        """The run is over, before its env steps are: what was played is still learned from and evaluated."""

    def behind(self) -> bool:
        """Whether updates are still owed for the steps that were played."""

    def metrics(self) -> dict[str, float | int | None]:
        """What happened since the last call."""

    def notes(self) -> list[str]:
        """What went wrong since the last call."""

    def settle(self) -> dict[str, Any]:
        """Come to rest, and give everything that a checkpoint needs."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a checkpoint, before `start`."""

    def close(self) -> None:
        """End everybody and free everything."""


def make_engine(name: str, plan: Plan, agent: Agent) -> Engine:
    """The engine of this name for a plan."""
    if name == "processes":
        from repertory.engines.processes import ProcessesEngine

        return ProcessesEngine(plan, agent)
    if plan.topology.name == "single":
        from repertory.engines.inline import InlineEngine

        return InlineEngine(plan, agent)
    from repertory.engines.rehearsal import Rehearsal

    return Rehearsal(plan, agent)
