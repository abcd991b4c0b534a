"""The inline engine: every role in one thread, in turn; deterministic, so it also debugs, tests and resumes exactly.

An environment's inner state can't be saved in general. So at every checkpoint the running episodes are ended as
truncated and all environments start anew from seeds derived from the step, in the uninterrupted run too: what comes
after a checkpoint then depends on the checkpoint alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from repertory.agents.agent import Agent
from repertory.engines.casting import EVALUATION_WORKER, LocalBoard
from repertory.engines.company import Answer
from repertory.engines.plan import Plan
from repertory.errors import UserError
from repertory.experience import environments
from repertory.experience.lanes import Lanes
from repertory.experience.replay import Prioritization, Replay
from repertory.roles.actor import Actor
from repertory.roles.batches import Drawer, Lesson
from repertory.roles.evaluator import Dismissed, Evaluator
from repertory.roles.learner import Learner
from repertory.roles.ledger import Page, new_ledger
from repertory.roles.local_policy import LocalPolicy
from repertory.roles.stopwatch import Stopwatch

BUFFERS = 3
"""Samples alive at once: one that is learned from, one drawn ahead, one being drawn."""


class InlineEngine:
    """One process that acts, remembers and learns in turn."""

    restarts = 0
    evaluating = False

    def __init__(self, plan: Plan, agent: Agent) -> None:
        self.plan, self.agent = plan, agent
        self.watch = Stopwatch()
        self.counters = Page(new_ledger())
        self.board = LocalBoard()
        self.dismissed: Callable[[], bool] = lambda: False
        options = plan.q
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
        page = self.counters
        drawer = Drawer(self.replay, plan.pacing(), lesson, plan.importance, lambda: page.env_steps, seed=plan.seed)
        self.learner = Learner(agent, agent.init(plan.seed), drawer, self.board, page, self.watch)
        self.policies = [LocalPolicy(agent, self.board, seed=plan.seed, rank=rank) for rank in range(plan.actors)]
        self.actors = [self._actor(rank) for rank in range(plan.actors)]
        self._evaluator: Evaluator | None = None
        self._answers: list[Answer] = []
        self._seen = (0, 0, 0.0, 0)
        self._settled = False

    def _actor(self, rank: int) -> Actor:
        plan = self.plan
        return Actor(
            environments.make(plan.environment, plan.envs_per_actor, options=plan.environment_options, worker=rank),
            self.policies[rank],
            self.lanes,
            self.counters,
            plan.exploration(rank),
            first_lane=rank * plan.envs_per_actor,
            seed=plan.seed,
            rank=rank,
            watch=self.watch,
        )

    def start(self) -> None:
        """Begin an episode in every environment, from seeds that depend on the run, the actor and the step."""
        self.watch.lap("checkpoint" if self._settled else "other")
        self._settled = False
        for actor, policy in zip(self.actors, self.policies, strict=True):
            policy.pull()  # random actions name its version before the policy is first asked
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

    def ask(self, index: int) -> None:
        """Greedy episodes with the weights of now; `index` chooses their seeds."""
        plan = self.plan
        if self._evaluator is None:
            made = environments.make(
                plan.environment, plan.eval_episodes, options=plan.evaluation_options, worker=EVALUATION_WORKER
            )
            self._evaluator = Evaluator(self.agent, made, max_steps=plan.eval_max_steps)
        self.watch.lap("other")
        seeds = environments.seeds(plan.seed, EVALUATION_WORKER, plan.eval_episodes, index)
        try:
            episodes = self._evaluator.evaluate(self.board.latest()[1], seeds, self._leave_if_dismissed)
        except Dismissed:
            return
        self.watch.lap("evaluate")
        self._answers.append(Answer(self.counters.env_steps, self.counters.updates, episodes))

    def _leave_if_dismissed(self) -> None:
        if self.dismissed():
            raise Dismissed

    def answer(self) -> Answer | None:
        """The next evaluation that is done."""
        return self._answers.pop(0) if self._answers else None

    def stop_playing(self) -> None:
        """Nobody plays but in a round."""

    def behind(self) -> bool:
        """In turn, nobody falls behind."""
        return False

    def notes(self) -> list[str]:
        """Nothing happens here that is not an error."""
        return []

    def metrics(self) -> dict[str, float | int | None]:
        """What happened since the last call."""
        self.learner.add_up_losses()
        row = self.counters.row
        env_steps, episodes, losses, lags = (
            self.counters.env_steps,
            int(row["episodes"]),
            int(row["losses"]),
            int(row["lags"]),
        )
        episodes_then, losses_then, loss_then, lags_then = self._seen
        self._seen = (episodes, losses, float(row["loss_sum"]), lags)
        new = (episodes - 1 - np.arange(min(episodes - episodes_then, 100))) % len(row["episode_return"])
        lag = row["lag"][(lags - 1 - np.arange(min(lags - lags_then, len(row["lag"])))) % len(row["lag"])]
        counted = losses - losses_then
        return {
            "epsilon": round(self.plan.epsilon(env_steps), 6),
            "loss": (float(row["loss_sum"]) - loss_then) / counted if counted else None,
            "replay_ratio": round(self.counters.updates * self.plan.q.batch_size / max(env_steps, 1), 4),
            "replay_size": min(len(self.replay), self.plan.q.replay_capacity),
            "episodes": episodes,
            "episode_return": float(row["episode_return"][new].mean()) if new.size else None,
            "episode_length": float(row["episode_length"][new].mean()) if new.size else None,
            "policy_lag_mean": float(lag.mean()) if lag.size else None,
            "policy_lag_p95": float(np.percentile(lag, 95)) if lag.size else None,
            "policy_lag_max": int(lag.max()) if lag.size else None,
            "skipped_updates": int(self.learner.learned.skipped),
            **self.watch.shares(),
        }

    def settle(self) -> dict[str, Any]:
        """End the running episodes and return everything a checkpoint needs; `start` goes on from there."""
        self.watch.lap("other")
        self._settled = True
        self.learner.check()
        self.learner.settle()
        self.lanes.interrupt()
        leaves = jax.tree_util.tree_leaves(self.learner.learned)
        learned = {f"{index:02d}": np.asarray(leaf) for index, leaf in enumerate(leaves)}
        return {
            "env_steps": self.counters.env_steps,
            "updates": self.counters.updates,
            "episodes": int(self.counters.row["episodes"]),
            "learner": {"learned": learned, "layout": self.agent.layout.fingerprint, **self.learner.state()},
            "lanes": self.lanes.state(),
            "replay": self.replay.state(),
            "actors": {f"{actor.rank}": actor.state() for actor in self.actors},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a checkpoint."""
        for name in ("env_steps", "updates", "episodes"):
            self.counters.set(name, int(state[name]))
        self._seen = (int(state["episodes"]), *self._seen[1:])
        self.agent.layout.check(state["learner"].get("layout"))
        self._load_learned(state["learner"]["learned"])
        self.learner.load_state(state["learner"])
        self.lanes.load_state(state["lanes"])
        self.replay.load_state(state["replay"])
        for actor in self.actors:
            actor.load_state(state["actors"][f"{actor.rank}"])

    def _load_learned(self, saved: Mapping[str, Any]) -> None:
        leaves, structure = jax.tree_util.tree_flatten(self.learner.learned)
        arrays = [np.asarray(saved[name]) for name in sorted(saved)]
        if [array.shape for array in arrays] != [leaf.shape for leaf in leaves]:
            raise UserError(
                "the checkpoint's network differs from this configuration's; resume with the options "
                "it was started with"
            )
        learned = jax.tree_util.tree_unflatten(structure, [jax.numpy.array(array) for array in arrays])
        self.learner.replace(learned)

    def close(self) -> None:
        """Close every environment."""
        for actor in self.actors:
            actor.environments.close()
        if self._evaluator is not None:
            self._evaluator.environments.close()
