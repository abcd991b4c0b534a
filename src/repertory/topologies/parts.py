"""What several topologies are built from: channels, samplers, learners, inference servers, the evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from repertory.channels.lanes import LaneReader, Lanes
from repertory.channels.latest import Latest
from repertory.channels.mailbox import (
    EvaluationMailbox,
    EvaluationPort,
    InferenceMailbox,
    InferenceServerPort,
)
from repertory.channels.slots import Batches, BatchReader, UnrollPort, UnrollSlots
from repertory.channels.snapshot import Owner, Shared, Snapshot
from repertory.environments import factory
from repertory.experience.lanes import LaneStorage
from repertory.experience.replay import Prioritization, Replay, Sample
from repertory.roles.batches import BatchSampler, SamplerOptions, UnrollBatches
from repertory.roles.evaluator import EvaluationRole, Evaluator
from repertory.roles.inference import GreedyActions, InferenceServer, SampledActions
from repertory.roles.learner import Learner, TargetPrefetch
from repertory.roles.policies import generator
from repertory.roles.ports import Publisher, Weights
from repertory.topologies.graph import Workers
from repertory.topologies.plan import Context, Plan

EVALUATION_RANK = 1_000_000
"""Seeds of evaluation environments are derived as for an actor of a rank that none has."""
GUARD = 8
"""Slots that readers keep from a lane's oldest, which its actor may be about to overwrite; fewer in short lanes."""
BUFFERS = 3
"""Samples alive at once: one that is learned from, one sampled ahead, one being sampled."""
Numbers = Mapping[str, Any]


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


def sampler(me: Context, steps: LaneReader, *, alone: bool = False) -> BatchSampler:
    """Batches for one learner, from everybody's steps; `alone` = this worker is the one that plays them, too."""
    plan, stats = me.plan, me.stats
    replay = replay_of(plan, steps.storage, steps.priorities(), guarded=not alone)
    if not plan.q.replay:
        replay.taken = steps.taken  # each step is learned from once, also if the learner is started again
    found = BatchSampler(
        replay,
        plan.pacing(),
        _sampler_options(plan, plan.q.updates_per_call),
        plan.importance,
        (lambda: stats.own_env_steps) if alone else (lambda: stats.env_steps),
        seed=plan.seed,
        start=me.start - 1,
        ring=steps.wake_writers,
    )
    found.pacing.updates = stats.updates
    return found


def own_sampler(me: Context, steps: LaneReader, *, local: bool = True) -> BatchSampler:
    """Batches for one of several who play and learn: from its own steps, or from everybody's."""
    plan, rank = me.plan, me.rank
    lanes = steps.part(rank, plan.actors) if local else steps.storage
    found = BatchSampler(
        replay_of(plan, lanes, steps.priorities(rank if local else 0), guarded=not local),
        plan.pacing(plan.actors),
        _sampler_options(plan, 1),
        lambda own: plan.importance(own * plan.actors),
        lambda: me.stats.own_env_steps,
        seed=plan.seed,
        rank=rank,
        start=me.start - 1,
    )
    found.pacing.updates = int(me.stats.row["gradients"])
    return found


def _sampler_options(plan: Plan, updates_per_call: int) -> SamplerOptions:
    options = plan.q
    return SamplerOptions(options.batch_size, updates_per_call, options.replay, options.prioritized)


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
        state_size=plan.state_size,
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
    if isinstance(batches, BatchSampler):  # updates that went with a killed learner are owed again
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


def _evaluator(me: Context, requests: EvaluationPort) -> EvaluationRole:
    plan = me.plan
    played = Evaluator(me.agent, me.evaluation_environments(EVALUATION_RANK), max_steps=plan.eval_max_steps)

    def seeds(index: int) -> list[int]:
        return factory.seeds(plan.seed, EVALUATION_RANK, plan.eval_episodes, index)

    return EvaluationRole(played, requests, seeds, me.stats, me.dismissed)


COUNTED_GRADIENTS: tuple[str, ...] = ("gradients", "bytes_sent", "dropped_stale", "dropped_outlier")
"""Metrics of topologies in which several workers compute gradients or fill queues."""
ON_PROCESSES: Mapping[str, Any] = {"engine": "processes", "actors": 2}
"""What topologies of several workers set unless the user does."""
