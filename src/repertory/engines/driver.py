"""The driver: evaluations, metrics, checkpoints, pauses and the end of a run, on any host of its workers.

What each metric means is in `docs/metrics.md`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent
from repertory.channels.counters import RECENT, Table, WorkerStats
from repertory.channels.mailbox import Episodes
from repertory.engines.wiring import Wiring
from repertory.roles.learner import check_finite
from repertory.topologies.plan import Plan

Values: TypeAlias = dict[str, float | int | None]


class Evaluated(NamedTuple):
    """An evaluation, its weights, and the counters when they were copied."""

    env_steps: int
    updates: int
    episodes: Episodes
    weights: NDArray[np.float32]


class Request(NamedTuple):
    """A requested evaluation: `number` chooses its seeds, `seconds` is its time limit."""

    number: int
    env_steps: int
    updates: int
    weights: NDArray[np.float32]
    seconds: float


class Evaluations:
    """One evaluation at a time, always with a snapshot of the weights.

    While one is under way, the newest request waits and replaces an older one that waits: a slow evaluator plays fewer
    evaluations, and none that is out of date. An urgent request replaces the evaluation under way.
    """

    def __init__(self, wiring: Wiring) -> None:
        self._wiring, self._mailbox = wiring, wiring.evaluation
        self._waiting: Request | None = None
        self._under_way: Request | None = None

    def ask(self, index: int, seconds: float = math.inf, *, urgent: bool = False) -> None:
        """Evaluate the current weights; `index` chooses the seeds."""
        env_steps = self._wiring.counters.total("env_steps")
        updates, weights = self._wiring.topology.weights.latest()
        self._waiting = Request(index, env_steps, updates, np.array(weights), seconds)
        if urgent:
            self._under_way = None
        self._send()

    def _send(self) -> None:
        if self._under_way is None and self._waiting is not None:
            self._under_way, self._waiting = self._waiting, None
            self._mailbox.ask(self._under_way.number, self._under_way.weights, self._under_way.seconds)

    def reply(self) -> Evaluated | None:
        done = self._under_way
        if done is None or not self._mailbox.replied:
            return None
        episodes = self._mailbox.episodes_played()
        self._under_way = None
        self._send()
        return Evaluated(done.env_steps, done.updates, episodes, done.weights)

    @property
    def waiting(self) -> bool:
        return self._under_way is not None or self._waiting is not None

    def withdraw(self) -> str:
        """Take back the request that no evaluator can play; says which one it was, if there was any."""
        done = self._mailbox.replied
        lost, self._waiting = self._waiting if done else self._under_way, None
        if not done:
            self._under_way = None
            self._mailbox.withdraw()
        return "" if lost is None else f"evaluation at {lost.env_steps:,} env steps"


class Host(Protocol):
    """Runs the workers: in one thread, or in the processes of a machine."""

    wiring: Wiring
    evaluations: Evaluations
    concurrent: bool
    """Whether workers go on while an evaluation is played."""

    @property
    def restarts(self) -> int:
        """How often workers or their environments were started again."""

    def start(self, dismissed: Callable[[], bool]) -> None:
        """Build the workers, or let them go on after a rest; `dismissed` says whether the run is to stop."""

    def round(self) -> None:
        """Let workers take a turn, or supervise them."""

    def rest(self) -> None:
        """Bring all workers to rest; they write what must survive to the channels."""

    def stop_playing(self) -> None:
        """Play no more steps; learning and evaluation go on."""

    def evaluate(self) -> None: ...

    def await_losses(self, missing: Callable[[], bool]) -> None:
        """Wait a moment for losses that are being computed, so that a line with updates has their loss."""

    def metrics(self) -> Values: ...

    def notes(self) -> list[str]:
        """What went wrong since the last call."""

    def close(self) -> None: ...


class Driver:
    """Runs the workers of a run on any host: evaluations, metrics, pauses, checkpoints."""

    def __init__(self, plan: Plan, host: Host) -> None:
        self.plan, self.host = plan, host
        self.dismissed: Callable[[], bool] = lambda: False
        self.wiring, self.evaluations = host.wiring, host.evaluations
        self.counters: WorkerStats = self.wiring.counters.stats()
        """Of all workers. While they rest, as the checkpoint has them."""
        self._metrics, self._started = Metrics(self.wiring), False
        self.load_state = self.wiring.load_state  # before `start`
        self.next_evaluation = self.evaluations.reply
        self.stop_playing, self.notes, self.close = host.stop_playing, host.notes, host.close

    @property
    def agent(self) -> Agent:
        return self.plan.agent

    @property
    def restarts(self) -> int:
        return self.host.restarts

    def start(self) -> None:
        """Begin, or go on after `settle`."""
        self.counters = self.wiring.counters.stats()
        self.host.start(lambda: self.dismissed())
        if not self._started or not self.host.concurrent:  # inline workers were built again, and count from zero
            self._started, self._metrics = True, Metrics(self.wiring)

    def rounds(self) -> Iterator[None]:
        while True:
            self.host.round()
            yield

    def ask(self, index: int, seconds: float = math.inf, *, urgent: bool = False) -> None:
        """Evaluate the current weights, for at most `seconds`; `index` chooses the seeds."""
        self.evaluations.ask(index, seconds, urgent=urgent)
        self.host.evaluate()

    @property
    def finished_episodes(self) -> int:
        return self.wiring.evaluation.finished

    @property
    def evaluating(self) -> bool:
        return self.host.concurrent and self.evaluations.waiting

    def behind(self) -> bool:
        """Whether updates are still owed for the steps that were played."""
        pacing = self.wiring.topology.pacing
        if pacing is None:
            return False
        pacing.updates = self.counters.updates
        return pacing.owed(self.counters.env_steps) >= self.plan.q.updates_per_call

    def metrics(self) -> Values:
        """What happened since the last call."""
        self.host.await_losses(lambda: self._metrics.losses_under_way)
        return {**self._metrics.read(), **self.host.metrics()}

    def settle(self) -> dict[str, Any]:
        """Bring all workers to rest; gives what a checkpoint needs, and refuses weights that are not finite."""
        self.host.rest()
        state = self.wiring.state()
        self.counters = WorkerStats({**self.wiring.counters.arrays, **state["counters"]})
        check_finite(np.asarray(state["learner"]["learned"]["00"]), state["updates"])
        return state


class Metrics:
    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._before, self._at = self._now(), time.monotonic()

    def _now(self) -> dict[str, NDArray[Any]]:
        return {name: array.copy() for name, array in self._wiring.counters.arrays.items() if name != "note"}

    @property
    def losses_under_way(self) -> bool:
        """Whether updates were counted since the last call, but none of their losses."""
        now, before = self._wiring.counters.arrays, self._before
        return bool((now["updates"] > before["updates"]).any() and (now["losses"] == before["losses"]).all())

    def read(self) -> Values:
        now, before, topology = self._now(), self._before, self._wiring.topology
        seconds = max(time.monotonic() - self._at, 1e-9)
        self._before, self._at = now, time.monotonic()
        found = self._learning(now, before)
        for channel in topology.channels:
            found |= channel.metrics()
        for name in topology.counts:
            aged = name == "gradient_age"
            found |= _spread(name, *_recent(now, before, "ages", "age")) if aged else {name: int(now[name].sum())}
        if replies := int((now["replies"] - before["replies"]).sum()):
            found["reply_ms"] = float((now["reply_s"] - before["reply_s"]).sum()) / replies * 1e3
        for group in topology.workers:
            found |= self._worker(group.name, now, before, seconds)
        return found

    def _learning(self, now: Table, before: Table) -> Values:
        """Metrics of every topology: exploration, learning, episodes, policy lag."""
        plan, env_steps = self._wiring.plan, int(now["env_steps"].sum())

        def mean(total: str, count: str) -> float | None:
            gained = int((now[count] - before[count]).sum())
            return float((now[total] - before[total]).sum()) / gained if gained else None

        returns, lengths = _recent(now, before, "episodes", "episode_return", "episode_length")
        (lag,) = _recent(now, before, "lags", "lag")
        return {
            **self._exploring(now, env_steps),
            "learning_rate": plan.learning_rate(env_steps),
            "loss": mean("loss_sum", "losses"),
            "gradient_norm": mean("norm_sum", "norms"),
            "clipped_share": mean("clipped", "norms"),
            "value_mean": mean("value_sum", "losses"),
            **({"entropy": mean("entropy_sum", "losses")} if plan.unrolled else {}),
            "episodes": int(now["episodes"].sum()),
            "episode_return": float(returns.mean()) if returns.size else None,
            "episode_length": float(lengths.mean()) if lengths.size else None,
            **_spread("policy_lag", lag),
            "skipped_updates": int(now["skipped"].sum()),
        }

    def _exploring(self, now: Table, env_steps: int) -> Values:
        plan, epsilon = self._wiring.plan, self._wiring.topology.epsilon
        if epsilon is None:
            return {"entropy_weight": round(plan.entropy(env_steps), 6)}
        rates = [epsilon(rank)(env_steps) for rank in range(plan.actors)]
        ratio = float(now["samples"].sum()) / max(env_steps, 1)
        return {"epsilon": round(float(np.mean(rates)), 6), "replay_ratio": round(ratio, 4)}

    def _worker(self, name: str, now: Table, before: Table, seconds: float) -> Values:
        """How busy the workers of this name were, their steps, and the length of their queue."""
        rows = [worker.index for worker in self._wiring.workers if worker.name == name]
        idle = float((now["idle_s"][rows] - before["idle_s"][rows]).mean()) / seconds
        work = float((now["work"][rows] - before["work"][rows]).sum()) / seconds
        queue = int(now["queue"][rows].max()) - 1
        return {
            f"busy/{name}": round(min(1.0, max(0.0, 1.0 - idle)), 4),
            f"steps_per_s/{name}": round(work, 1),
            **({f"queue/{name}": queue} if queue >= 0 else {}),
        }


def _recent(now: Table, before: Table, count: str, *names: str) -> list[NDArray[Any]]:
    """Entries of the workers' rings since `before`, at most the newest `RECENT` of each worker."""
    found: list[list[Any]] = [[] for _ in names]
    for worker, (total, then) in enumerate(zip(now[count], before[count], strict=True)):
        at = (int(total) - 1 - np.arange(min(int(total - then), RECENT))) % RECENT
        for values, name in zip(found, names, strict=True):
            values.extend(now[name][worker][at])
    return [np.array(values, np.float64) for values in found]


def _spread(name: str, values: NDArray[np.float64]) -> Values:
    if not values.size:
        return {f"{name}_mean": None, f"{name}_p95": None, f"{name}_max": None}
    return {
        f"{name}_mean": float(values.mean()),
        f"{name}_p95": float(np.percentile(values, 95)),
        f"{name}_max": int(values.max()),
    }
