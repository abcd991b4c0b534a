"""A3C: workers play unrolls, and update one shared policy and value without locks (Mnih et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass

from repertory.channels.slots import UnrollPort
from repertory.channels.snapshot import SharedState
from repertory.roles.ports import Role
from repertory.topologies import parts, playing
from repertory.topologies.graph import Ports, Topology, TopologyKind, Workers
from repertory.topologies.options import LearningWorkers, Run, need_one_update_per_batch
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(LearningWorkers):
    """The topology `a3c` has no options of its own."""

    def check(self, run: Run) -> None:
        need_one_update_per_batch(run)


def compose(plan: Plan, options: Options) -> Topology:  # noqa: ARG001
    unrolls = parts.unroll_slots(plan, depth=1, when=f"after {plan.critic.unroll} steps, to itself")
    learned = parts.shared_state(plan, f"after every {plan.critic.unroll} steps")

    def worker(me: Context, written: UnrollPort, read: UnrollPort, shared: SharedState) -> list[Role]:
        """Plays an unroll with a copy of the shared weights, applies its gradient without a lock."""
        batches = parts.unroll_batches(me, read, 1, reader=me.rank)
        batches.skip()  # the weights that a killed worker played them with are lost
        policy = playing.sampling_policy(me, shared, caches=True)
        actor = playing.unroll_actor(me, written, me.rank, policy, reader=lambda _: me.rank)
        return [actor, parts.hogwild_worker(me, batches, shared, policy=policy, cached=policy.cached)]

    ports: Ports = {"written": unrolls.writer, "read": unrolls.reader, "shared": learned.sharer}
    return Topology(
        workers=(
            Workers("worker", plan.actors, worker, ports, kind="play", pinned=True),
            parts.evaluator(plan),
        ),
        weights=learned,
        learned=learned,
        steps_per_update=parts.steps_per_unroll_update(plan, 1),
        counts=("gradient_age", "dropped_unrolls", *parts.COUNTED_GRADIENTS),
    )


KIND = TopologyKind("a3c", __doc__, compose, Options, agents=("a3c",), defaults=parts.ON_PROCESSES)
