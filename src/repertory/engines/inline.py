"""The inline host: all workers take turns in one thread; deterministic, for debugging, tests and exact resume.

The inner state of an environment can't be saved in general. So at every checkpoint the workers are built again from
what the checkpoint contains, and all environments start from seeds derived from the step: what comes after a checkpoint
depends on the checkpoint alone, whether the run was interrupted or not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from repertory.channels.channel import allocate
from repertory.engines.driver import Evaluations, Values
from repertory.engines.endings import failure_note
from repertory.engines.wiring import Wiring, fields_of
from repertory.environments.deadlines import SlowSteps, bounded, close_within, wait_for_what_hangs
from repertory.environments.factory import Environments
from repertory.errors import EnvironmentFailure, UserError
from repertory.roles.ports import Role, Stopwatch
from repertory.topologies.graph import Worker
from repertory.topologies.plan import Plan

IDLE_ROUNDS = 10_000
"""After so many rounds without any work, the workers wait for each other forever."""


class InlineHost:
    restarts = 0
    concurrent = False

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.wiring = Wiring(plan, allocate(fields_of(plan)), lambda _: None, in_thread=True)
        self.wiring.initialise()
        self.evaluations, self._work = Evaluations(self.wiring), self.wiring.counters.arrays["work"]
        self.watch = Stopwatch()
        self._dismissed: Callable[[], bool] = lambda: False
        self._turns: list[tuple[Worker, list[Role]]] = []
        self._evaluator: list[Role] = []
        self._environments: dict[Any, Environments] = {}
        self._notes: list[str] = []
        self._slow: SlowSteps | None = None
        self._rested, self._epoch, self._idle = False, 0, 0

    def start(self, dismissed: Callable[[], bool]) -> None:
        """Build the workers, those that publish weights first; after a rest, build them again."""
        self._dismissed = dismissed
        if self._turns and not self._rested:
            return
        first = not self._turns
        if self._rested:
            self.wiring.restart()
        self._slow = self._slow or SlowSteps(self.wiring.counters.arrays["place"], self.plan.heartbeat_s)
        self._rested, self._epoch = False, self._epoch + 1
        with bounded():
            self._turns = [
                (worker, self._build(worker, first))
                for worker in sorted(self.wiring.workers, key=self.wiring.needs_weights)
                if not self._evaluates(worker)
            ]
            if first:
                self._make_evaluator()
        wait_for_what_hangs()
        self.watch.lap("other" if first else "checkpoint")

    def _evaluates(self, worker: Worker) -> bool:
        return self.wiring.group(worker).kind == "evaluate"

    def _build(self, worker: Worker, first: bool) -> list[Role]:
        me = self.wiring.context(
            worker,
            epoch=self._epoch,
            watch=self.watch,
            dismissed=lambda: self._dismissed(),
            made=None if self._evaluates(worker) else self._environments,
        )
        roles = self.wiring.build(me)
        for role, state in zip(roles, self.wiring.counters.read_note(worker.index).get("roles", []), strict=False):
            role.load_state(state)
        for role in roles if first else []:
            role.warm_up()
        return roles

    def _make_evaluator(self) -> None:
        """If its environments can't be made, the next evaluation tries again."""
        worker = next(worker for worker in self.wiring.workers if self._evaluates(worker))
        try:
            with bounded():
                self._evaluator = self._build(worker, first=True)
        except UserError as error:
            self._notes.append(failure_note(f"{self.evaluations.withdraw() or worker} failed", error))

    def round(self) -> None:
        worked = False
        try:
            for worker, roles in self._turns:
                for role in roles:
                    if role.step():
                        self._work[worker.index] += 1
                        worked = True
        except EnvironmentFailure as error:
            self._notes.append(failure_note("the run ends", error))
            raise
        self._idle = 0 if worked else self._idle + 1
        if self._idle > IDLE_ROUNDS and self.wiring.counters.total("env_steps") < self.plan.env_steps:
            raise RuntimeError("the workers wait for each other")

    def evaluate(self) -> None:
        """Play the evaluation now; if it fails, the run loses a score only."""
        self.watch.lap("other")
        try:
            if not self._evaluator:
                self._make_evaluator()
            with bounded():
                for role in self._evaluator:
                    role.step()
        except EnvironmentFailure as error:
            self._notes.append(failure_note(f"{self.evaluations.withdraw()} failed", error))
            close_within(self.plan.environment, [role.close for role in self._evaluator])
            self._evaluator = []  # the next evaluation makes its environments again
        self.watch.lap("evaluate")

    def stop_playing(self) -> None:
        """Workers play in rounds only."""

    def rest(self) -> None:
        self.watch.lap("other")
        for worker, roles in self._turns:
            for role in roles:
                role.settle()
            self.wiring.counters.write_note(worker.index, {"roles": [role.state() for role in roles]})
        self._rested = True

    def await_losses(self, missing: Callable[[], bool]) -> None:  # noqa: ARG002
        """All of them: metrics must not depend on the machine's speed."""
        for role in self._roles():
            role.tell_losses()

    def _roles(self) -> list[Role]:
        return [role for _, roles in self._turns for role in roles]

    def metrics(self) -> Values:
        return {**self.watch.shares()}

    def notes(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        if self._slow is not None:
            self._slow.end()
        close_within(self.plan.environment, [role.close for role in self._roles() + self._evaluator])
