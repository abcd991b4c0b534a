"""Gymnasium spaces read as specs, and observations turned into the numbers that are stored.

Imports numpy, gymnasium, and our errors and specs.

| space                        | stored                       | read as            |
| ---------------------------- | ---------------------------- | ------------------ |
| Box of floats or integers    | float32, same shape          | number             |
| Box of uint8                 | uint8, same shape            | pixel              |
| Box of bool, MultiBinary     | uint8, same shape            | number             |
| Discrete, MultiDiscrete      | a vector of 0-based indices  | category           |
| Tuple, Dict, however nested  | one vector, leaf after leaf  | each leaf as above |

Categories, and leaves of a Tuple or Dict, are stored as uint8 if all of them fit (pixels, binaries, up to 256
categories), else as float32; a pixel then stays a pixel. Integers beyond ±2^24 are rounded, as float32 does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from repertory.errors import UserError
from repertory.specs import ObservationSpec, Part

Array = NDArray[Any]
Path = tuple[str | int, ...]

_SUPPORTED = "Box, Discrete, MultiBinary, MultiDiscrete, and Tuple or Dict of these"


class UnfitError(ValueError):
    """An observation that is not what its space says; whoever knows the environment's name adds it."""


@dataclass(frozen=True)
class _Leaf:
    """One simple space, where it sits in the whole, and how it is stored."""

    path: Path
    shape: tuple[int, ...]
    declared: np.dtype[Any]
    parts: tuple[Part, ...]
    small: bool
    start: Array | None = None
    limit: Array | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def read(self, observation: Any, lead: tuple[int, ...]) -> Array:
        """This leaf of an observation ([*lead, *shape]), checked; categories are counted from 0."""
        for key in self.path:
            observation = observation[key]
        array = np.asarray(observation)
        if array.shape != lead + self.shape or array.dtype != self.declared:
            self._check(array, lead)
        return array if self.limit is None else self._indices(array)

    def _check(self, array: Array, lead: tuple[int, ...]) -> None:
        where = f" at {'/'.join(map(str, self.path))}" if self.path else ""
        if array.shape != lead + self.shape:
            raise UnfitError(f"shape {array.shape[len(lead) :]}{where} where its space says {self.shape}")
        if not np.can_cast(array.dtype, self.declared, "same_kind"):
            raise UnfitError(f"dtype {array.dtype}{where} where its space says {self.declared}")

    def _indices(self, array: Array) -> Array:
        indices: Array = array.astype(np.int64) - cast(Array, self.start)
        if np.any(indices < 0) or np.any(indices >= self.limit):
            raise UnfitError(f"category {array.tolist()} outside its space")
        return indices


def _leaf(space: Space[Any], path: Path) -> _Leaf:
    shape, dtype = space.shape or (), np.dtype(space.dtype)
    parts: tuple[Part, ...]
    if isinstance(space, spaces.Discrete):
        parts = (Part("category", 1, int(space.n)),)
        return _Leaf(path, shape, dtype, parts, space.n <= 256, np.asarray(space.start), np.asarray(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        runs = itertools.groupby(space.nvec.ravel().tolist())
        parts = tuple(Part("category", len(list(run)), n) for n, run in runs)
        limit = space.nvec.astype(np.int64)
        return _Leaf(path, shape, dtype, parts, bool(np.all(limit <= 256)), space.start.astype(np.int64), limit)
    if isinstance(space, spaces.MultiBinary):
        return _Leaf(path, shape, dtype, (Part("number", math.prod(shape)),), True)
    if isinstance(space, spaces.Box) and dtype.kind in "fiub":
        kind: Literal["pixel", "number"] = "pixel" if dtype == np.uint8 else "number"
        return _Leaf(path, shape, dtype, (Part(kind, math.prod(shape)),), dtype in (np.uint8, np.bool_))
    raise UserError(f"the observation space {space} is not supported; supported are {_SUPPORTED}")


def _leaves(space: Space[Any], path: Path = ()) -> Iterator[_Leaf]:
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for place, inner in enumerate(space.spaces):
            yield from _leaves(inner, (*path, place))
    else:
        yield _leaf(space, path)


class Encoder:
    """Turns the observations of one space into what is stored; free for a plain Box of the stored type."""

    def __init__(self, space: Space[Any]) -> None:
        self._leaves = tuple(_leaves(space))
        self._ends = list(itertools.accumulate(leaf.size for leaf in self._leaves))
        if not self._ends or not self._ends[-1]:
            raise UserError(f"the observation space {space} holds no number")
        first = self._leaves[0]
        whole = not first.path and first.limit is None and first.shape != ()
        self._plain = first if whole else None
        self._dtype = np.dtype(np.uint8 if all(leaf.small for leaf in self._leaves) else np.float32)
        self.spec = ObservationSpec(
            shape=first.shape if whole else (self._ends[-1],),
            dtype="uint8" if self._dtype == np.uint8 else "float32",
            parts=tuple(part for leaf in self._leaves for part in leaf.parts),
        )

    def stack(self, observations: list[Any]) -> Array:
        """Single observations -> a new array [E, *shape]."""
        if len(observations) == 1 and self._plain is not None:
            alone = observations[0]
            if type(alone) is np.ndarray and alone.dtype == self._dtype and alone.shape == self.spec.shape:
                return np.array(alone, ndmin=alone.ndim + 1)
        if len(self._leaves) == 1 and not self._leaves[0].path:
            return self.many(np.array(observations), len(observations), copy=False)
        return np.stack([self._gather(observation, ()) for observation in observations])

    def one(self, observation: Any) -> Array:
        """One observation ([*shape]) to be assigned to a stored row, which casts it."""
        if self._plain is not None:
            return self._plain.read(observation, ())
        return self._gather(observation, ())

    def many(self, observations: Any, count: int, copy: bool) -> Array:
        """A batch as Gymnasium batches the space -> [count, *shape]; `copy`: never the array given."""
        if self._plain is None:
            return self._gather(observations, (count,))
        return np.array(self._plain.read(observations, (count,)), self._dtype, copy=copy or None)

    def _gather(self, observation: Any, lead: tuple[int, ...]) -> Array:
        out = np.empty((*lead, self._ends[-1]), self._dtype)
        for leaf, end in zip(self._leaves, self._ends, strict=True):
            out[..., end - leaf.size : end] = leaf.read(observation, lead).reshape(*lead, leaf.size)
        return out


def discrete_actions(name: str, space: Space[Any]) -> tuple[int, int]:
    """How many actions there are, and the number of the first."""
    if isinstance(space, spaces.Discrete):
        return int(space.n), int(space.start)
    kind = "a continuous" if isinstance(space, spaces.Box) else "the"
    raise UserError(
        f"{name} has {kind} action space {space}; the agents here choose among discrete actions: discretise "
        "it with a wrapper, e.g. gymnasium.wrappers.TransformAction(env, lambda a: TABLE[a], Discrete(n))"
    )
