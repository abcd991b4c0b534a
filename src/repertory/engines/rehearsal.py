"""The inline engine for companies: all members in one thread, in turn; deterministic, so it debugs and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from repertory.agents.agent import Agent, LearnerState
from repertory.engines.casting import Casting
from repertory.engines.company import Answer, Evaluations, Figures, checkpoint_state
from repertory.engines.plan import Plan
from repertory.engines.stage import Stage
from repertory.roles.ledger import Page
from repertory.roles.ports import Role

IDLE_ROUNDS = 10_000
"""Rounds without any work after which the members wait for each other for ever."""


class InlineCollective:
    """Ranks in one thread: what each has submitted to a round lies there until all have taken it."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.rounds: dict[int, dict[int, dict[str, jax.Array]]] = {}

    def part(self, rank: int) -> InlinePart:
        """One rank's view."""
        return InlinePart(self, rank)


class InlinePart:
    """One rank's view of the collective."""

    def __init__(self, whole: InlineCollective, rank: int) -> None:
        self.whole, self.rank, self.round = whole, rank, 0

    @property
    def adjourned(self) -> bool:
        """In one thread nobody is ever left waiting."""
        return False

    def submit(self, payload: dict[str, jax.Array]) -> None:
        """This rank's part of its next round."""
        self.whole.rounds.setdefault(self.round, {})[self.rank] = payload

    def poll(self) -> list[dict[str, Any]] | None:
        """Everybody's parts, once all are there."""
        parts = self.whole.rounds[self.round]
        if len(parts) < self.whole.ranks:
            return None
        self.whole.rounds.pop(self.round - 1, None)  # all have come this far, so all have taken that one
        self.round += 1
        return [parts[rank] for rank in range(self.whole.ranks)]

    def broadcast(self, learned: LearnerState) -> LearnerState:
        """All have read the same safe."""
        return learned

    def adjourn(self, payload: dict[str, jax.Array]) -> None:  # noqa: ARG002  # the port's name for it
        """Nobody waits; what was submitted to a round that not all have joined is withdrawn."""
        self.whole.rounds.get(self.round, {}).pop(self.rank, None)

    def reconvene(self) -> None:
        """Nobody left."""


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

    def start(self) -> None:
        """Build the members; those that speak first come first."""
        if self._turns:
            return
        collective = InlineCollective(self.plan.ranks)
        casting = Casting(self.stage, collective.part, lambda: self.dismissed())
        first = ("server", "learner", "memory")
        members = sorted(self.stage.members, key=lambda member: member.role not in first)
        for member in members:
            roles = casting.build(member)
            if self._loaded:
                for role, state in zip(roles, self.stage.read_note(member).get("roles", []), strict=False):
                    role.load_state(state)
            self._turns.append((self.stage.page(member), roles))
        self.figures = Figures(self.stage)

    def rounds(self) -> Iterator[None]:
        """Everybody's turn, again and again."""
        idle = 0
        while True:
            worked = False
            for page, roles in self._turns:
                for role in roles:
                    done = role.step()
                    page.row["work"] += done
                    worked |= done
            idle = 0 if worked else idle + 1
            if idle > IDLE_ROUNDS and self.counters.env_steps < self.plan.env_steps:
                raise RuntimeError("the members of the company wait for each other")
            yield

    def ask(self, index: int) -> None:
        """Evaluate the weights of now."""
        self.evaluations.ask(index)
        for _, roles in self._turns[-1:]:  # the evaluator comes last
            roles[0].step()

    def answer(self) -> Answer | None:
        """The next evaluation that is done."""
        return self.evaluations.answer()

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
        for member, (_, roles) in zip(
            sorted(self.stage.members, key=lambda m: m.role not in ("server", "learner", "memory")),
            self._turns,
            strict=True,
        ):
            for role in roles:
                role.settle()
            self.stage.write_note(member, {"roles": [role.state() for role in roles]})
        return checkpoint_state(self.stage)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a checkpoint, before `start`."""
        self.stage.load_state(state)
        self._loaded = True

    def notes(self) -> list[str]:
        """Nothing happens here that is not an error."""
        return []

    def close(self) -> None:
        """Close what the roles hold."""
        for _, roles in self._turns:
            for role in roles:
                role.close()


def _nobody_sleeps(_members: Sequence[int]) -> None:
    """In one thread nobody waits for a bell."""
