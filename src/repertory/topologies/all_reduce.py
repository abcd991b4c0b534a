"""Equal replicas average their gradients before every update: what Horovod does (Sergeev and Del Balso 2018)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from repertory.channels.gradients import Gathering
from repertory.channels.lanes import LaneReader, LaneWriter
from repertory.channels.snapshot import Owner
from repertory.roles.ports import Publisher, Role
from repertory.topologies import parts, playing
from repertory.topologies.graph import Ports, Topology, TopologyKind, Workers
from repertory.topologies.options import AgentOptions, GradientWorkers
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(GradientWorkers):
    """Options of replicas that average their gradients before every update."""

    scale_learning_rate: bool = False
    """Linear learning rate scaling: multiply the learning rate by the number of replicas."""

    def scaled(self, agent: AgentOptions, actors: int, /) -> AgentOptions:
        return replace(agent, learning_rate=agent.learning_rate * actors) if self.scale_learning_rate else agent


def compose(plan: Plan, options: Options) -> Topology:
    local = options.memory == "local"
    experience = parts.experience_lanes(plan, readers=plan.actors if local else 1)
    weights = parts.weights_channel(plan, "of replica 0, after every update")
    learned = parts.learner_state(plan)
    averaged = f"averaged over all replicas at every update, compressed: {options.compression}"
    gradients = parts.gathered_gradients(plan, options, plan.actors, averaged)
    epsilon = playing.exploration(plan, options)

    def replica(
        me: Context, written: LaneWriter, read: LaneReader, exchange: Gathering, published: Publisher, state: Owner
    ) -> list[Role]:
        """Plays, stores its steps, holds the whole learner; all replicas stay bit-equal."""

        def env_steps() -> int:
            """From its own steps alone: the speed of one replica must not change what the others do."""
            return me.stats.own_env_steps * plan.actors

        batches = parts.own_sampler(me, read, local=local)
        learner = parts.replica(me, options, batches, exchange, published, state, env_steps)
        policy = playing.local_policy(me, learner.newest, pull_period=options.pull_period)
        # It does not play while gradients of other replicas are missing: their speed must not decide what is played.
        may_play = playing.steps_left(me, lambda: learner.waiting or batches.owed())
        own = epsilon(me.rank)
        actor = playing.lane_actor(me, written, policy, may_play, lambda _: own(env_steps()))
        return [playing.started(me, actor), learner]

    ports: Ports = {
        "written": experience.writer,
        "read": experience.reader,
        "exchange": gradients.replica,
        "published": weights.writer,
        "state": learned.owner,
    }
    return Topology(
        workers=(
            Workers("replica", plan.actors, replica, ports, kind="play", together=True),
            parts.evaluator(plan),
        ),
        weights=weights,
        learned=learned,
        steps_per_update=parts.steps_per_update(plan, plan.actors),
        epsilon=epsilon,
        counts=parts.COUNTED_GRADIENTS,
    )


KIND = TopologyKind(
    "all_reduce",
    __doc__,
    compose,
    Options,
    agents=("dqn", "sarsa"),
    defaults=parts.ON_PROCESSES,
    engines=parts.ON_CLUSTER,
)
