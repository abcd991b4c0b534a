"""What roles and policies are, and the ports that they see; no method blocks for ever. Imports numpy only.

Which process, queue or array is behind a port is the engine's concern. A role or policy that has nothing to do in a
method inherits the default, which does nothing.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Unwatched:
    """Measures nothing."""

    def lap(self, name: str) -> None:
        pass


class Stopwatch:
    """Laps: the time since the last lap belongs to the name that this lap is given."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now

    def shares(self) -> dict[str, float]:
        """Share of each name since the last call, adding up to 1."""
        total = sum(self.seconds.values()) or 1.0
        shares = {f"time/{name}": round(value / total, 4) for name, value in self.seconds.items()}
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        return shares


class Role:
    """What a worker does."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves beside the shared arrays, as JSON values."""
        return {}

    def load_state(self, state: Any) -> None:
        """Continue from that."""

    def warm_up(self) -> None:
        """Compile what `step` calls, before the clock runs; changes nothing."""

    def step(self) -> bool:
        """Do one piece of work if there is any; say whether there was."""
        raise NotImplementedError

    def tell_losses(self) -> None:
        """Write losses that are still being computed to the worker's stats: metrics are about to be read."""
        return

    def settle(self) -> None:
        """Before a pause: write the state that must survive to the channels."""

    def close(self) -> None:
        """Free what it holds."""


class Publisher(Protocol):
    def publish(self, version: int, weights: Any) -> None:
        """Weights after `version` updates."""


class Weights(Protocol):
    def latest(self) -> tuple[int, Any]:
        """The newest version and its weights."""


class Policy:
    """Chooses actions for observations, at once or later: submit once, then poll until there is a reply."""

    version: int
    """Of the weights behind the last reply."""
    stores_values: bool = False
    """Whether the values of its actions are stored; then it gets requests even where all actions are random."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint saves of it, as JSON values."""
        return {}

    def load_state(self, state: Any) -> None:
        """Continue from that."""

    def submit(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        raise NotImplementedError

    def poll(self) -> NDArray[np.integer[Any]] | None:
        """The actions, or None if there is no reply yet."""
        raise NotImplementedError

    def warm_up(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Compile what replies to such a request, before the clock runs; changes nothing."""

    def extras(self, actions: NDArray[np.integer[Any]]) -> NDArray[np.float32] | None:
        """What is stored beside these actions, [k, E]: values, or logarithms of their probabilities."""
        raise NotImplementedError

    def reset(self, environments: Any) -> None:
        """New episodes begin in these environments: recurrent states start empty."""


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
        """The running episodes end as truncated: their environments are reset from outside."""
