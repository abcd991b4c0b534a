"""What each topology lets the user choose: one class for each, with its ranges, its rules, and what follows from them.

Imports our errors and ranges only: the agents' options are looked at, never made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol

from repertory.errors import UserError
from repertory.limits import NonNegative, Positive, Range, Share

AgentOptions = Any
"""`QLearningOptions` or `ActorCriticOptions`, by what the agent learns from."""


class Asked(Protocol):
    """What the rules look at: the options of a run."""

    @property
    def agent(self) -> AgentOptions: ...
    @property
    def learns_from(self) -> Literal["replay", "unrolls"]: ...
    @property
    def topology_name(self) -> str: ...
    @property
    def actors(self) -> int: ...
    @property
    def envs_per_actor(self) -> int: ...
    @property
    def engine(self) -> str: ...


@dataclass(frozen=True)
class TopologyOptions:
    """Options that this topology adds to those of every run."""

    playing_cores: ClassVar[int] = 1
    """Cores that are left to workers who only play."""
    one_actor: ClassVar[bool] = False
    """Whether there is one actor, whatever is asked for."""

    def check(self, asked: Asked) -> None:
        """Refuse options that make no sense together on this topology."""

    def resolve(self, asked: Asked) -> AgentOptions:
        """The agent's options, with what follows from the topology and the number of environments."""
        return asked.agent if asked.learns_from == "unrolls" else _after_first_returns(asked)

    def scaled(self, agent: AgentOptions, _actors: int, /) -> AgentOptions:
        """The agent's options as its learners use them; those that are saved keep what was asked for."""
        return agent

    def learner_processes(self, _asked: Asked, /) -> int:
        """Processes that learn."""
        return 1

    def threads(self, asked: Asked, cores: int) -> int:
        """Compute threads of each process that learns, so that all together are no more than the cores."""
        return max(1, (cores - self.playing_cores) // self.learner_processes(asked))


def _after_first_returns(asked: Asked) -> AgentOptions:
    """Learning starts when every environment has a complete return; without a replay each step is learned from once."""
    agent, count = asked.agent, asked.actors * asked.envs_per_actor
    first = count * (agent.n_step + 1)
    if agent.replay:
        return replace(agent, learning_starts=max(agent.learning_starts, first))
    return replace(
        agent,
        batch_size=count,
        replay_ratio=1.0,
        updates_per_call=1,
        learning_starts=first,
        replay_capacity=count * (agent.n_step + 64),
    )


def _need_replay(asked: Asked) -> None:
    if not asked.agent.replay:
        raise UserError(
            f"topology {asked.topology_name!r} learns from a memory; for learning without one choose "
            "--topology hogwild, or single"
        )


def _refuse_noisy_gradients(asked: Asked) -> None:
    if asked.agent.noisy:
        raise UserError(
            f"topology {asked.topology_name!r} sends gradients of one vector, and noisy networks are not made for "
            "that; choose --topology collectors, or --agent.no-noisy"
        )


def _refuse_shared_priorities(asked: Asked, shared: bool) -> None:
    if asked.agent.prioritized and shared:
        raise UserError(
            f"topology {asked.topology_name!r} can't prioritise a memory that several processes draw from; choose "
            "--topology.memory local with parameter servers, or --topology apex"
        )


def _need_one_update_per_batch(asked: Asked) -> None:
    if asked.agent.updates_per_batch > 1:
        raise UserError("--agent.epochs and --agent.minibatches above 1 need one learner, who alone makes the updates")


Epsilons = Literal["same", "ladder", "drawn"]


@dataclass(frozen=True)
class LearningWorkers(TopologyOptions):
    """Every worker that plays also learns."""

    playing_cores: ClassVar[int] = 0

    def learner_processes(self, asked: Asked, /) -> int:
        return asked.actors


@dataclass(frozen=True)
class SentGradients(TopologyOptions):
    """Gradients that one process sends to another."""

    compression: Literal["none", "float16", "int8", "topk"] = "none"
    """Gradient compression: as float32, float16, int8, or only the largest numbers."""
    topk_share: Annotated[float, Range(0, 1, open_low=True)] = 0.01
    """Compression topk: share of the gradient's numbers, the largest, that is sent; above 0, at most 1."""


@dataclass(frozen=True)
class Exploration(TopologyOptions):
    """Epsilon-greedy exploration of several actors."""

    exploration: Epsilons = "same"
    """Epsilon of each actor: `same`, `ladder` (fixed ones, Ape-X), or `drawn` (anneals to one sampled of three)."""
    ladder_base: Share[float] = 0.4
    """Epsilon of the ladder's first actor; actor i of N has base ** (1 + exponent · i / (N - 1))."""
    ladder_exponent: NonNegative[float] = 7.0
    """How fast epsilon falls from the ladder's first actor to its last; see ladder-base."""


@dataclass(frozen=True)
class PulledWeights(Exploration):
    """Exploration of actors with a copy of the weights."""

    pull_period: Positive[int] = 1
    """Steps that an actor plays before it copies newer weights."""


@dataclass(frozen=True)
class SingleOptions(TopologyOptions):
    """The topology `single` has no options of its own."""

    one_actor: ClassVar[bool] = True

    def check(self, asked: Asked) -> None:
        if asked.actors > 1:
            raise UserError(
                f"topology {asked.topology_name!r} has one actor, not {asked.actors}: for more environments give "
                f"--envs-per-actor, for more processes --topology collectors --actors {asked.actors}"
            )


@dataclass(frozen=True)
class CollectorsOptions(PulledWeights):
    """Options of collectors: many actors, one replay, one learner."""

    actors_per_process: NonNegative[int] = 0
    """Actors that share a process and a batched policy; 0 = as many processes as there are cores, or actors."""
    actor_priorities: bool = False
    """New steps get the TD error that their actor saw as priority, not the highest; needs --agent.prioritized."""

    def check(self, asked: Asked) -> None:
        _need_replay(asked)
        if self.actor_priorities and not asked.agent.prioritized:
            raise UserError(
                "--topology.actor-priorities needs --agent.prioritized, or give --topology.no-actor-priorities"
            )


@dataclass(frozen=True)
class ApexOptions(CollectorsOptions):
    """Options of Ape-X."""

    exploration: Epsilons = "ladder"
    pull_period: Positive[int] = 400
    actor_priorities: bool = True


@dataclass(frozen=True)
class ParameterServerOptions(SentGradients, PulledWeights, LearningWorkers):
    """Options of parameter servers and the workers that send them gradients."""

    shards: Positive[int] = 1
    """Parameter servers; each owns a slice of the weights and of the optimizer state."""
    mode: Literal["asynchronous", "synchronous", "bounded"] = "asynchronous"
    """Apply gradients as they come, once those of all workers are there, or as they come with bounded staleness."""
    staleness_bound: Positive[int] = 4
    """Mode bounded: gradients that a worker may be ahead of the slowest worker."""
    combine: Literal["mean", "sum"] = "mean"
    """Mode synchronous: apply the mean or the sum of the workers' gradients."""
    fetch_period: Positive[int] = 1
    """Gradients that a worker computes before it fetches weights again (Downpour's n_fetch)."""
    push_period: Positive[int] = 1
    """Gradient accumulation: gradients that a worker adds up before it sends them (Downpour's n_push)."""
    memory: Literal["local", "shared"] = "local"
    """Workers sample from the replay of their own steps, or from the steps of all workers."""
    max_gradient_age: NonNegative[int] = 0
    """Servers drop stale gradients: those computed with weights more than this many updates old; 0 = keep all."""
    outlier_deviations: NonNegative[float] = 0.0
    """Workers drop a gradient whose loss is this many standard deviations above the mean loss; 0 = keep all."""

    def check(self, asked: Asked) -> None:
        _need_replay(asked)
        _refuse_noisy_gradients(asked)
        _refuse_shared_priorities(asked, shared=self.memory == "shared")
        if self.mode == "synchronous" and self.push_period > 1:
            raise UserError("--topology.push-period must be 1 where servers wait for every worker's gradient")


@dataclass(frozen=True)
class GorilaOptions(ParameterServerOptions):
    """Options of Gorila's parameter servers and bundles of actor, replay and learner."""

    shards: Positive[int] = 2
    max_gradient_age: NonNegative[int] = 100
    outlier_deviations: NonNegative[float] = 5.0


@dataclass(frozen=True)
class HogwildOptions(PulledWeights, LearningWorkers):
    """Options of workers that update one shared weight vector without locks."""

    exploration: Epsilons = "drawn"
    method: Literal["one_step_q", "n_step_q", "sarsa", "replay"] = "one_step_q"
    """Learn by one-step Q, n-step Q or Sarsa from steps as they come, or from batches of a replay per worker."""
    update_steps: Positive[int] = 5
    """Methods without a replay: steps between a worker's updates (t_max); fewer where an episode ends."""
    target_steps: Positive[int] = 10_000
    """Env steps of all workers between copies into the target network."""

    def check(self, asked: Asked) -> None:
        _refuse_noisy_gradients(asked)
        _refuse_shared_priorities(asked, shared=True)
        if self.method == "n_step_q" and asked.agent.sarsa:
            raise UserError("--topology.method n_step_q bootstraps from the best action; for Sarsa choose sarsa")
        if self.method == "replay" and not asked.agent.replay:
            raise UserError("--topology.method replay learns from a memory; drop it or drop --agent.no-replay")

    def resolve(self, asked: Asked) -> AgentOptions:
        """Without a replay each step is learned from once; the lanes are just long enough for that."""
        if self.method == "replay":
            return _after_first_returns(asked)
        return replace(
            asked.agent,
            sarsa=asked.agent.sarsa or self.method == "sarsa",
            batch_size=asked.envs_per_actor * self.update_steps,
            replay_ratio=1.0,
            updates_per_call=1,
            learning_starts=0,
            n_step=1,
            replay_capacity=asked.actors * asked.envs_per_actor * (2 * self.update_steps + 64),
        )


@dataclass(frozen=True)
class AllReduceOptions(SentGradients, PulledWeights, LearningWorkers):
    """Options of replicas that average their gradients before every update."""

    memory: Literal["local", "shared"] = "local"
    """Replicas sample from the replay of their own steps, or from the steps of all replicas."""
    scale_learning_rate: bool = False
    """Linear learning rate scaling: multiply the learning rate by the number of replicas."""

    def check(self, asked: Asked) -> None:
        _need_replay(asked)
        _refuse_noisy_gradients(asked)
        _refuse_shared_priorities(asked, shared=self.memory == "shared")

    def scaled(self, agent: AgentOptions, actors: int, /) -> AgentOptions:
        return replace(agent, learning_rate=agent.learning_rate * actors) if self.scale_learning_rate else agent


@dataclass(frozen=True)
class A3COptions(LearningWorkers):
    """The topology `a3c` has no options of its own."""

    def check(self, asked: Asked) -> None:
        _need_one_update_per_batch(asked)


@dataclass(frozen=True)
class UnrollQueue(TopologyOptions):
    """Unrolls on their way to a learner."""

    queue: NonNegative[int] = 1
    """Queue size: unrolls that may wait, for each group of environments, beside its share of the current batch."""
    max_policy_lag: NonNegative[int] = 0
    """Learners drop unrolls played with weights more than this many updates old (policy lag); 0 = keep all."""


@dataclass(frozen=True)
class CentralInference(UnrollQueue):
    """Actors without networks, and the servers that answer them."""

    groups: Positive[int] = 1
    """Groups that an actor's environments are split into; 2 = double buffering: step one while the other waits."""
    inference_least: Positive[int] = 1
    """Minimum inference batch: groups of environments that a server waits for, at most `inference_patience_s`."""
    inference_patience_s: NonNegative[float] = 0.005
    """Seconds, about, that a server waits for more requests before it answers."""

    def check(self, asked: Asked) -> None:
        if asked.envs_per_actor % self.groups:
            given = f"--envs-per-actor {asked.envs_per_actor}"
            raise UserError(f"{given} can't be cut into --topology.groups {self.groups} equal groups")


@dataclass(frozen=True)
class GA3COptions(CentralInference):
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
        _need_one_update_per_batch(asked)
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


@dataclass(frozen=True)
class ImpalaOptions(SentGradients, UnrollQueue):
    """Options of IMPALA's learners and the queue of unrolls before them."""

    learners: Positive[int] = 1
    """Learner processes; several average their gradients before every update."""

    def check(self, asked: Asked) -> None:
        if self.learners > asked.actors:
            raise UserError(f"--topology.learners {self.learners} needs at least as many actors, not {asked.actors}")
        if self.learners > 1:
            _need_one_update_per_batch(asked)

    def learner_processes(self, _asked: Asked, /) -> int:
        return self.learners


@dataclass(frozen=True)
class SeedRLOptions(CentralInference, Exploration):
    """Options of SEED RL's central inference; those of exploration are for agents that learn from a replay."""

    def check(self, asked: Asked) -> None:
        super().check(asked)
        if asked.learns_from == "unrolls":
            return
        _need_replay(asked)
        if self.groups > 1:
            raise UserError(f"--topology.groups {self.groups} is for agents that learn from unrolls: impala, appo")
        if asked.agent.noisy:
            raise UserError(
                f"topology {asked.topology_name!r} answers without noise, so noisy networks would not explore; choose "
                "--topology collectors, or --agent.no-noisy"
            )


@dataclass(frozen=True)
class SampleFactoryOptions(CentralInference):
    """Options of Sample Factory's rollout and policy workers."""

    groups: Positive[int] = 2
    max_policy_lag: NonNegative[int] = 1000
    policy_workers: Positive[int] = 1
    """Policy workers: processes that choose actions for the rollout workers."""
