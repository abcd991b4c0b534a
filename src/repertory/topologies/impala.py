"""IMPALA: actors with copies of the policy, unrolls through a bounded queue (Espeholt et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from repertory.agents.compression import Compression, make_compression
from repertory.channels.gradients import AllGather, Gathering
from repertory.channels.latest import Lent
from repertory.channels.slots import UnrollPort
from repertory.channels.snapshot import Owner
from repertory.errors import UserError
from repertory.limits import Positive
from repertory.roles.actor import Actor
from repertory.roles.ports import Publisher, Role, Weights
from repertory.roles.replica import Replica, payload_fields
from repertory.topologies import parts, playing
from repertory.topologies.graph import PortOf, Topology, TopologyKind, Workers
from repertory.topologies.options import Asked, SentGradients, UnrollQueue, need_one_update_per_batch
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(SentGradients, UnrollQueue):
    """Options of IMPALA's learners and the queue of unrolls before them."""

    learners: Positive[int] = 1
    """Learner processes; several average their gradients before every update."""

    def check(self, asked: Asked) -> None:
        if self.learners > asked.actors:
            raise UserError(f"--topology.learners {self.learners} needs at least as many actors, not {asked.actors}")
        if self.learners > 1:
            need_one_update_per_batch(asked)

    def learner_processes(self, _asked: Asked, /) -> int:
        return self.learners


def compose(plan: Plan, options: Options) -> Topology:
    slots = parts.batch_slots(plan)
    depth = -(-slots // (plan.actors // options.learners)) + options.queue
    unrolls = parts.unroll_slots(plan, groups=1, depth=depth, when=f"after {plan.critic.unroll} steps")
    weights = parts.weights_channel(plan, "copied at the start of each unroll")
    learned = parts.learner_state(plan)

    def actor(me: Context, written: UnrollPort, newest: Weights) -> Actor:
        policy = playing.sampling_policy(me, newest, me.rank, plan.envs_per_actor)
        reader = me.rank % options.learners
        return playing.unroll_actor(me, written, me.rank, policy, states=lambda: policy.states, reader=lambda _: reader)

    def learner(me: Context, read: UnrollPort, published: Publisher, state: Owner) -> Role:
        batches = parts.unroll_batches(me, read, slots, max_policy_lag=options.max_policy_lag)
        return parts.learner(me, batches, published, state)

    def method() -> Compression:
        return make_compression(options.compression, plan.size(), share=options.topk_share)

    def replica(me: Context, read: UnrollPort, published: Publisher, state: Owner, exchange: Gathering) -> Role:
        """One of several learners; the first publishes for all."""
        return Replica(
            me.agent,
            state.load(),
            parts.unroll_batches(me, read, slots, reader=me.rank, max_policy_lag=options.max_policy_lag),
            exchange,
            method(),
            published if me.rank == 0 else Lent(),
            me.stats,
            me.watch,
            state,
            rank=me.rank,
            rate=lambda: plan.learning_rate(me.stats.env_steps),
        )

    several = options.learners > 1
    exchange = AllGather(
        "gradients", lambda: payload_fields(method()), options.learners, when="averaged at every update"
    )
    ports: dict[str, PortOf] = {"read": unrolls.reader, "published": weights.writer, "state": learned.owner}
    return Topology(
        workers=(
            Workers(
                "actor",
                plan.actors,
                actor,
                {"written": unrolls.writer, "newest": weights.reader},
                does="copies the weights at each unroll's start, plays it, hands it over",
                kind="play",
                synchronous=True,
            ),
            Workers(
                "learner",
                options.learners,
                replica if several else learner,
                {**ports, "exchange": exchange.replica} if several else ports,
                does="learns from each unroll once; several average their gradients",
                together=True,
            ),
            parts.evaluator(plan),
        ),
        weights=weights,
        learned=learned,
        steps_per_update=parts.steps_per_unroll_update(plan, slots * options.learners),
        counts=("dropped_unrolls", *parts.COUNTED_GRADIENTS),
    )


KIND = TopologyKind(
    name="impala",
    summary="IMPALA: actors with copies of the policy, unrolls through a bounded queue (Espeholt et al. 2018)",
    compose=compose,
    options=Options,
    agents=("impala", "appo"),
    defaults=parts.ON_PROCESSES,
)
