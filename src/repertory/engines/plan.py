"""What an engine stages: agent, environment and counts, resolved; imports the rooms below."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from repertory.agents.actor_critic import ActorCriticOptions
from repertory.agents.agent import Agent
from repertory.agents.networks import NetworkOptions
from repertory.agents.q_learning import QLearningOptions
from repertory.agents.registry import AgentKind
from repertory.agents.strategy import Strategy, choose_strategy, device
from repertory.experience.lanes import Lanes
from repertory.experience.pacing import Pacing
from repertory.experience.priorities import PriorityTree
from repertory.experience.unrolls import Unrolls
from repertory.roles.exploration import generator, ladder, linear
from repertory.specs import EnvironmentSpec
from repertory.topologies.graph import Topology
from repertory.topologies.options import CompanyOptions
from repertory.topologies.single import SINGLE

ANSWERING = ("predictor", "inference", "policy_worker")
"""Roles that answer actors without networks."""
CALLS_AHEAD = 2
"""Calls of the learner that actors may be ahead, so that neither side waits for the other's bell."""
DRAWN_EPSILONS, DRAWN_CHANCES = (0.1, 0.01, 0.5), (0.4, 0.3, 0.3)
"""Mnih et al. 2016: what ε is annealed to, drawn for each worker."""


@dataclass(frozen=True)
class Plan:
    """Everything that decides what the roles do; nothing of how they are hosted."""

    environment: str
    environment_options: Mapping[str, Any]
    evaluation_options: Mapping[str, Any]
    spec: EnvironmentSpec
    agent: AgentKind
    options: QLearningOptions | ActorCriticOptions
    actors: int
    envs_per_actor: int
    eval_episodes: int
    eval_max_steps: int
    seed: int
    env_steps: int
    threads: int = 1
    network: NetworkOptions = field(default_factory=NetworkOptions)
    topology: Topology = SINGLE
    company: CompanyOptions = field(default_factory=CompanyOptions)

    @property
    def q(self) -> QLearningOptions:
        """The options of an agent that learns values from a memory."""
        assert isinstance(self.options, QLearningOptions)
        return self.options

    @property
    def critic(self) -> ActorCriticOptions:
        """The options of an agent that learns from unrolls."""
        assert isinstance(self.options, ActorCriticOptions)
        return self.options

    @property
    def unrolled(self) -> bool:
        """Whether the agent learns from unrolls, not from a memory."""
        return self.agent.learns_from == "unrolls"

    @property
    def central(self) -> bool:
        """Whether actors have no network and ask a server."""
        return any(self.topology.has(role) for role in ANSWERING)

    @property
    def lock_free(self) -> bool:
        """Whether everybody updates one live copy of the weights."""
        return self.topology.has("thread") or self.topology.has("trainer")

    @property
    def ranks(self) -> int:
        """Learners that average their gradients."""
        return self.actors if self.topology.has("rank") else self.company.learners

    @property
    def readers(self) -> int:
        """Those among whom finished unrolls are divided."""
        return self.company.trainers if self.topology.has("trainer") else self.company.learners

    @property
    def servers(self) -> int:
        """Those among whom questions are divided."""
        if self.topology.has("predictor"):
            return self.company.predictors
        return self.company.policy_workers if self.topology.has("policy_worker") else 1

    @property
    def writers(self) -> int:
        """Groups of environments that write unrolls, or ask for actions, by themselves."""
        return self.actors * self.company.groups

    @property
    def envs_per_group(self) -> int:
        """Environments of one group."""
        return self.envs_per_actor // self.company.groups

    @property
    def batch_slots(self) -> int:
        """Slots of unrolls that are learned from at once; a worker that learns alone takes its own."""
        return 1 if self.topology.has("thread") else max(1, self.critic.batch_unrolls // self.envs_per_group)

    @property
    def slots_per_writer(self) -> int:
        """A writer's share of a batch, and those that may wait beside it; a worker that learns alone waits for itself.

        So some are free while a batch is learned from. Of GA3C's agents one may be at work alone and fill a batch.
        """
        if self.topology.has("thread"):
            return 1
        if self.topology.has("trainer"):
            return max(1 + self.company.queue, self.batch_slots)
        return -(-self.batch_slots // (self.writers // self.readers)) + self.company.queue

    @property
    def steps_per_update(self) -> float:
        """Env steps that each update of an actor-critic agent learns from; fewer where rows are spent on resets."""
        each = self.critic.unroll * self.envs_per_group * self.batch_slots
        return each * self.company.learners / self.critic.updates_per_batch

    @property
    def environments(self) -> int:
        """All environments that are learned from."""
        return self.actors * self.envs_per_actor

    @property
    def lane_length(self) -> int:
        """Slots of each lane."""
        return Lanes.length_for(self.q.replay_capacity, self.environments)

    @property
    def valued(self) -> bool:
        """Whether actors keep the values that they saw."""
        return not self.unrolled and self.company.actor_priorities and self.q.prioritized

    @property
    def unroll_bytes(self) -> int:
        """Memory that the slots of unrolls take."""
        each = (self.slots_per_writer, self.critic.unroll, self.envs_per_group)
        fields = Unrolls.fields(self.spec, self.writers, *each, 2 * self.network.core)
        return sum(field.nbytes for field in fields.values())

    @property
    def replay_bytes(self) -> int:
        """Memory that the full replay takes, priorities included."""
        fields = Lanes.fields(self.spec, self.environments, self.lane_length, self.valued)
        tree = 9 * PriorityTree.padded(self.environments * self.lane_length) if self.q.prioritized else 0
        return sum(field.nbytes for field in fields.values()) + tree

    @property
    def batches_per_update(self) -> int:
        """Batches whose gradients make one update together: of several workers, or of one that pushes their sum."""
        if not self.topology.has("server"):
            return self.actors if self.topology.name == "all_reduce" else 1
        return self.actors if self.company.mode == "synchronous" else self.company.push_period

    def make_agent(self, threads: int | None = None) -> Agent:
        """The agent, as each process makes it for itself."""
        return self.agent.make(self.options, self.network, self.spec, threads or self.threads)

    def strategy(self, threads: int | None = None) -> Strategy:
        """How the network is computed; known before JAX is started."""
        return choose_strategy(self.network, self.spec.observation, device(), threads or self.threads)

    def pacing(self, workers: int = 1) -> Pacing:
        """How much is learned from how much, by one of `workers` that share the steps."""
        options = self.q
        return Pacing(options.replay_ratio, options.batch_size, -(-options.learning_starts // workers))

    def most_env_steps(self, updates: int, calls_ahead: int = CALLS_AHEAD) -> int:
        """Env steps that may have been played when so many updates were made: actors wait for a slow learner.

        They may be some calls ahead, and each a step beyond.
        """
        options = self.q
        calls = (updates + calls_ahead * options.updates_per_call) * options.batch_size / options.replay_ratio
        return options.learning_starts + int(calls) + self.environments

    def epsilon(self, env_steps: int, rank: int = 0) -> float:
        """Share of random actions of an actor after so many env steps."""
        return self.exploration(rank)(env_steps)

    def exploration(self, rank: int) -> Callable[[int], float]:
        """An actor's ε by env steps; a noisy network explores by itself."""
        if self.unrolled:
            return lambda _: 0.0  # the policy itself is drawn from
        options, company = self.q, self.company
        if options.noisy:
            return lambda env_steps: 0.0 if env_steps >= options.learning_starts else 1.0
        if company.exploration == "ladder":
            rate = ladder(company.ladder_base, company.ladder_exponent, rank, self.actors)
            return lambda _: rate
        end = options.epsilon_end
        if company.exploration == "drawn":
            end = float(generator(self.seed, rank, 4).choice(DRAWN_EPSILONS, p=DRAWN_CHANCES))
        return partial(linear, options.epsilon_start, end, options.epsilon_steps)

    def learning_rate(self, env_steps: int) -> float:
        """The optimiser's step size after so many env steps."""
        options = self.options
        if options.learning_rate_steps == 0:
            return options.learning_rate
        return linear(options.learning_rate, options.learning_rate_end, options.learning_rate_steps, env_steps)

    def importance(self, env_steps: int) -> float:
        """β of prioritised replay."""
        options = self.q
        if options.importance_steps == 0:
            return options.importance_exponent
        return linear(options.importance_exponent, 1.0, options.importance_steps, env_steps)

    def entropy(self, env_steps: int) -> float:
        """The entropy coefficient after so many env steps."""
        options = self.critic
        if options.entropy_steps == 0:
            return options.entropy
        return linear(options.entropy, options.entropy_end, options.entropy_steps, env_steps)
