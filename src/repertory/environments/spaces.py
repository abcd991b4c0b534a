"""Gymnasium spaces read as specs, and observations turned into the numbers that are stored.

| space                        | stored                       | read as            |
| ---------------------------- | ---------------------------- | ------------------ |
| Box of floats or integers    | float32, same shape          | number             |
| Box of uint8                 | uint8, same shape            | pixel              |
| Box of bool, MultiBinary     | uint8, same shape            | number             |
| Discrete, MultiDiscrete      | a vector of 0-based indices  | category           |
| Tuple, Dict, however nested  | one vector, leaf after leaf  | each leaf as above |

Categories are stored as uint8 if all of them fit (up to 256), else as float32. Leaves of a Tuple or Dict keep the type
they would have alone. Where that is uint8 for some and float32 for others, the vector is one of bytes, in which each
float32 takes four: a picture of 12,288 pixels and 5 floats take 12,308 bytes. Integers beyond ±2^24 are rounded, as
float32 does."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
from gymnasium import Space, spaces
from numpy.typing import NDArray

from repertory.errors import UserError
from repertory.specs import ObservationSpec, Part

Array = NDArray[Any]
Path = tuple[str | int, ...]

_SIDE = 3
"""A picture has three axes, and the smallest network that reads one by convolution needs sides of this length."""
_SUPPORTED = "Box, Discrete, MultiBinary, MultiDiscrete, and Tuple or Dict of these"


class UnfitError(ValueError):
    """An observation that does not fit its space; the caller adds the environment's name."""


@dataclass(frozen=True)
class _Leaf:
    """One simple space, its path in the nested space, and how it is stored."""

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

    @property
    def stored(self) -> int:
        return sum(part.stored for part in self.parts)

    @property
    def wide(self) -> bool:
        return any(part.wide for part in self.parts)

    @property
    def is_picture(self) -> bool:
        return len(self.shape) == 3 and sorted(self.shape)[1] >= _SIDE

    def widened(self) -> _Leaf:
        """The same leaf in a row of bytes."""
        if self.small:
            return self
        return replace(self, parts=tuple(replace(part, wide=True) for part in self.parts))

    def __str__(self) -> str:
        return f"{'/'.join(map(str, self.path))} ({'×'.join(map(str, self.shape))})"

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
    """Turns the observations of one space into stored arrays; free for a plain Box of the stored type."""

    def __init__(self, space: Space[Any]) -> None:
        leaves = tuple(_leaves(space))
        small = any(leaf.small for leaf in leaves)
        self._leaves = tuple(leaf.widened() for leaf in leaves) if small else leaves
        self._ends = list(itertools.accumulate(leaf.stored for leaf in self._leaves))
        if not self._ends or not self._ends[-1]:
            raise UserError(f"the observation space {space} holds no number")
        first = self._leaves[0]
        whole = not first.path and first.limit is None and first.shape != ()
        self._plain = first if whole else None
        self._dtype = np.dtype(np.uint8 if small else np.float32)
        self._wide = [slice(end - leaf.stored, end) for leaf, end in self._placed() if leaf.wide]
        self.spec = ObservationSpec(
            shape=first.shape if whole else (self._ends[-1],),
            dtype="uint8" if small else "float32",
            parts=tuple(part for leaf in self._leaves for part in leaf.parts),
            pictures=() if whole else tuple(str(leaf) for leaf in self._leaves if leaf.is_picture),
        )

    def _placed(self) -> Iterator[tuple[_Leaf, int]]:
        return zip(self._leaves, self._ends, strict=True)

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
        """A batch as Gymnasium batches the space -> [count, *shape]; with `copy` always a new array."""
        if self._plain is None:
            return self._gather(observations, (count,))
        return np.array(self._plain.read(observations, (count,)), self._dtype, copy=copy or None)

    def numbers(self, stored: Array) -> Array:
        """The numbers among stored observations [E, *shape] that might not be finite: [E, ...]."""
        if not self._wide:
            return stored
        return np.concatenate([stored[:, place].view(np.float32) for place in self._wide], axis=1)

    def _gather(self, observation: Any, lead: tuple[int, ...]) -> Array:
        out = np.empty((*lead, self._ends[-1]), self._dtype)
        for leaf, end in self._placed():
            place = out[..., end - leaf.stored : end]
            if leaf.wide:
                place = place.view(np.float32)
            place[...] = leaf.read(observation, lead).reshape(*lead, leaf.size)
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


def write_space(space: Space[Any]) -> str:
    return json.dumps(_plain(space))


def read_space(text: str) -> Space[Any]:
    return _space(json.loads(text))


def leading_axes(space: Space[Any], observation: Any) -> tuple[int, ...]:
    """`()` for one observation, `(N,)` for N of them as Gymnasium batches the space."""
    while isinstance(space, spaces.Dict | spaces.Tuple):
        key: Any = next(iter(space.spaces)) if isinstance(space, spaces.Dict) else 0
        space, observation = space.spaces[key], observation[key]
    shape: tuple[int, ...] = np.shape(observation)
    return shape[: len(shape) - len(space.shape or ())]


def _plain(space: Space[Any]) -> dict[str, Any]:
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "spaces": [[key, _plain(inner)] for key, inner in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "spaces": [_plain(inner) for inner in space.spaces]}
    found: dict[str, Any] = {"shape": list(space.shape or ()), "dtype": np.dtype(space.dtype).name}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": found["dtype"]}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist(), **found}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "shape": found["shape"]}
    return {"kind": "Box", **found}


def _space(values: Mapping[str, Any]) -> Space[Any]:
    kind = values["kind"]
    if kind == "Dict":
        return spaces.Dict([(key, _space(inner)) for key, inner in values["spaces"]])
    if kind == "Tuple":
        return spaces.Tuple([_space(inner) for inner in values["spaces"]])
    if kind == "MultiBinary":
        return spaces.MultiBinary(values["shape"])
    dtype = np.dtype(values["dtype"]).type
    if kind == "Discrete":
        return spaces.Discrete(values["n"], start=values["start"], dtype=dtype)
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(values["nvec"]), dtype=dtype, start=np.array(values["start"]))
    low, high = _bounds(np.dtype(dtype))
    return spaces.Box(low, high, tuple(values["shape"]), dtype)


def _bounds(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    return (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
