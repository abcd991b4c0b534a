"""One worker acts, stores and learns in turn (Mnih et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from repertory.channels.lanes import LaneReader, LaneWriter
from repertory.channels.snapshot import Owner
from repertory.errors import UserError
from repertory.roles.ports import Publisher, Role, Weights
from repertory.topologies import parts, playing
from repertory.topologies.graph import Ports, Topology, TopologyKind, Workers
from repertory.topologies.options import Run, TopologyOptions
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(TopologyOptions):
    """The topology `single` has no options of its own."""

    one_actor: ClassVar[bool] = True

    def check(self, run: Run) -> None:
        if run.actors > 1:
            raise UserError(
                f"topology {run.topology_name!r} has one actor, not {run.actors}: for more environments give "
                f"--envs-per-actor, for more processes --topology collectors --actors {run.actors}"
            )


def compose(plan: Plan, options: Options) -> Topology:  # noqa: ARG001
    experience = parts.experience_lanes(plan)
    weights = parts.weights_channel(plan, "after each call of the learner", lend=True)
    learned = parts.learner_state(plan)
    epsilon = playing.exploration(plan)

    def agent(
        me: Context, written: LaneWriter, read: LaneReader, published: Publisher, newest: Weights, state: Owner
    ) -> list[Role]:
        """Plays its environments ε-greedily, stores their steps, samples batches and learns from them."""
        batches = parts.sampler(me, read, alone=True)
        learner = parts.learner(me, batches, published, state)
        policy = playing.local_policy(me, newest)
        owes = batches.owed if plan.q.replay else lambda: False  # without a replay, an update may wait for more steps
        actor = playing.lane_actor(me, written, policy, playing.steps_left(me, owes), epsilon(0))
        return [playing.started(me, actor), learner]

    ports: Ports = {
        "written": experience.writer,
        "read": experience.reader,
        "published": weights.writer,
        "newest": weights.reader,
        "state": learned.owner,
    }
    return Topology(
        workers=(Workers("agent", 1, agent, ports, kind="play"), parts.evaluator(plan)),
        weights=weights,
        learned=learned,
        steps_per_update=parts.steps_per_update(plan),
        epsilon=epsilon,
        pacing=plan.pacing(),
    )


KIND = TopologyKind("single", __doc__, compose, Options, agents=("dqn", "rainbow", "sarsa"))
