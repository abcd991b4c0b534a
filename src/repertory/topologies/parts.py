"""What several topologies build their workers from: actors, samplers, learners, the evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from repertory.channels.lanes import LaneReader, Lanes, LaneWriter
from repertory.channels.latest import Latest
from repertory.channels.mailbox import (
    EvaluationMailbox,
    EvaluationPort,
    InferenceAsker,
    InferenceMailbox,
    InferenceServerPort,
)
from repertory.channels.slots import BatchReader, UnrollPort, UnrollSlots
from repertory.channels.snapshot import Owner, Shared, Snapshot
from repertory.environments import factory
from repertory.experience.lanes import LaneStorage
from repertory.experience.replay import Prioritization, Replay, Sample
from repertory.experience.unrolls import UnrollWriter
from repertory.roles.actor import Actor
from repertory.roles.answers import GreedyActions, SampledActions
from repertory.roles.batches import Drawer, Lesson
from repertory.roles.evaluator import EvaluationDesk, Evaluator
from repertory.roles.exploration import generator, ladder, linear
from repertory.roles.inference_server import InferenceServer
from repertory.roles.learner import Learner
from repertory.roles.local_policy import LocalPolicy, SamplingPolicy
from repertory.roles.ports import Batches, Policy, Publisher, Weights
from repertory.roles.remote_policy import RemotePolicy
from repertory.roles.target_prefetch import TargetPrefetch
from repertory.roles.unroll_batches import UnrollBatches
from repertory.topologies.context import Context
from repertory.topologies.graph import Workers
from repertory.topologies.options import Exploration
from repertory.topologies.plan import Plan

CALLS_AHEAD = 2
"""Calls of the learner that actors may be ahead, so that neither side waits for the other's bell."""
EVALUATION_RANK = 1_000_000
"""Seeds of evaluation environments are derived as for an actor of a rank that none has."""
GUARD = 8
"""Slots that readers keep from a lane's oldest, which its actor may be about to overwrite; fewer in short lanes."""
BUFFERS = 3
"""Samples alive at once: one that is learned from, one sampled ahead, one being sampled."""
FINAL_EPSILONS, FINAL_CHANCES = (0.1, 0.01, 0.5), (0.4, 0.3, 0.3)
"""Mnih et al. 2016: what ε is annealed to, drawn for each worker."""
Numbers = Mapping[str, Any]
MayPlay = Callable[[], bool]
Epsilon = Callable[[int], Callable[[int], float]]


# Channels that most topologies have.


def experience_lanes(plan: Plan, *, values: bool = False, readers: int = 1) -> Lanes:
    """Every environment's steps, for a replay."""
    return Lanes(
        "experience",
        plan.spec,
        plan.environments,
        plan.q.replay_capacity,
        values=values,
        prioritized=plan.q.prioritized,
        readers=readers,
        carries="steps",
        when="every step, in place",
    )


def weights_channel(plan: Plan, when: str, **how: Any) -> Latest:
    return Latest("weights", plan.size, when=when, **how)


def learner_state(plan: Plan, parts: int = 1) -> Snapshot:
    return Snapshot("learned", lambda: plan.structure, parts=parts)


def shared_state(plan: Plan, when: str) -> Shared:
    return Shared(
        "learned", lambda: plan.structure, carries="weights, target, optimizer", when=f"one live copy: {when}"
    )


def unroll_slots(plan: Plan, *, groups: int, depth: int, when: str) -> UnrollSlots:
    """`depth` slots for each group of environments."""
    return UnrollSlots(
        "unrolls",
        plan.spec,
        writers=plan.actors * groups,
        depth=depth,
        rows=plan.critic.unroll,
        environments=plan.envs_per_actor // groups,
        state_size=plan.state_size,
        when=when,
    )


