"""Who plays which role: builds the roles of each member from the stage; the only place that wires them.

The same for every engine: inline all members are built in one process, else each in its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from repertory.engines.boards import BatchSlots
from repertory.engines.plan import ANSWERING, CALLS_AHEAD
from repertory.engines.servers import ShardedServers
from repertory.engines.stage import PLAYING, Member, Stage
from repertory.environments import factory
from repertory.environments.factory import Environments
from repertory.errors import EnvironmentFailure
from repertory.experience.unrolls import UnrollWriter
from repertory.roles.actor import Actor
from repertory.roles.adjuster import Adjuster
from repertory.roles.answers import Drawn, Greedy
from repertory.roles.batches import Drawer, Lesson
from repertory.roles.crew import Crew
from repertory.roles.evaluator import EvaluationDesk, Evaluator
from repertory.roles.exploration import generator
from repertory.roles.gradient_worker import Exchange, GradientWorker
from repertory.roles.hogwild_worker import HogwildWorker, Segments
from repertory.roles.inference_server import InferenceServer
from repertory.roles.learner import Learner
from repertory.roles.ledger import Page
from repertory.roles.local_policy import DrawingPolicy, LocalPolicy
from repertory.roles.memory_server import MemoryServer
from repertory.roles.parameter_server import ParameterServer, Rules
from repertory.roles.ports import Role, Weights
from repertory.roles.rank import Collective, Rank
from repertory.roles.remote_policy import RemotePolicy
from repertory.roles.stopwatch import Unwatched
from repertory.roles.target_prefetch import TargetPrefetch
from repertory.roles.unroll_batches import UnrollBatches
from repertory.runtime import compute_at_once

EVALUATION_WORKER = 1_000_000
"""Seeds of evaluation environments are drawn as for a worker that no actor has the rank of."""


@dataclass(frozen=True)
class Casting:
    """What building a member needs besides the stage: how ranks meet, and whether an evaluation is still wanted."""

    stage: Stage
    collective: Callable[[int], Collective]
    dismissed: Callable[[], bool] = lambda: False
    spare: Sequence[int] = ()
    """Cores where a learner may have something computed beside its own."""

    def build(self, member: Member) -> list[Role]:
        """The member's roles, in the order in which they take their turns."""
        builders: dict[str, Callable[[Member, Page], list[Role]]] = {
            "collector": self._collector,
            "memory": self._memory,
            "learner": self._learner,
            "worker": self._worker,
            "server": self._server,
            "thread": self._thread,
            "rank": self._rank,
            "evaluator": self._evaluator,
            "actor": self._groups,
            "agent": self._groups,
            "rollout_worker": self._groups,
            "predictor": self._answering,
            "inference": self._answering,
            "policy_worker": self._answering,
            "trainer": self._trainer,
            "adjuster": self._adjuster,
        }
        roles = builders[member.role](member, self._enter(member))
        for role in roles:
            role.warm_up()
        return roles

    def _enter(self, member: Member) -> Page:
        """The page of a member that starts."""
        page = self.stage.page(member)
        page.count("starts")
        alone = member.role == "learner" and self.spare  # then its own core has nothing else to do
        if alone or member.role in ("collector", "evaluator", "actor", *ANSWERING):
            compute_at_once()
        return page

    def crew(
        self,
        members: Sequence[Member],
        recover: Callable[[Actor, EnvironmentFailure], None],
        wake: Callable[[], None],
    ) -> Crew:
        """Collectors that share a process: a thread for the environments of each, and one policy for all."""
        stage, plan = self.stage, self.stage.plan
        pages = [self._enter(member) for member in members]
        count, period = len(members) * plan.envs_per_actor, plan.company.pull_period
        policy = self._policy(members[0].rank, stage.board(), count, pull_period=period, valued=plan.valued)
        policy.pull()
        may_play = self._not_ahead(pages[0])
        actors = [
            self._lane_actor(page, member.rank, policy, may_play) for page, member in zip(pages, members, strict=True)
        ]
        crew = Crew(
            actors,
            policy,
            begin=self.begin,
            recover=recover,
            may_play=may_play,
            wake=wake,
            dismissed=self.dismissed,
            any_number=count <= stage.agent.numpy_rows,
        )
        crew.warm_up()
        return crew

    def _actor(
        self, member: Member, page: Page, weights: Weights, may_play: Callable[[], bool], **policy: Any
    ) -> Actor:
        """Plays the lanes of its rank with a copy of the weights."""
        local = self._policy(member.rank, weights, self.stage.plan.envs_per_actor, **policy)
        return self._started(self._lane_actor(page, member.rank, local, may_play))

    def _policy(self, rank: int, weights: Weights, count: int, **policy: Any) -> LocalPolicy:
        """For so many environments."""
        return LocalPolicy(
            self.stage.agent, weights, seed=self.stage.plan.seed, rank=rank, environments=count, **policy
        )

    def _lane_actor(
        self, page: Page, rank: int, policy: LocalPolicy | RemotePolicy, may_play: Callable[[], bool]
    ) -> Actor:
        """Plays the lanes of its rank."""
        stage, plan = self.stage, self.stage.plan
        return Actor(
            self._environments(rank, page, plan.envs_per_actor),
            policy,
            stage.lanes,
            page,
            self._exploration(page, rank),
            first_lane=rank * plan.envs_per_actor,
            seed=plan.seed,
            rank=rank,
            watch=Unwatched(),
            start=int(page.row["starts"]),
            may_play=may_play,
        )

    def _exploration(self, page: Page, rank: int) -> Callable[[int], float]:
        """ε by everybody's env steps; ranks that are in step count their own, so that no rank's speed plays a part."""
        plan = self.stage.plan
        epsilon = plan.exploration(rank)
        return (lambda _: epsilon(page.own_env_steps * plan.actors)) if plan.topology.has("rank") else epsilon

    def _rate(self, page: Page) -> Callable[[], float]:
        """The learning rate of now; ranks that are in step count their own steps for it, as for ε."""
        plan = self.stage.plan
        if plan.topology.has("rank"):
            return lambda: plan.learning_rate(page.own_env_steps * plan.actors)
        return lambda: plan.learning_rate(page.env_steps)

    def _started(self, actor: Actor) -> Actor:
        actor.policy.pull()  # type: ignore[attr-defined]  # random actions name a version, too
        self.begin(actor)
        return actor

    def _unroll_actor(self, page: Page, rank: int, group: int, policy: RemotePolicy | DrawingPolicy) -> Actor:
        """Plays one group of environments and writes unrolls."""
        stage, plan = self.stage, self.stage.plan
        index, at_work, trains = rank * plan.company.groups + group, stage.at_work, plan.topology.has("trainer")
        requests = stage.requests() if plan.central else None
        own = stage.unrolls.filled[index * plan.slots_per_writer : (index + 1) * plan.slots_per_writer]

        def states() -> Any:
            return policy.core if isinstance(policy, DrawingPolicy) else requests.states(index)  # type: ignore[union-attr]

        def reader() -> int:
            if plan.topology.has("thread"):
                return rank
            return (index + int(own.sum())) % stage.trainers_at_work() if trains else index % plan.readers

        writer = UnrollWriter(
            stage.unrolls,
            index,
            begin_unroll=policy.pull,
            core=states,
            reader=reader,
            ring=stage.bell("learner", "trainer"),
            dropped=lambda: page.count("dropped_unrolls"),
        )

        def may_play() -> bool:
            return page.env_steps < plan.env_steps and rank < at_work[2] and writer.open()

        return self._started(
            Actor(
                self._environments(index, page, plan.envs_per_group, patient=True),
                policy,
                writer,
                page,
                plan.exploration(rank),
                first_lane=0,
                seed=plan.seed,
                rank=index,
                watch=Unwatched(),
                start=int(page.row["starts"]),
                may_play=may_play,
                may_ask=may_play,
            )
        )

    def _unless(self, page: Page, owes: Callable[[], bool]) -> Callable[[], bool]:
        """Whether a worker may play on: it owes no update for what it has played, and the run has steps left."""
        return lambda: page.env_steps < self.stage.plan.env_steps and not owes()

    def _environments(self, rank: int, page: Page, count: int, patient: bool = False) -> Environments:
        plan = self.stage.plan
        made = factory.make(plan.environment, count, options=plan.environment_options, worker=rank, patient=patient)
        made.report_to(page.row["place"])
        return made

    def renew(self, actor: Actor) -> None:
        """New environments for an actor whose old ones failed."""
        patient = isinstance(actor.experience, UnrollWriter)
        actor.environments = self._environments(actor.rank, actor.page, actor.environments.count, patient)
        self.begin(actor)

    def begin(self, actor: Actor) -> None:
        """Episodes from seeds that no start of this or another actor has had; none is left half open."""
        plan, page = self.stage.plan, actor.page
        key = (int(page.row["starts"]), page.own_env_steps)
        actor.experience.interrupt(actor.lanes)
        actor.restart(factory.seeds(plan.seed, actor.rank, actor.environments.count, *key))

    def _drawer(self, page: Page, rank: int | None, updates_per_call: int = 1) -> Drawer:
        """Batches of a worker's own, or of everybody's steps."""
        plan = self.stage.plan
        options = plan.q
        lesson = Lesson(options.batch_size, updates_per_call, options.replay, options.prioritized)
        start = int(page.row["starts"]) - 1
        if rank is None:
            return Drawer(
                self.stage.replay(),
                plan.pacing(),
                lesson,
                plan.importance,
                lambda: page.env_steps,
                seed=plan.seed,
                start=start,
            )
        drawer = Drawer(
            self.stage.replay(rank if plan.company.memory == "local" else None),
            plan.pacing(plan.actors),
            lesson,
            lambda own: plan.importance(own * plan.actors),
            lambda: page.own_env_steps,
            seed=plan.seed,
            rank=rank,
            start=start,
        )
        drawer.pacing.updates = int(page.row["gradients"])
        return drawer

    def _key(self, page: Page, rank: int) -> jax.Array:
        return jax.random.fold_in(jax.random.key(self.stage.plan.seed), 1000 * rank + int(page.row["starts"]))

    def _collector(self, member: Member, page: Page) -> list[Role]:
        stage, plan = self.stage, self.stage.plan
        period, may_play = plan.company.pull_period, self._not_ahead(page)
        return [self._actor(member, page, stage.board(), may_play, pull_period=period, valued=plan.valued)]

    def _not_ahead(self, page: Page) -> Callable[[], bool]:
        """Whether collectors may play on: the learner keeps up, and the run has steps left."""
        stage, plan = self.stage, self.stage.plan
        ring, due_at = stage.bell("memory"), stage.arrays["due_at"]
        ahead = CALLS_AHEAD + bool(self.spare)  # then the learner looks at the next batch while it learns from one

        most = 0  # env steps known to be allowed: what the learner has done is looked up only beyond them

        def may_play() -> bool:
            nonlocal most
            env_steps = page.env_steps
            if env_steps >= due_at[0]:
                ring()
            if env_steps >= most:
                most = min(plan.env_steps, plan.most_env_steps(page.updates, ahead))
            return env_steps < most

        return may_play

    def _memory(self, member: Member, page: Page) -> list[Role]:  # noqa: ARG002
        stage = self.stage
        updates = stage.plan.q.updates_per_call
        outgoing = BatchSlots(stage.named("batches"), updates, stage.bell("learner"))
        return [MemoryServer(self._drawer(page, None, updates), outgoing, page, stage.arrays["due_at"])]

    def _learner(self, member: Member, page: Page) -> list[Role]:
        stage, plan = self.stage, self.stage.plan
        if plan.ranks > 1 and plan.unrolled:
            return [self._equal_learner(member, page, self._unroll_batches(page, member.rank))]
        safe = stage.safe()
        learned = safe.load()
        page.set("updates", int(learned.updates))
        batches: Any
        if plan.unrolled:
            batches = self._unroll_batches(page, member.rank)
        elif plan.topology.has("memory"):
            batches = BatchSlots(stage.named("batches"), plan.q.updates_per_call, stage.bell("memory"))
        else:
            batches = self._drawer(page, None, plan.q.updates_per_call)
            batches.pacing.updates = page.updates
        prefetches = self.spare and stage.agent.prefetch_target
        ahead = TargetPrefetch(stage.agent, batches, self.spare) if prefetches else None
        ports = (batches, stage.board(), page, Unwatched(), safe, ahead)
        return [Learner(stage.agent, learned, *ports, rate=plan.learning_rate)]

    def _unroll_batches(self, page: Page, reader: int) -> UnrollBatches:
        stage, plan = self.stage, self.stage.plan
        return UnrollBatches(
            stage.unrolls,
            plan.batch_slots,
            page,
            reader=reader,
            discount=plan.critic.discount,
            core=stage.agent.state_size,
            updates=plan.critic.updates_per_batch,
            entropy=plan.entropy,
            ring=stage.bell(*PLAYING),
            most_lag=plan.company.max_policy_lag,
            at_work=lambda: not plan.topology.has("trainer") or reader < stage.trainers_at_work(),
        )

    def _groups(self, member: Member, page: Page) -> list[Role]:
        """An actor of unrolls, one role for each group of its environments; or one that fills a memory."""
        stage, plan, rank = self.stage, self.stage.plan, member.rank
        if not plan.unrolled:
            return [self._asking_collector(member, page)]
        roles: list[Role] = []
        for group in range(plan.company.groups):
            index = rank * plan.company.groups + group
            policy: RemotePolicy | DrawingPolicy = (
                self._asking(page, index) if plan.central else self._drawing(page, index, stage.board())
            )
            roles.append(self._unroll_actor(page, rank, group, policy))
        return roles

    def _asking(self, page: Page, index: int) -> RemotePolicy:
        stage, plan = self.stage, self.stage.plan
        at_work = stage.at_work
        return RemotePolicy(stage.requests(), index, plan.envs_per_group, page, lambda: index % int(at_work[0]))

    def _drawing(self, page: Page, index: int, weights: Weights, *, caches: bool = False) -> DrawingPolicy:
        plan, start = self.stage.plan, int(page.row["starts"])
        streams = {"seed": plan.seed, "rank": index, "start": start}
        return DrawingPolicy(self.stage.agent, weights, plan.envs_per_group, page, caches=caches, **streams)

    def _asking_collector(self, member: Member, page: Page) -> Actor:
        """Fills its lanes as a collector does, but has no network."""
        stage, plan, rank = self.stage, self.stage.plan, member.rank
        wake_learner = stage.bell("learner")

        def may_play() -> bool:
            wake_learner()
            return page.env_steps < min(plan.env_steps, plan.most_env_steps(page.updates))

        return self._started(self._lane_actor(page, rank, self._asking(page, rank), may_play))

    def _answering(self, member: Member, page: Page) -> list[Role]:
        stage, plan, rank = self.stage, self.stage.plan, member.rank
        agent, company = stage.agent, plan.company
        draws = generator(plan.seed, rank, 5, int(page.row["starts"]), 1)
        answers = Drawn(agent, draws) if plan.unrolled else Greedy(agent)
        weights: Weights = stage.store() if plan.lock_free else stage.board()
        server = InferenceServer(
            answers,
            weights,
            stage.requests(),
            page,
            rank=rank,
            core=agent.state_size,
            most=plan.writers if company.adjust_from else -(-plan.writers // plan.servers),
            least=company.inference_least,
            patience_s=company.inference_patience_s,
        )
        return [server]

    def _trainer(self, member: Member, page: Page) -> list[Role]:
        stage, company = self.stage, self.stage.plan.company
        trainer = HogwildWorker(
            stage.agent,
            self._unroll_batches(page, member.rank),
            stage.store(),
            page,
            Unwatched(),
            target_steps=company.target_steps,
            rate=self.stage.plan.learning_rate,
            key=self._key(page, member.rank),
            leads=member.rank == 0,
        )
        return [trainer]

    def _adjuster(self, member: Member, page: Page) -> list[Role]:  # noqa: ARG002
        stage, plan = self.stage, self.stage.plan
        company = plan.company
        if not company.adjust_from:
            return []
        return [
            Adjuster(
                stage.named("adjust"),
                (company.predictors, company.trainers, plan.actors),
                lambda: page.updates,
                period_s=company.adjust_s,
                seed=plan.seed,
                start=int(page.row["starts"]),
            )
        ]

    def _worker(self, member: Member, page: Page) -> list[Role]:
        stage, company, rank = self.stage, self.stage.plan.company, member.rank
        drawer = self._drawer(page, rank)
        servers = ShardedServers(stage, rank)
        exchange = Exchange(company.fetch_period, company.push_period, company.outlier_deviations)
        worker = GradientWorker(stage.agent, drawer, servers, exchange, page, Unwatched(), key=self._key(page, rank))
        actor = self._actor(member, page, servers, self._unless(page, drawer.owed), pull_period=company.pull_period)
        return [actor, worker]

    def _server(self, member: Member, page: Page) -> list[Role]:
        stage, company, rank = self.stage, self.stage.plan.company, member.rank
        size = stage.slices[rank].stop - stage.slices[rank].start
        safe = stage.safe(rank)
        boards = (stage.server_boards("weights")[rank], stage.server_boards("target")[rank])
        rules = Rules(stage.plan.actors, company.mode == "synchronous", company.combine, company.max_gradient_age)
        server = ParameterServer(
            stage.agent,
            safe.load(),
            stage.gradient_slots(),
            stage.compression(size),
            boards,
            rules,
            page,
            safe,
            rank=rank,
            tell_workers=stage.bell("worker"),
            rate=stage.plan.learning_rate,
        )
        return [server]

    def _thread(self, member: Member, page: Page) -> list[Role]:
        stage, plan, rank = self.stage, self.stage.plan, member.rank
        company, store = plan.company, stage.store()
        source: Segments | Drawer | UnrollBatches
        whole = plan.unrolled or company.method == "n_step_q"  # then θ′ lasts a whole segment
        if plan.unrolled:
            source = self._unroll_batches(page, rank)
            source.skip()
            actor = self._unroll_actor(page, rank, 0, self._drawing(page, rank, store, caches=True))
        elif company.method == "replay":
            source = self._drawer(page, rank)
            may_play = self._unless(page, source.owed)
            actor = self._actor(member, page, store, may_play, pull_period=company.pull_period)
        else:
            steps = company.update_steps
            source = Segments(stage.replay(rank, n_step=steps if whole else 1), steps, whole=whole)
            period = 1 << 62 if whole else company.pull_period
            actor = self._actor(member, page, store, self._unless(page, lambda: False), pull_period=period)
            source.skip()
        policy: Any = actor.policy
        worker = HogwildWorker(
            stage.agent,
            source,
            store,
            page,
            Unwatched(),
            target_steps=company.target_steps,
            rate=plan.learning_rate,
            key=self._key(page, rank),
            leads=rank == 0,
            acted=(lambda: (policy.version, policy.current)) if whole else None,
            cached=policy.cached if plan.unrolled else None,
            pull=policy.pull if whole else lambda: None,
        )
        return [actor, worker]

    def _rank(self, member: Member, page: Page) -> list[Role]:
        drawer = self._drawer(page, member.rank)
        learner = self._equal_learner(member, page, drawer)
        period = self.stage.plan.company.pull_period
        # Nor while the others' gradients are missing: how long that takes must not decide what is played.
        may_play = self._unless(page, lambda: learner.waiting or drawer.owed())
        return [self._actor(member, page, learner.weights, may_play, pull_period=period), learner]

    def _equal_learner(self, member: Member, page: Page, batches: Drawer | UnrollBatches) -> Rank:
        """One of several that average their gradients; rank 0 publishes for all who are not learners."""
        stage, rank = self.stage, member.rank
        safe = stage.safe()
        return Rank(
            stage.agent,
            safe.load(),
            batches,
            self.collective(rank),
            stage.compression(stage.agent.layout.size),
            stage.board() if rank == 0 else LocalBoard(),
            page,
            Unwatched(),
            safe,
            stage.arrays["checksums"][rank],
            rank=rank,
            rate=self._rate(page),
        )

    def _evaluator(self, member: Member, page: Page) -> list[Role]:  # noqa: ARG002
        plan, stage = self.stage.plan, self.stage
        made = factory.make(
            plan.environment, plan.eval_episodes, options=plan.evaluation_options, worker=EVALUATION_WORKER
        )
        made.report_to(page.row["place"])
        evaluator = Evaluator(stage.agent, made, max_steps=plan.eval_max_steps)

        def seeds(index: int) -> list[int]:
            return factory.seeds(plan.seed, EVALUATION_WORKER, plan.eval_episodes, index)

        return [EvaluationDesk(evaluator, stage.named("evaluation"), seeds, page, self.dismissed)]


class LocalBoard:
    """The newest weights, in the same process."""

    def __init__(self) -> None:
        self._latest: tuple[int, Any] = (-1, np.zeros(0, np.float32))

    def publish(self, version: int, weights: Any) -> None:
        """Put up the newest."""
        self._latest = (version, weights)

    def latest(self) -> tuple[int, Any]:
        """The newest version and its weights."""
        return self._latest
