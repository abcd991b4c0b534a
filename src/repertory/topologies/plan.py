"""What a run is: agent, environment, topology and counts; and what one worker is built with."""

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
    """Everything that decides what the roles do. Each process gets a copy and makes agent and topology from it."""

    environment: str
    environment_options: Mapping[str, Any]
    evaluation_options: Mapping[str, Any]
    spec: EnvironmentSpec
    agent_kind: AgentKind
    options: Any
    """The agent's options."""
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
    actors_on: tuple[int, ...] = ()
    """Actors on each machine, the driver's first; empty = there is one machine."""
    address: str | None = None
    """Of the Ray cluster; None starts one of this machine alone."""
    insecure: bool = False
    """Join a cluster without a token."""

    def __getstate__(self) -> dict[str, Any]:
        """Without what each process makes for itself; the kinds by value, since a program may have registered them."""
        own = {name: value for name, value in vars(self).items() if name not in ("agent", "structure")}
        kinds = {name: cloudpickle.dumps(own[name]) for name in ("agent_kind", "topology_kind")}
        return own | kinds

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        kinds = {name: cloudpickle.loads(state[name]) for name in ("agent_kind", "topology_kind")}
        vars(self).update({**state, **kinds})

    def compose(self) -> Topology:
        """The workers and channels, not yet bound to arrays."""
        return self.topology_kind.compose(self, self.topology)

    @cached_property
    def agent(self) -> Agent:
        return self.agent_kind.make(self.options, self.network, self.spec, self.threads)

    @cached_property
    def structure(self) -> Any:
        """Shapes of the learner state."""
        return jax.eval_shape(self.agent.init, 0)

    def size(self) -> int:
        """Length of the weight vector."""
        return self.agent.layout.size

    @property
    def large(self) -> bool:
        """Whether the network convolves, so that several threads speed up an update."""
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
        """Options of an agent that learns from a replay."""
        assert isinstance(self.options, QLearningOptions)
        return self.options

    @property
    def critic(self) -> ActorCriticOptions:
        """Options of an agent that learns from unrolls."""
        assert isinstance(self.options, ActorCriticOptions)
        return self.options

    @property
    def environments(self) -> int:
        """Training environments of all actors."""
        return self.actors * self.envs_per_actor

    @property
    def state_size(self) -> int:
        """Size of each environment's recurrent state."""
        return 2 * self.network.lstm_size if self.unrolled else 0

    def pacing(self, workers: int = 1) -> Pacing:
        """The replay ratio of one of `workers` learners that share the steps."""
        return Pacing(self.q.replay_ratio, self.q.batch_size, -(-self.q.learning_starts // workers))

    def learning_rate(self, env_steps: int) -> float:
        options = self.options
        return _annealed(options.learning_rate, options.learning_rate_end, options.learning_rate_steps, env_steps)

    def importance(self, env_steps: int) -> float:
        """Importance exponent β of prioritised replay."""
        return _annealed(self.q.importance_exponent, 1.0, self.q.importance_steps, env_steps)

    def entropy(self, env_steps: int) -> float:
        """Entropy coefficient."""
        return _annealed(self.critic.entropy, self.critic.entropy_end, self.critic.entropy_steps, env_steps)


def _annealed(start: float, end: float, steps: int, env_steps: int) -> float:
    """Linearly from `start` to `end` over `steps` env steps; constant if `steps` is 0."""
    return linear(start, end, steps, env_steps) if steps else float(start)


@dataclass
class Context:
    """What one worker is built with."""

    plan: Plan
    worker: Worker
    stats: WorkerStats
    epoch: int = 0
    """Number of the start: equal for all workers that were started together."""
    spare: Sequence[int] = ()
    """Cores where a learner's second thread may compute."""
    dismissed: Callable[[], bool] = lambda: False
    """Whether the run is to stop."""
    await_others: Callable[[], bool] | None = None
    """Sleeps for a moment inside a pause, and says whether to wait on; None = all workers share one thread."""
    watch: Stopwatch | Unwatched = field(default_factory=Unwatched)
    made: dict[Any, Environments] | None = None
    """Environments that are used again when a worker is built again in the same process."""

    @property
    def rank(self) -> int:
        return self.worker.rank

    @property
    def agent(self) -> Agent:
        return self.plan.agent

    @property
    def start(self) -> int:
        """How often this worker or its environments were started."""
        return int(self.stats.row["starts"])

    def key(self) -> jax.Array:
        """A random key for JAX, different at each start."""
        return jax.random.fold_in(jax.random.key(self.plan.seed), 1000 * self.rank + self.start)

    def environments(self, count: int, rank: int, *, next_step: bool = False) -> Environments:
        """Training environments; with `next_step` a reset takes a step of its own."""
        return self._make(count, self.plan.environment_options, rank, next_step)

    def evaluation_environments(self, rank: int) -> Environments:
        """`rank` is one that no actor has."""
        return self._make(self.plan.eval_episodes, self.plan.evaluation_options, rank, False)

    def _make(self, count: int, options: Any, rank: int, next_step: bool) -> Environments:
        made, key = {} if self.made is None else self.made, (rank, next_step)
        if key not in made:
            name = self.plan.environment
            made[key] = factory.make(name, count, options=options, worker=rank, next_step_autoreset=next_step)
        made[key].report_to(self.stats.row["place"])
        return made[key]

    def begin(self, actor: Actor) -> None:
        """Begin episodes, from seeds that no start of any actor has had; running episodes end as truncated."""
        count, env_steps = actor.environments.count, self.stats.own_env_steps
        actor.experience.interrupt(actor.lanes)
        actor.restart(factory.seeds(self.plan.seed, actor.rank, count, self.start, env_steps))

    def renew(self, actor: Actor) -> None:
        """Make new environments for an actor whose environments failed."""
        unrolls = isinstance(actor.experience, UnrollWriter)
        actor.environments = self.environments(actor.environments.count, actor.rank, next_step=unrolls)
        self.begin(actor)
