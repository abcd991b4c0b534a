"""One worker acts, stores and learns in turn (Mnih et al. 2015)."""

from __future__ import annotations

from repertory.channels.lanes import LaneReader, LaneWriter
from repertory.channels.snapshot import Owner
from repertory.roles.ports import Publisher, Role, Weights
from repertory.topologies import parts
from repertory.topologies.context import Context
from repertory.topologies.graph import Topology, TopologyKind, Workers
from repertory.topologies.options import SingleOptions as Options
from repertory.topologies.plan import Plan


def compose(plan: Plan, options: Options) -> Topology:  # noqa: ARG001
    experience = parts.experience_lanes(plan)
    weights = parts.weights_channel(plan, "after each call of the learner", lend=True)
    learned = parts.learner_state(plan)
    epsilon = parts.exploration(plan)

    def agent(
        me: Context, written: LaneWriter, read: LaneReader, published: Publisher, newest: Weights, state: Owner
    ) -> list[Role]:
        batches = parts.sampler(me, read, guarded=False)
        learner = parts.learner(me, batches, published, state)
        policy = parts.local_policy(me, newest)
        actor = parts.lane_actor(me, written, policy, parts.steps_left(me, batches.owed), epsilon(0))
        return [parts.started(me, actor), learner]

    return Topology(
        workers=(
            Workers(
                "agent",
                1,
                agent,
                {
                    "written": experience.writer,
                    "read": experience.reader,
                    "published": weights.writer,
                    "newest": weights.reader,
                    "state": learned.owner,
                },
                does="plays its environments ε-greedily, stores their steps, samples batches and learns from them",
                kind="play",
            ),
            parts.evaluator(plan),
        ),
        weights=weights,
        learned=learned,
        steps_per_update=parts.steps_per_update(plan),
        epsilon=epsilon,
        pacing=plan.pacing(),
        updates_per_call=plan.q.updates_per_call,
    )


KIND = TopologyKind(
    name="single",
    summary="one worker that acts, stores and learns in turn",
    compose=compose,
    options=Options,
    agents=("dqn", "rainbow", "sarsa"),
)
