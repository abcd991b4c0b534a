"""The inline engine: every role in one thread, in turn; deterministic, so it also debugs, tests and resumes exactly.

An environment's inner state can't be saved in general. So at every checkpoint the running episodes are ended as
truncated and all environments start anew from seeds derived from the step, in the uninterrupted run too: what comes
after a checkpoint then depends on the checkpoint alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from repertory.agents.agent import Agent
from repertory.engines.plan import Plan
from repertory.experience import environments
from repertory.experience.lanes import Lanes
from repertory.experience.replay import Prioritization, Replay
from repertory.roles.actor import Actor
from repertory.roles.evaluator import Episodes, Evaluator
from repertory.roles.learner import Learner, Lesson
from repertory.roles.local_policy import LocalPolicy
from repertory.roles.stopwatch import Stopwatch

BUFFERS = 3
"""Samples alive at once: one that is learned from, one drawn ahead, one being drawn."""
EVALUATION_WORKER = 1_000_000
"""Seeds of evaluation environments are drawn as for a worker that no actor has the rank of."""


@dataclass
class SharedCounters:
    """Counts that all roles of one thread share."""

    env_steps: int = 0
    updates: int = 0


class WeightsBoard:
    """The newest weights, in the same process."""

    def __init__(self) -> None:
        self._latest: tuple[int, Any] = (0, None)

    def publish(self, version: int, weights: Any) -> None:
        """Put up the newest."""
        self._latest = (version, weights)

    def latest(self) -> tuple[int, Any]:
        """The newest version and its weights."""
        return self._latest


class InlineEngine:
    """Builds the roles of a plan and runs them round robin."""

    def __init__(self, plan: Plan, agent: Agent) -> None:
        self.plan, self.agent = plan, agent
        self.watch = Stopwatch()
        self.counters = SharedCounters()
        self.board = WeightsBoard()
        options = plan.options
        self.lanes = Lanes(plan.spec, plan.environments, plan.lane_length)
        self.replay = Replay(
            self.lanes,
            n_step=options.n_step,
            discount=options.discount,
            next_actions=options.sarsa,
            prioritization=Prioritization(options.priority_exponent) if options.prioritized else None,
            buffers=BUFFERS,
        )
        lesson = Lesson(options.batch_size, options.updates_per_call, options.replay, options.prioritized)
        self.learner = Learner(
            agent,
            self.replay,
            self.board,
            self.counters,
            plan.pacing(),
            lesson,
            plan.importance,
            seed=plan.seed,
            watch=self.watch,
        )
        self.policies = [LocalPolicy(agent, self.board, seed=plan.seed, rank=rank) for rank in range(plan.actors)]
        self.actors = [self._actor(rank) for rank in range(plan.actors)]
        self._evaluator: Evaluator | None = None
        self._episodes: list[tuple[float, int]] = []
        self._episode_count = 0

    def _actor(self, rank: int) -> Actor:
        plan = self.plan
        return Actor(
            environments.make(plan.environment, plan.envs_per_actor, options=plan.environment_options, worker=rank),
            self.policies[rank],
            self.lanes,
            self.counters,
            plan.epsilon,
            first_lane=rank * plan.envs_per_actor,
            seed=plan.seed,
            rank=rank,
            watch=self.watch,
        )

    def start(self) -> None:
        """Begin an episode in every environment, from seeds that depend on the run, the actor and the step."""
        for actor, policy in zip(self.actors, self.policies, strict=True):
            policy.version = self.board.latest()[0]  # random actions name it before the policy is first asked
            seeds = environments.seeds(self.plan.seed, actor.rank, self.plan.envs_per_actor, self.counters.env_steps)
            actor.restart(seeds)

    def rounds(self) -> Iterator[None]:
        """Each role's turn, again and again; yields after every round."""
        learner, actors = self.learner, self.actors
        while True:
            for actor in actors:
                actor.step()
            while learner.step():
                pass
            yield

    def evaluate(self, index: int, watch: Callable[[], None] = lambda: None) -> Episodes:
        """Greedy episodes with the weights of now; `index` chooses their seeds, `watch` is called at every step."""
        plan = self.plan
        if self._evaluator is None:
            stage = environments.make(
                plan.environment,
                plan.eval_episodes,
                options=plan.evaluation_options,
                worker=EVALUATION_WORKER,
            )
            self._evaluator = Evaluator(self.agent, stage, max_steps=plan.eval_max_steps)
        self.watch.lap("other")
        seeds = environments.seeds(plan.seed, EVALUATION_WORKER, plan.eval_episodes, index)
        episodes = self._evaluator.evaluate(self.board.latest()[1], seeds, watch)
        self.watch.lap("evaluate")
        return episodes

    def metrics(self) -> dict[str, float | int | None]:
        """What happened since the last call."""
        for actor in self.actors:
            self._episodes += actor.finished
            self._episode_count += len(actor.finished)
            actor.finished = []
        recent = self._episodes[-100:]
        lag = self.learner.lag
        self._episodes, self.learner.lag = [], lag[:0]
        env_steps = self.counters.env_steps
        return {
            "epsilon": round(self.plan.epsilon(env_steps), 6),
            "loss": self.learner.mean_loss(),
            "replay_ratio": round(self.counters.updates * self.plan.options.batch_size / max(env_steps, 1), 4),
            "replay_size": min(len(self.replay), self.plan.options.replay_capacity),
            "episodes": self._episode_count,
            "episode_return": float(np.mean([r for r, _ in recent])) if recent else None,
            "episode_length": float(np.mean([n for _, n in recent])) if recent else None,
            "policy_lag_mean": float(lag.mean()) if lag.size else None,
            "policy_lag_p95": float(np.percentile(lag, 95)) if lag.size else None,
            "policy_lag_max": int(lag.max()) if lag.size else None,
            "skipped_updates": int(self.learner.learned.skipped),
        }

    def settle(self) -> dict[str, Any]:
        """End the running episodes and return everything a checkpoint needs; `start` goes on from there."""
        self.learner.check()
        self.learner.settle()
        self.lanes.interrupt()
        return {
            "env_steps": self.counters.env_steps,
            "updates": self.counters.updates,
            "episodes": self._episode_count,
            "learner": self.learner.state(),
            "lanes": self.lanes.state(),
            "replay": self.replay.state(),
            "actors": {f"{actor.rank}": actor.state() for actor in self.actors},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a checkpoint."""
        self.counters.env_steps = int(state["env_steps"])
        self.counters.updates = int(state["updates"])
        self._episode_count = int(state["episodes"])
        self.learner.load_state(state["learner"])
        self.lanes.load_state(state["lanes"])
        self.replay.load_state(state["replay"])
        for actor in self.actors:
            actor.load_state(state["actors"][f"{actor.rank}"])

    def close(self) -> None:
        """Close every environment."""
        for actor in self.actors:
            actor.environments.close()
        if self._evaluator is not None:
            self._evaluator.environments.close()
