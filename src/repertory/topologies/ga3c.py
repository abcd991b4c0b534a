"""GA3C: agents without networks, predictors and trainers on one model (Babaeizadeh et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from repertory.channels.channel import Arrays
from repertory.channels.counters import Numbers
from repertory.channels.mailbox import InferenceAsker, InferenceServerPort
from repertory.channels.slots import UnrollPort
from repertory.channels.snapshot import SharedState
from repertory.errors import UserError
from repertory.limits import NonNegative, Positive
from repertory.roles.actor import Actor
from repertory.roles.adjuster import Adjuster, judgements
from repertory.roles.ports import Role
from repertory.topologies import parts, playing
from repertory.topologies.graph import Ports, Topology, TopologyKind, Workers
from repertory.topologies.options import CentralInference, Run, need_one_update_per_batch
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(CentralInference):
    """Options of GA3C's predictors and trainers."""

    playing_cores: ClassVar[int] = 0
    queue: NonNegative[int] = 2
    predictors: Positive[int] = 2
    """Number of predictors: processes that choose actions for the agents."""
    trainers: Positive[int] = 2
    """Number of trainers: processes that update the shared model."""
    adjust_from: tuple[int, ...] = ()
    """Dynamic adjustment: predictors, trainers and agents at first, then other numbers are tried; empty = off."""
    adjust_s: Positive[float] = 20.0
    """Dynamic adjustment: seconds between two changes; typically 20."""

    def check(self, run: Run) -> None:
        super().check(run)
        need_one_update_per_batch(run)
        self._check_adjustment(run)
        group = run.envs_per_actor // self.groups
        batch = max(1, run.agent.batch_unrolls // group)
        slots = run.actors * self.groups * max(1 + self.queue, batch) // self.trainers
        if batch > slots:
            raise UserError(
                f"--agent.batch-unrolls {run.agent.batch_unrolls} is more than the {slots * group} unrolls that "
                f"agents can finish for each of {self.trainers} trainers before they wait; lower one of the two, or "
                "raise --topology.queue, --actors or --envs-per-actor"
            )

    def _check_adjustment(self, run: Run) -> None:
        most = self.most(run.actors)
        fits = len(self.adjust_from) == 3 and all(
            1 <= start <= limit for start, limit in zip(self.adjust_from, most, strict=True)
        )
        if self.adjust_from and not fits:
            raise UserError(
                "--topology.adjust-from takes predictors, trainers and agents to start with, each from 1 to how many "
                f"there are {most}; it is {self.adjust_from}"
            )
        if self.adjust_from and run.engine == "inline":
            raise UserError("--topology.adjust-from goes by the clock, and inline runs do not: use --engine processes")

    def most(self, agents: int) -> tuple[int, int, int]:
        """Predictors, trainers and agents."""
        return (self.predictors, self.trainers, agents)

    def learner_processes(self, _run: Run, /) -> int:
        return self.trainers


def compose(plan: Plan, options: Options) -> Topology:
    groups, slots = options.groups, parts.batch_slots(plan, options.groups)
    depth = max(1 + options.queue, slots)  # one agent may be at work alone, and fill a batch
    requests = parts.inference_mailbox(plan, groups)
    unrolls = parts.unroll_slots(plan, groups=groups, depth=depth, when=f"after {plan.critic.unroll} steps")
    learned = parts.shared_state(plan, "read before each reply, updated by each trainer")
    at_work = numbers_at_work(plan, options)

    def readers(numbers: Arrays) -> int:
        """Trainers that unrolls are divided among: no more than all slots of the agents at work can give a batch."""
        _, trainers, agents = (int(number) for number in numbers["active"])
        return max(1, min(trainers, agents * depth // slots))

    def agent(me: Context, unrolls: UnrollPort, requests: InferenceAsker, numbers: Arrays) -> list[Actor]:
        """Plays its environments, requests every action, writes unrolls."""
        return playing.requesting_actors(
            me,
            unrolls,
            requests,
            groups,
            server=lambda index: index % int(numbers["active"][0]),
            reader=lambda index, finished: (index + finished) % readers(numbers),
            may_play=lambda: me.rank < numbers["active"][2],
        )

    def predictor(me: Context, requests: InferenceServerPort, shared: SharedState) -> Role:
        """Replies to all requests that wait, at once."""
        writers = plan.actors * groups
        most = writers if options.adjust_from else -(-writers // options.predictors)
        return parts.inference_server(me, requests, shared, options, most=most)

    def trainer(me: Context, unrolls: UnrollPort, shared: SharedState, numbers: Arrays) -> Role:
        """Updates the one model from finished unrolls, without locks."""
        lag, at_work = options.max_policy_lag, lambda: me.rank < readers(numbers)
        batches = parts.unroll_batches(me, unrolls, slots, reader=me.rank, max_policy_lag=lag, at_work=at_work)
        return parts.hogwild_worker(me, batches, shared)

    def adjuster(me: Context, numbers: Arrays) -> list[Role]:
        """Changes how many of each are at work, if --topology.adjust-from is given."""
        return [adjuster_of(me, numbers, options)] if options.adjust_from else []

    played: Ports = {"unrolls": unrolls.writer, "requests": requests.asker, "numbers": at_work.reader}
    replied: Ports = {"requests": requests.server, "shared": learned.reader}
    learns: Ports = {"unrolls": unrolls.reader, "shared": learned.sharer, "numbers": at_work.reader}
    return Topology(
        workers=(
            Workers("agent", plan.actors, agent, played, kind="play"),
            Workers("predictor", options.predictors, predictor, replied, kind="infer"),
            Workers("trainer", options.trainers, trainer, learns),
            Workers("adjuster", 1, adjuster, {"numbers": at_work.writer}, kind="control"),
            parts.evaluator(plan),
        ),
        weights=learned,
        learned=learned,
        steps_per_update=parts.steps_per_unroll_update(plan, slots, groups),
        counts=("gradient_age", "dropped_unrolls", *parts.COUNTED_GRADIENTS),
    )


def numbers_at_work(plan: Plan, options: Options) -> Numbers:
    """How many predictors, trainers and agents work: all of them, or those that the adjuster chooses."""
    first = options.adjust_from or options.most(plan.actors)
    return Numbers(
        "at_work",
        Adjuster.fields(),
        start={"active": first, "kept": first},
        names={"active": ("predictors", "trainers", "agents")},
        tell=judgements,
        carries="how many work",
        when=f"every {options.adjust_s:g} s, if --topology.adjust-from is given",
    )


def adjuster_of(me: Context, numbers: Arrays, options: Options) -> Adjuster:
    most, period_s = options.most(me.plan.actors), options.adjust_s
    return Adjuster(numbers, most, lambda: me.stats.updates, period_s=period_s, seed=me.plan.seed, start=me.start)


KIND = TopologyKind(
    "ga3c",
    __doc__,
    compose,
    Options,
    agents=("a3c", "impala"),
    defaults={**parts.ON_PROCESSES, "agent": {"probability_floor": 1e-6, "max_gradient_norm": 0.0}},
)
