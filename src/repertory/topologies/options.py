"""How a company divides its work: the options that topologies add to an agent's; imports nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CompanyOptions:
    """Options of the topologies with several members; each says which of them read it."""

    exploration: Literal["same", "ladder", "drawn"] = "same"
    """ε of each actor: all the same; a ladder of fixed rates (Ape-X); or annealed to one of three, drawn (Hogwild)."""
    ladder_base: float = 0.4
    """The ladder's ε of actor i of N is base ** (1 + exponent · i / (N - 1))."""
    ladder_exponent: float = 7.0
    """See ladder_base; a lone actor has ε = base."""
    pull_period: int = 1
    """Steps that an actor plays before it copies newer weights."""
    actors_per_process: int = 0
    """Collectors that share a process and a policy; 0 = as many processes as there are cores, or as collectors."""
    actor_priorities: bool = False
    """New steps get the priority of the error that their actor saw, instead of the highest (needs prioritized)."""
    shards: int = 1
    """Parameter servers; each owns a slice of the weights and of the optimiser."""
    mode: Literal["asynchronous", "synchronous", "bounded"] = "asynchronous"
    """Parameter servers: apply gradients as they come; once all workers' are there; or as they come, while no worker
    is more than `staleness_bound` gradients ahead of the slowest."""
    staleness_bound: int = 4
    """Gradients that a worker may have pushed more than the slowest one, in mode bounded."""
    combine: Literal["mean", "sum"] = "mean"
    """What a synchronous server applies of its workers' gradients."""
    fetch_period: int = 1
    """Gradients that a worker computes before it fetches weights again (Downpour's n_fetch)."""
    push_period: int = 1
    """Gradients that a worker adds up before it pushes them (Downpour's n_push)."""
    memory: Literal["local", "shared"] = "local"
    """Workers draw from their own steps, or from everybody's."""
    max_gradient_age: int = 0
    """Servers drop gradients computed with weights more than so many updates old; 0 = none."""
    outlier_deviations: float = 0.0
    """Workers drop gradients whose loss lies so many standard deviations above its mean; 0 = none."""
    method: Literal["one_step_q", "n_step_q", "sarsa", "replay"] = "one_step_q"
    """Hogwild: what each worker learns from; replay = batches from a local memory."""
    update_steps: int = 5
    """Hogwild without a memory: steps between a worker's updates (t_max), fewer where an episode ends."""
    target_steps: int = 10_000
    """Hogwild: env steps of all workers between copies into the target network."""
    compression: Literal["none", "float16", "int8", "topk"] = "none"
    """How gradients are sent to servers and between ranks."""
    topk_share: float = 0.01
    """Share of the gradient's numbers that topk sends."""
    scale_learning_rate: bool = False
    """All-reduce: multiply the learning rate by the number of ranks."""
    queue: int = 1
    """Unrolls of each group of environments that may be played and wait beside its share of the batch that is learned
    from; then it stops playing."""
    groups: int = 1
    """Groups that each actor's environments are cut into: one is stepped while the others wait for actions."""
    learners: int = 1
    """IMPALA: learners that average their gradients."""
    predictors: int = 2
    """GA3C: processes that answer agents."""
    trainers: int = 2
    """GA3C: processes that learn."""
    policy_workers: int = 1
    """Sample Factory: processes that answer rollout workers."""
    inference_least: int = 1
    """Groups of environments that a server waits for before it answers, up to `inference_patience_s`."""
    inference_patience_s: float = 0.005
    """Seconds that a server waits for more questions, about: it counts how often it looked."""
    max_policy_lag: int = 0
    """Learners of unrolls drop those whose weights are more updates old; 0 = none."""
    adjust_from: tuple[int, ...] = ()
    """GA3C: predictors, trainers and agents at work at the start; from then on the numbers are adjusted, up to how many
    there are. None = all are at work."""
    adjust_s: float = 20.0
    """GA3C: seconds between adjustments."""
    heartbeat_s: float = 60.0
    """A member that is silent for so long is named, ended and started again."""
    restarts: int = 5
    """Starts in a row that a member may fail without having done any work; then the run ends."""
