"""What several topologies are built from: channels, samplers, learners, inference servers, the evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from repertory.agents.compression import Compression, make_compression
from repertory.channels.channel import slices
from repertory.channels.gradients import AllGather, Gathering
from repertory.channels.lanes import LaneReader, Lanes
from repertory.channels.latest import Latest, Lent
from repertory.channels.mailbox import (
    EvaluationMailbox,
    EvaluationPort,
    InferenceMailbox,
    InferenceServerPort,
)
from repertory.channels.slots import Batches, BatchReader, UnrollPort, UnrollSlots
from repertory.channels.snapshot import Owner, Shared, SharedState, Snapshot
from repertory.environments import factory
from repertory.experience.lanes import LaneStorage
from repertory.experience.replay import Prioritization, Replay, Sample
from repertory.roles.batches import BatchSampler, SamplerOptions, UnrollBatches
from repertory.roles.evaluator import EvaluationRole, Evaluator
from repertory.roles.hogwild_worker import HogwildWorker, Segments
from repertory.roles.inference import GreedyActions, InferenceServer, SampledActions
from repertory.roles.learner import Learner, TargetPrefetch
from repertory.roles.policies import generator
from repertory.roles.ports import Publisher, Weights
from repertory.roles.replica import Replica, payload_fields
from repertory.topologies.graph import Workers
from repertory.topologies.options import CentralInference, SentGradients
from repertory.topologies.plan import Context, Plan

EVALUATION_RANK = 1_000_000
"""Seeds of evaluation environments are derived as for an actor of this rank, which no actor has."""
GUARD = 8
"""Oldest slots of a lane that readers avoid, since its actor may be about to overwrite them; fewer in short lanes."""
BUFFERS = 3
"""Samples in use at once: one that is learned from, one sampled ahead, one being sampled."""
COUNTED_GRADIENTS: tuple[str, ...] = ("gradients", "bytes_sent", "dropped_stale", "dropped_outlier")
"""Metrics of topologies in which several workers compute gradients or fill queues."""
ON_CLUSTER = ("inline", "processes", "ray")
"""Engines of topologies whose channels can be mirrored between machines."""
ON_PROCESSES: Mapping[str, Any] = {"engine": "processes", "actors": 2}
"""Defaults of topologies with several workers."""


# Channels


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
    told = {"carries": "weights, target, optimizer", "when": f"one live copy: {when}"}
    return Shared("learned", lambda: plan.structure, **told)


def unroll_slots(plan: Plan, *, groups: int = 1, depth: int, when: str) -> UnrollSlots:
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
    """Slots of unrolls in one batch."""
    return max(1, plan.critic.batch_unrolls // (plan.envs_per_actor // groups))


def steps_per_update(plan: Plan, batches: int = 1) -> float:
    """Env steps for each update that is made of `batches` batches from a replay."""
    return plan.q.batch_size * batches / plan.q.replay_ratio


def steps_per_unroll_update(plan: Plan, slots: int, groups: int = 1) -> float:
    """Env steps for each update that is made of `slots` slots of unrolls; fewer where rows are spent on resets."""
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


def compressions(plan: Plan, options: SentGradients, servers: int = 1) -> list[Compression]:
    """How each server's slice of a gradient is sent."""
    sizes = [cut.stop - cut.start for cut in slices(plan.size(), servers)]
    return [make_compression(options.compression, size, share=options.topk_share) for size in sizes]


def gathered_gradients(plan: Plan, options: SentGradients, replicas: int, when: str) -> AllGather:
    return AllGather("gradients", lambda: payload_fields(compressions(plan, options)[0]), replicas, when=when)


# Batches


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
    """A sample that has the shapes of a call's batches."""
    rows = plan.q.batch_size * plan.q.updates_per_call
    at = np.zeros(rows, np.int64)
    return Replay(LaneStorage(plan.spec, 1, 4)).gather(at, at, np.ones(rows, np.float32))


def sampler(me: Context, steps: LaneReader, *, alone: bool = False) -> BatchSampler:
    """Batches for one learner, from the steps of all actors; `alone` = this worker is the only actor."""
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
        ring=(lambda: None) if alone else steps.wake_writers,
    )
    found.pacing.updates = stats.updates
    return found


