"""The ledger: one page of plain numbers for each member of a company; numpy only.

A member writes its own page and reads the others'. There is one array for each entry, with a number for each member,
so that adding up over everybody touches few lines of memory; they may be shared: then they outlive the member, and
whoever supervises reads from them that it lives, what it does and what it has done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.experience.lanes import Field

RECENT = 128
"""How many of the latest episodes, lags and ages are kept."""

ENTRIES: dict[str, tuple[str, tuple[int, ...]]] = {
    # supervision
    "began": ("int64", ()),  # its process has come to the project's code
    "beat": ("float64", ()),  # when it last said that it lives, by the monotonic clock
    "starts": ("int64", ()),  # how often it was started, and its environments anew
    "settled": ("int64", ()),  # the last pause that it has reached
    "waiting": ("int64", ()),  # it waits for its bell
    "failures": ("int64", ()),  # failures that it has recovered from by itself
    "place": ("int64", (4,)),  # environment, seed, step and worker of the step being taken; -1 = in none
    # counts of the whole run
    "env_steps": ("int64", ()),
    "updates": ("int64", ()),
    "gradients": ("int64", ()),
    "dropped_stale": ("int64", ()),
    "dropped_outlier": ("int64", ()),
    "skipped": ("int64", ()),
    "bytes_sent": ("int64", ()),
    "episodes": ("int64", ()),
    "dropped_unrolls": ("int64", ()),
    # what happened lately
    "episode_return": ("float64", (RECENT,)),
    "episode_length": ("int64", (RECENT,)),
    "lags": ("int64", ()),
    "lag": ("int64", (RECENT,)),
    "ages": ("int64", ()),
    "age": ("int64", (RECENT,)),
    "losses": ("int64", ()),
    "loss_sum": ("float64", ()),
    "entropy_sum": ("float64", ()),
    "value_sum": ("float64", ()),
    "norms": ("int64", ()),  # gradients that updates were made of, how long they were, and how many were clipped
    "norm_sum": ("float64", ()),
    "clipped": ("int64", ()),
    "queue": ("int64", ()),
    "answers": ("int64", ()),  # questions to the policy, and how long the answers took
    "answer_s": ("float64", ()),
    "idle_s": ("float64", ()),
    "work": ("int64", ()),
}
KEPT = (
    "starts", "env_steps", "updates", "gradients", "dropped_stale", "dropped_outlier", "skipped", "bytes_sent",
    "episodes", "dropped_unrolls",
)  # fmt: skip
"""What a checkpoint keeps."""
SUMS = ("loss_sum", "entropy_sum", "value_sum", "norm_sum")


Ledger = Mapping[str, NDArray[Any]]


class Row:
    """One member's entries by name."""

    def __init__(self, ledger: Ledger, member: int) -> None:
        self._ledger, self._member = ledger, member

    def __getitem__(self, name: str) -> Any:
        return self._ledger[name][self._member]

    def __setitem__(self, name: str, value: Any) -> None:
        self._ledger[name][self._member] = value


