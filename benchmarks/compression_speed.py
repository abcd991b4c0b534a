"""Microseconds to encode and to decode a gradient by each method, on one thread; prints one JSON line.

python benchmarks/compression_speed.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from repertory.agents.compression import METHODS, Compression, make_compression
from repertory.runtime import start_jax

SIZES = {"mlp": 10_934, "convolutional": 1_693_362}
SECONDS = 1.5  # a figure; its best call is reported, for what other processes take is no part of it


def best_microseconds(function: Callable[..., Any], *arguments: Any) -> float:
    """The fastest of as many calls as the time allows, after one that compiles."""
    jax.block_until_ready(function(*arguments))
    best, end = float("inf"), time.perf_counter() + SECONDS
    while (start := time.perf_counter()) < end:
        jax.block_until_ready(function(*arguments))
        best = min(best, time.perf_counter() - start)
    return round(best * 1e6, 1)


def measure(compression: Compression, gradient: jax.Array) -> dict[str, float]:
    """Both ways, with a residual of earlier gradients; payloads are decoded from numpy, as from a slot."""
    residual = compression.residual()
    for _ in range(10):
        payload, residual = compression.encode(gradient, residual)
    slot = {name: np.array(array) for name, array in payload.items()}
    return {
        "encode_us": best_microseconds(compression.encode, gradient, residual),
        "decode_us": best_microseconds(compression.decode, slot),
        "share_of_bytes": round(compression.nbytes / (4 * compression.size), 4),
    }


def main() -> None:
    start_jax(threads=1)
    report: dict[str, dict[str, Any]] = {}
    for network, size in SIZES.items():
        gradient = jnp.array(np.random.default_rng(0).standard_normal(size) ** 3, jnp.float32)
        methods = {name: measure(make_compression(name, size), gradient) for name in METHODS}
        report[network] = {"size": size, **methods}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
