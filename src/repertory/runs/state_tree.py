"""The state of a run as a JSON tree and named arrays. Imports numpy and its neighbour `array_file` only.

A state is nested dicts with string keys; at the leaves are arrays, whole numbers of any size (the state of
a random generator has 128 bits), floats (exact, and not only the finite ones), strings, booleans, None and
lists. Numpy scalars come back as Python's. Anything else is refused rather than changed: a tuple would come
back as a list.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from repertory.runs.array_file import Array, can_hold

State: TypeAlias = "Mapping[str, State | Array | int | float | str | bool | list[Any] | None]"


def split(state: State) -> tuple[dict[str, Any], dict[str, dict[str, Array]]]:
    """The JSON tree, and the arrays of each top-level key by the name that the tree gives them."""
    tree: dict[str, Any] = {}
    parts: dict[str, dict[str, Array]] = {}
    for part, value in state.items():
        if not (part.isidentifier() and part.isascii()):
            raise ValueError(f"a top-level key names a file, so it must be an identifier, not {part!r}")
        arrays: dict[str, Array] = {}
        tree[part] = _encode(value, part, arrays)
        if arrays:
            parts[part] = arrays
    return tree, parts


def _encode(value: Any, where: str, arrays: dict[str, Array]) -> Any:
    """`value` as JSON; what JSON lacks becomes `{"$array": name}` or `{"$float": "nan"}`."""
    if isinstance(value, Mapping):
        return {_escape(key, where): _encode(item, f"{where}/{key}", arrays) for key, item in value.items()}
    if isinstance(value, list):
        return [_encode(item, f"{where}/{index}", arrays) for index, item in enumerate(value)]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "__array__"):
        return {"$array": _collect(np.asarray(value), where, arrays)}
    raise TypeError(f"{where} is a {type(value).__name__}, which a checkpoint cannot hold")


def _escape(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{where} has the key {key!r}, but only strings can be keys")
    return f"${key}" if key.startswith("$") else key


def _collect(array: Array, where: str, arrays: dict[str, Array]) -> str:
    if not can_hold(array.dtype):
        raise TypeError(f"{where} is an array of {array.dtype}, which a checkpoint cannot hold")
    name = where.encode("utf-8", "replace").decode()
    while name in arrays or name == "__metadata__":  # safetensors keeps that name for itself
        name += "'"
    arrays[name] = array
    return name


def join(value: Any, arrays: Mapping[str, Array]) -> Any:
    """The state again, from the tree of one top-level key and its arrays."""
    if isinstance(value, list):
        return [join(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        return arrays[value["$array"]]
    if "$float" in value:
        return float(value["$float"])
    return {key.removeprefix("$"): join(item, arrays) for key, item in value.items()}
