"""Workers compute gradients, servers apply them: Downpour SGD (Dean et al. 2012) for the DQN family."""

from __future__ import annotations

from repertory.agents.compression import Compression, make_compression
from repertory.channels.channel import slices
from repertory.channels.gradients import GradientReader, GradientSlots, GradientWriter
from repertory.channels.lanes import LaneReader, LaneWriter
from repertory.channels.latest import Latest, Reader
from repertory.channels.snapshot import Owner
from repertory.roles.gradient_worker import Exchange, GradientWorker, ServerConnection
from repertory.roles.parameter_server import ParameterServer, Rules
from repertory.roles.ports import Publisher, Role
from repertory.topologies import parts
from repertory.topologies.context import Context
from repertory.topologies.graph import Topology, TopologyKind, Workers
from repertory.topologies.options import ParameterServerOptions as Options
from repertory.topologies.plan import Plan


def compose(plan: Plan, options: Options) -> Topology:
    local, synchronous = options.memory == "local", options.mode == "synchronous"
    experience = parts.experience_lanes(plan, readers=plan.actors if local else 1)
    fetched = f"every {options.fetch_period} gradients"
    weights = parts.weights_channel(plan, fetched, parts=options.shards)
    target = Latest("target", plan.size, parts=options.shards, when=fetched)
    learned = parts.learner_state(plan, options.shards)

    def methods() -> list[Compression]:
        """How each server's slice of a gradient is sent."""
        sizes = [cut.stop - cut.start for cut in slices(plan.size(), options.shards)]
        return [make_compression(options.compression, size, share=options.topk_share) for size in sizes]

    gradients = GradientSlots(
        "gradients",
        lambda: [method.fields for method in methods()],
        plan.actors,
        when=f"every {options.push_period} gradients, compressed: {options.compression}",
    )
    epsilon = parts.exploration(plan, options)

    def worker(
        me: Context, written: LaneWriter, read: LaneReader, newest: Reader, targets: Reader, pushed: GradientWriter
    ) -> list[Role]:
        batches = parts.own_sampler(me, read, local=local)
        bound = options.staleness_bound if options.mode == "bounded" else None
        servers = ServerConnection(newest, targets, pushed, methods(), bound)
        exchange = Exchange(options.fetch_period, options.push_period, options.outlier_deviations)
        gradient = GradientWorker(me.agent, batches, servers, exchange, me.stats, me.watch, key=me.key())
        policy = parts.local_policy(me, newest, pull_period=options.pull_period)
        may_play = parts.steps_left(me, batches.owed)
        return [parts.started(me, parts.lane_actor(me, written, policy, may_play, epsilon(me.rank))), gradient]

    def server(me: Context, arriving: GradientReader, weights: Publisher, target: Publisher, state: Owner) -> Role:
        rules = Rules(plan.actors, synchronous, options.combine, options.max_gradient_age)
        return ParameterServer(
            me.agent,
            state.load(),
            arriving,
            methods()[me.rank],
            (weights, target),
            rules,
            me.stats,
            state,
            rank=me.rank,
            rate=plan.learning_rate,
        )

    return Topology(
        workers=(
            Workers(
                "worker",
                plan.actors,
                worker,
                {
                    "written": experience.writer,
                    "read": experience.reader,
                    "newest": weights.reader,
                    "targets": target.reader,
                    "pushed": gradients.writer,
                },
                does="plays, stores its steps, computes gradients with the weights it fetched",
                kind="play",
            ),
            Workers(
                "server",
                options.shards,
                server,
                {
                    "arriving": gradients.reader,
                    "weights": weights.writer,
                    "target": target.writer,
                    "state": learned.owner,
                },
                does="owns a slice of weights, target and optimizer; applies gradients",
            ),
            parts.evaluator(plan),
        ),
        weights=weights,
        learned=learned,
        steps_per_update=parts.steps_per_update(plan, plan.actors if synchronous else options.push_period),
        epsilon=epsilon,
        counts=("gradient_age", *parts.COUNTED_GRADIENTS),
    )


KIND = TopologyKind(
    name="parameter_server",
    summary="workers play and compute gradients, servers own the weights",
    compose=compose,
    options=Options,
    agents=("dqn", "sarsa"),
    defaults=parts.ON_PROCESSES,
)
