"""Observation spaces as text, so that a trained agent reads observations without its environment; imports gymnasium.

Only what tells how an observation is read is kept: a Box comes back with its shape and type, not with its bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces


def write(space: Space[Any]) -> str:
    """The space as JSON."""
    return json.dumps(_plain(space))


def read(text: str) -> Space[Any]:
    """The space that `write` was given."""
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
