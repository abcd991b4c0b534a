"""Workers share one weight vector and update it without locks.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning"; Niu et al. 2011, "Hogwild!".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from repertory.channels.lanes import LaneReader, LaneWriter
from repertory.channels.snapshot import SharedState
from repertory.errors import UserError
from repertory.limits import Positive
from repertory.roles.hogwild_worker import HogwildWorker, Segments
from repertory.roles.ports import Role
from repertory.topologies import parts, playing
from repertory.topologies.graph import Topology, TopologyKind, Workers
from repertory.topologies.options import (
    AgentOptions,
    Asked,
    Epsilons,
    LearningWorkers,
    PulledWeights,
    after_first_returns,
    refuse_noisy_gradients,
    refuse_shared_priorities,
)
from repertory.topologies.plan import Context, Plan

ALWAYS = 1 << 62


@dataclass(frozen=True)
class Options(PulledWeights, LearningWorkers):
    """Options of workers that update one shared weight vector without locks."""

    exploration: Epsilons = "drawn"
    method: Literal["one_step_q", "n_step_q", "sarsa", "replay"] = "one_step_q"
    """Learn by one-step Q, n-step Q or Sarsa from steps as they come, or from batches of a replay per worker."""
    update_steps: Positive[int] = 5
    """Methods without a replay: steps between a worker's updates (t_max); fewer where an episode ends."""
    target_steps: Positive[int] = 10_000
    """Env steps of all workers between copies into the target network."""

    def check(self, asked: Asked) -> None:
        refuse_noisy_gradients(asked)
        refuse_shared_priorities(asked, shared=True)
        if self.method == "n_step_q" and asked.agent.sarsa:
            raise UserError("--topology.method n_step_q bootstraps from the best action; for Sarsa choose sarsa")
        if self.method == "replay" and not asked.agent.replay:
            raise UserError("--topology.method replay learns from a memory; drop it or drop --agent.no-replay")

    def resolve(self, asked: Asked) -> AgentOptions:
        """Without a replay each step is learned from once; the lanes are just long enough for that."""
        if self.method == "replay":
            return after_first_returns(asked)
        return replace(
            asked.agent,
            sarsa=asked.agent.sarsa or self.method == "sarsa",
            batch_size=asked.envs_per_actor * self.update_steps,
            replay_ratio=1.0,
            updates_per_call=1,
            learning_starts=0,
            n_step=1,
            replay_capacity=asked.actors * asked.envs_per_actor * (2 * self.update_steps + 64),
        )


def compose(plan: Plan, options: Options) -> Topology:
    experience = parts.experience_lanes(plan, readers=plan.actors)
    learned = parts.shared_state(plan, f"updated every {options.update_steps} steps")
    epsilon = playing.exploration(plan, options)
    whole = options.method == "n_step_q"  # then one copy of the weights lasts a whole segment

    def thread(me: Context, written: LaneWriter, read: LaneReader, shared: SharedState) -> list[Role]:
        source: Any
        if options.method == "replay":
            source = parts.own_sampler(me, read)
            may_play = playing.steps_left(me, source.owed)
        else:
            lanes, steps = read.part(me.rank, plan.actors), options.update_steps
            replay = parts.replay_of(plan, lanes, read.priorities(me.rank), guarded=False, n_step=steps if whole else 1)
            source, may_play = Segments(replay, steps, whole=whole), playing.steps_left(me)
        policy: Any = playing.local_policy(me, shared, pull_period=ALWAYS if whole else options.pull_period)
        actor = playing.started(me, playing.lane_actor(me, written, policy, may_play, epsilon(me.rank)))
        if isinstance(source, Segments):
            source.skip()
        worker = HogwildWorker(
            me.agent,
            source,
            shared,
            me.stats,
            me.watch,
            target_steps=options.target_steps,
            rate=plan.learning_rate,
            key=me.key(),
            leads=me.rank == 0,
            acted=(lambda: (policy.version, policy.current)) if whole else None,
            pull=policy.pull if whole else lambda: None,
        )
        return [actor, worker]

    return Topology(
        workers=(
            Workers(
                "worker",
                plan.actors,
                thread,
                {"written": experience.writer, "read": experience.reader, "shared": learned.sharer},
                does="plays on the shared weights, adds up gradients, applies them without a lock",
                kind="play",
                pinned=True,
            ),
            parts.evaluator(plan),
        ),
        weights=learned,
        learned=learned,
        steps_per_update=parts.steps_per_update(plan),
        epsilon=epsilon,
        counts=("gradient_age", *parts.COUNTED_GRADIENTS),
    )


KIND = TopologyKind(
    name="hogwild",
    summary="workers play, and update one shared weight vector without locks",
    compose=compose,
    options=Options,
    agents=("dqn", "sarsa"),
    defaults={
        **parts.ON_PROCESSES,
        "envs_per_actor": 1,
        "agent": {
            "double": False,
            "loss": "squared",
            "max_gradient_norm": 0.0,
            "optimizer": "shared_rmsprop",
            "optimizer_epsilon": 0.01,
        },
    },
)
