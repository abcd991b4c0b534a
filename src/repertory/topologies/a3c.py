"""A3C: workers play unrolls, and update one shared policy and value without locks (Mnih et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass

from repertory.channels.slots import UnrollPort
from repertory.channels.snapshot import SharedState
from repertory.roles.hogwild_worker import HogwildWorker
from repertory.roles.ports import Role
from repertory.topologies import parts, playing
from repertory.topologies.graph import Topology, TopologyKind, Workers
from repertory.topologies.options import Asked, LearningWorkers, need_one_update_per_batch
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(LearningWorkers):
    """The topology `a3c` has no options of its own."""

    def check(self, asked: Asked) -> None:
        need_one_update_per_batch(asked)


def compose(plan: Plan, options: Options) -> Topology:  # noqa: ARG001
    unrolls = parts.unroll_slots(plan, groups=1, depth=1, when=f"after {plan.critic.unroll} steps, to itself")
    learned = parts.shared_state(plan, f"after every {plan.critic.unroll} steps")

    def thread(me: Context, written: UnrollPort, read: UnrollPort, shared: SharedState) -> list[Role]:
        batches = parts.unroll_batches(me, read, 1, reader=me.rank)
        batches.skip()  # nobody has the weights any more that they were played with
        policy = playing.sampling_policy(me, shared, me.rank, plan.envs_per_actor, caches=True)
        actor = playing.unroll_actor(
            me, written, me.rank, policy, states=lambda: policy.states, reader=lambda _: me.rank
        )
        worker = HogwildWorker(
            me.agent,
            batches,
            shared,
            me.stats,
            me.watch,
            target_steps=plan.env_steps,  # an actor-critic has no target network
            rate=plan.learning_rate,
            key=me.key(),
            leads=me.rank == 0,
            acted=lambda: (policy.version, policy.current),
            cached=policy.cached,
            pull=policy.pull,
        )
        return [actor, worker]

    return Topology(
        workers=(
            Workers(
                "worker",
                plan.actors,
                thread,
                {"written": unrolls.writer, "read": unrolls.reader, "shared": learned.sharer},
                does="plays an unroll with a copy of the shared weights, applies its gradient without a lock",
                kind="play",
                pinned=True,
            ),
            parts.evaluator(plan),
        ),
        weights=learned,
        learned=learned,
        steps_per_update=parts.steps_per_unroll_update(plan, 1),
        counts=("gradient_age", "dropped_unrolls", *parts.COUNTED_GRADIENTS),
    )


KIND = TopologyKind(
    name="a3c",
    summary="A3C: workers play unrolls, and update one shared policy and value without locks (Mnih et al. 2016)",
    compose=compose,
    options=Options,
    agents=("a3c",),
    defaults=parts.ON_PROCESSES,
)