def own_sampler(me: Context, steps: LaneReader, *, local: bool = True) -> BatchSampler:
    """Batches for one of several workers that play and learn: from its own steps, or from the steps of all."""
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
    return SamplerOptions(plan.q.batch_size, updates_per_call, plan.q.replay, plan.q.prioritized)


def unroll_batches(
    me: Context,
    unrolls: UnrollPort,
    slots: int,
    *,
    reader: int = 0,
    max_policy_lag: int = 0,
    at_work: Callable[[], bool] = lambda: True,
) -> UnrollBatches:
    """Batches of `slots` slots, in the order in which they were finished."""
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


# Workers


def learner(me: Context, batches: Batches, weights: Publisher, learned: Owner) -> Learner:
    """Makes every update and publishes the weights; with a spare core, a thread prefetches the target's values."""
    state = learned.load()
    me.stats.set("updates", int(state.updates))
    if isinstance(batches, BatchSampler):  # updates that a killed learner had not saved are owed again
        batches.pacing.updates = me.stats.updates
    ahead = None
    if me.spare and me.agent.prefetch_target and isinstance(batches, BatchReader):
        ahead = TargetPrefetch(me.agent, batches, me.spare)
    return Learner(me.agent, state, batches, weights, me.stats, me.watch, learned, ahead, rate=me.plan.learning_rate)


def unroll_learner(
    me: Context, unrolls: UnrollPort, weights: Publisher, learned: Owner, *, slots: int, max_policy_lag: int
) -> Learner:
    """Learns from each unroll once; drops those beyond --topology.max-policy-lag."""
    return learner(me, unroll_batches(me, unrolls, slots, max_policy_lag=max_policy_lag), weights, learned)


def replica(
    me: Context,
    options: SentGradients,
    batches: BatchSampler | UnrollBatches,
    gradients: Gathering,
    weights: Publisher,
    learned: Owner,
    env_steps: Callable[[], int],
) -> Replica:
    """One of several equal learners; the first publishes for all."""
    return Replica(
        me.agent,
        learned.load(),
        batches,
        gradients,
        compressions(me.plan, options)[0],
        weights if me.rank == 0 else Lent(),
        me.stats,
        me.watch,
        learned,
        rank=me.rank,
        rate=lambda: me.plan.learning_rate(env_steps()),
    )


def hogwild_worker(
    me: Context,
    source: Segments | BatchSampler | UnrollBatches,
    shared: SharedState,
    *,
    policy: Any = None,
    cached: Any = None,
    target_steps: int | None = None,
) -> HogwildWorker:
    """Applies gradients to the shared weights, without a lock.

    With `policy`, gradients are taken at the weights that it played with, and it copies the weights after each update;
    `cached` gives the activations of those steps. An actor-critic has no target network, so no `target_steps`.
    """
    return HogwildWorker(
        me.agent,
        source,
        shared,
        me.stats,
        me.watch,
        target_steps=target_steps or me.plan.env_steps,
        rate=me.plan.learning_rate,
        key=me.key(),
        leads=me.rank == 0,
        acted=None if policy is None else lambda: (policy.version, policy.current),
        cached=cached,
        pull=(lambda: None) if policy is None else policy.pull,
    )


def inference_server(
    me: Context, requests: InferenceServerPort, weights: Weights, options: CentralInference, *, most: int
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
    mailbox = EvaluationMailbox("evaluation", plan.size, plan.eval_episodes)
    return Workers("evaluator", 1, _evaluator, {"requests": mailbox.evaluator}, kind="evaluate")


def _evaluator(me: Context, requests: EvaluationPort) -> EvaluationRole:
    """Plays whole greedy episodes with a snapshot of the weights."""
    plan = me.plan
    played = Evaluator(me.agent, me.evaluation_environments(EVALUATION_RANK), max_steps=plan.eval_max_steps)

    def seeds(index: int) -> list[int]:
        return factory.seeds(plan.seed, EVALUATION_RANK, plan.eval_episodes, index)

    return EvaluationRole(played, requests, seeds, me.stats, me.dismissed)
