"""Many actors, one replay, one learner; the replay ratio holds at any speed of the actors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from repertory.channels.lanes import LaneReader, LaneWriter
from repertory.channels.slots import BatchSlots, BatchWriter
from repertory.errors import UserError
from repertory.limits import NonNegative
from repertory.roles.actor import Actor, ActorGroup
from repertory.roles.batches import MemoryServer
from repertory.roles.ports import Policy, Weights
from repertory.topologies import parts, playing
from repertory.topologies.graph import Ports, Topology, TopologyKind, Workers
from repertory.topologies.options import OnMachines, PulledWeights, Run, need_replay
from repertory.topologies.plan import Context, Plan

BATCHES_AHEAD = 3


@dataclass(frozen=True)
class Options(PulledWeights, OnMachines):
    """Options of collectors: many actors, one replay, one learner."""

    actors_per_process: NonNegative[int] = 0
    """Actors per process, which share a batched policy; 0 = one process per core, or per actor if they are fewer."""
    actor_priorities: bool = False
    """Initial priorities by the actors (Ape-X): the TD error that the actor saw, not the highest so far."""

    def check(self, run: Run) -> None:
        need_replay(run)
        if self.actor_priorities and not run.agent.prioritized:
            raise UserError(
                "--topology.actor-priorities needs --agent.prioritized, or give --topology.no-actor-priorities"
            )


def compose(plan: Plan, options: Options) -> Topology:
    values = options.actor_priorities and plan.q.prioritized
    experience = parts.experience_lanes(plan, values=values)
    batches = BatchSlots(
        "batches",
        partial(parts.example_sample, plan),
        BATCHES_AHEAD,
        plan.q.updates_per_call,
        when="as the replay ratio allows, two calls ahead",
        back="errors",
        back_when="after each call, if prioritised",
    )
    weights = parts.weights_channel(plan, f"copied every {options.pull_period} steps")
    learned = parts.learner_state(plan)
    epsilon = playing.exploration(plan, options)
    policy = partial(playing.local_policy, pull_period=options.pull_period, values=values)
    played: Ports = {"steps": experience.writer, "newest": weights.reader}
    sampled: Ports = {"steps": experience.reader, "outgoing": batches.writer}
    learns: Ports = {"batches": batches.reader, "weights": weights.writer, "learned": learned.owner}
    return Topology(
        workers=(
            Workers(
                "collector",
                plan.actors,
                partial(collector, policy, epsilon),
                played,
                kind="play",
                build_group=partial(collectors, policy, epsilon),
                per_process=options.actors_per_process,
                synchronous=True,
            ),
            Workers("memory", 1, memory, sampled, kind="serve"),
            Workers("learner", 1, parts.learner, learns, own_core=True),
            parts.evaluator(plan),
        ),
        weights=weights,
        learned=learned,
        steps_per_update=parts.steps_per_update(plan),
        epsilon=epsilon,
        pacing=plan.pacing(),
    )


def collector(
    policy: Callable[..., Policy], epsilon: playing.Epsilon, me: Context, steps: LaneWriter, newest: Weights
) -> Actor:
    """Plays its environments and writes their steps into its lanes."""
    may_play = playing.not_ahead(me, steps.wake_reader)
    return playing.started(me, playing.lane_actor(me, steps, policy(me, newest), may_play, epsilon(me.rank)))


def collectors(
    policy: Callable[..., Policy], epsilon: playing.Epsilon, us: Sequence[Context], steps: LaneWriter, newest: Weights
) -> ActorGroup:
    """Collectors that share a process and a policy; each begins in a thread of its own."""
    count = len(us) * us[0].plan.envs_per_actor
    shared, may_play = policy(us[0], newest, count=count), playing.not_ahead(us[0], steps.wake_reader)
    actors = [playing.lane_actor(me, steps, shared, may_play, epsilon(me.rank)) for me in us]
    any_number = count <= us[0].agent.numpy_rows
    return ActorGroup(actors, shared, may_play=may_play, any_number=any_number, now=time.monotonic)


def memory(me: Context, steps: LaneReader, outgoing: BatchWriter) -> MemoryServer:
    """Samples batches from all lanes, stores priorities, holds the replay ratio."""
    return MemoryServer(parts.sampler(me, steps), outgoing, me.stats, steps.wake_at)


KIND = TopologyKind(
    "collectors",
    __doc__,
    compose,
    Options,
    agents=("dqn", "rainbow", "sarsa"),
    defaults=parts.ON_PROCESSES,
    engines=parts.ON_CLUSTER,
)
