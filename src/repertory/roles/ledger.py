"""The ledger: one page of plain numbers for each member of a company; numpy only.

A member writes its own page and reads the others'. The pages lie in one array, which may be shared memory: then they
outlive the member, and whoever supervises reads from them that it lives, what it does and what it has done.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECENT = 128
"""How many of the latest episodes, lags and ages are kept."""

LEDGER = np.dtype(
    [
        # supervision
        ("beat", "f8"),  # when it last said that it lives, by the monotonic clock
        ("starts", "i8"),  # how often it was started, and its environments anew
        ("settled", "i8"),  # the last pause that it has reached
        ("waiting", "i8"),  # it waits for its bell
        ("together", "i8"),  # it waits for others inside a collective operation
        ("failures", "i8"),  # failures that it has recovered from by itself
        ("place", "i8", (3,)),  # environment, seed and step of the step being taken; -1 = in none
        # counts of the whole run
        ("env_steps", "i8"),
        ("updates", "i8"),
        ("gradients", "i8"),
        ("dropped_stale", "i8"),
        ("dropped_outlier", "i8"),
        ("skipped", "i8"),
        ("bytes_sent", "i8"),
        ("episodes", "i8"),
        # what happened lately
        ("episode_return", "f8", (RECENT,)),
        ("episode_length", "i8", (RECENT,)),
        ("lags", "i8"),
        ("lag", "i8", (RECENT,)),
        ("ages", "i8"),
        ("age", "i8", (RECENT,)),
        ("losses", "i8"),
        ("loss_sum", "f8"),
        ("queue", "i8"),
        ("idle_s", "f8"),
        ("work", "i8"),
    ],
    align=True,
)
KEPT = (
    "starts", "env_steps", "updates", "gradients", "dropped_stale", "dropped_outlier", "skipped", "bytes_sent",
    "episodes",
)  # fmt: skip
"""What a checkpoint keeps."""


class Page:
    """One member's page: its counters and its journal."""

    def __init__(self, ledger: NDArray[Any], member: int = 0) -> None:
        self.ledger, self.member = ledger, member
        self.row = ledger[member]
        self._env_steps, self._updates = ledger["env_steps"], ledger["updates"]

    @property
    def env_steps(self) -> int:
        """Env steps of the whole company."""
        return int(self._env_steps.sum())

    @property
    def updates(self) -> int:
        """Updates of the whole company."""
        return int(self._updates.sum())

    @property
    def own_env_steps(self) -> int:
        """Env steps of this member."""
        return int(self.row["env_steps"])

    def played(self, env_steps: int) -> None:
        """So many more env steps."""
        self.row["env_steps"] += env_steps

    def learned(self, updates: int) -> None:
        """So many more updates."""
        self.row["updates"] += updates

    def count(self, name: str, amount: int = 1) -> None:
        """Add to one of the counts."""
        self.row[name] += amount

    def set(self, name: str, value: float) -> None:
        """Set one of the values."""
        self.row[name] = value

    def beat(self) -> None:
        """Say that this member lives."""
        self.row["beat"] = time.monotonic()

    def episode(self, reward: float, length: int) -> None:
        """An episode ended."""
        at = int(self.row["episodes"]) % RECENT
        self.row["episode_return"][at] = reward
        self.row["episode_length"][at] = length
        self.row["episodes"] += 1

    def lag(self, lags: NDArray[np.int64]) -> None:
        """How many updates old the policy was that acted, for each sample of a batch."""
        self._remember("lag", lags)

    def age(self, ages: NDArray[np.int64]) -> None:
        """How many updates old the weights were that gradients were computed with."""
        self._remember("age", ages)

    def _remember(self, name: str, values: NDArray[np.int64]) -> None:
        values = values.ravel()
        if values.size > RECENT:  # evenly spread, so that all updates of a call have a say
            values = values[:: -(-values.size // RECENT)]
        count = int(self.row[f"{name}s"])
        self.row[name][np.arange(count, count + values.size) % RECENT] = values
        self.row[f"{name}s"] = count + values.size

    def loss(self, total: float, count: int) -> None:
        """Losses of some updates."""
        self.row["loss_sum"] += total
        self.row["losses"] += count


def new_ledger(members: int = 1) -> NDArray[Any]:
    """A ledger in the memory of this process."""
    return np.zeros(members, LEDGER)
