"""How actors of topologies are built: their exploration, their policies, when they may play."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from repertory.channels.lanes import LaneWriter
from repertory.channels.mailbox import InferenceAsker
from repertory.channels.slots import UnrollPort
from repertory.experience.unrolls import UnrollWriter
from repertory.roles.actor import Actor
from repertory.roles.policies import LocalPolicy, RemotePolicy, SamplingPolicy, generator, ladder, linear
from repertory.roles.ports import Policy, Weights
from repertory.topologies.options import Exploration
from repertory.topologies.plan import Context, Plan

CALLS_AHEAD = 2
"""Calls of the learner that actors may be ahead of it, so that neither waits to be woken."""
STEPS_UNDER_WAY, MOST_UNDER_WAY = 64, 1024
"""Steps of each environment, and of all, that may be on their way to a learner on another machine."""
FINAL_EPSILONS, FINAL_CHANCES = (0.1, 0.01, 0.5), (0.4, 0.3, 0.3)
"""Mnih et al. 2016: the final ε, sampled for each worker, and the probabilities."""
MayPlay = Callable[[], bool]
Epsilon = Callable[[int], Callable[[int], float]]


def exploration(plan: Plan, options: Exploration | None = None) -> Epsilon:
    """From an actor's rank to its ε as a function of env steps; a noisy network explores by itself."""
    agent, kind = plan.q, "same" if options is None else options.exploration

    def of(rank: int) -> Callable[[int], float]:
        if agent.noisy:
            return lambda env_steps: 0.0 if env_steps >= agent.learning_starts else 1.0
        if kind == "ladder":
            assert options is not None
            rate = ladder(options.ladder_base, options.ladder_exponent, rank, plan.actors)
            return lambda _: rate
        end = agent.epsilon_end
        if kind == "sampled":
            end = float(generator(plan.seed, rank, 4).choice(FINAL_EPSILONS, p=FINAL_CHANCES))
        return partial(linear, agent.epsilon_start, end, agent.epsilon_steps)

    return of


def steps_left(me: Context, owes: Callable[[], bool] | None = None) -> MayPlay:
    """Whether an actor may play on: the run has steps left, and the worker `owes` no update for its steps."""
    stats, most = me.stats, me.plan.env_steps
    if owes is None:
        return lambda: stats.env_steps < most
    return lambda: not owes() and stats.env_steps < most


def not_ahead(me: Context, wake_reader: Callable[[int], None]) -> MayPlay:
    """Whether actors may play on: the learner keeps up, and the run has steps left; wakes the sampler if due.

    Actors may be some calls of the learner ahead, and each a step beyond.
    """
    plan, options, stats = me.plan, me.plan.q, me.stats
    ahead = (CALLS_AHEAD + bool(me.spare)) * options.updates_per_call  # the target prefetch needs one more batch
    under_way = plan.environments
    if sum(plan.actors_on[1:]):
        under_way = max(under_way, min(under_way * STEPS_UNDER_WAY, MOST_UNDER_WAY))
    most = 0  # env steps known to be allowed; only beyond them the updates are read again

    def may_play() -> bool:
        nonlocal most
        env_steps = stats.env_steps
        wake_reader(env_steps)
        if env_steps >= most:
            allowed = int((stats.updates + ahead) * options.batch_size / options.replay_ratio)
            most = min(plan.env_steps, options.learning_starts + allowed + under_way)
        return env_steps < most

    return may_play


def local_policy(
    me: Context, weights: Weights, *, pull_period: int = 1, count: int = 0, values: bool = False
) -> Policy:
    """Greedy actions by a copy of the weights, for `count` environments, or for the worker's own."""
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
    """The actor, after its episodes have begun."""
    me.begin(actor)
    return actor


def sampling_policy(me: Context, weights: Weights, *, caches: bool = False) -> SamplingPolicy:
    """Actions sampled from the policy, by a copy of the weights."""
    streams = {"seed": me.plan.seed, "rank": me.rank, "start": me.start}
    return SamplingPolicy(me.agent, weights, me.plan.envs_per_actor, me.stats, caches=caches, **streams)


def unroll_actor(
    me: Context,
    unrolls: UnrollPort,
    index: int,
    policy: Any,
    *,
    states: Callable[[], Any] | None = None,
    reader: Callable[[int], int] = lambda _: 0,
    may_play: MayPlay = lambda: True,
) -> Actor:
    """Plays one group of environments, by its index among all groups, and writes unrolls.

    `states` gives the current recurrent states, by default the policy's. `reader` gives the learner of the next unroll,
    by the number of unrolls that were handed over.
    """
    storage = unrolls.storage
    own = storage.filled[index * storage.depth : (index + 1) * storage.depth]
    writer = UnrollWriter(
        storage,
        index,
        begin_unroll=policy.pull,
        states=states or (lambda: policy.states),
        reader=lambda: reader(int(own.sum())),
        ring=unrolls.ring,
        dropped=lambda: me.stats.count("dropped_unrolls"),
    )
    policy.pull()
    allowed = steps_left(me, lambda: not may_play())
    actor = Actor(
        me.environments(storage.environments, index, next_step=True),
        policy,
        writer,
        me.stats,
        lambda _: 0.0,
        first_lane=0,
        seed=me.plan.seed,
        rank=index,
        watch=me.watch,
        start=me.start,
        may_play=allowed,
        may_ask=allowed,
    )
    return started(me, actor)


def requesting_actors(
    me: Context,
    unrolls: UnrollPort,
    requests: InferenceAsker,
    groups: int,
    *,
    server: Callable[[int], int] = lambda _: 0,
    reader: Callable[[int, int], int] = lambda _index, _finished: 0,
    may_play: MayPlay = lambda: True,
) -> list[Actor]:
    """Actors without a network, one for each group of a worker's environments: one plays while the others wait.

    By a group's index, `server` gives the inference server, and `reader` the learner of the next unroll.
    """
    actors = []
    for index in range(me.rank * groups, (me.rank + 1) * groups):
        policy = RemotePolicy(requests, index, unrolls.storage.environments, me.stats, partial(server, index))
        states, own_reader = partial(requests.states, index), partial(reader, index)
        actors.append(unroll_actor(me, unrolls, index, policy, states=states, reader=own_reader, may_play=may_play))
    return actors
