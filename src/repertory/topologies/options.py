"""What each topology lets the user choose: one class for each, with ranges, checks, and what follows from the options.

Imports our errors and ranges only: the agents' options are read, never made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Protocol

from repertory.errors import UserError
from repertory.limits import NonNegative, Positive, Range, Share

AgentOptions = Any
"""`QLearningOptions` or `ActorCriticOptions`, by what the agent learns from."""


class Run(Protocol):
    """The options of a run that the checks read."""

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
    """Cores left for workers that only play."""
    one_actor: ClassVar[bool] = False
    """Whether there is always one actor."""

    def check(self, run: Run) -> None:
        """Refuse options that make no sense together on this topology."""

    def resolve(self, run: Run) -> AgentOptions:
        """The agent's options, with what follows from the topology and the number of environments."""
        return run.agent if run.learns_from == "unrolls" else after_first_returns(run)

    def scaled(self, agent: AgentOptions, _actors: int, /) -> AgentOptions:
        """The agent's options as its learners use them; the saved ones stay as the user gave them."""
        return agent

    def learner_processes(self, _run: Run, /) -> int:
        return 1

    def threads(self, run: Run, cores: int) -> int:
        """Compute threads of each process that learns; together at most as many as there are cores."""
        return max(1, (cores - self.playing_cores) // self.learner_processes(run))


def after_first_returns(run: Run) -> AgentOptions:
    """Learning starts when every environment has a complete return; without a replay, each step is used once."""
    agent, count = run.agent, run.actors * run.envs_per_actor
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


def need_replay(run: Run) -> None:
    if not run.agent.replay:
        raise UserError(
            f"topology {run.topology_name!r} needs an experience replay; to learn without one choose "
            "--topology hogwild, or single"
        )


def refuse_noisy_gradients(run: Run) -> None:
    if run.agent.noisy:
        raise UserError(
            f"topology {run.topology_name!r} sends gradients, which noisy networks do not support; choose "
            "--topology collectors, or --agent.no-noisy"
        )


def refuse_shared_priorities(run: Run, shared: bool) -> None:
    if run.agent.prioritized and shared:
        raise UserError(
            f"topology {run.topology_name!r} can't prioritise a memory that several processes sample from; choose "
            "--topology.memory local with parameter servers, or --topology apex"
        )


def need_one_update_per_batch(run: Run) -> None:
    if run.agent.updates_per_batch > 1:
        raise UserError("--agent.epochs and --agent.minibatches above 1 need a single learner that makes all updates")


@dataclass(frozen=True)
class OnMachines(TopologyOptions):
    """Where workers are, on --engine ray."""

    nodes: str = "all"
    """Machines of a Ray cluster that play: all, by their cores; far, all but the driver's; or comma-separated
    addresses."""

    @property
    def machines(self) -> list[str]:
        return [name.strip() for name in self.nodes.split(",")]


Epsilons = Literal["same", "ladder", "sampled"]


@dataclass(frozen=True)
class LearningWorkers(TopologyOptions):
    """Every worker that plays also learns."""

    playing_cores: ClassVar[int] = 0

    def learner_processes(self, run: Run, /) -> int:
        return run.actors


@dataclass(frozen=True)
class SentGradients(TopologyOptions):
    """Compression of the gradients that one process sends to another."""

    compression: Literal["none", "float16", "int8", "topk"] = "none"
    """Gradient compression: float32 (none), float16, int8, or only the largest entries (topk); the last two with error
    feedback."""
    topk_share: Annotated[float, Range(0, 1, open_low=True)] = 0.01
    """Top-k compression: share of the gradient's entries, the largest, that is sent; typically 0.001 to 0.1."""


@dataclass(frozen=True)
class Exploration(TopologyOptions):
    """Epsilon-greedy exploration of several actors."""

    exploration: Epsilons = "same"
    """Exploration rate ε of each actor: `same` schedule, `ladder` (a constant ε each, Ape-X), or `sampled` (anneals to
    0.1, 0.01 or 0.5, Mnih et al. 2016)."""
    ladder_base: Share[float] = 0.4
    """Ape-X ladder: ε of the first actor; actor i of N has base ** (1 + exponent · i / (N - 1)); typically 0.4."""
    ladder_exponent: NonNegative[float] = 7.0
    """Ape-X ladder: exponent; the larger, the smaller ε of the last actor. Typically 7."""


@dataclass(frozen=True)
class PulledWeights(Exploration):
    """Exploration of actors with a copy of the weights."""

    pull_period: Positive[int] = 1
    """Weight synchronization: steps that an actor plays between copies of newer weights; typically 1 to 400."""


@dataclass(frozen=True)
class GradientWorkers(SentGradients, PulledWeights, OnMachines, LearningWorkers):
    """Workers that play, sample from a replay, and send gradients."""

    memory: Literal["local", "shared"] = "local"
    """Replay buffer: `local` = each worker samples from its own steps, `shared` = from the steps of all workers."""

    def check(self, run: Run) -> None:
        need_replay(run)
        refuse_noisy_gradients(run)
        refuse_shared_priorities(run, shared=self.memory == "shared")
        if run.agent.prioritized and run.engine == "ray":
            raise UserError(
                f"topology {run.topology_name!r} can't prioritise a replay on other machines; choose --topology apex, "
                "--agent.no-prioritized, or --engine processes"
            )


@dataclass(frozen=True)
class UnrollQueue(TopologyOptions):
    """The queue of unrolls before a learner."""

    queue: NonNegative[int] = 1
    """Queue size: unrolls that may wait, per group of environments, in addition to its share of a batch; typically 1
    or 2."""
    max_policy_lag: NonNegative[int] = 0
    """Maximum policy lag: learners drop unrolls played with weights more than this many updates old; 0 = keep all."""


@dataclass(frozen=True)
class CentralInference(UnrollQueue):
    """Actors without networks, and inference servers that reply to them."""

    groups: Positive[int] = 1
    """Groups of each actor's environments; 2 = double buffering: one group steps while the other waits for actions."""
    inference_least: Positive[int] = 1
    """Minimum inference batch size, in groups of environments; a server waits for it at most `inference_patience_s`."""
    inference_patience_s: NonNegative[float] = 0.005
    """Inference batching timeout: about how many seconds a server waits for more requests; typically 0 to 0.01."""

    def check(self, run: Run) -> None:
        if run.envs_per_actor % self.groups:
            given = f"--envs-per-actor {run.envs_per_actor}"
            raise UserError(f"{given} can't be cut into --topology.groups {self.groups} equal groups")
