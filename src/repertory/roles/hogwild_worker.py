"""A worker that updates the shared weights itself, without a lock; sees only ports.

Mnih et al. 2016: asynchronous one-step Q-learning, one-step Sarsa and n-step Q-learning, with the optimizer's
statistics shared as well. Or batches from a replay of its own, as asynchronous DQN is often built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from repertory.agents.agent import Agent, LearnerState
from repertory.channels.counters import WorkerStats
from repertory.channels.slots import Batches
from repertory.channels.snapshot import SharedState
from repertory.experience.replay import Replay, Sample
from repertory.roles.batches import BatchSampler, UnrollBatches
from repertory.roles.inference import CachedPasses
from repertory.roles.learner import agent_batch, count_gradient
from repertory.roles.ports import Role, Stopwatch, Unwatched


class Segments(Batches):
    """What a worker learns from without a replay: its own latest steps, once each.

    One-step methods give every step by itself; the n-step method gives up to `length` steps at once, each with the
    longest return that the segment allows. Rows that fill a batch up to its fixed size have weight 0.
    """

    def __init__(self, replay: Replay, length: int, *, whole: bool) -> None:
        self.replay, self.length, self.whole = replay, length, whole
        self._began = replay.lanes.head.copy()

    def skip(self) -> None:
        """Do not learn from steps that an earlier worker of this rank played."""
        self.replay.taken[:] = self.replay.lanes.head
        self._began = self.replay.lanes.head.copy()

    def examples(self) -> list[Sample]:
        """A sample of each shape that may come; Sarsa takes an episode's last two steps at once."""
        each = np.zeros(self._rows, np.int64)
        sizes = (each, np.concatenate([each, each])) if self.replay.next_actions else (each,)
        return [self.replay.gather(at, at, np.ones(len(at), np.float32)) for at in sizes]

    @property
    def _rows(self) -> int:
        return self.replay.lanes.count * (self.length if self.whole else 1)

    def take(self) -> tuple[Sample, bool] | None:
        """The next steps, and whether an update is due with them."""
        head, start = self.replay.lanes.head, self.replay.lanes.start
        ended = len(head) == 1 and start[0] > self._began[0] and start[0] == head[0]
        due = bool(ended) or self._enough(int((head - self._began).max()))
        if self.whole and not due:
            return None
        sample = self.replay.unroll() if self.whole else self.replay.fresh()
        if sample is None:  # then what is due waits for the next step that can be learned from
            return None
        if due:
            self._began = head.copy()
        return sample.padded(-(-len(sample.weight) // self._rows) * self._rows), due

    def _enough(self, slots: int) -> bool:
        """Whether `length` steps were taken; final observations take slots and are no steps."""
        return slots >= self.length and self.replay.most_steps_since(self._began) >= self.length


@dataclass(eq=False)
class HogwildWorker(Role):
    """Adds up gradients and applies them to the shared weights when due."""

    agent: Agent
    source: Segments | BatchSampler | UnrollBatches
    store: SharedState
    stats: WorkerStats
    watch: Stopwatch | Unwatched
    _: KW_ONLY
    target_steps: int
    rate: Callable[[int], float]
    """The learning rate by env steps."""
    key: jax.Array
    leads: bool = True
    """One of the workers counts what all have in common."""
    acted: Callable[[], tuple[int, Any]] | None = None
    """Version and weights that played the steps, for the gradient; None = it is computed at the live weights."""
    cached: Callable[[], CachedPasses | None] | None = None
    """The forward passes that were made with these weights, if there are any."""
    pull: Callable[[], None] = lambda: None
    """Called after each update."""

    def __post_init__(self) -> None:
        self._sum: Any = None
        self._made = 0
        compiles_itself = isinstance(
            self.source, UnrollBatches
        )  # an agent that learns from unrolls compiles as it sees fit
        self._gradient = _gradient_of(self.agent, isinstance(self.source, Segments), compiled=not compiles_itself)
        self._change = _change_of(self.agent)

    def step(self) -> bool:
        """One gradient, if there is something to learn from; an update if it is due."""
        taken = self._take()
        if taken is None:
            return False
        self.watch.lap("sample")
        sample, due = taken
        live = self.store.live()  # θ⁻ as it is now
        version, weights = self.acted() if self.acted is not None else (self.stats.updates, live.weights)
        batch, cached = agent_batch(sample), None if self.cached is None else self.cached()
        if cached is not None and len(cached.passes) == len(batch.action) - 1:
            self._sum, learned = self._gradient_of_cached(cached, batch)
        else:
            self._sum, learned = self._gradient(self._sum, weights, live.target, batch, self.key)
        self._made += 1
        count_gradient(self.stats, sample, version, learned)
        if isinstance(self.source, UnrollBatches):
            self.source.release(sample, None)
        if due:
            self._update(version)
        self.watch.lap("learn")
        return True

    def warm_up(self) -> None:
        live = self.store.live()
        for sample in self._examples():
            gradient = self._compile(live.weights.copy(), live.target.copy(), agent_batch(sample))
        self._change(live, gradient, self.rate(self.stats.env_steps))

    def _examples(self) -> list[Any]:
        if isinstance(self.source, Segments):
            return self.source.examples()
        sample = self.source.example()
        return [sample.flat() if isinstance(sample, Sample) else sample]

    def _compile(self, weights: Any, target: Any, batch: Any) -> Any:
        """The gradient of such a batch, computed in each way in which `step` computes it."""
        if self.cached is not None and self.agent.cached_forward is not None:
            return self._gradient_of_cached(_example_of_cached(self.agent, weights, batch), batch)[0]
        gradient, _ = self._gradient(None, weights, target, batch, self.key)
        if isinstance(self.source, Segments) and not self.source.whole:
            self._gradient(gradient, weights, target, batch, self.key)
        return gradient

    def _gradient_of_cached(self, cached: CachedPasses, batch: Any) -> tuple[Any, Any]:
        assert self.agent.cached_forward is not None
        gradient, learned = self.agent.cached_forward.gradient(*cached, batch)
        return (gradient if self._sum is None else self._sum + gradient), learned

    def _take(self) -> tuple[Any, bool] | None:
        if isinstance(self.source, Segments):
            return self.source.take()
        sample = self.source.take()
        if sample is None:
            return None
        return (sample.flat() if isinstance(sample, Sample) else sample), True

    def _update(self, version: int) -> None:
        """Apply the sum to the weights as they are now, not as they were read."""
        change, statistics, skipped, norm = self._change(self.store.live(), self._sum, self.rate(self.stats.env_steps))
        self._sum = None
        self.store.add(change, statistics, skipped)
        self.stats.gradient_norm(norm, self.agent.max_gradient_norm)
        self.stats.set("skipped", int(skipped) if self.leads else 0)
        self.stats.age(np.array([self.stats.updates - version]))
        self.stats.learned(1)
        self.store.move_target(self.stats.env_steps, self.target_steps)
        self.pull()

    def settle(self) -> None:
        self.source.settle()

    def state(self) -> dict[str, Any]:
        return {"batches": self.source.state(), "made": self._made}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._made = int(state["made"])
        self.source.load_state(state["batches"])


def _example_of_cached(agent: Agent, weights: Any, batch: Any) -> CachedPasses:
    """Forward passes as acting makes them, one for each row of a batch but its last."""
    assert agent.layers is not None
    assert agent.cached_forward is not None
    layers = agent.layers(weights)
    mask = None if batch.mask is None else batch.mask[0]
    _, forward = agent.cached_forward.observe(layers, batch.observation[0], mask)
    return CachedPasses(layers, [forward] * (len(batch.action) - 1))


@cache
def _gradient_of(agent: Agent, add_up: bool, *, compiled: bool) -> Callable[..., Any]:
    gradient = partial(_added, agent, add_up)
    return jax.jit(gradient) if compiled else gradient


@cache
def _change_of(agent: Agent) -> Callable[..., Any]:
    return jax.jit(partial(_changed, agent))


def _added(
    agent: Agent, add_up: bool, total: jax.Array | None, weights: Any, target: Any, batch: Any, key: jax.Array
) -> tuple[jax.Array, Any]:
    """The gradient, added to the sum so far: the paper adds up over steps, where the agent's loss is a mean."""
    gradient, learned = agent.gradient(weights, target, batch, key)
    gradient = gradient * batch.weight.shape[0] if add_up else gradient
    return (gradient if total is None else total + gradient), learned


def _changed(agent: Agent, state: LearnerState, total: jax.Array, rate: float) -> tuple[jax.Array, Any, Any, jax.Array]:
    """What to add to the weights, the optimizer's statistics after it, gradients skipped so far, the gradient's norm.

    Never a difference of new and old weights: other workers write them meanwhile, and their changes would be undone.
    """
    change, statistics, finite = agent.change(state, agent.clip(total), rate)
    return change, statistics, state.skipped + ~finite, jnp.linalg.norm(total)
