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
"""Calls of the learner that actors may be ahead, so that neither side waits for the other's bell."""
FINAL_EPSILONS, FINAL_CHANCES = (0.1, 0.01, 0.5), (0.4, 0.3, 0.3)
"""Mnih et al. 2016: what ε is annealed to, drawn for each worker."""
MayPlay = Callable[[], bool]
Epsilon = Callable[[int], Callable[[int], float]]


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


def steps_left(me: Context, owes: Callable[[], bool] = lambda: False) -> MayPlay:
    """Whether an actor may play on: the run has steps left, and it owes no update for what it has played."""
    stats, most = me.stats, me.plan.env_steps
    return lambda: not owes() and stats.env_steps < most


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
        states=states,
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
