"""Flax modules from observations to a row of outputs; imports JAX, Flax and `specs`.

The agent decides what the outputs mean (values, dueling streams, atoms): a module only has to return
`[batch, outputs]`, which is also all that is asked of a user's own module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from repertory.errors import UserError
from repertory.limits import NonNegative
from repertory.specs import ObservationSpec, Part

Initializer = jax.nn.initializers.Initializer
LECUN = nn.initializers.lecun_normal()
CACHED = "repertory: cached for the backward pass"
"""Name of what is costly to compute and cheap to cache: the layers' outputs before their ReLU."""
CONVOLUTIONS: Mapping[str, tuple[tuple[tuple[int, int, int], ...], int]] = {
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    "first": (((16, 8, 4), (32, 4, 2)), 256),
}
"""Features, size and stride of each layer, and the width of the hidden layer after them."""


@dataclass(frozen=True)
class NetworkOptions:
    """Which network reads the observations."""

    kind: str = "auto"
    """`mlp`, `nature` (Mnih et al. 2015), `first` (of 2013, smaller), `small` (10×10 MinAtar planes); `auto`: by the
    observation."""
    hidden: tuple[int, ...] = (120, 84)
    """Widths of the hidden layers of an `mlp`."""
    module: str | None = None
    """Your own Flax module: `path/file.py:build` or `package.module:build`, where `build(outputs)` returns it."""
    lstm_size: NonNegative[int] = 0
    """Actor-critic agents: width of an LSTM between the network and its outputs; 0 = none."""
    separate: bool = False
    """Actor-critic agents: policy and value share no layer."""
    start: Literal["auto", "lecun", "he"] = "auto"
    """First weights of built-in networks, but for noisy layers: `lecun` (normal, variance 1/inputs) or `he` (2/inputs,
    which keeps signals alive through ReLUs, and policies that begin as chance does); `auto`: he for actor-critic agents
    with the networks `nature` and `first`, else lecun."""

    def check(self) -> None:
        """Refuse options that contradict each other."""
        if not self.hidden or min(self.hidden) < 1:
            raise UserError(f"--network.hidden needs widths above 0, not {self.hidden}")
        if self.lstm_size and self.separate:
            raise UserError("--network.lstm-size and --network.separate exclude each other: choose one")


class NoisyDense(nn.Module):
    """Linear layer with factorised Gaussian noise on its weights (Fortunato et al. 2018)."""

    features: int
    sigma: float = 0.5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        inputs = x.shape[-1]
        bound = inputs**-0.5
        uniform = nn.initializers.uniform(2 * bound)
        kernel = self.param("kernel", lambda key, shape: uniform(key, shape) - bound, (inputs, self.features))
        bias = self.param("bias", lambda key, shape: uniform(key, shape) - bound, (self.features,))
        constant = nn.initializers.constant(self.sigma * bound)
        kernel_sigma = self.param("kernel_sigma", constant, (inputs, self.features))
        bias_sigma = self.param("bias_sigma", constant, (self.features,))
        if not self.has_rng("noise"):
            return x @ kernel + bias
        key_in, key_out = jax.random.split(self.make_rng("noise"))
        noise_in, noise_out = (_scaled_noise(k, n) for k, n in ((key_in, inputs), (key_out, self.features)))
        kernel = kernel + kernel_sigma * noise_in[:, None] * noise_out[None, :]
        return x @ kernel + bias + bias_sigma * noise_out


def _scaled_noise(key: jax.Array, size: int) -> jax.Array:
    noise = jax.random.normal(key, (size,))
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))


class PatchConv(nn.Module):
    """Convolution with stride 1 as patches × matrix, for small planes.

    Inside a `lax.scan` on the CPU, XLA falls back to naive loops for a real convolution; a matrix product of shifted
    slices is many times faster there. On large pictures the patches take longer to lay out than to multiply.
    """

    features: int
    size: int = 3
    kernel_init: Initializer = LECUN

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        rows, columns = x.shape[1] - self.size + 1, x.shape[2] - self.size + 1
        shifted = [x[:, i : i + rows, j : j + columns] for i in range(self.size) for j in range(self.size)]
        return nn.Dense(self.features, kernel_init=self.kernel_init)(jnp.concatenate(shifted, axis=-1))


class WholeConv(nn.Module):
    """Convolution that leaves no edge out: zeros fill up the last step; 84 × 84 needs none, in any layer."""

    features: int
    size: int
    stride: int
    kernel_init: Initializer = LECUN

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        missing = [(0, -(side - self.size) % self.stride) for side in x.shape[1:3]]
        square, strides = (self.size, self.size), (self.stride, self.stride)
        return nn.Conv(self.features, square, strides, padding=missing, kernel_init=self.kernel_init)(x)


