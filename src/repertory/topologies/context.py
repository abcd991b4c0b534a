"""What a worker knows of itself while it is built: who it is, the run's plan, its row of counters, its environments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from repertory.agents.agent import Agent
from repertory.channels.counters import WorkerStats
from repertory.environments import factory
from repertory.environments.factory import Environments
from repertory.experience.unrolls import UnrollWriter
from repertory.roles.actor import Actor
from repertory.roles.stopwatch import Stopwatch, Unwatched
from repertory.topologies.graph import Worker
from repertory.topologies.plan import Plan


@dataclass
class Context:
    """One worker's; `await_others` rests for a moment inside a pause, and says whether to wait on (None = in one thread
    nobody else runs meanwhile)."""

    plan: Plan
    worker: Worker
    stats: WorkerStats
    epoch: int = 0
    """Equal for all that were started together, and different at each start."""
    spare: Sequence[int] = ()
    """Cores where a learner may have something computed beside its own."""
    dismissed: Callable[[], bool] = lambda: False
    await_others: Callable[[], bool] | None = None
    watch: Stopwatch | Unwatched = field(default_factory=Unwatched)
    made: dict[Any, Environments] | None = None
    """Environments that outlive their worker, where workers are made anew in one process."""

    @property
    def rank(self) -> int:
        return self.worker.rank

    @property
    def agent(self) -> Agent:
        return self.plan.agent

    @property
    def start(self) -> int:
        """How often this worker was started, and its environments anew."""
        return int(self.stats.row["starts"])

    def key(self) -> jax.Array:
        """For what JAX samples, different at each start."""
        return jax.random.fold_in(jax.random.key(self.plan.seed), 1000 * self.rank + self.start)

    def environments(self, count: int, rank: int, *, next_step: bool = False) -> Environments:
        """So many to learn from; with `next_step` an episode's end takes a step of its own."""
        plan = self.plan
        return self._made((rank, next_step), count, plan.environment_options, rank, next_step)

    def evaluation_environments(self, rank: int) -> Environments:
        """To be scored in; `rank` is one that no actor has."""
        plan = self.plan
        return self._made((rank, False), plan.eval_episodes, plan.evaluation_options, rank, False)

    def _made(self, key: Any, count: int, options: Any, rank: int, next_step: bool) -> Environments:
        found = None if self.made is None else self.made.get(key)
        if found is None:
            name = self.plan.environment
            found = factory.make(name, count, options=options, worker=rank, next_step_autoreset=next_step)
            if self.made is not None:
                self.made[key] = found
        found.report_to(self.stats.row["place"])
        return found

    def begin(self, actor: Actor) -> None:
        """Episodes from seeds that no start of this or another actor has had; none is left half open."""
        seeds = factory.seeds(
            self.plan.seed, actor.rank, actor.environments.count, self.start, self.stats.own_env_steps
        )
        actor.experience.interrupt(actor.lanes)
        actor.restart(seeds)

    def renew(self, actor: Actor) -> None:
        """New environments for an actor whose old ones failed."""
        unrolls = isinstance(actor.experience, UnrollWriter)
        actor.environments = self.environments(actor.environments.count, actor.rank, next_step=unrolls)
        self.begin(actor)
