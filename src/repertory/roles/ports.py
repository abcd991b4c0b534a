"""What roles see of the world: small protocols that never block for ever; imports numpy only.

Which process, queue or array stands behind a port is the engine's affair. They lie here, below the engines, because
roles import them and imports point down only."""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from repertory.experience.replay import Sample


class Unwatched:
    """Nobody asks what the time is spent on."""

    def lap(self, name: str) -> None:
        """It does not matter."""


class Stopwatch:
    """Laps: the time since the last lap belongs to the name it is given."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Everything since the last lap was `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    def shares(self) -> dict[str, float]:
        """Share of each name since the last call, adding up to 1."""
        total = sum(self.seconds.values()) or 1.0
        shares = {f"time/{name}": round(value / total, 4) for name, value in self.seconds.items()}
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        return shares


class Role(Protocol):
    """A member of a company."""

    def warm_up(self) -> None:
        """Compile what `step` calls, before the clock runs; changes nothing."""

    def step(self) -> bool:
        """Do one piece of work if there is any; say whether there was."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it that lies in no shared array, as JSON values."""

    def load_state(self, state: Any) -> None:
        """Take that over."""

    def tell_losses(self) -> None:
        """Write losses that are still being computed to the worker's stats: metrics are about to be read."""
        return

    def settle(self) -> None:
        """Before a pause: put what must survive where it survives."""

    def close(self) -> None:
        """Free what it holds."""


class Publisher(Protocol):
    """Where weights are published."""

    def publish(self, version: int, weights: Any) -> None:
        """Weights that `version` updates stand behind."""


class Weights(Protocol):
    """Where the newest weights are found."""

    def latest(self) -> tuple[int, Any]:
        """The newest version and its weights."""


class Policy(Protocol):
    """Answers observations with actions, now or later: ask once, poll until there is an reply."""

    def submit(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Ask for actions."""

    def poll(self) -> NDArray[np.integer[Any]] | None:
        """The actions, or None if they are not there yet."""

    @property
    def version(self) -> int:
        """The weights' version behind the last reply."""

    def warm_up(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Compile what answers such a request, before the clock runs; changes nothing."""

    @property
    def stores_values(self) -> bool:
        """Whether the values behind its actions are stored; then it is asked even where chance decides."""

    def extras(self, actions: NDArray[np.integer[Any]]) -> NDArray[np.float32] | None:
        """What is stored beside these actions, [k, E]: values, or logarithms of their probabilities."""

    def reset(self, environments: Any) -> None:
        """New episodes begin in these environments: recurrent states start empty."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""

    def load_state(self, state: Any) -> None:
        """Take that over."""


class ExperienceSink(Protocol):
    """Where an actor writes its steps: its own lanes, numbered from 0."""

    def open(self) -> bool:
        """Before actions are chosen for a step: make room for it; False = there is none yet."""

    def begin(self, lanes: NDArray[np.int64], observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Episodes begin in these lanes."""

    def append(
        self,
        lanes: NDArray[np.int64],
        action: NDArray[np.integer[Any]],
        reward: NDArray[np.float32],
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        observation: NDArray[Any],
        mask: NDArray[np.bool_] | None,
        version: int,
        values: NDArray[np.float32] | None = None,
    ) -> None:
        """One step in each of these lanes."""

    def interrupt(self, lanes: NDArray[np.int64] | None = None) -> None:
        """The running episodes end here, as truncated: their environments are reset from outside."""


class ExperienceSource(Protocol):
    """Where steps are drawn from."""

    def sample(self, size: int, rng: np.random.Generator, importance: float = 0.0, batches: int = 1) -> Sample:
        """`size` steps, to be split into so many batches."""

    def next(self, size: int) -> Sample | None:
        """The oldest `size` steps that were not taken yet, or None if there are fewer."""

    def gather(self, lane: NDArray[np.int64], slot: NDArray[np.int64], weight: NDArray[np.float32]) -> Sample:
        """The steps at these places."""

    def update_priorities(self, lane: NDArray[np.int64], slot: NDArray[np.int64], errors: NDArray[np.float32]) -> None:
        """What learning from those steps showed."""


class Batches(Protocol):
    """Where a learner gets what it learns from next."""

    def take(self) -> Any:
        """What one call learns from: a `Sample` or an `UnrollBatch`; None if there is not enough."""

    def example(self) -> Any:
        """Something of the right shapes, to compile with."""

    def ahead(self) -> None:
        """A good moment to draw what comes next: the last batch is being learned from."""

    def release(self, sample: Any, priority: Any) -> None:
        """The sample was learned from, and these are its errors."""

    def settle(self) -> None:
        """Forget what was drawn ahead, so that nothing but the state decides what comes next."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""

    def load_state(self, state: Any) -> None:
        """Take that over."""
