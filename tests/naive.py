"""A buffer that spares nothing: every step with its observation and its next one, in full; numpy only.

It is told the same as the lanes and numbers slots as they do, but knows nothing of rings, frames or flags. `Play` makes
up episodes and tells both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repertory.experience.lanes import LaneStorage
from repertory.specs import EnvironmentSpec, ObservationSpec, Part


@dataclass
class Step:
    """One step, as whole as it was seen."""

    slot: int
    observation: NDArray[Any]
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_observation: NDArray[Any]
    next_mask: NDArray[np.bool_]
    version: int

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated

    @property
    def cut_off(self) -> bool:
        """It would bootstrap, but no action was taken next."""
        return self.truncated and not self.terminated


class Expected(NamedTuple):
    """What a sample that begins at a step must hold."""

    observation: NDArray[Any]
    action: int
    reward: float
    discount: float
    next_observation: NDArray[Any]
    next_action: int
    next_mask: NDArray[np.bool_]
    version: int


@dataclass
class NaiveLane:
    """All steps of one environment since the beginning of time."""

    steps: list[Step] = field(default_factory=list)
    head: int = 0

    def append(self, step: Step) -> None:
        """The next step; an end takes one slot more, for the final observation."""
        self.steps.append(step)
        self.head += 2 if step.ended else 1

    def interrupt(self) -> None:
        """The running episode, if it has a step, ends here as truncated."""
        if self.steps and not self.steps[-1].ended:
            self.steps[-1].truncated = True
            self.head += 1

    def window(self, index: int, n: int, next_actions: bool) -> list[Step]:
        """The step and those after it, up to n or the episode's end; or up to the last action that is known."""
        steps: list[Step] = []
        for step in self.steps[index : index + n]:
            if next_actions and step.cut_off:
                break
            steps.append(step)
            if step.ended:
                break
        return steps

    def is_complete(self, index: int, n: int, next_actions: bool) -> bool:
        """Whether the n-step return is known, and, if asked for, the action after it."""
        window = self.window(index, n, next_actions)
        if next_actions and not window:
            return False
        after = index + len(window)
        if window[-1].ended or (next_actions and after < len(self.steps) and self.steps[after].cut_off):
            return True
        return len(window) == n and (not next_actions or after < len(self.steps))

    def candidates(self, n: int, next_actions: bool, length: int, stack: int) -> set[int]:
        """Slots that may be drawn from a ring of this length: complete, and with all frames of a stack."""
        oldest = self.head - length + 1
        first = oldest + stack - 1 if oldest > 0 else 0
        return {
            step.slot
            for index, step in enumerate(self.steps)
            if step.slot >= first and self.is_complete(index, n, next_actions)
        }

    def expected(self, slot: int, n: int, gamma: float, next_actions: bool) -> Expected:
        """R = Σ γ^k r_k over the window, bootstrapped with γ^m from where it stops unless it terminated."""
        index = next(i for i, step in enumerate(self.steps) if step.slot == slot)
        window = self.window(index, n, next_actions)
        first, last = window[0], window[-1]
        reward = sum(gamma**k * step.reward for k, step in enumerate(window))
        discount = 0.0 if last.terminated else gamma ** len(window)
        follows = next_actions and not last.ended
        next_action = self.steps[index + len(window)].action if follows else -1
        return Expected(
            first.observation,
            first.action,
            reward,
            discount,
            last.next_observation,
            next_action,
            last.next_mask,
            first.version,
        )


@dataclass(frozen=True)
class Habits:
    """How often what happens, in each lane at each tick."""

    terminates: float = 0.15
    truncates: float = 0.15
    waits: float = 0.1
    interrupts: float = 0.02


def make_spec(stack: int = 1, padding: Any = "repeat", masked: bool = True, dtype: Any = "float32") -> EnvironmentSpec:
    """Small observations, four actions."""
    kind: Any = "pixel" if dtype == "uint8" else "number"
    observation = ObservationSpec((2, 2), dtype, (Part(kind, 4),), stack, padding)
    return EnvironmentSpec(observation, actions=4, masked=masked)


