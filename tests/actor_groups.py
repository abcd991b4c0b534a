"""A group of actors by itself, for tests of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from companies import company
from numpy.typing import NDArray
from repertory.engines.casting import Casting
from repertory.engines.stage import Stage

from faults import lane_problems
from repertory.engines.actor_threads import ActorThreads
from repertory.errors import EnvironmentFailure
from repertory.experience.lanes import FINAL
from repertory.roles.actor import Actor

LONG = {"replay_capacity": 40_000, "learning_starts": 30_000}
"""Nobody waits for a learner, and nothing is overwritten."""


class Staged:
    """A group on a stage of its own, without the others of its company."""

    def __init__(self, topology: str = "collectors", **wishes: Any) -> None:
        agent = {**LONG, **wishes.pop("agent", {})}
        rehearsal = company(topology, wishes.pop("company", None), agent, begin=False, **{"actors": 4, **wishes})
        self.stage: Stage = rehearsal.stage
        self.casting = Casting(self.stage, self.stage.collective)
        self.publish(0)
        self.failures: list[tuple[int, str]] = []
        members = [member for member in self.stage.members if member.role == "collector"]
        self.threads: ActorThreads = self.casting.actor_threads(members, self._recover, lambda: None)
        self.group = self.threads.group

    def publish(self, version: int) -> NDArray[np.float32]:
        """Weights that nobody has learned."""
        size = self.stage.agent.layout.size
        weights = np.random.default_rng(version).normal(0, 0.5, size).astype(np.float32)
        self.stage.board().publish(version, weights)
        return weights

    def _recover(self, actor: Actor, error: EnvironmentFailure) -> None:
        self.failures.append((actor.rank, str(error)))
        actor.page.count("starts")
        self.casting.renew(actor)

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
        return int(self.stage.ledger["env_steps"].sum())

    def steps_in_lanes(self, rank: int) -> tuple[int, int]:
        """Steps and ends that lie in the lanes of a member."""
        lanes, each = self.stage.lanes, self.stage.plan.envs_per_actor
        flags = [lanes.flags[lane, : lanes.head[lane]] for lane in range(rank * each, (rank + 1) * each)]
        finals = sum(int((found & FINAL != 0).sum()) for found in flags)
        return sum(found.size for found in flags) - finals, finals

    def problems(self) -> list[str]:
        return [problem for lane in range(self.stage.lanes.count) for problem in lane_problems(self.stage, lane)]


@contextmanager
def staged(topology: str = "collectors", **wishes: Any) -> Iterator[Staged]:
    found = Staged(topology, **wishes)
    try:
        yield found
    finally:
        found.threads.close()
