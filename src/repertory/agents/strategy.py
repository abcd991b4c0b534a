"""How a network is computed on a device: decided once, by one pure function; and the NumPy forward pass.

XLA's CPU back end runs a convolution inside `scan` 10 to 30 times slower and gives one call no second core. A jitted
call on a handful of observations costs 60 to 120 µs, nearly all of it dispatch, and a process that makes one has to
start XLA: 25 MB and a compilation for each actor. The same few matrix products by NumPy take 10 to 20 µs. So on the CPU
multi-layer perceptrons run small batches by NumPy; everything else goes through JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import sgemv

from repertory.agents.networks import CONVOLUTIONS, NetworkOptions, choose_kind
from repertory.agents.vector import Layout
from repertory.specs import ObservationSpec

ILLEGAL = np.float32(-1e9)
SLICE_ROWS = 32
NUMPY_ROWS = 64
"""Largest batch for which NumPy is faster than a compiled call."""
CACHED_ROWS = 96
"""Enough to fill the processor, and few enough for its cache."""

Vector: TypeAlias = NDArray[np.float32]
NumpyForward: TypeAlias = Callable[[NDArray[Any], NDArray[np.bool_] | None], Vector]


@dataclass(frozen=True)
class Strategy:
    """The defaults suit an accelerator: whole batches, several updates in one compiled scan, everything by JAX."""

    slice_rows: int = 0
    """A batch is cut into slices of at most so many rows, each a compiled call; 0 = whole batches in one scan."""
    threads: int = 1
    """Threads that compute slices side by side."""
    numpy_rows: int = 0
    """Largest batch of observations for the NumPy forward pass; 0 = no NumPy."""
    cached_rows: int = 0
    """Rows of a backward pass from activations cached while acting; 0 = none are cached."""
    prefetch_target: bool = False
    """Whether another thread may run the target network on the next batch, by NumPy."""

    def without_numpy(self) -> Strategy:
        """For outputs that are more than a value for each action, or layers with noise."""
        return replace(self, numpy_rows=0, prefetch_target=False)


def choose_strategy(network: NetworkOptions, observation: ObservationSpec, device: str, threads: int = 1) -> Strategy:
    """`device` is a JAX platform: cpu, cuda, tpu. `threads` are those that the process may use."""
    if device != "cpu":
        return Strategy()
    kind = choose_kind(network, observation)
    plain = kind.build is None and not network.lstm_size and not network.separate
    numeric = len(observation.parts) == 1 and observation.parts[0].kind != "category"
    numpy = plain and numeric and kind.name == "mlp"
    cached = plain and kind.name in CONVOLUTIONS
    return Strategy(
        slice_rows=SLICE_ROWS if kind.convolves else 0,
        threads=threads if kind.convolves else 1,
        numpy_rows=NUMPY_ROWS if numpy else 0,
        cached_rows=CACHED_ROWS if cached else 0,
        prefetch_target=numpy,
    )


def device() -> str:
    """The platform that JAX computes on.

    Only where a plug-in for a GPU or TPU is installed, JAX itself decides: that starts XLA, which costs an actor that
    needs none 25 MB.
    """
    chosen = getattr(jax.config, "jax_platforms", None)
    if chosen:
        return str(chosen).split(",")[0]
    return jax.default_backend() if find_spec("jax_plugins") or find_spec("libtpu") else "cpu"


def make_numpy_forward(
    layout: Layout, spec: ObservationSpec, hidden: int, dueling: bool
) -> Callable[[Vector], NumpyForward]:
    """From a weight vector to a function from observations to the network's outputs.

    The network is `hidden` layers and an output, or with `dueling` one layer less and two streams of two.
    """
    layers = hidden + 1 + 2 * dueling
    scale = np.float32(1 / 255) if spec.parts[0].kind == "pixel" else None
    planes_first, plain = spec.planes_first, len(spec.seen_shape) == 1 and spec.dtype == "float32"
    trunk = hidden - 1 if dueling else hidden

    def prepare(weights: Vector) -> NumpyForward:
        cut = layout.views(np.asarray(weights))
        dense = [(cut[f"Dense_{index}/kernel"], cut[f"Dense_{index}/bias"]) for index in range(layers)]

        def values(observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> Vector:
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
    """`x @ kernel`; one observation without releasing the interpreter's lock.

    NumPy releases the lock for each product. Where many actors share a process another one takes it, and a few µs of
    arithmetic wait for that actor's whole step: with 64 actors, half of the steps were lost this way.
    """
    return np.dot(x, kernel) if x.ndim > 1 else sgemv(1.0, kernel.T, x)


def _streams(x: Vector, dense: list[tuple[Vector, Vector]]) -> Vector:
    """Value plus centred advantages (Wang et al. 2016, equation 9)."""
    value, advantage = (
        _times(np.maximum(_times(x, kernel) + bias, 0.0), kernel_out) + bias_out
        for (kernel, bias), (kernel_out, bias_out) in (dense[:2], dense[2:])
    )
    return value + advantage - advantage.mean(axis=-1, keepdims=True)
