"""The inline engine: every role in one thread, in turn; deterministic, so it also debugs, tests and resumes exactly.

An environment's inner state can't be saved in general. So at every checkpoint the running episodes are ended as
truncated and all environments start anew from seeds derived from the step, in the uninterrupted run too: what comes
after a checkpoint then depends on the checkpoint alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from repertory.agents.agent import Agent
from repertory.engines.casting import EVALUATION_WORKER, LocalBoard
from repertory.engines.company import Answer, common_figures, copied, failure_note
from repertory.engines.plan import Plan
from repertory.environments import factory
from repertory.environments.deadlines import SlowSteps, bounded, close_within, wait_for_what_hangs
from repertory.errors import EnvironmentFailure, UserError
from repertory.experience.lanes import LaneStorage
from repertory.experience.replay import Prioritization, Replay
from repertory.roles.actor import Actor
from repertory.roles.batches import Drawer, Lesson
from repertory.roles.evaluator import Dismissed, Evaluator
from repertory.roles.learner import Learner
from repertory.roles.ledger import SUMS, Page, new_ledger
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
        self.lanes = LaneStorage(plan.spec, plan.environments, plan.lane_length)
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
        start = agent.init(plan.seed)
        self.learner = Learner(agent, start, drawer, self.board, page, self.watch, rate=plan.learning_rate)
        self.policies = [LocalPolicy(agent, self.board, seed=plan.seed, rank=rank) for rank in range(plan.actors)]
        self._places = np.full((plan.actors + 1, 4), -1)  # the evaluator's is the last
        with bounded():
            self.actors = [self._actor(rank) for rank in range(plan.actors)]
        self._slow: SlowSteps | None = None
        self._evaluator: Evaluator | None = None
        self._answers: list[Answer] = []
        self._before = copied(page.ledger)
        self._notes: list[str] = []
        self._settled = False

    def _actor(self, rank: int) -> Actor:
        plan = self.plan
        made = factory.make(plan.environment, plan.envs_per_actor, options=plan.environment_options, worker=rank)
        made.report_to(self._places[rank])
        return Actor(
            made,
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
        first, self._settled = not self._settled, False
        if first:
            self.learner.warm_up()
            with contextlib.suppress(EnvironmentFailure):  # an evaluation that fails costs a score, not the run
                evaluator = self._prepared()
                with bounded():
                    evaluator.warm_up()
        self.watch.lap("other" if first else "checkpoint")
        self._slow = self._slow or SlowSteps(self._places, self.plan.company.heartbeat_s)
        for actor, policy in zip(self.actors, self.policies, strict=True):
            policy.pull()  # random actions name its version before the policy is first asked
            seeds = factory.seeds(self.plan.seed, actor.rank, self.plan.envs_per_actor, self.counters.env_steps)
            with bounded():
                actor.restart(seeds)
            if first:
                actor.warm_up()
        wait_for_what_hangs()

    def rounds(self) -> Iterator[None]:
        """Each role's turn, again and again; yields after every round."""
        try:
            while True:
                self._round()
                yield
        except EnvironmentFailure as error:
            self._notes.append(failure_note("the run ends", error))
            raise

    def _round(self) -> None:
        for actor in self.actors:
            actor.step()
        while self.learner.step():
            pass

    @property
    def finished_episodes(self) -> int:
        """Episodes of the evaluation under way that have ended."""
        return 0 if self._evaluator is None else self._evaluator.finished

    def ask(self, index: int, seconds: float = math.inf, *, urgent: bool = False) -> None:  # noqa: ARG002
        """Greedy episodes with the weights of now; `index` chooses their seeds. A failure costs a score, no more."""
        env_steps, weights = self.counters.env_steps, self.board.latest()[1]
        self.watch.lap("other")
        seeds = factory.seeds(self.plan.seed, EVALUATION_WORKER, self.plan.eval_episodes, index)
        try:
            evaluator = self._prepared()
            with bounded():
                episodes = evaluator.evaluate(weights, seeds, self._leave_if_dismissed, seconds)
        except Dismissed:
            return
        except UserError as error:
            self._notes.append(failure_note(f"evaluation at {env_steps:,} env steps failed", error))
            self._close_evaluator()
            return
        self.watch.lap("evaluate")
        self._answers.append(Answer(env_steps, self.counters.updates, episodes, np.array(weights)))

    def _prepared(self) -> Evaluator:
        """The evaluator, with environments of its own."""
        plan = self.plan
        if self._evaluator is None:
            with bounded():
                made = factory.make(
                    plan.environment, plan.eval_episodes, options=plan.evaluation_options, worker=EVALUATION_WORKER
                )
            made.report_to(self._places[-1])
            self._evaluator = Evaluator(self.agent, made, max_steps=plan.eval_max_steps)
        return self._evaluator

    def _close_evaluator(self) -> None:
        """Its environments are made anew for the next evaluation."""
        evaluator, self._evaluator = self._evaluator, None
        self._places[-1] = -1
        if evaluator is not None:
            close_within(self.plan.environment, [evaluator.environments.close])

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
        """What went wrong since the last call."""
        notes, self._notes = self._notes, []
        return notes

    def metrics(self) -> dict[str, float | int | None]:
        """What happened since the last call."""
        self.learner.tell_losses()
        self.counters.set("skipped", int(self.learner.learned.skipped))
        ledger, before = copied(self.counters.ledger), self._before
        self._before, env_steps = ledger, self.counters.env_steps
        return {
            "epsilon": round(self.plan.epsilon(env_steps), 6),
            "replay_ratio": round(self.counters.updates * self.plan.q.batch_size / max(env_steps, 1), 4),
            "replay_size": min(len(self.replay), self.plan.q.replay_capacity),
            **common_figures(self.plan, ledger, before),
            **self.watch.shares(),
        }

    def settle(self) -> dict[str, Any]:
        """End the running episodes and return everything a checkpoint needs; `start` goes on from there."""
        self.watch.lap("other")
        self._settled = True
        self.learner.check()
        self.learner.settle()
        for name in SUMS:  # a resumed run adds up from 0, and must round as this one does
            self.counters.set(name, 0.0)
            self._before[name][:] = 0.0
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
        self._before = copied(self.counters.ledger)
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
        if self._slow is not None:
            self._slow.end()
        close_within(self.plan.environment, [actor.environments.close for actor in self.actors])
        self._close_evaluator()
