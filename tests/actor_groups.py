"""A group of actors by itself, for tests of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from faults import lane_problems
from inference_parts import Rank
from inline_runs import channel_of, inline_run, lanes_of
from repertory.engines.actor_threads import ActorThreads
from repertory.errors import EnvironmentFailure
from repertory.experience.lanes import FINAL
from repertory.roles.actor import Actor

LONG = {"replay_capacity": 40_000, "learning_starts": 30_000}
"""No actor waits for a learner, and nothing is overwritten."""


class LoneGroup:
    """A group of collectors on channels of its own, without the other workers of its topology."""

    def __init__(self, topology: str = "collectors", **wishes: Any) -> None:
        agent = {**LONG, **wishes.pop("agent", {})}
        driver = inline_run(topology, wishes.pop("own", None), agent, begin=False, **{"actors": 4, **wishes})
        self.wiring = driver.wiring
        self.table = self.wiring.counters.arrays
        self.lanes = lanes_of(self.wiring)
        self.publish(0)
        self.failures: list[tuple[int, str]] = []
        collectors = [worker for worker in self.wiring.workers if worker.name == "collector"]
        self._contexts = [self.wiring.context(worker) for worker in collectors]
        self.group = self.wiring.build_group(self._contexts)
        self.threads = ActorThreads(
            self.group,
            begin=lambda actor: self._contexts[actor.rank].begin(actor),
            recover=self._recover,
            wake=lambda: None,
            dismissed=lambda: False,
        )
        self.threads.warm_up()

    def publish(self, version: int) -> NDArray[np.float32]:
        """Weights that were not learned."""
        size = self.wiring.plan.size()
        weights = np.random.default_rng(version).normal(0, 0.5, size).astype(np.float32)
        channel_of(self.wiring, "weights").writer(Rank()).publish(version, weights)
        return weights

    def _recover(self, actor: Actor, error: EnvironmentFailure) -> None:
        self.failures.append((actor.rank, str(error)))
        actor.stats.count("starts")
        self._contexts[actor.rank].renew(actor)

    def play(self, until: Callable[[], bool], seconds: float = 20.0) -> None:
        """Turns until so much has happened; then nothing is under way."""
        self.go_on(until, seconds)
        self.threads.settle()

    def go_on(self, until: Callable[[], bool], seconds: float = 20.0) -> None:
        """Turns until so much has happened; steps are under way then."""
        end = time.monotonic() + seconds
        while not until():
            self.threads.beat()
            self.threads.step()
            time.sleep(0.0002)
            assert time.monotonic() < end, "nothing happens any more"

    @property
    def env_steps(self) -> int:
        return int(self.table["env_steps"].sum())

    def steps_in_lanes(self, rank: int) -> tuple[int, int]:
        """Steps and ends in the lanes of a collector."""
        lanes, each = self.lanes, self.wiring.plan.envs_per_actor
        flags = [lanes.flags[lane, : lanes.head[lane]] for lane in range(rank * each, (rank + 1) * each)]
        finals = sum(int((found & FINAL != 0).sum()) for found in flags)
        return sum(found.size for found in flags) - finals, finals

    def problems(self) -> list[str]:
        return [problem for lane in range(self.lanes.count) for problem in lane_problems(self.wiring, lane)]


@contextmanager
def lone_group(topology: str = "collectors", **wishes: Any) -> Iterator[LoneGroup]:
    found = LoneGroup(topology, **wishes)
    try:
        yield found
    finally:
        found.threads.close()