class Network(nn.Module):
    """Encoder, trunk and head. `streams` > 1 splits the last hidden layer (dueling), outputs concatenated."""

    observation: ObservationSpec
    kind: str
    hidden: tuple[int, ...]
    streams: tuple[int, ...]
    noisy: bool
    kernel_init: Initializer = LECUN
    head_init: Initializer = LECUN

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        dense = NoisyDense if self.noisy else partial(nn.Dense, kernel_init=self.kernel_init)
        head = NoisyDense if self.noisy else partial(nn.Dense, kernel_init=self.head_init)
        x, last = self._features(encode(observation, self.observation), dense)
        outputs = []
        for width in self.streams:
            y = x
            for hidden in last:
                y = nn.relu(checkpoint_name(dense(hidden)(y), CACHED))
            outputs.append(head(width)(y))
        return jnp.concatenate(outputs, axis=-1)

    def _features(self, x: jax.Array, dense: Callable[[int], nn.Module]) -> tuple[jax.Array, tuple[int, ...]]:
        if self.kind in CONVOLUTIONS:
            layers, hidden = CONVOLUTIONS[self.kind]
            for features, size, stride in layers:
                x = nn.relu(checkpoint_name(WholeConv(features, size, stride, self.kernel_init)(x), CACHED))
            return x.reshape(x.shape[0], -1), (hidden,)
        if self.kind == "small":
            x = nn.relu(PatchConv(16, kernel_init=self.kernel_init)(x))
            return x.reshape(x.shape[0], -1), (128,)
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden[:-1]:
            x = nn.relu(dense(width)(x))
        return x, self.hidden[-1:]


def encode(observation: jax.Array, spec: ObservationSpec) -> jax.Array:
    """Stored numbers as network inputs: float32, categories one-hot, image planes last."""
    if len(spec.parts) == 1 and spec.parts[0].kind != "category":
        x = _encode_part(observation, spec.parts[0])
    else:
        flat = observation.reshape(observation.shape[0], -1)
        pieces, start = [], 0
        for part in spec.parts:
            pieces.append(_encode_part(flat[:, start : start + part.stored], part))
            start += part.stored
        x = jnp.concatenate(pieces, axis=-1)
    return jnp.moveaxis(x, 1, 3) if spec.planes_first else x


def _encode_part(x: jax.Array, part: Part) -> jax.Array:
    if part.wide:
        x = jax.lax.bitcast_convert_type(x.reshape(x.shape[0], part.size, 4), jnp.float32)
    if part.kind == "category":
        one_hot = jax.nn.one_hot(x.astype(jnp.int32), part.categories)
        return one_hot.reshape(x.shape[0], -1)
    x = x.astype(jnp.float32)
    return x / 255.0 if part.kind == "pixel" else x


class Separate(nn.Module):
    """Policy and value from two networks, outputs concatenated."""

    policy: nn.Module
    value: nn.Module

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        return jnp.concatenate([self.policy(observation), self.value(observation)], axis=-1)


class Recurrent(nn.Module):
    """Features of each observation, an LSTM that goes through them in time, and a head.

    Its state is one row of `2 · width` numbers, so that it can be stored, sent and reset like any other.
    """

    inner: nn.Module
    width: int
    outputs: int
    head_init: Initializer = LECUN

    def setup(self) -> None:
        self.cell = nn.OptimizedLSTMCell(self.width)
        self.head = nn.Dense(self.outputs, kernel_init=self.head_init)

    def features(self, observation: jax.Array) -> jax.Array:
        """What does not depend on time."""
        return nn.relu(self.inner(observation))

    def turn(self, state: jax.Array, features: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One step in time, from state to state; an episode's first step begins with an empty one."""
        memory, hidden = jnp.split(jnp.where(first[:, None], 0.0, state), 2, axis=-1)
        (memory, hidden), seen = self.cell((memory, hidden), features)
        return jnp.concatenate([memory, hidden], axis=-1), self.head(seen)

    def __call__(self, observation: jax.Array) -> jax.Array:
        empty = jnp.zeros((observation.shape[0], 2 * self.width))
        return self.turn(empty, self.features(observation), jnp.ones(observation.shape[0], bool))[1]


class EncodedModule(nn.Module):
    """A user's module behind our encoding, so that it sees plain float32."""

    observation: ObservationSpec
    inner: nn.Module

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        result: jax.Array = self.inner(encode(observation, self.observation))
        return result