def poisoned_lanes(spec: EnvironmentSpec, count: int, length: int) -> LaneStorage:
    """Lanes whose unwritten slots hold values that would show in any sample."""
    arrays = {}
    for name, field_ in LaneStorage.fields(spec, count, length).items():
        poison: Any = np.nan if field_.dtype == "float32" else 77
        arrays[name] = np.full(field_.shape, 0 if name in ("head", "start") else poison, field_.dtype)
    return LaneStorage(spec, count, length, arrays)


class Play:
    """Made-up episodes, told to lanes and to the naive buffer alike."""

    def __init__(self, lanes: LaneStorage, rng: np.random.Generator, habits: Habits) -> None:
        self.lanes, self.rng, self.habits = lanes, rng, habits
        self.naive = [NaiveLane() for _ in range(lanes.count)]
        self.frames: list[list[NDArray[Any]]] = [[] for _ in range(lanes.count)]
        self.version = 0

    def tick(self) -> None:
        """In each lane an episode begins, goes on, ends or waits; now and then all are interrupted."""
        if self.rng.random() < self.habits.interrupts:
            self.interrupt()
        busy = self.rng.random(self.lanes.count) >= self.habits.waits
        playing = np.array([bool(frames) for frames in self.frames])
        self.begin(np.flatnonzero(busy & ~playing))
        stepping = np.flatnonzero(busy & playing)
        terminated = self.rng.random(len(stepping)) < self.habits.terminates
        truncated = self.rng.random(len(stepping)) < self.habits.truncates
        self.step(stepping, terminated, truncated)

    def begin(self, lanes: NDArray[np.int64]) -> None:
        """Episodes begin in these lanes."""
        for lane in lanes:
            self.frames[lane] = [self._frame()]
        if len(lanes):
            self.lanes.begin(lanes, self._seen(lanes), self._masks(len(lanes)))

    def step(self, lanes: NDArray[np.int64], terminated: NDArray[np.bool_], truncated: NDArray[np.bool_]) -> None:
        """One step in each of these lanes, which must be playing."""
        if not len(lanes):
            return
        self.version += 1
        before = self._seen(lanes)
        for lane in lanes:
            self.frames[lane].append(self._frame())
        after, mask = self._seen(lanes), self._masks(len(lanes))
        action = self.rng.integers(0, self.lanes.spec.actions, len(lanes))
        reward = self.rng.normal(size=len(lanes)).astype(np.float32)
        self.lanes.append(lanes, action, reward, terminated, truncated, after, mask, self.version)
        for row, lane in enumerate(lanes):
            naive = self.naive[lane]
            ends = bool(terminated[row]), bool(truncated[row])
            numbers = int(action[row]), float(reward[row])
            naive.append(Step(naive.head, before[row], *numbers, *ends, after[row], mask[row], self.version))
            if any(ends):
                self.frames[lane] = []

    def interrupt(self) -> None:
        """What happens before a checkpoint: all episodes end, all environments will be reset."""
        self.lanes.interrupt()
        for lane, naive in enumerate(self.naive):
            naive.interrupt()
            self.frames[lane] = []

    def candidates(self, n: int, next_actions: bool) -> set[tuple[int, int]]:
        """(lane, slot) of every step that may be drawn."""
        stack = self.lanes.spec.observation.stack
        return {
            (lane, slot)
            for lane, naive in enumerate(self.naive)
            for slot in naive.candidates(n, next_actions, self.lanes.length, stack)
        }

    def _frame(self) -> NDArray[Any]:
        spec = self.lanes.spec.observation
        return self.rng.integers(0, 256, spec.shape).astype(spec.dtype)

    def _seen(self, lanes: NDArray[np.int64]) -> NDArray[Any]:
        """The stacks that a frame-stacking environment returns."""
        spec = self.lanes.spec.observation
        if spec.stack == 1:
            return np.stack([self.frames[lane][-1] for lane in lanes])
        return np.stack([self._stack(self.frames[lane][-spec.stack :]) for lane in lanes])

    def _stack(self, frames: list[NDArray[Any]]) -> NDArray[Any]:
        spec = self.lanes.spec.observation
        padding = np.zeros_like(frames[0]) if spec.padding == "zero" else frames[0]
        return np.stack([padding] * (spec.stack - len(frames)) + frames)

    def _masks(self, count: int) -> NDArray[np.bool_]:
        return self.rng.random((count, self.lanes.spec.actions)) < 0.5
