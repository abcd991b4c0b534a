"""Workers share one weight vector and update it without locks.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning"; Niu et al. 2011, "Hogwild!".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from repertory.channels.lanes import LaneReader, LaneWriter
from repertory.channels.snapshot import SharedState
from repertory.errors import UserError
from repertory.limits import Positive
from repertory.roles.batches import BatchSampler
from repertory.roles.hogwild_worker import Segments
from repertory.roles.ports import Role
from repertory.topologies import parts, playing
from repertory.topologies.graph import Ports, Topology, TopologyKind, Workers
from repertory.topologies.options import (
    AgentOptions,
    Epsilons,
    LearningWorkers,
    PulledWeights,
    Run,
    after_first_returns,
    refuse_noisy_gradients,
    refuse_shared_priorities,
)
from repertory.topologies.plan import Context, Plan

ALWAYS = 1 << 62


@dataclass(frozen=True)
class Options(PulledWeights, LearningWorkers):
    """Options of workers that update one shared weight vector without locks."""

    exploration: Epsilons = "sampled"
    method: Literal["one_step_q", "n_step_q", "sarsa", "replay"] = "one_step_q"
    """Learning method: one-step Q, n-step Q or Sarsa on steps as they come, or batches from a replay per worker."""
    update_steps: Positive[int] = 5
    """Steps between a worker's updates (t_max), fewer where an episode ends; not for method replay. Typically 5."""
    target_steps: Positive[int] = 10_000
    """Target network update period, in env steps of all workers; typically 10,000 to 40,000."""

    def check(self, run: Run) -> None:
        refuse_noisy_gradients(run)
        refuse_shared_priorities(run, shared=True)
        if self.method == "n_step_q" and run.agent.sarsa:
            raise UserError("--topology.method n_step_q bootstraps from the best action; for Sarsa choose sarsa")
        if self.method == "replay" and not run.agent.replay:
            raise UserError("--topology.method replay needs an experience replay; drop it or drop --agent.no-replay")

    def resolve(self, run: Run) -> AgentOptions:
        """Without a replay each step is learned from once; the lanes are just long enough for that."""
        if self.method == "replay":
            return after_first_returns(run)
        return replace(
            run.agent,
            sarsa=run.agent.sarsa or self.method == "sarsa",
            batch_size=run.envs_per_actor * self.update_steps,
            replay_ratio=1.0,
            updates_per_call=1,
            learning_starts=0,
            n_step=1,
            replay_capacity=run.actors * run.envs_per_actor * (2 * self.update_steps + 64),
        )


def compose(plan: Plan, options: Options) -> Topology:
    experience = parts.experience_lanes(plan, readers=plan.actors)
    learned = parts.shared_state(plan, f"updated every {options.update_steps} steps")
    epsilon = playing.exploration(plan, options)
    whole = options.method == "n_step_q"  # one copy of the weights for a whole segment

    def worker(me: Context, written: LaneWriter, read: LaneReader, shared: SharedState) -> list[Role]:
        """Plays on the shared weights, adds up gradients, applies them without a lock."""
        source = _source(me, read, options)
        owes = source.owed if isinstance(source, BatchSampler) else lambda: False
        policy = playing.local_policy(me, shared, pull_period=ALWAYS if whole else options.pull_period)
        actor = playing.lane_actor(me, written, policy, playing.steps_left(me, owes), epsilon(me.rank))
        playing.started(me, actor)
        if isinstance(source, Segments):
            source.skip()
        steps, acted = options.target_steps, policy if whole else None
        return [actor, parts.hogwild_worker(me, source, shared, policy=acted, target_steps=steps)]

    ports: Ports = {"written": experience.writer, "read": experience.reader, "shared": learned.sharer}
    return Topology(
        workers=(
            Workers("worker", plan.actors, worker, ports, kind="play", pinned=True),
            parts.evaluator(plan),
        ),
        weights=learned,
        learned=learned,
        steps_per_update=parts.steps_per_update(plan),
        epsilon=epsilon,
        counts=("gradient_age", *parts.COUNTED_GRADIENTS),
    )


def _source(me: Context, read: LaneReader, options: Options) -> BatchSampler | Segments:
    """What a worker learns from: batches of a replay of its own, or its steps as they come."""
    if options.method == "replay":
        return parts.own_sampler(me, read)
    plan, whole = me.plan, options.method == "n_step_q"
    lanes, n_step = read.part(me.rank, plan.actors), options.update_steps if whole else 1
    replay = parts.replay_of(plan, lanes, read.priorities(me.rank), guarded=False, n_step=n_step)
    return Segments(replay, options.update_steps, whole=whole)


KIND = TopologyKind(
    "hogwild",
    __doc__,
    compose,
    Options,
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
