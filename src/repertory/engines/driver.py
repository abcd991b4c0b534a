"""The driver: evaluations, metrics, checkpoints, pauses and the end of a run, over whatever hosts its workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.channels.counters import WorkerStats
from repertory.channels.mailbox import Episodes
from repertory.engines.figures import Figures
from repertory.engines.wiring import Wiring
from repertory.roles.learner import check_finite
from repertory.topologies.plan import Plan


class Evaluated(NamedTuple):
    """An evaluation, the counters behind the weights that it was played with, and those weights."""

    env_steps: int
    updates: int
    episodes: Episodes
    weights: NDArray[np.float32]


class Request(NamedTuple):
    """An evaluation that is asked for: `number` chooses its seeds, `seconds` is how long it may take."""

    number: int
    env_steps: int
    updates: int
    weights: NDArray[np.float32]
    seconds: float


class Evaluations:
    """One evaluation at a time, always with a snapshot of the weights.

    While one is under way, the newest request waits for it and takes the place of an older one that waits: a slow
    evaluator is asked less often, never ever later. An urgent one takes the place of the one under way.
    """

    def __init__(self, wiring: Wiring) -> None:
        self._wiring, self._mailbox = wiring, wiring.evaluation
        self._asked: Request | None = None
        self._under_way: Request | None = None

    def ask(self, index: int, seconds: float = math.inf, *, urgent: bool = False) -> None:
        """Evaluate the weights of now; `index` chooses the seeds."""
        env_steps = self._wiring.counters.total("env_steps")
        updates, weights = self._wiring.topology.weights.latest()
        self._asked = Request(index, env_steps, updates, np.array(weights), seconds)
        if urgent:
            self._under_way = None
        self._send()

    def _send(self) -> None:
        if self._under_way is None and self._asked is not None:
            self._under_way, self._asked = self._asked, None
            self._mailbox.ask(self._under_way.number, self._under_way.weights, self._under_way.seconds)

    def reply(self) -> Evaluated | None:
        """The next evaluation that is done."""
        done = self._under_way
        if done is None or not self._mailbox.replied:
            return None
        episodes = self._mailbox.episodes_played()
        self._under_way = None
        self._send()
        return Evaluated(done.env_steps, done.updates, episodes, done.weights)

    @property
    def waiting(self) -> bool:
        """Whether an evaluation is under way or asked for."""
        return self._under_way is not None or self._asked is not None

    def withdraw(self) -> str:
        """Nobody is there to play it: says which one that was, if there was any."""
        done = self._mailbox.replied
        lost, self._asked = self._asked if done else self._under_way, None
        if not done:
            self._under_way = None
            self._mailbox.withdraw()
        return "" if lost is None else f"evaluation at {lost.env_steps:,} env steps"


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

    def next_evaluation(self) -> Evaluated | None:
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
        return topology.pacing.owed(self.counters.env_steps) >= self.plan.q.updates_per_call

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
