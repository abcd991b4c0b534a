"""The state of a run as a JSON tree and a safetensors file of named arrays.

The files are written here and not by the safetensors package, because a replay of many gigabytes must be saved without
a second copy in memory: up to 0.7 the package copies every array, and since 0.8 it writes wrong bytes for an array that
is not contiguous. The format is an 8-byte little-endian length, a JSON header of that length, and the raw arrays one
after the other: https://huggingface.co/docs/safetensors

The checksum is CRC-32. It finds damage, not malice, and must not be slower than the disk: it makes 3,600 MB/s on one
core where SHA-256 makes 1,600 and BLAKE2b 790.

Arrays of `MAP_FROM_BYTES` or more are read as private copy-on-write maps of the file: they cost page cache, which the
system can reclaim, and ordinary memory only where they are written to. The file never changes.

A state is nested dicts with string keys; its leaves are arrays, integers of any size (the state of a random generator
has 128 bits), floats (exact, also not finite ones), strings, booleans, None and lists. Numpy scalars come back as
Python's. Other types are refused: a tuple would come back as a list.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

Array: TypeAlias = NDArray[Any]

CHUNK_BYTES = 8 << 20
MAP_FROM_BYTES = 64 << 20

_NAMES = {"BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4"}
_NAMES |= {"I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8"}
_DTYPES = {code: np.dtype(name) for code, name in _NAMES.items()}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> dict[str, int]:
    """Write a new file through to the disk; its `bytes` and `crc32`."""
    size = crc = 0
    with path.open("xb") as file:
        for chunk in chunks:
            file.write(chunk)
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "crc32": crc}


def measure_file(path: Path) -> dict[str, int]:
    """The `bytes` and `crc32` of a file on the disk."""
    size = crc = 0
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            size += count
            crc = zlib.crc32(buffer[:count], crc)
    return {"bytes": size, "crc32": crc}


def encode_arrays(arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """The chunks of a safetensors file that holds `arrays`."""
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)  # so that each one is aligned
    header, end = {}, 0
    for name, array in ordered:
        start, end = end, end + array.nbytes
        code = _CODES[array.dtype.newbyteorder("<")]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, array in ordered:
        yield from _raw(array)


def _raw(array: Array) -> Iterator[memoryview]:
    """The array's bytes in C order; only a strided or byte-swapped array is copied, one chunk at a time."""
    walk = np.nditer(
        array,
        ["external_loop", "buffered", "zerosize_ok"],
        op_dtypes=[array.dtype.newbyteorder("<")],
        order="C",
        casting="equiv",
        buffersize=CHUNK_BYTES // array.itemsize,
    )
    for chunk in walk:
        yield np.ascontiguousarray(chunk).view(np.uint8).data


def decode_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a safetensors file; `SafetensorError` or `KeyError` if it is none that we write."""
    with safe_open(path, framework="numpy"):
        pass  # the package has now checked the header: every offset is in the file, and fits its shape
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    mapped = np.asarray(np.memmap(path, dtype=np.uint8, mode="c", offset=0))[8 + length :]
    return {name: _view(mapped, **entry) for name, entry in header.items() if name != "__metadata__"}


def _view(mapped: Array, dtype: str, shape: list[int], data_offsets: list[int]) -> Array:
    start, end = data_offsets
    array: Array = mapped[start:end].view(_DTYPES[dtype]).reshape(shape)
    return array if array.nbytes >= MAP_FROM_BYTES else array.copy()


State: TypeAlias = "Mapping[str, State | Array | int | float | str | bool | list[Any] | None]"


def split(state: State) -> tuple[dict[str, Any], dict[str, dict[str, Array]]]:
    """The JSON tree, and the arrays of each top-level key by their names in the tree."""
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
    if array.dtype.newbyteorder("<") not in _CODES:
        raise TypeError(f"{where} is an array of {array.dtype}, which a checkpoint cannot hold")
    name = where.encode("utf-8", "replace").decode()
    while name in arrays or name == "__metadata__":  # safetensors reserves that name
        name += "'"
    arrays[name] = array
    return name


def join(value: Any, arrays: Mapping[str, Array]) -> Any:
    """The state, from the tree of one top-level key and its arrays."""
    if isinstance(value, list):
        return [join(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        return arrays[value["$array"]]
    if "$float" in value:
        return float(value["$float"])
    return {key.removeprefix("$"): join(item, arrays) for key, item in value.items()}
