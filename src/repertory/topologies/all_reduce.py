"""Equal replicas average their gradients before every update: what Horovod does (Sergeev and Del Balso 2018)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from repertory.agents.compression import Compression, make_compression
from repertory.channels.gradients import AllGather, Gathering
from repertory.channels.lanes import LaneReader, LaneWriter
from repertory.channels.latest import Lent
from repertory.channels.snapshot import Owner
from repertory.roles.ports import Publisher, Role
from repertory.roles.replica import Replica, payload_fields
from repertory.topologies import parts, playing
from repertory.topologies.graph import Topology, TopologyKind, Workers
from repertory.topologies.options import (
    AgentOptions,
    Asked,
    LearningWorkers,
    PulledWeights,
    SentGradients,
    need_replay,
    refuse_noisy_gradients,
    refuse_shared_priorities,
)
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(SentGradients, PulledWeights, LearningWorkers):
    """Options of replicas that average their gradients before every update."""

    memory: Literal["local", "shared"] = "local"
    """Replicas sample from the replay of their own steps, or from the steps of all replicas."""
    scale_learning_rate: bool = False
    """Linear learning rate scaling: multiply the learning rate by the number of replicas."""

    def check(self, asked: Asked) -> None:
        need_replay(asked)
        refuse_noisy_gradients(asked)
        refuse_shared_priorities(asked, shared=self.memory == "shared")

    def scaled(self, agent: AgentOptions, actors: int, /) -> AgentOptions:
        return replace(agent, learning_rate=agent.learning_rate * actors) if self.scale_learning_rate else agent


def compose(plan: Plan, options: Options) -> Topology:
    local = options.memory == "local"
    experience = parts.experience_lanes(plan, readers=plan.actors if local else 1)
    weights = parts.weights_channel(plan, "of replica 0, after every update")
    learned = parts.learner_state(plan)

    def method() -> Compression:
        return make_compression(options.compression, plan.size(), share=options.topk_share)

    gradients = AllGather(
        "gradients",
        lambda: payload_fields(method()),
        plan.actors,
        when=f"averaged over all ranks at every update, compressed: {options.compression}",
    )
    epsilon = playing.exploration(plan, options)

    def rank(
        me: Context, written: LaneWriter, read: LaneReader, exchange: Gathering, published: Publisher, state: Owner
    ) -> list[Role]:
        def env_steps() -> int:
            """Of its own, times all: no rank's speed may play a part in what the ranks do."""
            return me.stats.own_env_steps * plan.actors

        batches = parts.own_sampler(me, read, local=local)
        newest = published if me.rank == 0 else Lent()
        learner = Replica(
            me.agent,
            state.load(),
            batches,
            exchange,
            method(),
            newest,
            me.stats,
            me.watch,
            state,
            rank=me.rank,
            rate=lambda: plan.learning_rate(env_steps()),
        )
        policy = playing.local_policy(me, learner.newest, pull_period=options.pull_period)
        # Nor while the others' gradients are missing: how long that takes must not decide what is played.
        may_play = playing.steps_left(me, lambda: learner.waiting or batches.owed())
        own = epsilon(me.rank)
        actor = playing.lane_actor(me, written, policy, may_play, lambda _: own(env_steps()))
        return [playing.started(me, actor), learner]

    return Topology(
        workers=(
            Workers(
                "replica",
                plan.actors,
                rank,
                {
                    "written": experience.writer,
                    "read": experience.reader,
                    "exchange": gradients.replica,
                    "published": weights.writer,
                    "state": learned.owner,
                },
                does="plays, stores its steps, holds the whole learner; all ranks stay bit-equal",
                kind="play",
                together=True,
            ),
            parts.evaluator(plan),
        ),
        weights=weights,
        learned=learned,
        steps_per_update=parts.steps_per_update(plan, plan.actors),
        epsilon=epsilon,
        counts=parts.COUNTED_GRADIENTS,
    )


KIND = TopologyKind(
    name="all_reduce",
    summary="equal ranks play and learn, and average their gradients before every update",
    compose=compose,
    options=Options,
    agents=("dqn", "sarsa"),
    defaults=parts.ON_PROCESSES,
)
