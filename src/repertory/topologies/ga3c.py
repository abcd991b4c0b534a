"""GA3C: agents without networks, predictors and trainers on one model (Babaeizadeh et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from repertory.channels.counters import Numbers
from repertory.channels.mailbox import InferenceAsker, InferenceServerPort
from repertory.channels.slots import UnrollPort
from repertory.channels.snapshot import SharedState
from repertory.errors import UserError
from repertory.limits import NonNegative, Positive
from repertory.roles.actor import Actor
from repertory.roles.adjuster import Adjuster, judgements
from repertory.roles.hogwild_worker import HogwildWorker
from repertory.roles.ports import Role
from repertory.topologies import parts, playing
from repertory.topologies.graph import Topology, TopologyKind, Workers
from repertory.topologies.options import Asked, CentralInference, need_one_update_per_batch
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(CentralInference):
    """Options of GA3C's predictors and trainers."""

    playing_cores: ClassVar[int] = 0
    queue: NonNegative[int] = 2
    predictors: Positive[int] = 2
    """Processes that choose actions for the agents."""
    trainers: Positive[int] = 2
    """Processes that learn."""
    adjust_from: tuple[int, ...] = ()
    """Predictors, trainers and agents active at first; then other numbers are tried. Empty = all, always."""
    adjust_s: Positive[float] = 20.0
    """Seconds between adjustments."""

    def check(self, asked: Asked) -> None:
        super().check(asked)
        need_one_update_per_batch(asked)
        self._check_adjustment(asked)
        group = asked.envs_per_actor // self.groups
        batch = max(1, asked.agent.batch_unrolls // group)
        slots = asked.actors * self.groups * max(1 + self.queue, batch) // self.trainers
        if batch > slots:
            raise UserError(
                f"--agent.batch-unrolls {asked.agent.batch_unrolls} is more than the {slots * group} unrolls that "
                f"agents can finish for each of {self.trainers} trainers before they wait; lower one of the two, or "
                "raise --topology.queue, --actors or --envs-per-actor"
            )

    def _check_adjustment(self, asked: Asked) -> None:
        most = (self.predictors, self.trainers, asked.actors)
        fits = len(self.adjust_from) == 3 and all(
            1 <= start <= limit for start, limit in zip(self.adjust_from, most, strict=True)
        )
        if self.adjust_from and not fits:
            raise UserError(
                "--topology.adjust-from takes predictors, trainers and agents to start with, each from 1 to how many "
                f"there are {most}; it is {self.adjust_from}"
            )
        if self.adjust_from and asked.engine == "inline":
            raise UserError("--topology.adjust-from goes by the clock: take --engine processes, inline runs repeat")

    def learner_processes(self, _asked: Asked, /) -> int:
        return self.trainers


def compose(plan: Plan, options: Options) -> Topology:
    groups, slots = options.groups, parts.batch_slots(plan, options.groups)
    everybody = (options.predictors, options.trainers, plan.actors)
    depth = max(1 + options.queue, slots)  # one agent may be at work alone, and fill a batch
    requests = parts.inference_mailbox(plan, groups)
    unrolls = parts.unroll_slots(plan, groups=groups, depth=depth, when=f"after {plan.critic.unroll} steps")
    learned = parts.shared_state(plan, "read before each reply, updated by each trainer")
    at_work = Numbers(
        "at_work",
        Adjuster.fields(),
        start={"active": options.adjust_from or everybody, "kept": options.adjust_from or everybody},
        names={"active": ("predictors", "trainers", "agents")},
        tell=judgements,
        carries="how many work",
        when=f"every {options.adjust_s:g} s, if --topology.adjust-from is given",
    )

    def trainers(numbers: parts.Numbers) -> int:
        """Those that unrolls are divided among: no more than all slots of those at work can give a batch."""
        _, trainers, agents = (int(number) for number in numbers["active"])
        return max(1, min(trainers, agents * depth // slots))

    def agent(me: Context, written: UnrollPort, asked: InferenceAsker, numbers: parts.Numbers) -> list[Actor]:
        return playing.asking_groups(
            me,
            written,
            asked,
            groups,
            server=lambda index: index % int(numbers["active"][0]),
            reader=lambda index, finished: (index + finished) % trainers(numbers),
            may_play=lambda: me.rank < numbers["active"][2],
        )

    def predictor(me: Context, asked: InferenceServerPort, shared: SharedState) -> Role:
        writers = plan.actors * groups
        most = writers if options.adjust_from else -(-writers // options.predictors)
        return parts.inference_server(me, asked, shared, options, most=most)

    def trainer(me: Context, read: UnrollPort, shared: SharedState, numbers: parts.Numbers) -> Role:
        batches = parts.unroll_batches(
            me,
            read,
            slots,
            reader=me.rank,
            max_policy_lag=options.max_policy_lag,
            at_work=lambda: me.rank < trainers(numbers),
        )
        return HogwildWorker(
            me.agent,
            batches,
            shared,
            me.stats,
            me.watch,
            target_steps=plan.env_steps,  # an actor-critic has no target network
            rate=plan.learning_rate,
            key=me.key(),
            leads=me.rank == 0,
        )

    def adjuster(me: Context, numbers: parts.Numbers) -> list[Role]:
        if not options.adjust_from:
            return []
        period, seed = options.adjust_s, plan.seed
        return [Adjuster(numbers, everybody, lambda: me.stats.updates, period_s=period, seed=seed, start=me.start)]

    return Topology(
        workers=(
            Workers(
                "agent",
                plan.actors,
                agent,
                {"written": unrolls.writer, "asked": requests.asker, "numbers": at_work.reader},
                does="plays its environments, asks for every action, writes unrolls",
                kind="play",
            ),
            Workers(
                "predictor",
                options.predictors,
                predictor,
                {"asked": requests.server, "shared": learned.reader},
                does="replies to the requests that wait, all at once",
                kind="infer",
                synchronous=True,
            ),
            Workers(
                "trainer",
                options.trainers,
                trainer,
                {"read": unrolls.reader, "shared": learned.sharer, "numbers": at_work.reader},
                does="updates the one model from finished unrolls, without locks",
            ),
            Workers(
                "adjuster",
                1,
                adjuster,
                {"numbers": at_work.writer},
                does="changes how many of each are at work, if --topology.adjust-from is given",
                kind="control",
                progress=1,
            ),
            parts.evaluator(plan),
        ),
        weights=learned,
        learned=learned,
        steps_per_update=parts.steps_per_unroll_update(plan, slots, groups),
        counts=("gradient_age", "dropped_unrolls", *parts.COUNTED_GRADIENTS),
    )


KIND = TopologyKind(
    name="ga3c",
    summary="GA3C: agents without networks, predictors and trainers on one model (Babaeizadeh et al. 2017)",
    compose=compose,
    options=Options,
    agents=("a3c", "impala"),
    defaults={**parts.ON_PROCESSES, "agent": {"probability_floor": 1e-6, "max_gradient_norm": 0.0}},
)