def batch_slots(plan: Plan, groups: int = 1) -> int:
    """Slots of unrolls that are learned from at once."""
    return max(1, plan.critic.batch_unrolls // (plan.envs_per_actor // groups))


def steps_per_update(plan: Plan, batches: int = 1) -> float:
    """Env steps that an update stands for, made of so many batches from a replay."""
    return plan.q.batch_size * batches / plan.q.replay_ratio


def steps_per_unroll_update(plan: Plan, slots: int, groups: int = 1) -> float:
    """The same where an update is made of so many slots of unrolls; fewer where rows are spent on resets."""
    return plan.critic.unroll * (plan.envs_per_actor // groups) * slots / plan.critic.updates_per_batch


# Exploration.


def exploration(plan: Plan, options: Exploration | None = None) -> Epsilon:
    """By the rank of an actor, its ε by env steps; a noisy network explores by itself."""
    agent, kind = plan.q, "same" if options is None else options.exploration

    def of(rank: int) -> Callable[[int], float]:
        if agent.noisy:
            return lambda env_steps: 0.0 if env_steps >= agent.learning_starts else 1.0
        if kind == "ladder":
            assert options is not None
            rate = ladder(options.ladder_base, options.ladder_exponent, rank, plan.actors)
            return lambda _: rate
        end = agent.epsilon_end
        if kind == "drawn":
            end = float(generator(plan.seed, rank, 4).choice(FINAL_EPSILONS, p=FINAL_CHANCES))
        return partial(linear, agent.epsilon_start, end, agent.epsilon_steps)

    return of


# Actors.


def steps_left(me: Context, owes: Callable[[], bool] = lambda: False) -> MayPlay:
    """Whether an actor may play on: the run has steps left, and it owes no update for what it has played."""
    return lambda: me.stats.env_steps < me.plan.env_steps and not owes()


def not_ahead(me: Context, wake_reader: Callable[[int], None]) -> MayPlay:
    """Whether actors may play on: the learner keeps up, and the run has steps left; wakes whoever samples, if due.

    They may be some calls of the learner ahead, and each a step beyond.
    """
    plan, options, stats = me.plan, me.plan.q, me.stats
    ahead = (CALLS_AHEAD + bool(me.spare)) * options.updates_per_call  # a prefetch looks at one batch more
    most = 0  # env steps known to be allowed: what the learner has done is looked up only beyond them

    def may_play() -> bool:
        nonlocal most
        env_steps = stats.env_steps
        wake_reader(env_steps)
        if env_steps >= most:
            allowed = int((stats.updates + ahead) * options.batch_size / options.replay_ratio)
            most = min(plan.env_steps, options.learning_starts + allowed + plan.environments)
        return env_steps < most

    return may_play


def local_policy(
    me: Context, weights: Weights, *, pull_period: int = 1, count: int = 0, values: bool = False
) -> Policy:
    """Greedy actions by a copy of the weights, for so many environments, or for the worker's own."""
    plan = me.plan
    policy = LocalPolicy(
        me.agent,
        weights,
        seed=plan.seed,
        rank=me.rank,
        pull_period=pull_period,
        environments=count or plan.envs_per_actor,
        stores_values=values,
    )
    policy.pull()  # random actions name a version, too
    return policy


def lane_actor(
    me: Context, steps: LaneWriter, policy: Policy, may_play: MayPlay, epsilon: Callable[[int], float]
) -> Actor:
    """Plays the environments of its rank, and writes their steps into its lanes."""
    plan = me.plan
    return Actor(
        me.environments(plan.envs_per_actor, me.rank),
        policy,
        steps.storage,
        me.stats,
        epsilon,
        first_lane=me.rank * plan.envs_per_actor,
        seed=plan.seed,
        rank=me.rank,
        watch=me.watch,
        start=me.start,
        may_play=may_play,
    )


def started(me: Context, actor: Actor) -> Actor:
    """Its episodes have begun."""
    me.begin(actor)
    return actor


def sampling_policy(me: Context, weights: Weights, index: int, environments: int, *, caches: bool = False) -> Any:
    """Actions sampled from the policy, by a copy of the weights."""
    streams = {"seed": me.plan.seed, "rank": index, "start": me.start}
    return SamplingPolicy(me.agent, weights, environments, me.stats, caches=caches, **streams)


def unroll_actor(
    me: Context,
    unrolls: UnrollPort,
    index: int,
    policy: Any,
    *,
    states: Callable[[], Any],
    reader: Callable[[int], int] = lambda _: 0,
    may_play: MayPlay = lambda: True,
) -> Actor:
    """Plays one group of environments, by its index among all groups, and writes unrolls.

    `states` gives the recurrent states of now; `reader` says by the number of unrolls handed over who gets the next.
    """
    plan, storage = me.plan, unrolls.storage
    own = storage.filled[index * storage.depth : (index + 1) * storage.depth]
    writer = UnrollWriter(
        storage,
        index,
        begin_unroll=policy.pull,
        core=states,
        reader=lambda: reader(int(own.sum())),
        ring=unrolls.ring,
        dropped=lambda: me.stats.count("dropped_unrolls"),
    )
    left = steps_left(me)
    policy.pull()
    actor = Actor(
        me.environments(storage.environments, index, next_step=True),
        policy,
        writer,
        me.stats,
        lambda _: 0.0,
        first_lane=0,
        seed=plan.seed,
        rank=index,
        watch=me.watch,
        start=me.start,
        may_play=lambda: left() and may_play(),
        may_ask=lambda: left() and may_play(),
    )
    return started(me, actor)


def asking_policy(
    me: Context, requests: InferenceAsker, index: int, environments: int, server: Callable[[], int]
) -> Any:
    """No network: asks the server of this rank for every action."""
    return RemotePolicy(requests, index, environments, me.stats, server)


def inference_mailbox(plan: Plan, groups: int) -> InferenceMailbox:
    """One place for each group of environments."""
    return InferenceMailbox(
        "requests",
        plan.spec,
        askers=plan.actors * groups,
        environments=plan.envs_per_actor // groups,
        state_size=plan.state_size,
        carries="observations",
        when="every step",
        back="actions",
        back_when="every step",
    )


def asking_groups(
    me: Context,
    written: UnrollPort,
    asked: InferenceAsker,
    groups: int,
    *,
    server: Callable[[int], int] = lambda _: 0,
    reader: Callable[[int, int], int] = lambda _index, _finished: 0,
    may_play: MayPlay = lambda: True,
) -> list[Actor]:
    """Actors without a network, one for each group of a worker's environments: one plays while the others wait.

    `server` says by a group's index who replies, `reader` who learns from its next unroll.
    """
    actors = []
    for index in range(me.rank * groups, (me.rank + 1) * groups):
        policy = asking_policy(me, asked, index, written.storage.environments, partial(server, index))
        states, own_reader = partial(asked.states, index), partial(reader, index)
        actors.append(unroll_actor(me, written, index, policy, states=states, reader=own_reader, may_play=may_play))
    return actors


# Learning.


def replay_of(plan: Plan, lanes: LaneStorage, priorities: Any, *, guarded: bool, n_step: int | None = None) -> Replay:
    """Samples from these lanes; `guarded` = their actors write at the same time."""
    options = plan.q
    spare = lanes.length - options.n_step - plan.spec.observation.stack
    return Replay(
        lanes,
        n_step=n_step or options.n_step,
        discount=options.discount,
        next_actions=options.sarsa,
        prioritization=Prioritization(options.priority_exponent) if options.prioritized else None,
        guard=min(GUARD, max(1, spare // 2)) if guarded else 0,
        buffers=BUFFERS,
        leaves=priorities,
    )


def example_sample(plan: Plan) -> Sample:
    """A sample of the right shapes, for the slots that batches travel in."""
    rows = plan.q.batch_size * plan.q.updates_per_call
    at = np.zeros(rows, np.int64)
    return Replay(LaneStorage(plan.spec, 1, 4)).gather(at, at, np.ones(rows, np.float32))


def sampler(me: Context, steps: LaneReader, *, guarded: bool = True) -> Drawer:
    """Batches for one learner, from everybody's steps."""
    plan = me.plan
    replay = replay_of(plan, steps.storage, steps.priorities(), guarded=guarded)
    found = Drawer(
        replay,
        plan.pacing(),
        _lesson(plan, plan.q.updates_per_call),
        plan.importance,
        lambda: me.stats.env_steps,
        seed=plan.seed,
        start=me.start - 1,
    )
    found.pacing.updates = me.stats.updates
    return found


def own_sampler(me: Context, steps: LaneReader, *, local: bool = True) -> Drawer:
    """Batches for one of several who play and learn: from its own steps, or from everybody's."""
    plan, rank = me.plan, me.rank
    lanes = steps.part(rank, plan.actors) if local else steps.storage
    found = Drawer(
        replay_of(plan, lanes, steps.priorities(rank if local else 0), guarded=not local),
        plan.pacing(plan.actors),
        _lesson(plan, 1),
        lambda own: plan.importance(own * plan.actors),
        lambda: me.stats.own_env_steps,
        seed=plan.seed,
        rank=rank,
        start=me.start - 1,
    )
    found.pacing.updates = int(me.stats.row["gradients"])
    return found


def _lesson(plan: Plan, updates_per_call: int) -> Lesson:
    options = plan.q
    return Lesson(options.batch_size, updates_per_call, options.replay, options.prioritized)


def unroll_batches(
    me: Context,
    unrolls: UnrollPort,
    slots: int,
    *,
    reader: int = 0,
    max_policy_lag: int = 0,
    at_work: Callable[[], bool] = lambda: True,
) -> UnrollBatches:
    """So many slots at once, in the order in which they were finished."""
    plan = me.plan
    return UnrollBatches(
        unrolls.storage,
        slots,
        me.stats,
        reader=reader,
        discount=plan.critic.discount,
        core=plan.state_size,
        updates=plan.critic.updates_per_batch,
        entropy=plan.entropy,
        ring=unrolls.ring,
        most_lag=max_policy_lag,
        at_work=at_work,
    )


def learner(me: Context, batches: Batches, weights: Publisher, learned: Owner) -> Learner:
    """Makes every update, and publishes the weights; with a core to spare it looks at the batch behind the next."""
    state = learned.load()
    me.stats.set("updates", int(state.updates))
    if isinstance(batches, Drawer):  # updates that went with a killed learner are owed again
        batches.pacing.updates = me.stats.updates
    ahead = None
    if me.spare and me.agent.prefetch_target and isinstance(batches, BatchReader):
        ahead = TargetPrefetch(me.agent, batches, me.spare)
    return Learner(me.agent, state, batches, weights, me.stats, me.watch, learned, ahead, rate=me.plan.learning_rate)


def inference_server(
    me: Context, requests: InferenceServerPort, weights: Weights, options: Any, *, most: int
) -> InferenceServer:
    """Replies to up to `most` groups of environments at once, with the newest weights."""
    stream = generator(me.plan.seed, me.rank, 5, me.start, 1)
    return InferenceServer(
        SampledActions(me.agent, stream) if me.plan.unrolled else GreedyActions(me.agent),
        weights,
        requests,
        me.stats,
        most=most,
        least=options.inference_least,
        patience_s=options.inference_patience_s,
    )


# Evaluation.


def evaluator(plan: Plan) -> Workers:
    """Plays whole greedy episodes whenever the driver asks."""
    mailbox = EvaluationMailbox("evaluation", plan.size, plan.eval_episodes)
    return Workers(
        "evaluator",
        1,
        _evaluator,
        {"requests": mailbox.evaluator},
        does="plays whole greedy episodes with a snapshot of the weights",
        kind="evaluate",
        synchronous=True,
        progress=1,
    )


def _evaluator(me: Context, requests: EvaluationPort) -> EvaluationDesk:
    plan = me.plan
    played = Evaluator(me.agent, me.evaluation_environments(EVALUATION_RANK), max_steps=plan.eval_max_steps)

    def seeds(index: int) -> list[int]:
        return factory.seeds(plan.seed, EVALUATION_RANK, plan.eval_episodes, index)

    return EvaluationDesk(played, requests, seeds, me.stats, me.dismissed)


COUNTED_GRADIENTS: tuple[str, ...] = ("gradients", "bytes_sent", "dropped_stale", "dropped_outlier")
"""Metrics of topologies in which several workers compute gradients or fill queues."""
ON_PROCESSES: Mapping[str, Any] = {"engine": "processes", "actors": 2}
"""What topologies of several workers set unless the user does."""
