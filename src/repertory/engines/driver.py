"""The driver: evaluations, metrics, checkpoints, pauses and the end of a run, over whatever hosts its workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from repertory.agents.agent import Agent
from repertory.channels.counters import WorkerStats
from repertory.engines.evaluations import Evaluated, Evaluations
from repertory.engines.figures import Figures
from repertory.engines.wiring import Wiring
from repertory.roles.learner import check_finite
from repertory.topologies.plan import Plan


class Host(Protocol):
    """Where workers run: one thread, or the processes of a machine."""

    wiring: Wiring
    evaluations: Evaluations

    @property
    def restarts(self) -> int:
        """How often a worker was started again, or its environments."""

    def start(self, dismissed: Callable[[], bool]) -> None:
        """Build the workers, or let them go on after a rest; `dismissed` says whether the run is to stop."""

    def round(self) -> None:
        """Let workers take a turn, or look after them."""

    def rest(self) -> None:
        """Everybody comes to rest and puts what must survive where it survives."""

    def stop_playing(self) -> None:
        """No more steps are played; what was played is still learned from and evaluated."""

    def evaluate(self) -> None:
        """An evaluation was asked for."""

    @property
    def concurrent(self) -> bool:
        """Whether an evaluation is played while others work."""

    def await_losses(self, missing: Callable[[], bool]) -> None:
        """Losses that are being computed are told, if that is soon done: a line with updates has their loss."""

    def metrics(self) -> dict[str, float | int | None]:
        """What only the host knows."""

    def notes(self) -> list[str]:
        """What went wrong since the last call."""

    def close(self) -> None:
        """End everybody and free everything."""


class Driver:
    """What a run asks of its workers, wherever they are hosted."""

    def __init__(self, plan: Plan, host: Host) -> None:
        self.plan, self.host = plan, host
        self.dismissed: Callable[[], bool] = lambda: False
        self.wiring, self.evaluations = host.wiring, host.evaluations
        self.counters: WorkerStats = self.wiring.counters.stats()
        self.figures, self._started = Figures(self.wiring), False

    @property
    def agent(self) -> Agent:
        return self.plan.agent

    @property
    def restarts(self) -> int:
        return self.host.restarts

    def start(self) -> None:
        """Begin, or go on after `settle`."""
        self.host.start(lambda: self.dismissed())
        if not self._started or not self.host.concurrent:  # workers that were built anew count anew
            self._started, self.figures = True, Figures(self.wiring)

    def rounds(self) -> Iterator[None]:
        """Runs; yields often, for whoever watches."""
        while True:
            self.host.round()
            yield

    def ask(self, index: int, seconds: float = math.inf, *, urgent: bool = False) -> None:
        """Evaluate the weights of now, for so many seconds at most; `index` chooses the seeds."""
        self.evaluations.ask(index, seconds, urgent=urgent)
        self.host.evaluate()

    def answer(self) -> Evaluated | None:
        """The next evaluation that is done."""
        return self.evaluations.reply()

    @property
    def finished_episodes(self) -> int:
        """Episodes of the evaluation under way that have ended."""
        return self.wiring.evaluation.finished

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation is on its way."""
        return self.host.concurrent and self.evaluations.waiting

    def stop_playing(self) -> None:
        self.host.stop_playing()

    def behind(self) -> bool:
        """Whether updates are still owed for the steps that were played."""
        topology = self.wiring.topology
        if topology.pacing is None:
            return False
        topology.pacing.updates = self.counters.updates
        return topology.pacing.owed(self.counters.env_steps) >= topology.updates_per_call

    def metrics(self) -> dict[str, float | int | None]:
        """What happened since the last call."""
        self.host.await_losses(lambda: self.figures.losses_under_way)
        return {**self.figures.read(), **self.host.metrics()}

    def notes(self) -> list[str]:
        """What went wrong since the last call."""
        return self.host.notes()

    def settle(self) -> dict[str, Any]:
        """Come to rest, and give everything that a checkpoint needs; refuses weights that are not numbers."""
        self.host.rest()
        state = self.wiring.state()
        check_finite(np.asarray(state["learner"]["learned"]["00"]), state["updates"])
        return state

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a checkpoint, before `start`."""
        self.wiring.load_state(state)

    def close(self) -> None:
        """End everybody and free everything."""
        self.host.close()
