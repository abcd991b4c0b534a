"""How a network is computed on a device: decided once, by one pure function; imports JAX's configuration only.

XLA's CPU back end runs a convolution inside `scan` 10 to 30 times slower and gives one call no second core, and a call
on a handful of observations is nearly all dispatch. An accelerator has none of these troubles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax

from repertory.agents.network_registry import choose_kind
from repertory.agents.networks import CONVOLUTIONS, NetworkOptions
from repertory.specs import ObservationSpec

SLICE_ROWS = 32
NUMPY_ROWS = 64
"""Largest batch for which NumPy is faster than a compiled call."""
CACHED_ROWS = 96
"""Enough to fill the processor, and few enough for its cache."""


@dataclass(frozen=True)
class Strategy:
    """The defaults suit an accelerator: whole batches, several updates in one compiled scan, everything by JAX."""

    slice_rows: int = 0
    """A batch is cut into slices of at most so many rows, each a compiled call; 0 = whole batches in one scan."""
    threads: int = 1
    """Threads that compute slices side by side."""
    numpy_rows: int = 0
    """Batches of at most so many observations are answered by NumPy; 0 = none."""
    cached_rows: int = 0
    """Rows of a backward pass from activations cached while acting; 0 = none are cached."""
    prefetch_target: bool = False
    """Whether another thread may ask the target network about the next batch, by NumPy."""

    def without_numpy(self) -> Strategy:
        """For outputs that are more than a value for each action, or layers with noise."""
        return replace(self, numpy_rows=0, prefetch_target=False)


def choose_strategy(network: NetworkOptions, observation: ObservationSpec, device: str, threads: int = 1) -> Strategy:
    """`device` is a JAX platform: cpu, cuda, tpu. `threads` are those that the process may use."""
    if device != "cpu":
        return Strategy()
    kind = choose_kind(network, observation)
    plain = kind.build is None and not network.core and not network.separate
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
    """The platform that JAX is told to use, the CPU by default.

    JAX itself is not asked: it would start XLA, which costs an actor without need of it 25 MB.
    """
    return str(getattr(jax.config, "jax_platforms", None) or "cpu").split(",")[0]