class Page:
    """One member's page: its counters and its journal."""

    def __init__(self, ledger: Ledger, member: int = 0) -> None:
        self.ledger, self.member = ledger, member
        self.row = Row(ledger, member)
        self._env_steps, self._updates, self._beat = ledger["env_steps"], ledger["updates"], ledger["beat"]

    @property
    def env_steps(self) -> int:
        """Env steps of the whole company."""
        return int(np.add.reduce(self._env_steps))

    @property
    def updates(self) -> int:
        """Updates of the whole company."""
        return int(np.add.reduce(self._updates))

    @property
    def own_env_steps(self) -> int:
        """Env steps of this member."""
        return int(self._env_steps[self.member])

    def played(self, env_steps: int) -> None:
        """So many more env steps."""
        self._env_steps[self.member] += env_steps

    def learned(self, updates: int) -> None:
        """So many more updates."""
        self._updates[self.member] += updates

    def count(self, name: str, amount: int = 1) -> None:
        """Add to one of the counts."""
        self.row[name] += amount

    def set(self, name: str, value: float) -> None:
        """Set one of the values."""
        self.row[name] = value

    def beat(self) -> None:
        """Say that this member lives."""
        self._beat[self.member] = time.monotonic()

    def episode(self, reward: float, length: int) -> None:
        """An episode ended."""
        at = int(self.row["episodes"]) % RECENT
        self.row["episode_return"][at] = reward
        self.row["episode_length"][at] = length
        self.row["episodes"] += 1

    def lag(self, lags: NDArray[np.int64]) -> None:
        """How many updates old the policy was that acted, for each sample of a batch.

        A learner that was started again counts on from what it had put away: it may have less than those who acted.
        """
        self._remember("lag", np.maximum(lags, 0))

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

    def answered(self, seconds: float) -> None:
        """The policy took so long to answer."""
        self.row["answers"] += 1
        self.row["answer_s"] += seconds

    def loss(self, loss: Any, entropy: Any = 0.0, value: Any = 0.0) -> None:
        """Losses of one or several updates, with the policy's entropy and the mean absolute value of each.

        Those that are not finite spoil no mean.
        """
        losses, entropies, values = np.asarray(loss), np.asarray(entropy), np.asarray(value)
        if losses.size == 1:
            self._one_loss(losses.item(), entropies.item(), values.item())
            return
        several = np.array([losses, entropies, values], np.float64).reshape(3, -1)
        fine = several[:, np.isfinite(several).all(axis=0)]
        for name, total in zip(("loss_sum", "entropy_sum", "value_sum"), fine.sum(axis=1).tolist(), strict=True):
            self.row[name] += total
        self.row["losses"] += fine.shape[1]

    def _one_loss(self, loss: float, entropy: float, value: float) -> None:
        """The same by plain numbers, several times as fast: some learn from every single step."""
        if math.isfinite(loss) and math.isfinite(entropy) and math.isfinite(value):
            ledger, at = self.ledger, self.member
            ledger["loss_sum"][at] += loss
            ledger["entropy_sum"][at] += entropy
            ledger["value_sum"][at] += value
            ledger["losses"][at] += 1

    def gradient_norm(self, norm: Any, limit: float) -> None:
        """Norms of the gradients of one or several updates, before those longer than `limit` are clipped; 0 = none."""
        told = np.asarray(norm)
        if told.size == 1:
            self._one_norm(told.item(), limit)
            return
        norms = told.astype(np.float64).reshape(-1)
        norms = norms[np.isfinite(norms)]
        self.row["norm_sum"] += float(norms.sum())
        self.row["clipped"] += np.count_nonzero(norms > limit) if limit > 0 else 0
        self.row["norms"] += norms.size

    def _one_norm(self, norm: float, limit: float) -> None:
        if math.isfinite(norm):
            ledger, at = self.ledger, self.member
            ledger["norm_sum"][at] += norm
            ledger["clipped"][at] += 0 < limit < norm
            ledger["norms"][at] += 1


class Pages:
    """The pages of several members, each of which does the same at once; `which` are numbers among them."""

    def __init__(self, ledger: Ledger, members: Sequence[int]) -> None:
        self._ledger, self._members = ledger, np.array(members)

    def add(self, name: str, which: int | NDArray[np.integer[Any]], amount: float) -> None:
        """So much more of one of the counts, for each."""
        self._ledger[name][self._members[which]] += amount

    def beat(self, which: int | NDArray[np.integer[Any]]) -> None:
        """Say that these live."""
        self._ledger["beat"][self._members[which]] = time.monotonic()


def ledger_fields(members: int) -> dict[str, Field]:
    """What has to be allocated for a ledger."""
    return {name: Field((members, *shape), dtype) for name, (dtype, shape) in ENTRIES.items()}


def new_ledger(members: int = 1) -> dict[str, NDArray[Any]]:
    """A ledger in the memory of this process."""
    return {name: np.zeros(field.shape, field.dtype) for name, field in ledger_fields(members).items()}
