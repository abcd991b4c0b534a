"""The inline engine for companies: all members in one thread, in turn; deterministic, so it debugs and tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from repertory.agents.agent import Agent
from repertory.engines.casting import Casting
from repertory.engines.company import Answer, Evaluations, Figures, checkpoint_state, failure_note
from repertory.engines.plan import Plan
from repertory.engines.stage import Member, Stage
from repertory.environments.deadlines import SlowSteps, bounded, close_within, wait_for_what_hangs
from repertory.errors import EnvironmentFailure, UserError
from repertory.roles.ledger import Page
from repertory.roles.ports import Role

IDLE_ROUNDS = 10_000
"""Rounds without any work after which the members wait for each other for ever."""


class Rehearsal:
    """Builds all members in this process and lets them take turns."""

    restarts = 0

    def __init__(self, plan: Plan, agent: Agent) -> None:
        self.plan, self.agent = plan, agent
        arrays = {name: np.zeros(field.shape, field.dtype) for name, field in Stage.fields(plan, agent).items()}
        self.stage = Stage(plan, agent, arrays, _nobody_sleeps)
        self.stage.fill(agent.init(plan.seed))
        self.counters = Page(self.stage.ledger)
        self.dismissed: Callable[[], bool] = lambda: False
        self.evaluations = Evaluations(self.stage)
        self._loaded = False
        self._turns: list[tuple[Page, list[Role]]] = []
        self._casting = Casting(self.stage, self.stage.collective, lambda: self.dismissed())
        self._notes: list[str] = []
        self._slow: SlowSteps | None = None
        self.stage.ledger["place"][:] = -1

    def start(self) -> None:
        """Build the members; those that speak first come first."""
        if self._turns:
            return
        self._slow = SlowSteps(self.stage.ledger["place"], self.plan.company.heartbeat_s)
        first = ("server", "learner", "memory")
        with bounded():
            for member in sorted(self.stage.members, key=lambda member: member.role not in first):
                self._turns.append((self.stage.page(member), self._build(member)))
        self.figures = Figures(self.stage)
        wait_for_what_hangs()

    def _build(self, member: Member) -> list[Role]:
        roles = self._evaluator(member) if member.role == "evaluator" else self._casting.build(member)
        if self._loaded:
            for role, state in zip(roles, self.stage.read_note(member).get("roles", []), strict=False):
                role.load_state(state)
        return roles

    def _evaluator(self, member: Member) -> list[Role]:
        """Its role, or none if its environments can't be made: then each evaluation is another try."""
        try:
            with bounded():
                return self._casting.build(member)
        except UserError as error:
            self._notes.append(failure_note(f"{self.evaluations.withdraw() or 'evaluator'} failed", error))
            return []

    def rounds(self) -> Iterator[None]:
        """Everybody's turn, again and again."""
        idle = 0
        while True:
            idle = 0 if self._round() else idle + 1
            if idle > IDLE_ROUNDS and self.counters.env_steps < self.plan.env_steps:
                raise RuntimeError("the members of the company wait for each other")
            yield

    def _round(self) -> bool:
        """Whether anybody worked."""
        worked = False
        try:
            for page, roles in self._turns:
                for role in roles:
                    done = role.step()
                    page.row["work"] += done
                    worked |= done
        except EnvironmentFailure as error:
            self._notes.append(failure_note("the run ends", error))
            raise
        return worked

    def ask(self, index: int, seconds: float = math.inf, *, urgent: bool = False) -> None:
        """Evaluate the weights of now; an evaluation that fails costs a score, no more."""
        page, roles = self._turns[-1]  # the evaluator comes last
        self.evaluations.ask(index, seconds, urgent=urgent)
        try:
            if not roles:
                roles.extend(self._evaluator(self.stage.members[page.member]))
            with bounded():
                for role in roles:
                    role.step()
        except EnvironmentFailure as error:
            self._notes.append(failure_note(f"{self.evaluations.withdraw()} failed", error))
            close_within(self.plan.environment, [roles[0].close])
            self.stage.ledger["place"][page.member] = -1
            roles.clear()

    def answer(self) -> Answer | None:
        """The next evaluation that is done."""
        return self.evaluations.answer()

    @property
    def finished_episodes(self) -> int:
        """Episodes of the evaluation under way that have ended."""
        return self.evaluations.finished

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation is on its way; one that was cut short never comes."""
        return False

    def stop_playing(self) -> None:
        """Nobody plays but in a round."""

    def behind(self) -> bool:
        """In turn, nobody falls behind."""
        return False

    def metrics(self) -> dict[str, float | int | None]:
        """What happened since the last call."""
        return self.figures.read()

    def settle(self) -> dict[str, Any]:
        """Everything a checkpoint needs."""
        for page, roles in self._turns:
            for role in roles:
                role.settle()
            self.stage.write_note(self.stage.members[page.member], {"roles": [role.state() for role in roles]})
        return checkpoint_state(self.stage)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a checkpoint, before `start`."""
        self.stage.load_state(state)
        self._loaded = True

    def notes(self) -> list[str]:
        """What went wrong since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """Close what the roles hold."""
        if self._slow is not None:
            self._slow.end()
        close_within(self.plan.environment, [role.close for _, roles in self._turns for role in roles])


def _nobody_sleeps(_members: Sequence[int]) -> None:
    """In one thread nobody waits for a bell."""
