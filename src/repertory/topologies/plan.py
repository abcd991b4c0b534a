"""What a run is: agent, environment, topology and counts, resolved; nothing of how its workers are hosted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import cloudpickle
import jax

from repertory.agents.actor_critic import ActorCriticOptions
from repertory.agents.agent import Agent
from repertory.agents.networks import NetworkOptions, choose_kind
from repertory.agents.q_learning import QLearningOptions
from repertory.agents.registry import AgentKind
from repertory.channels.counters import WorkerStats
from repertory.environments import factory
from repertory.environments.factory import Environments
from repertory.experience.unrolls import UnrollWriter
from repertory.roles.actor import Actor
from repertory.roles.batches import Pacing
from repertory.roles.policies import linear
from repertory.roles.ports import Stopwatch, Unwatched
from repertory.specs import EnvironmentSpec
from repertory.topologies.graph import Topology, TopologyKind, Worker


@dataclass(frozen=True)
class Plan:
    """Everything that decides what the roles do. It travels to every process, which makes agent and topology anew."""

    environment: str
    environment_options: Mapping[str, Any]
    evaluation_options: Mapping[str, Any]
    spec: EnvironmentSpec
    agent_kind: AgentKind
    options: Any
    """Of the agent."""
    topology_kind: TopologyKind
    topology: Any
    """The topology's own options."""
    actors: int
    envs_per_actor: int
    eval_episodes: int
    eval_max_steps: int
    seed: int
    env_steps: int
    threads: int = 1
    heartbeat_s: float = 60.0
    restarts: int = 5
    network: NetworkOptions = field(default_factory=NetworkOptions)

    def __getstate__(self) -> dict[str, Any]:
        """Without what each process makes for itself; kinds that a program has registered travel whole."""
        own = {name: value for name, value in vars(self).items() if name not in ("agent", "structure")}
        kinds = {name: cloudpickle.dumps(own[name]) for name in ("agent_kind", "topology_kind")}
        return own | kinds

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        kinds = {name: cloudpickle.loads(state[name]) for name in ("agent_kind", "topology_kind")}
        vars(self).update({**state, **kinds})

    def compose(self) -> Topology:
        """The workers and channels, not yet on any arrays."""
        return self.topology_kind.compose(self, self.topology)

    @cached_property
    def agent(self) -> Agent:
        """As each process makes it for itself."""
        return self.agent_kind.make(self.options, self.network, self.spec, self.threads)

    @cached_property
    def structure(self) -> Any:
        """Shapes of the learner state."""
        return jax.eval_shape(self.agent.init, 0)

    def size(self) -> int:
        """Numbers of the weight vector."""
        return self.agent.layout.size

    @property
    def large(self) -> bool:
        """Whether the network convolves, so that an update is worth several threads."""
        return choose_kind(self.network, self.spec.observation).convolves

    @property
    def compute_threads(self) -> int:
        """Threads of a process that learns."""
        return self.threads if self.large else 1

    @property
    def unrolled(self) -> bool:
        """Whether the agent learns from unrolls, not from a replay."""
        return self.agent_kind.learns_from == "unrolls"

    @property
    def q(self) -> QLearningOptions:
        """The options of an agent that learns values from a replay."""
        assert isinstance(self.options, QLearningOptions)
        return self.options

    @property
    def critic(self) -> ActorCriticOptions:
        """The options of an agent that learns from unrolls."""
        assert isinstance(self.options, ActorCriticOptions)
        return self.options

    @property
    def environments(self) -> int:
        """All environments that are learned from."""
        return self.actors * self.envs_per_actor

    @property
    def state_size(self) -> int:
        """Numbers of the recurrent state of each environment."""
        return 2 * self.network.lstm_size if self.unrolled else 0

    def pacing(self, workers: int = 1) -> Pacing:
        """How much is learned from how much, by one of `workers` that share the steps."""
        options = self.q
        return Pacing(options.replay_ratio, options.batch_size, -(-options.learning_starts // workers))

    def learning_rate(self, env_steps: int) -> float:
        options = self.options
        if options.learning_rate_steps == 0:
            return float(options.learning_rate)
        return linear(options.learning_rate, options.learning_rate_end, options.learning_rate_steps, env_steps)

    def importance(self, env_steps: int) -> float:
        """β of prioritised replay."""
        options = self.q
        if options.importance_steps == 0:
            return options.importance_exponent
        return linear(options.importance_exponent, 1.0, options.importance_steps, env_steps)

    def entropy(self, env_steps: int) -> float:
        """The entropy coefficient."""
        options = self.critic
        if options.entropy_steps == 0:
            return options.entropy
        return linear(options.entropy, options.entropy_end, options.entropy_steps, env_steps)


@dataclass
class Context:
    """One worker's; `await_others` rests for a moment inside a pause, and says whether to wait on (None = in one thread
    nobody else runs meanwhile)."""

    plan: Plan
    worker: Worker
    stats: WorkerStats
    epoch: int = 0
    """Equal for all that were started together, and different at each start."""
    spare: Sequence[int] = ()
    """Cores where a learner may have something computed beside its own."""
    dismissed: Callable[[], bool] = lambda: False
    await_others: Callable[[], bool] | None = None
    watch: Stopwatch | Unwatched = field(default_factory=Unwatched)
    made: dict[Any, Environments] | None = None
    """Environments that outlive their worker, where workers are made anew in one process."""

    @property
    def rank(self) -> int:
        return self.worker.rank

    @property
    def agent(self) -> Agent:
        return self.plan.agent

    @property
    def start(self) -> int:
        """How often this worker was started, and its environments anew."""
        return int(self.stats.row["starts"])

    def key(self) -> jax.Array:
        """For what JAX samples, different at each start."""
        return jax.random.fold_in(jax.random.key(self.plan.seed), 1000 * self.rank + self.start)

    def environments(self, count: int, rank: int, *, next_step: bool = False) -> Environments:
        """So many to learn from; with `next_step` an episode's end takes a step of its own."""
        plan = self.plan
        return self._made((rank, next_step), count, plan.environment_options, rank, next_step)

    def evaluation_environments(self, rank: int) -> Environments:
        """To be scored in; `rank` is one that no actor has."""
        plan = self.plan
        return self._made((rank, False), plan.eval_episodes, plan.evaluation_options, rank, False)

    def _made(self, key: Any, count: int, options: Any, rank: int, next_step: bool) -> Environments:
        found = None if self.made is None else self.made.get(key)
        if found is None:
            name = self.plan.environment
            found = factory.make(name, count, options=options, worker=rank, next_step_autoreset=next_step)
            if self.made is not None:
                self.made[key] = found
        found.report_to(self.stats.row["place"])
        return found

    def begin(self, actor: Actor) -> None:
        """Episodes from seeds that no start of this or another actor has had; none is left half open."""
        seeds = factory.seeds(
            self.plan.seed, actor.rank, actor.environments.count, self.start, self.stats.own_env_steps
        )
        actor.experience.interrupt(actor.lanes)
        actor.restart(seeds)

    def renew(self, actor: Actor) -> None:
        """New environments for an actor whose old ones failed."""
        unrolls = isinstance(actor.experience, UnrollWriter)
        actor.environments = self.environments(actor.environments.count, actor.rank, next_step=unrolls)
        self.begin(actor)
