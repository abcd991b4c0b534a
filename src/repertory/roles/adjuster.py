"""Adjusts how many predictors, trainers and agents are active, by the number of trainings a second.

Babaeizadeh et al. 2017, section 4: "annealing" of N_P, N_T and N_A. Their released code changes all three at once; this
changes one, as the paper says, but not always by one: from 2 agents to 20 that would take many periods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.roles.ports import Role
from repertory.specs import Field

PATH = 4096
WARM_UP = 0.25
"""Share of each period that is not counted: the numbers have just changed."""
LARGEST = 8
"""The largest change of a number at once."""
CLEARLY = 1.1
"""A change that raises the training rate by this factor is kept at once; a smaller gain must be measured twice."""
SHORTEST_REST, LONGEST_REST = 2, 16
"""Periods without a trial when no change was any good, at first and at most."""


def judgements(arrays: Mapping[str, NDArray[Any]], since: int) -> list[str]:
    """The adjustments from the `since`-th period on, and whether they were kept; a sentence each."""
    count = int(arrays["count"][0])
    rows = arrays["path"][np.arange(max(since, count - PATH), count) % PATH].tolist()
    return [
        f"adjuster: predictors {predictors:.0f}, trainers {trainers:.0f}, agents {agents:.0f}: "
        f"{rate:.1f} trainings a second, {'kept' if kept else 'taken back'}"
        for _, predictors, trainers, agents, rate, kept in rows
    ]


class Adjuster(Role):
    """Hill climbing over the three numbers.

    A change that is kept is made again, twice as large, until one is taken back; then another change is chosen of those
    that were not tried since. The rate to beat is that of the numbers in force, measured anew whenever they stay, so
    that one lucky measurement does not block every change. A small gain may be luck as well: the old numbers are
    measured anew, and the same change has to gain again; else the numbers would drift where it makes little difference.

    Trials of worse numbers cost trainings. When all were tried in vain it rests, each time twice as long.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        most: Sequence[int],
        trainings: Callable[[], int],
        *,
        period_s: float,
        seed: int,
        start: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start` counts the starts of this worker; each begins with the numbers that were kept."""
        self.active, self.path, self._count = arrays["active"], arrays["path"], arrays["count"]
        self.most, self.trainings, self.period_s, self.now = most, trainings, period_s, now
        self.rng = np.random.default_rng([seed, start, 6])
        self._kept = arrays["kept"]
        self.active[:] = self._kept
        self._rate = 0.0
        self._move, self._size = (0, 1), 1
        self._tried: set[tuple[int, int]] = set()
        self._doubtful = False
        self._rest, self._resting = SHORTEST_REST, 0
        self._began: float | None = None
        self._from: tuple[float, int] | None = None

    @staticmethod
    def fields() -> dict[str, Field]:
        """The numbers in force, those before while a change is on trial, and the path of all periods."""
        numbers = Field((3,), "int64")
        return {"active": numbers, "kept": numbers, "path": Field((PATH, 6), "float64"), "count": Field((1,), "int64")}

    def step(self) -> bool:
        """Judge the last change when its period is over, and make the next."""
        now = self.now()
        if self._began is None:
            self._began = now
        if self._from is None and now - self._began >= WARM_UP * self.period_s:
            self._from = (now, self.trainings())
        if self._from is None or now - self._from[0] < (1 - WARM_UP) * self.period_s:
            return False
        since, count = self._from
        self._judge((self.trainings() - count) / max(now - since, 1e-9))
        self._began, self._from = now, None
        return True

    def _judge(self, rate: float) -> None:
        changed = bool((self.active != self._kept).any())
        gained = rate >= self._rate
        kept = not changed or rate >= self._rate * CLEARLY or (gained and self._doubtful)
        self._note(rate, kept)
        if not changed:
            self._rate = (self._rate + rate) / 2 if self._rate else rate
            if self._doubtful:
                self._try()
            elif self._resting:
                self._resting -= 1
            else:
                self._change(again=False)
        elif kept:
            which, step = self._move
            self._kept[:] = self.active
            self._rate, self._tried, self._doubtful, self._rest = rate, {(which, -step)}, False, SHORTEST_REST
            self._change(again=True)
        else:
            self._doubtful = gained
            if not gained:
                self._tried.add(self._move)
            self.active[:] = self._kept

    def _change(self, *, again: bool) -> None:
        moves = [
            (which, step) for which in range(3) for step in (-1, 1) if 1 <= self._kept[which] + step <= self.most[which]
        ]
        if not moves:
            return
        if again and self._move in moves:
            self._size = min(2 * self._size, LARGEST)
        else:
            fresh = [move for move in moves if move not in self._tried]
            if not fresh:
                self._tried = set()
                self._resting, self._rest = self._rest - 1, min(2 * self._rest, LONGEST_REST)
                return
            self._move, self._size = fresh[int(self.rng.integers(len(fresh)))], 1
        self._try()

    def _try(self) -> None:
        which, step = self._move
        self.active[which] = np.clip(self._kept[which] + step * self._size, 1, self.most[which])

    def _note(self, rate: float, kept: bool) -> None:
        at = int(self._count[0]) % PATH
        self.path[at] = (self.now(), *self.active.tolist(), rate, kept)
        self._count[0] += 1

    def settle(self) -> None:
        """A period with a pause in it is not measured."""
        self._began = self._from = None

    def state(self) -> dict[str, Any]:
        """What was tried in vain, and for how long to rest; rates are measured anew."""
        return {"tried": sorted(self._tried), "rest": self._rest, "resting": self._resting}

    def load_state(self, state: Any) -> None:
        """Checkpoints of earlier versions have none of these."""
        self._tried = {(which, step) for which, step in state.get("tried", ())}
        self._rest, self._resting = state.get("rest", SHORTEST_REST), state.get("resting", 0)
