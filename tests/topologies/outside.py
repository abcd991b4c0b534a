"""A topology from outside the package: many actors, and one learner that samples from their lanes itself."""

from __future__ import annotations

from dataclasses import dataclass

from repertory.channels.lanes import LaneReader, LaneWriter
from repertory.channels.snapshot import Owner
from repertory.limits import Positive
from repertory.roles.ports import Publisher, Role, Weights
from repertory.topologies import parts, playing
from repertory.topologies.graph import Topology, TopologyKind, Workers
from repertory.topologies.options import Exploration
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(Exploration):
    """Options of players and their student."""

    copy_every: Positive[int] = 1
    """Steps that a player plays before it copies newer weights."""


def compose(plan: Plan, options: Options) -> Topology:
    experience, learned = parts.experience_lanes(plan), parts.learner_state(plan)
    weights = parts.weights_channel(plan, f"copied every {options.copy_every} steps")
    epsilon = playing.exploration(plan, options)

    def player(me: Context, steps: LaneWriter, newest: Weights) -> Role:
        policy = playing.local_policy(me, newest, pull_period=options.copy_every)
        may_play = playing.not_ahead(me, steps.wake_reader)
        return playing.started(me, playing.lane_actor(me, steps, policy, may_play, epsilon(me.rank)))

    def student(me: Context, steps: LaneReader, published: Publisher, state: Owner) -> Role:
        return parts.learner(me, parts.sampler(me, steps), published, state)

    played = {"steps": experience.writer, "newest": weights.reader}
    studied = {"steps": experience.reader, "published": weights.writer, "state": learned.owner}
    return Topology(
        workers=(
            Workers("player", plan.actors, player, played, does="plays", kind="play"),
            Workers("student", 1, student, studied, does="samples and learns"),
            parts.evaluator(plan),
        ),
        weights=weights,
        learned=learned,
        steps_per_update=parts.steps_per_update(plan),
        epsilon=epsilon,
        pacing=plan.pacing(),
    )


KIND = TopologyKind("outside", "players and a student", compose, Options, ("dqn",), parts.ON_PROCESSES)
