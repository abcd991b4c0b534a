"""SEED RL: actors without networks, central inference beside the learner (Espeholt et al. 2020).

An actor-critic learns from unrolls, a value agent from a replay that the learner samples itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from repertory.channels.lanes import LaneReader, Lanes, LaneWriter
from repertory.channels.mailbox import InferenceAsker, InferenceServerPort
from repertory.channels.slots import UnrollPort, UnrollSlots
from repertory.channels.snapshot import Owner
from repertory.errors import UserError
from repertory.roles.actor import Actor
from repertory.roles.ports import Publisher, Role, Weights
from repertory.topologies import parts, playing
from repertory.topologies.graph import Topology, TopologyKind, Workers
from repertory.topologies.options import Asked, CentralInference, Exploration, need_replay
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(CentralInference, Exploration):
    """Options of SEED RL's central inference; those of exploration are for agents that learn from a replay."""

    def check(self, asked: Asked) -> None:
        super().check(asked)
        if asked.learns_from == "unrolls":
            return
        need_replay(asked)
        if self.groups > 1:
            raise UserError(f"--topology.groups {self.groups} is for agents that learn from unrolls: impala, appo")
        if asked.agent.noisy:
            raise UserError(
                f"topology {asked.topology_name!r} answers without noise, so noisy networks would not explore; choose "
                "--topology collectors, or --agent.no-noisy"
            )


def compose(plan: Plan, options: Options) -> Topology:
    groups = options.groups
    requests = parts.inference_mailbox(plan, groups)
    weights = parts.weights_channel(plan, "the newest before each reply")
    learned = parts.learner_state(plan)
    slots = parts.batch_slots(plan, groups) if plan.unrolled else 0
    depth = -(-slots // (plan.actors * groups)) + options.queue
    experience: UnrollSlots | Lanes = (
        parts.unroll_slots(plan, groups=groups, depth=depth, when="in place")
        if plan.unrolled
        else parts.experience_lanes(plan)
    )
    epsilon = None if plan.unrolled else playing.exploration(plan, options)

    def unroll_actors(me: Context, written: UnrollPort, asked: InferenceAsker) -> list[Actor]:
        return playing.asking_groups(me, written, asked, groups)

    def lane_actor(me: Context, written: LaneWriter, asked: InferenceAsker) -> Actor:
        policy = playing.asking_policy(me, asked, me.rank, plan.envs_per_actor, lambda: 0)
        policy.pull()  # random actions name a version, too
        assert epsilon is not None
        may_play = playing.not_ahead(me, written.wake_reader)
        return playing.started(me, playing.lane_actor(me, written, policy, may_play, epsilon(me.rank)))

    def inference(me: Context, asked: InferenceServerPort, newest: Weights) -> Role:
        return parts.inference_server(me, asked, newest, options, most=plan.actors * groups)

    def unroll_learner(me: Context, read: UnrollPort, published: Publisher, state: Owner) -> Role:
        batches = parts.unroll_batches(me, read, slots, max_policy_lag=options.max_policy_lag)
        return parts.learner(me, batches, published, state)

    def replay_learner(me: Context, read: LaneReader, published: Publisher, state: Owner) -> Role:
        return parts.learner(me, parts.sampler(me, read), published, state)

    return Topology(
        workers=(
            Workers(
                "actor",
                plan.actors,
                unroll_actors if plan.unrolled else lane_actor,
                {"written": experience.writer, "asked": requests.asker},
                does="plays its environments and asks for every action",
                kind="play",
                synchronous=True,
            ),
            Workers(
                "inference",
                1,
                inference,
                {"asked": requests.server, "newest": weights.reader},
                does="replies to many actors at once, keeps their recurrent states",
                kind="infer",
                synchronous=True,
            ),
            Workers(
                "learner",
                1,
                unroll_learner if plan.unrolled else replay_learner,
                {"read": experience.reader, "published": weights.writer, "state": learned.owner},
                does="learns from unrolls, or with a value agent from a replay",
            ),
            parts.evaluator(plan),
        ),
        weights=weights,
        learned=learned,
        steps_per_update=parts.steps_per_unroll_update(plan, slots, groups)
        if plan.unrolled
        else parts.steps_per_update(plan),
        epsilon=epsilon,
        pacing=None if plan.unrolled else plan.pacing(),
        updates_per_call=1 if plan.unrolled else plan.q.updates_per_call,
        counts=(*(("dropped_unrolls",) if plan.unrolled else ()), *parts.COUNTED_GRADIENTS),
    )


KIND = TopologyKind(
    name="seed_rl",
    summary="SEED RL: actors without networks, central inference beside the learner (Espeholt et al. 2020)",
    compose=compose,
    options=Options,
    agents=("impala", "appo", "dqn", "sarsa"),
    defaults=parts.ON_PROCESSES,
)
