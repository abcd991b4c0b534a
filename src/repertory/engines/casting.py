"""Who plays which role: builds the roles of each member from the stage; the only place that wires them.

The same for every engine: inline all members are built in one process, else each in its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from repertory.engines.boards import BatchSlots
from repertory.engines.servers import ShardedServers
from repertory.engines.stage import Member, Stage
from repertory.experience import environments
from repertory.experience.environments import Environments
from repertory.roles.actor import Actor
from repertory.roles.batches import Drawer, Lesson
from repertory.roles.evaluator import EvaluationDesk, Evaluator
from repertory.roles.gradient_worker import Exchange, GradientWorker
from repertory.roles.hogwild_worker import HogwildWorker, Segments
from repertory.roles.learner import Learner
from repertory.roles.ledger import Page
from repertory.roles.local_policy import LocalPolicy
from repertory.roles.memory_server import MemoryServer
from repertory.roles.parameter_server import ParameterServer, Rules
from repertory.roles.ports import Role, Weights
from repertory.roles.rank import Collective, Rank
from repertory.roles.stopwatch import Unwatched
from repertory.runtime import compute_at_once

EVALUATION_WORKER = 1_000_000
"""Seeds of evaluation environments are drawn as for a worker that no actor has the rank of."""


@dataclass(frozen=True)
class Casting:
    """What building a member needs besides the stage: how ranks meet, and whether an evaluation is still wanted."""

    stage: Stage
    collective: Callable[[int], Collective]
    dismissed: Callable[[], bool] = lambda: False

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
        }
        page = self.stage.page(member)
        page.count("starts")
        if member.role in ("collector", "evaluator"):
            compute_at_once()
        return builders[member.role](member, page)

    def _actor(
        self, member: Member, page: Page, weights: Weights, may_play: Callable[[], bool], **policy: Any
    ) -> Actor:
        """Plays the lanes of its rank; an actor that starts anew leaves no episode half open."""
        stage, plan, rank = self.stage, self.stage.plan, member.rank
        actor = Actor(
            self._environments(rank, page),
            LocalPolicy(stage.agent, weights, seed=plan.seed, rank=rank, **policy),
            stage.lanes,
            page,
            plan.exploration(rank),
            first_lane=rank * plan.envs_per_actor,
            seed=plan.seed,
            rank=rank,
            watch=Unwatched(),
            start=int(page.row["starts"]),
            may_play=may_play,
        )
        stage.lanes.interrupt(actor.lanes)
        self.begin(actor)
        return actor

    def _unless(self, page: Page, owes: Callable[[], bool]) -> Callable[[], bool]:
        """Whether a worker may play on: it owes no update for what it has played, and the run has steps left."""
        return lambda: page.env_steps < self.stage.plan.env_steps and not owes()

    def _environments(self, rank: int, page: Page) -> Environments:
        plan = self.stage.plan
        made = environments.make(plan.environment, plan.envs_per_actor, options=plan.environment_options, worker=rank)
        made.report_to(page.row["place"])
        return made

    def renew(self, actor: Actor) -> None:
        """New environments for an actor whose old ones failed."""
        actor.environments = self._environments(actor.rank, actor.page)
        self.begin(actor)

    def begin(self, actor: Actor) -> None:
        """Episodes from seeds that no start of this or another actor has had."""
        plan, page = self.stage.plan, actor.page
        key = (int(page.row["starts"]), page.own_env_steps)
        actor.policy.pull()  # type: ignore[attr-defined]  # random actions name a version, too
        actor.restart(environments.seeds(plan.seed, actor.rank, plan.envs_per_actor, *key))

    def _drawer(self, page: Page, rank: int | None, updates_per_call: int = 1) -> Drawer:
        """Batches of a worker's own, or of everybody's steps."""
        plan = self.stage.plan
        options = plan.options
        lesson = Lesson(options.batch_size, updates_per_call, options.replay, options.prioritized)
        if rank is None:
            return Drawer(
                self.stage.replay(), plan.pacing(), lesson, plan.importance, lambda: page.env_steps, seed=plan.seed
            )
        drawer = Drawer(
            self.stage.replay(rank if plan.company.memory == "local" else None),
            plan.pacing(plan.actors),
            lesson,
            plan.importance,
            lambda: page.own_env_steps,
            seed=plan.seed,
            rank=rank,
        )
        drawer.pacing.updates = int(page.row["gradients"])
        return drawer

    def _key(self, page: Page, rank: int) -> jax.Array:
        return jax.random.fold_in(jax.random.key(self.stage.plan.seed), 1000 * rank + int(page.row["starts"]))

    def _collector(self, member: Member, page: Page) -> list[Role]:
        stage, plan = self.stage, self.stage.plan
        ring, due_at = stage.bell("memory"), stage.arrays["due_at"]

        most = 0  # env steps known to be allowed: what the learner has done is looked up only beyond them

        def may_play() -> bool:
            nonlocal most
            env_steps = page.env_steps
            if env_steps >= due_at[0]:
                ring()
            if env_steps >= most:
                most = min(plan.env_steps, plan.most_env_steps(page.updates))
            return env_steps < most

        period = plan.company.pull_period
        return [self._actor(member, page, stage.board(), may_play, pull_period=period, valued=plan.valued)]

    def _memory(self, member: Member, page: Page) -> list[Role]:  # noqa: ARG002
        stage = self.stage
        updates = stage.plan.options.updates_per_call
        outgoing = BatchSlots(stage.named("batches"), updates, stage.bell("learner"))
        return [MemoryServer(self._drawer(page, None, updates), outgoing, page, stage.arrays["due_at"])]

    def _learner(self, member: Member, page: Page) -> list[Role]:  # noqa: ARG002
        stage = self.stage
        safe = stage.safe()
        learned = safe.load()
        page.set("updates", int(learned.updates))
        batches = BatchSlots(stage.named("batches"), stage.plan.options.updates_per_call, stage.bell("memory"))
        return [Learner(stage.agent, learned, batches, stage.board(), page, Unwatched(), safe)]

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
        )
        return [server]

    def _thread(self, member: Member, page: Page) -> list[Role]:
        stage, company, rank = self.stage, self.stage.plan.company, member.rank
        store = stage.store()
        source: Segments | Drawer
        if company.method == "replay":
            source = self._drawer(page, rank)
            owes: Callable[[], bool] = source.owed
        else:
            whole = company.method == "n_step_q"
            source = Segments(
                stage.replay(rank, n_step=company.update_steps if whole else 1), company.update_steps, whole=whole
            )
            owes = lambda: False  # noqa: E731
        period = 1 << 62 if company.method == "n_step_q" else company.pull_period  # else θ′ lasts a whole segment
        actor = self._actor(member, page, store, self._unless(page, owes), pull_period=period)
        if isinstance(source, Segments):
            source.skip()
        worker = HogwildWorker(
            stage.agent,
            source,
            store,
            page,
            Unwatched(),
            target_steps=company.target_steps,
            key=self._key(page, rank),
            pull=actor.policy.pull,  # type: ignore[attr-defined]
        )
        return [actor, worker]

    def _rank(self, member: Member, page: Page) -> list[Role]:
        stage, rank = self.stage, member.rank
        drawer = self._drawer(page, rank)
        safe = stage.safe()
        board = stage.board() if rank == 0 else LocalBoard()
        learner = Rank(
            stage.agent,
            safe.load(),
            drawer,
            self.collective(rank),
            stage.compression(stage.agent.layout.size),
            board,
            page,
            Unwatched(),
            safe,
            stage.arrays["checksums"][rank],
            rank=rank,
        )
        actor = self._actor(
            member, page, board, self._unless(page, drawer.owed), pull_period=stage.plan.company.pull_period
        )
        return [actor, learner]

    def _evaluator(self, member: Member, page: Page) -> list[Role]:  # noqa: ARG002
        plan, stage = self.stage.plan, self.stage
        made = environments.make(
            plan.environment, plan.eval_episodes, options=plan.evaluation_options, worker=EVALUATION_WORKER
        )
        made.report_to(page.row["place"])
        evaluator = Evaluator(stage.agent, made, max_steps=plan.eval_max_steps)

        def seeds(index: int) -> list[int]:
            return environments.seeds(plan.seed, EVALUATION_WORKER, plan.eval_episodes, index)

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
