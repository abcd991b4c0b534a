"""Workers share one weight vector and update it without locks.

Mnih et al. 2016, "Asynchronous Methods for Deep Reinforcement Learning"; Niu et al. 2011, "Hogwild!".
"""

from __future__ import annotations

from typing import Any

from repertory.channels.lanes import LaneReader, LaneWriter
from repertory.channels.snapshot import SharedState
from repertory.roles.hogwild_worker import HogwildWorker, Segments
from repertory.roles.ports import Role
from repertory.topologies import parts
from repertory.topologies.context import Context
from repertory.topologies.graph import Topology, TopologyKind, Workers
from repertory.topologies.options import HogwildOptions as Options
from repertory.topologies.plan import Plan

ALWAYS = 1 << 62


def compose(plan: Plan, options: Options) -> Topology:
    experience = parts.experience_lanes(plan, readers=plan.actors)
    learned = parts.shared_state(plan, f"updated every {options.update_steps} steps")
    epsilon = parts.exploration(plan, options)
    whole = options.method == "n_step_q"  # then one copy of the weights lasts a whole segment

    def thread(me: Context, written: LaneWriter, read: LaneReader, shared: SharedState) -> list[Role]:
        source: Any
        if options.method == "replay":
            source = parts.own_sampler(me, read)
            may_play = parts.steps_left(me, source.owed)
        else:
            lanes, steps = read.part(me.rank, plan.actors), options.update_steps
            replay = parts.replay_of(plan, lanes, read.priorities(me.rank), guarded=False, n_step=steps if whole else 1)
            source, may_play = Segments(replay, steps, whole=whole), parts.steps_left(me)
        policy: Any = parts.local_policy(me, shared, pull_period=ALWAYS if whole else options.pull_period)
        actor = parts.started(me, parts.lane_actor(me, written, policy, may_play, epsilon(me.rank)))
        if isinstance(source, Segments):
            source.skip()
        worker = HogwildWorker(
            me.agent,
            source,
            shared,
            me.stats,
            me.watch,
            target_steps=options.target_steps,
            rate=plan.learning_rate,
            key=me.key(),
            leads=me.rank == 0,
            acted=(lambda: (policy.version, policy.current)) if whole else None,
            pull=policy.pull if whole else lambda: None,
        )
        return [actor, worker]

    return Topology(
        workers=(
            Workers(
                "thread",
                plan.actors,
                thread,
                {"written": experience.writer, "read": experience.reader, "shared": learned.sharer},
                does="plays on the shared weights, adds up gradients, applies them without a lock",
                kind="play",
                pinned=True,
            ),
            parts.evaluator(plan),
        ),
        weights=learned,
        learned=learned,
        steps_per_update=parts.steps_per_update(plan),
        epsilon=epsilon,
        counts=("gradient_age", *parts.COUNTED_GRADIENTS),
    )


KIND = TopologyKind(
    name="hogwild",
    summary="workers play, and update one shared weight vector without locks",
    compose=compose,
    options=Options,
    agents=("dqn", "sarsa"),
    defaults={
        **parts.ON_PROCESSES,
        "envs_per_actor": 1,
        "agent": {
            "double": False,
            "loss": "squared",
            "max_gradient_norm": 0.0,
            "optimizer": "shared_rmsprop",
            "optimizer_epsilon": 0.01,
        },
    },
)
