"""Sample Factory: two groups of environments a worker, one plays while one waits for actions (Petrenko et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from repertory.channels.mailbox import InferenceAsker, InferenceServerPort
from repertory.channels.slots import UnrollPort
from repertory.limits import NonNegative, Positive
from repertory.roles.actor import Actor
from repertory.roles.ports import Role, Weights
from repertory.topologies import parts, playing
from repertory.topologies.graph import Ports, Topology, TopologyKind, Workers
from repertory.topologies.options import CentralInference, OnMachines
from repertory.topologies.plan import Context, Plan


@dataclass(frozen=True)
class Options(CentralInference, OnMachines):
    """Options of Sample Factory's rollout and policy workers."""

    groups: Positive[int] = 2
    max_policy_lag: NonNegative[int] = 1000
    policy_workers: Positive[int] = 1
    """Number of policy workers: processes that choose actions for the rollout workers; on --engine ray, on each machine
    that plays."""


def compose(plan: Plan, options: Options) -> Topology:
    groups, each = options.groups, options.policy_workers
    machines = [count for count in plan.actors_on if count] or [plan.actors]
    servers, on = each * len(machines), [number for number, count in enumerate(machines) for _ in range(count)]
    writers, slots = plan.actors * groups, parts.batch_slots(plan, groups)
    requests = parts.inference_mailbox(plan, groups)
    requests.stays = True  # each rollout worker sends its requests to a policy worker of its own machine
    depth = -(-slots // writers) + options.queue
    unrolls = parts.unroll_slots(plan, groups=groups, depth=depth, when=f"after {plan.critic.unroll} steps, by index")
    weights = parts.weights_channel(plan, "after every batch")
    learned = parts.learner_state(plan)

    def rollout_worker(me: Context, unrolls: UnrollPort, requests: InferenceAsker) -> list[Actor]:
        """Steps one group of environments while the others wait for actions."""
        return playing.requesting_actors(
            me, unrolls, requests, groups, server=lambda index: on[index // groups] * each + index % each
        )

    def policy_worker(me: Context, requests: InferenceServerPort, newest: Weights) -> Role:
        """Replies to the groups that wait, with the newest weights."""
        return parts.inference_server(me, requests, newest, options, most=-(-max(machines) * groups // each))

    learner = partial(parts.unroll_learner, slots=slots, max_policy_lag=options.max_policy_lag)
    played: Ports = {"unrolls": unrolls.writer, "requests": requests.asker}
    replied: Ports = {"requests": requests.server, "newest": weights.reader}
    learns: Ports = {"unrolls": unrolls.reader, "weights": weights.writer, "learned": learned.owner}
    return Topology(
        workers=(
            Workers("rollout_worker", plan.actors, rollout_worker, played, kind="play"),
            Workers("policy_worker", servers, policy_worker, replied, kind="infer", placed="beside actors"),
            Workers("learner", 1, learner, learns),
            parts.evaluator(plan),
        ),
        weights=weights,
        learned=learned,
        steps_per_update=parts.steps_per_unroll_update(plan, slots, groups),
        counts=("dropped_unrolls", *parts.COUNTED_GRADIENTS),
    )


KIND = TopologyKind(
    "sample_factory",
    __doc__,
    compose,
    Options,
    agents=("appo", "impala"),
    defaults=parts.ON_PROCESSES,
    engines=parts.ON_CLUSTER,
)
