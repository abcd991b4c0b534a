"""IMPALA: actors with copies of the policy, unrolls through a bounded queue (Espeholt et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from repertory.channels.gradients import Gathering
from repertory.channels.slots import UnrollPort
from repertory.channels.snapshot import Owner
from repertory.errors import UserError
from repertory.limits import Positive
from repertory.roles.actor import Actor
from repertory.roles.ports import Publisher, Role, Weights
from repertory.topologies import parts, playing
from repertory.topologies.graph import Ports, Topology, TopologyKind, Workers
from repertory.topologies.options import OnMachines, Run, SentGradients, UnrollQueue, need_one_update_per_batch
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(SentGradients, UnrollQueue, OnMachines):
    """Options of IMPALA's learners and the queue of unrolls before them."""

    learners: Positive[int] = 1
    """Number of learner processes; several average their gradients before every update."""

    def check(self, run: Run) -> None:
        if self.learners > run.actors:
            raise UserError(f"--topology.learners {self.learners} needs at least as many actors, not {run.actors}")
        if self.learners > 1:
            need_one_update_per_batch(run)

    def learner_processes(self, _run: Run, /) -> int:
        return self.learners


def compose(plan: Plan, options: Options) -> Topology:
    slots = parts.batch_slots(plan)
    depth = -(-slots // (plan.actors // options.learners)) + options.queue
    unrolls = parts.unroll_slots(plan, depth=depth, when=f"after {plan.critic.unroll} steps")
    weights = parts.weights_channel(plan, "copied at the start of each unroll")
    learned = parts.learner_state(plan)
    gradients = parts.gathered_gradients(plan, options, options.learners, "averaged at every update")

    def actor(me: Context, written: UnrollPort, newest: Weights) -> Actor:
        """Copies the weights at each unroll's start, plays it, hands it over."""
        policy, reader = playing.sampling_policy(me, newest), me.rank % options.learners
        return playing.unroll_actor(me, written, me.rank, policy, reader=lambda _: reader)

    def replica(me: Context, unrolls: UnrollPort, weights: Publisher, learned: Owner, exchange: Gathering) -> Role:
        """Learns from each unroll once; several average their gradients."""
        batches = parts.unroll_batches(me, unrolls, slots, reader=me.rank, max_policy_lag=options.max_policy_lag)
        return parts.replica(me, options, batches, exchange, weights, learned, lambda: me.stats.env_steps)

    alone = partial(parts.unroll_learner, slots=slots, max_policy_lag=options.max_policy_lag)
    played: Ports = {"written": unrolls.writer, "newest": weights.reader}
    learns: Ports = {"unrolls": unrolls.reader, "weights": weights.writer, "learned": learned.owner}
    several: Ports = {**learns, "exchange": gradients.replica}
    return Topology(
        workers=(
            Workers("actor", plan.actors, actor, played, kind="play", synchronous=True),
            Workers("learner", options.learners, replica, several, together=True)
            if options.learners > 1
            else Workers("learner", 1, alone, learns),
            parts.evaluator(plan),
        ),
        weights=weights,
        learned=learned,
        steps_per_update=parts.steps_per_unroll_update(plan, slots * options.learners),
        counts=("dropped_unrolls", *parts.COUNTED_GRADIENTS),
    )


KIND = TopologyKind(
    "impala",
    __doc__,
    compose,
    Options,
    agents=("impala", "appo"),
    defaults=parts.ON_PROCESSES,
    engines=parts.ON_CLUSTER,
)
