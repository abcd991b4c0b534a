"""The processes engine: every member of a company in a process of its own, on one machine.

The driver, which this runs in, owns the shared memory and computes nothing; it supervises, pauses everybody for a
checkpoint, and ends everybody however it ends itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from repertory.agents.agent import Agent
from repertory.engines.company import Answer, Evaluations, Figures, checkpoint_state
from repertory.engines.launching import check_limits
from repertory.engines.offspring import suspend_together
from repertory.engines.plan import Plan
from repertory.engines.shared_memory import Bell, Block
from repertory.engines.stage import BUILD, LEARN, LEAVE, PAUSE, PLAYING, RUN, Stage
from repertory.engines.supervisor import Supervisor
from repertory.roles.adjuster import judgements
from repertory.roles.ledger import Page

TICK_S = 0.02
LOSS_S = 0.1
"""The driver waits so long for the loss of an update that is being computed: a line with updates has their loss."""
SETTLE_S = 120.0
"""A company rests for a checkpoint within so long, or so long after a silent member was found out."""
FAILED_SETTLE_S = 10.0
"""The same for what is left of it after a failure."""
GLANCE_S = 0.005


class ProcessesEngine:
    """Hosts a company in processes."""

    def __init__(self, plan: Plan, agent: Agent) -> None:
        check_limits(plan)
        self.plan, self.agent = plan, agent
        self.block = Block(Stage.fields(plan, agent))
        self.bells: list[Bell] = []
        self.stage = Stage(plan, agent, self.block.arrays(), self._ring)
        self.bells = [Bell() for _ in self.stage.members]
        self.stage.fill(agent.init(plan.seed))
        self.counters = Page(self.stage.ledger)
        self.dismissed: Callable[[], bool] = lambda: False
        self.evaluations = Evaluations(self.stage)
        self.supervisor = Supervisor(plan, self.stage, self.block, self.bells, plan.threads, self.evaluations.withdraw)
        self._told = self._judged = 0
        self._unsuspend: Callable[[], None] = lambda: None
        self._started = False

    def _ring(self, members: Sequence[int]) -> None:
        for index in members:
            self.bells[index].ring()

    def start(self) -> None:
        """Start everybody; once all have built their roles, or after a checkpoint, let everybody go on.

        Nobody plays before: those steps would be on no clock.
        """
        if not self._started:
            self._started = True
            self._unsuspend = suspend_together(self.supervisor.pids)
            self.stage.phase[0] = BUILD
            self.supervisor.start()
            while not self.supervisor.ready and not self.dismissed():
                self.supervisor.check()
                time.sleep(TICK_S)
            self.figures = Figures(self.stage)
        self._set_phase(RUN)

    def _set_phase(self, phase: int) -> None:
        self.stage.phase[0] = phase
        self._ring(range(len(self.bells)))

    def rounds(self) -> Iterator[None]:
        """Look after everybody, again and again."""
        while True:
            self.supervisor.check()
            yield
            time.sleep(TICK_S)

    def ask(self, index: int, seconds: float = math.inf, *, urgent: bool = False) -> None:
        """Evaluate a snapshot of the weights of now; an evaluator that was given up is tried once more."""
        self.evaluations.ask(index, seconds, urgent=urgent)
        self.supervisor.bring_back()  # last: if it can't be started, the question is withdrawn

    def answer(self) -> Answer | None:
        """The next evaluation that is done."""
        return self.evaluations.answer()

    @property
    def finished_episodes(self) -> int:
        """Episodes of the evaluation under way that have ended."""
        return self.evaluations.finished

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation is under way."""
        return self.evaluations.waiting

    def behind(self) -> bool:
        """Whether updates are still owed for the steps that were played."""
        plan, page = self.plan, self.counters
        if plan.unrolled or not plan.topology.has("learner"):
            return False
        pacing = plan.pacing()
        pacing.updates = page.updates
        return pacing.owed(page.env_steps) >= plan.q.updates_per_call

    def metrics(self) -> dict[str, float | int | None]:
        """What happened since the last call."""
        end = time.monotonic() + LOSS_S
        while self.figures.losses_under_way and time.monotonic() < end:
            time.sleep(LOSS_S / 100)
        memory = {f"rss_mb/{role}": size for role, size in self.supervisor.rss_mb().items()}
        return {**self.figures.read(), **memory, "restarts": self.supervisor.restarts}

    @property
    def restarts(self) -> int:
        """How often a member was started again, or its environments."""
        return self.supervisor.restarts

    def notes(self) -> list[str]:
        """What went wrong since the last call, and what GA3C's adjuster found."""
        events = self.supervisor.events[self._told :]
        self._told += len(events)
        found = judgements(self.stage.named("adjust"), self._judged) if self.plan.company.adjust_from else []
        self._judged += len(found)
        return [event.sentence() + (f"\n{event.trace.rstrip()}" if event.trace else "") for event in events] + found

    def settle(self) -> dict[str, Any]:
        """Pause everybody, and return everything a checkpoint needs; `start` lets them go on.

        But for an evaluation, which changes nothing of that and may take long: it is played to its end meanwhile. After
        a failure those who are left come to rest if they do so soon, and what the others have left behind counts.
        """
        members = self.stage.indices(*{member.role for member in self.stage.members} - {"evaluator"})
        if self.supervisor.failed:
            self._rest_if_soon(members)
        else:
            self._bring_to_rest(PAUSE, members)
        return checkpoint_state(self.stage)

    def stop_playing(self) -> None:
        """No more steps are played; what was played is still learned from and evaluated."""
        self._bring_to_rest(LEARN, self.stage.indices(*PLAYING))

    def _bring_to_rest(self, phase: int, members: Sequence[int]) -> None:
        self.stage.phase[1] += 1
        self._set_phase(phase)
        end = time.monotonic() + self.plan.company.heartbeat_s + SETTLE_S
        while not self._at_rest(members):
            self.supervisor.check()
            if time.monotonic() > end:
                self.supervisor.failed = True
                raise TimeoutError("the company did not come to rest")
            time.sleep(GLANCE_S)

    def _at_rest(self, members: Sequence[int]) -> bool:
        return bool((self.stage.ledger["settled"][members] == self.stage.phase[1]).all())

    def _rest_if_soon(self, members: Sequence[int]) -> None:
        """Nobody is started again, and nobody waited for who is gone or never began to work."""
        self.stage.phase[1] += 1
        self._set_phase(PAUSE)
        end = time.monotonic() + FAILED_SETTLE_S
        while time.monotonic() < end:
            there = set(members) & self.supervisor.at_work()
            if self._at_rest(sorted(there)):
                break
            time.sleep(GLANCE_S)
        self.stage.count_what_is_kept()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a checkpoint, before `start`."""
        self.stage.load_state(state)

    def close(self) -> None:
        """End everybody and free everything."""
        self._set_phase(LEAVE)
        self.supervisor.stop()
        self._unsuspend()
        for bell in self.bells:
            bell.close()
        self.block.file.close()
