"""Workers compute gradients, servers apply them: Downpour SGD (Dean et al. 2012) for the DQN family."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from repertory.channels.gradients import GradientReader, GradientSlots, GradientWriter
from repertory.channels.lanes import LaneReader, LaneWriter
from repertory.channels.latest import Latest, Reader
from repertory.channels.snapshot import Owner
from repertory.errors import UserError
from repertory.limits import NonNegative, Positive
from repertory.roles.gradient_worker import Exchange, GradientWorker, ServerConnection
from repertory.roles.parameter_server import ParameterServer, Rules
from repertory.roles.ports import Publisher, Role
from repertory.topologies import parts, playing
from repertory.topologies.graph import Ports, Topology, TopologyKind, Workers
from repertory.topologies.options import GradientWorkers, Run
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(GradientWorkers):
    """Options of parameter servers and the workers that send them gradients."""

    shards: Positive[int] = 1
    """Number of parameter servers; each owns a slice of the weights and of the optimizer state."""
    mode: Literal["asynchronous", "synchronous", "bounded"] = "asynchronous"
    """Apply gradients as they arrive, once all workers have sent one, or as they arrive with bounded staleness."""
    staleness_bound: Positive[int] = 4
    """Staleness bound of mode bounded: gradients that a worker may be ahead of the slowest; typically 1 to 10."""
    combine: Literal["mean", "sum"] = "mean"
    """Mode synchronous: apply the mean or the sum of the workers' gradients."""
    fetch_period: Positive[int] = 1
    """Gradients that a worker computes before it fetches weights again (Downpour's n_fetch)."""
    push_period: Positive[int] = 1
    """Gradient accumulation: gradients that a worker adds up before it sends them (Downpour's n_push)."""
    max_gradient_age: NonNegative[int] = 0
    """Maximum gradient staleness: servers drop gradients of weights more than this many updates old; 0 = keep all."""
    outlier_deviations: NonNegative[float] = 0.0
    """Workers drop a gradient whose loss is this many standard deviations above the mean loss; 0 = keep all."""

    def check(self, run: Run) -> None:
        super().check(run)
        if self.mode == "synchronous" and self.push_period > 1:
            raise UserError("--topology.push-period must be 1 where servers wait for every worker's gradient")


def compose(plan: Plan, options: Options) -> Topology:
    experience = parts.experience_lanes(plan, readers=plan.actors if options.memory == "local" else 1)
    fetched = f"every {options.fetch_period} gradients"
    weights = parts.weights_channel(plan, fetched, parts=options.shards)
    target = Latest("target", plan.size, parts=options.shards, when=fetched)
    learned = parts.learner_state(plan, options.shards)
    gradients = GradientSlots(
        "gradients",
        lambda: [each.fields for each in parts.compressions(plan, options, options.shards)],
        plan.actors,
        when=f"every {options.push_period} gradients, compressed: {options.compression}",
    )
    works: Ports = {
        "written": experience.writer,
        "read": experience.reader,
        "newest": weights.reader,
        "targets": target.reader,
        "pushed": gradients.writer,
    }
    serves: Ports = {
        "arriving": gradients.reader,
        "weights": weights.writer,
        "target": target.writer,
        "state": learned.owner,
    }
    batches = plan.actors if options.mode == "synchronous" else options.push_period
    return Topology(
        workers=(
            Workers("worker", plan.actors, partial(worker, options), works, kind="play"),
            Workers("server", options.shards, partial(server, options), serves, placed="spread"),
            parts.evaluator(plan),
        ),
        weights=weights,
        learned=learned,
        steps_per_update=parts.steps_per_update(plan, batches),
        epsilon=playing.exploration(plan, options),
        counts=("gradient_age", *parts.COUNTED_GRADIENTS),
    )


def worker(
    options: Options,
    me: Context,
    written: LaneWriter,
    read: LaneReader,
    newest: Reader,
    targets: Reader,
    pushed: GradientWriter,
) -> list[Role]:
    """Plays, stores its steps, computes gradients with the weights it fetched."""
    compressions = parts.compressions(me.plan, options, options.shards)
    bound = options.staleness_bound if options.mode == "bounded" else None
    servers = ServerConnection(newest, targets, pushed, compressions, bound)
    exchange = Exchange(options.fetch_period, options.push_period, options.outlier_deviations)
    batches = parts.own_sampler(me, read, local=options.memory == "local")
    gradient = GradientWorker(me.agent, batches, servers, exchange, me.stats, me.watch, key=me.key())
    policy = playing.local_policy(me, newest, pull_period=options.pull_period)
    may_play, epsilon = playing.steps_left(me, batches.owed), playing.exploration(me.plan, options)(me.rank)
    return [playing.started(me, playing.lane_actor(me, written, policy, may_play, epsilon)), gradient]


def server(
    options: Options, me: Context, arriving: GradientReader, weights: Publisher, target: Publisher, state: Owner
) -> Role:
    """Owns a slice of weights, target and optimizer; applies gradients."""
    synchronous = options.mode == "synchronous"
    return ParameterServer(
        me.agent,
        state.load(),
        arriving,
        parts.compressions(me.plan, options, options.shards)[me.rank],
        (weights, target),
        Rules(me.plan.actors, synchronous, options.combine, options.max_gradient_age),
        me.stats,
        state,
        rank=me.rank,
        rate=me.plan.learning_rate,
    )


KIND = TopologyKind(
    "parameter_server",
    __doc__,
    compose,
    Options,
    agents=("dqn", "sarsa"),
    defaults=parts.ON_PROCESSES,
    engines=parts.ON_CLUSTER,
)
