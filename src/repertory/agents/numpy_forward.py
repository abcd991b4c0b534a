"""The forward pass of plain networks by NumPy alone, for those who only act; imports NumPy, SciPy and our layout.

A jitted call on a handful of observations costs 60 to 120 µs, nearly all of it dispatch, and a process that makes one
has to start XLA: 25 MB and a compilation for each actor. The same few matrix products by NumPy take 10 to 20 µs. So
multi-layer perceptrons answer small batches here; everything else, and large batches, go through JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import sgemv

from repertory.agents.vector import Layout
from repertory.specs import ObservationSpec

ILLEGAL = np.float32(-1e9)

Vector: TypeAlias = NDArray[np.float32]
NumpyForward: TypeAlias = Callable[[NDArray[Any], NDArray[np.bool_] | None], NDArray[np.float32]]


def make_numpy_forward(
    layout: Layout, spec: ObservationSpec, hidden: int, dueling: bool
) -> Callable[[Vector], NumpyForward]:
    """From a weight vector to a function that answers observations with the network's outputs.

    The network is `hidden` layers and an output, or with `dueling` one layer less and two streams of two.
    """
    layers = hidden + 1 + 2 * dueling
    scale = np.float32(1 / 255) if spec.parts[0].kind == "pixel" else None
    planes_first, plain = spec.planes_first, len(spec.seen_shape) == 1 and spec.dtype == "float32"
    trunk = hidden - 1 if dueling else hidden

    def prepare(weights: Vector) -> NumpyForward:
        cut = layout.views(np.asarray(weights))
        dense = [(cut[f"Dense_{index}/kernel"], cut[f"Dense_{index}/bias"]) for index in range(layers)]

        def values(observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> NDArray[np.float32]:
            x = np.moveaxis(observation, 1, 3) if planes_first else observation
            if not plain:
                x = x.reshape(len(x), -1).astype(np.float32, copy=False)
            if scale is not None:
                x = x * scale
            if len(x) == 1:
                x = x[0]  # a vector: no matrix has to be packed
            for kernel, bias in dense[:trunk]:
                x = _times(x, kernel)
                x += bias
                np.maximum(x, 0.0, out=x)
            result = _streams(x, dense[trunk:]) if dueling else _times(x, dense[-1][0]) + dense[-1][1]
            result = result.reshape(len(observation), -1)
            return result if mask is None else np.where(mask, result, ILLEGAL)

        return values

    return prepare


def _times(x: Vector, kernel: Vector) -> Vector:
    """`x @ kernel`; one observation without giving up the interpreter's lock.

    NumPy gives the lock up for each product. Where many actors share a process another one takes it, and a few µs of
    arithmetic wait for its whole step: with 64 of them, half of the steps were lost so.
    """
    if x.ndim > 1:
        return np.dot(x, kernel)
    product: Vector = sgemv(1.0, kernel.T, x)
    return product


def _streams(x: Vector, dense: list[tuple[Vector, Vector]]) -> Vector:
    """Value plus centred advantages (Wang et al. 2016, equation 9)."""
    rows = []
    for (kernel, bias), (kernel_out, bias_out) in (dense[:2], dense[2:]):
        rows.append(_times(np.maximum(_times(x, kernel) + bias, 0.0), kernel_out) + bias_out)
    value, advantage = rows
    result: Vector = value + advantage - advantage.mean(axis=-1, keepdims=True)
    return result
