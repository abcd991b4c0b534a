"""SEED RL: actors without networks, central inference beside the learner (Espeholt et al. 2020).

An actor-critic learns from unrolls, a value agent from a replay that the learner samples itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from repertory.channels.lanes import LaneReader, Lanes, LaneWriter
from repertory.channels.mailbox import InferenceAsker, InferenceServerPort
from repertory.channels.slots import UnrollPort, UnrollSlots
from repertory.channels.snapshot import Owner
from repertory.errors import UserError
from repertory.roles.actor import Actor
from repertory.roles.policies import RemotePolicy
from repertory.roles.ports import Publisher, Role, Weights
from repertory.topologies import parts, playing
from repertory.topologies.graph import Ports, Topology, TopologyKind, Workers
from repertory.topologies.options import CentralInference, Exploration, OnMachines, Run, need_replay
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(CentralInference, Exploration, OnMachines):
    """Options of SEED RL's central inference; those of exploration are for agents that learn from a replay."""

    def check(self, run: Run) -> None:
        super().check(run)
        if run.learns_from == "unrolls":
            return
        need_replay(run)
        if self.groups > 1:
            raise UserError(f"--topology.groups {self.groups} is for agents that learn from unrolls: impala, appo")
        if run.agent.noisy:
            raise UserError(
                f"topology {run.topology_name!r} replies without noise, so noisy networks would not explore; choose "
                "--topology collectors, or --agent.no-noisy"
            )


class Experience(NamedTuple):
    """How steps reach the learner: by unrolls, or by a replay."""

    channel: UnrollSlots | Lanes
    actor: Callable[..., Any]
    learner: Callable[..., Any]
    topology: dict[str, Any]
    """Fields of the topology that follow from it."""


def compose(plan: Plan, options: Options) -> Topology:
    experience = unrolls(plan, options) if plan.unrolled else replay(plan, options)
    requests = parts.inference_mailbox(plan, options.groups)
    weights = parts.weights_channel(plan, "the newest before each reply")
    learned = parts.learner_state(plan)

    def inference(me: Context, requests: InferenceServerPort, newest: Weights) -> Role:
        """Replies to many actors at once, stores their recurrent states."""
        return parts.inference_server(me, requests, newest, options, most=plan.actors * options.groups)

    played: Ports = {"steps": experience.channel.writer, "requests": requests.asker}
    replied: Ports = {"requests": requests.server, "newest": weights.reader}
    learns: Ports = {"steps": experience.channel.reader, "weights": weights.writer, "learned": learned.owner}
    return Topology(
        workers=(
            Workers("actor", plan.actors, experience.actor, played, kind="play", synchronous=True),
            Workers("inference", 1, inference, replied, kind="infer"),
            Workers("learner", 1, experience.learner, learns),
            parts.evaluator(plan),
        ),
        weights=weights,
        learned=learned,
        **experience.topology,
    )


def unrolls(plan: Plan, options: Options) -> Experience:
    groups, slots = options.groups, parts.batch_slots(plan, options.groups)
    depth = -(-slots // (plan.actors * groups)) + options.queue

    def actor(me: Context, steps: UnrollPort, requests: InferenceAsker) -> list[Actor]:
        """Plays its environments and requests every action."""
        return playing.requesting_actors(me, steps, requests, groups)

    def learner(me: Context, steps: UnrollPort, weights: Publisher, learned: Owner) -> Role:
        """Learns from each unroll once; drops those beyond --topology.max-policy-lag."""
        return parts.unroll_learner(me, steps, weights, learned, slots=slots, max_policy_lag=options.max_policy_lag)

    counts = ("dropped_unrolls", *parts.COUNTED_GRADIENTS)
    channel = parts.unroll_slots(plan, groups=groups, depth=depth, when="in place")
    per_update = parts.steps_per_unroll_update(plan, slots, groups)
    return Experience(channel, actor, learner, {"steps_per_update": per_update, "counts": counts})


def replay(plan: Plan, options: Options) -> Experience:
    epsilon = playing.exploration(plan, options)

    def actor(me: Context, steps: LaneWriter, requests: InferenceAsker) -> Actor:
        """Plays its environments and requests every action."""
        policy = RemotePolicy(requests, me.rank, plan.envs_per_actor, me.stats, lambda: 0)
        policy.pull()  # random actions name a version, too
        may_play = playing.not_ahead(me, steps.wake_reader)
        return playing.started(me, playing.lane_actor(me, steps, policy, may_play, epsilon(me.rank)))

    def learner(me: Context, steps: LaneReader, weights: Publisher, learned: Owner) -> Role:
        """Samples batches from the replay and learns from them."""
        return parts.learner(me, parts.sampler(me, steps), weights, learned)

    topology = {
        "steps_per_update": parts.steps_per_update(plan),
        "epsilon": epsilon,
        "pacing": plan.pacing(),
        "counts": parts.COUNTED_GRADIENTS,
    }
    return Experience(parts.experience_lanes(plan), actor, learner, topology)


KIND = TopologyKind(
    "seed_rl",
    __doc__,
    compose,
    Options,
    agents=("impala", "appo", "dqn", "sarsa"),
    defaults=parts.ON_PROCESSES,
    engines=parts.ON_CLUSTER,
)
