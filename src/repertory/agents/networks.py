"""Flax networks from observations to a row of outputs, chosen by name or brought by the user.

The agent decides what the outputs mean (values, dueling streams, atoms): a module returns `[batch, outputs]`.
A package brings a network by an entry point of the group `repertory.networks` that names a `NetworkKind`; a program
calls `register`. Both are chosen by `--network.kind NAME`. `--network.module` names a function that builds a module.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from repertory.agents import Kinds
from repertory.agents.vector import Layout
from repertory.errors import UserError
from repertory.limits import NonNegative
from repertory.specs import ObservationSpec, Part
from repertory.user_code import Given, attribute, import_module, is_file, is_lost, load_file, name_of, split

Initializer = jax.nn.initializers.Initializer
LECUN = nn.initializers.lecun_normal()
CACHED = "repertory: cached for the backward pass"
"""Checkpoint name of what is costly to compute and cheap to cache: the layers' outputs before their ReLU."""
CONVOLUTIONS: Mapping[str, tuple[tuple[tuple[int, int, int], ...], int]] = {
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    "first": (((16, 8, 4), (32, 4, 2)), 256),
}
"""Features, size and stride of each layer, and the width of the hidden layer after them."""


@dataclass(frozen=True)
class NetworkOptions:
    """The neural network that reads the observations."""

    kind: str = "auto"
    """Network architecture: `mlp`, `nature` (CNN of Mnih et al. 2015), `first` (smaller CNN of 2013), `small` (CNN for
    10×10 MinAtar planes); `auto` = by the observation space."""
    hidden: tuple[int, ...] = (120, 84)
    """Hidden layers of an `mlp`: units of each; typically 64 to 512."""
    module: str | None = None
    """Your own Flax module: `path/file.py:build` or `package.module:build`, where `build(outputs)` returns it."""
    lstm_size: NonNegative[int] = 0
    """Actor-critic agents: units of an LSTM between the network and its outputs; 0 = no LSTM, typically 64 to 512."""
    separate: bool = False
    """Actor-critic agents: separate networks for policy and value, with no shared layer."""
    start: Literal["auto", "lecun", "he"] = "auto"
    """Weight initialization, except noisy layers: `lecun` (variance 1/inputs) or `he` (2/inputs, and a nearly uniform
    policy at the start); `auto` = he for actor-critic agents with `nature` or `first`, else lecun."""

    def check(self) -> None:
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
        uniform, constant = nn.initializers.uniform(2 * bound), nn.initializers.constant(self.sigma * bound)
        kernel = self.param("kernel", lambda key, shape: uniform(key, shape) - bound, (inputs, self.features))
        bias = self.param("bias", lambda key, shape: uniform(key, shape) - bound, (self.features,))
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
    """Convolution with stride 1 as patches × matrix, for small planes: XLA's own is naive loops in a scan on the CPU.

    On large pictures the patches take longer to lay out than to multiply.
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
    """Network inputs from stored observations: float32, categories one-hot, image planes last."""
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
    policy: nn.Module
    value: nn.Module

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        return jnp.concatenate([self.policy(observation), self.value(observation)], axis=-1)


class Recurrent(nn.Module):
    """Features of each observation, an LSTM over time, and a head. The recurrent state is one row of `2 · width`."""

    inner: nn.Module
    width: int
    outputs: int
    head_init: Initializer = LECUN

    def setup(self) -> None:
        self.cell = nn.OptimizedLSTMCell(self.width)
        self.head = nn.Dense(self.outputs, kernel_init=self.head_init)

    def features(self, observation: jax.Array) -> jax.Array:
        return nn.relu(self.inner(observation))

    def step(self, state: jax.Array, features: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
        """From one recurrent state to the next; an episode's first step begins with zeros."""
        memory, hidden = jnp.split(jnp.where(first[:, None], 0.0, state), 2, axis=-1)
        (memory, hidden), seen = self.cell((memory, hidden), features)
        return jnp.concatenate([memory, hidden], axis=-1), self.head(seen)

    def __call__(self, observation: jax.Array) -> jax.Array:
        empty = jnp.zeros((observation.shape[0], 2 * self.width))
        return self.step(empty, self.features(observation), jnp.ones(observation.shape[0], bool))[1]


class EncodedModule(nn.Module):
    """A user's module, which reads encoded observations: float32."""

    observation: ObservationSpec
    inner: nn.Module

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        return self.inner(encode(observation, self.observation))


POLICY_GAIN = 0.01
"""So small that the policy is nearly uniform at the start."""


@dataclass(frozen=True)
class NetworkKind:
    name: str
    summary: str
    build: Callable[[NetworkOptions, ObservationSpec, int], nn.Module] | None = None
    """Takes options, the observation's spec and the number of outputs. The module maps float32 `[batch, ...]`, images
    with their planes last, to `[batch, outputs]`. None = built in."""
    images: bool = False
    """Whether it reads images only."""
    convolves: bool = True
    """Whether it may contain convolutions: these never run inside a scan on the CPU."""


_KINDS = Kinds(
    "network.kind",
    "repertory.networks",
    (
        NetworkKind("mlp", "hidden layers as wide as --network.hidden says", convolves=False),
        NetworkKind("nature", "three convolutions (Mnih et al. 2015)", images=True),
        NetworkKind("first", "two convolutions (Mnih et al. 2013)", images=True),
        NetworkKind("small", "one convolution, for 10×10 planes (Young and Tian 2019)", images=True, convolves=False),
    ),
)
register, unregister, known, find = _KINDS.register, _KINDS.unregister, _KINDS.known, _KINDS.find


def choose_kind(options: NetworkOptions, spec: ObservationSpec) -> NetworkKind:
    if options.module is not None:
        return NetworkKind(options.module, "a user's module", partial(_build_module, options.module))
    if options.kind != "auto":
        kind = find(options.kind)
        if kind.images and not spec.is_image:
            raise UserError(
                f"network.kind {options.kind!r} reads images, but the observation has shape {spec.seen_shape}; "
                "use --network.kind mlp"
            )
        return kind
    if not spec.is_image:
        return find("mlp")
    height_width = spec.seen_shape[1:] if spec.planes_first else spec.seen_shape[:2]
    return find("nature" if min(height_width) >= 36 else "small" if min(height_width) >= 3 else "mlp")


def initializers(options: NetworkOptions, gains: Sequence[float] = (1.0,)) -> tuple[Initializer, Initializer]:
    """For hidden layers, and for a head with a gain for each output.

    Orthogonal matrices, which others use for this, learned no sooner, and have to be factorised first.
    """
    if options.start != "he":
        return LECUN, LECUN

    def head(key: Any, shape: Any, *rest: Any, **more: Any) -> jax.Array:
        return LECUN(key, shape, *rest, **more) * jnp.asarray(gains)

    return nn.initializers.he_normal(), head


def build_network(
    options: NetworkOptions,
    spec: ObservationSpec,
    streams: tuple[int, ...],
    noisy: bool,
    gains: Sequence[float] = (1.0,),
) -> nn.Module:
    """A network with `sum(streams)` outputs."""
    kind = choose_kind(options, spec)
    if kind.build is None:
        return Network(spec, kind.name, tuple(options.hidden), streams, noisy, *initializers(options, gains))
    if noisy or options.start == "he":
        wish = "--agent.noisy" if noisy else "--network.start he"
        raise UserError(
            f"{wish} changes the layers of a built-in network and cannot reach into {kind.name!r}; drop one of the two"
        )
    what = f"{'network.module' if options.module else 'network.kind'} {kind.name!r}"
    try:
        network = kind.build(options, spec, sum(streams))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} raised {type(error).__name__}: {error}") from None
    if not isinstance(network, nn.Module):
        raise UserError(f"{what} returned {type(network).__name__}, not a flax.linen.Module")
    return EncodedModule(spec, network)


def build_policy_network(options: NetworkOptions, spec: ObservationSpec, actions: int) -> nn.Module:
    """Policy logits and a value, `[batch, actions + 1]`."""
    if options.start == "auto" and choose_kind(options, spec).name in CONVOLUTIONS:
        options = replace(options, start="he")
    gains = [POLICY_GAIN] * actions + [1.0]
    if options.lstm_size:
        inner = build_network(options, spec, (options.lstm_size,), False, (math.sqrt(2),))
        return Recurrent(inner, options.lstm_size, actions + 1, initializers(options, gains)[1])
    if options.separate:
        policy = build_network(options, spec, (actions,), False, gains[:-1])
        return Separate(policy, build_network(options, spec, (1,), False))
    return build_network(options, spec, (actions + 1,), False, gains)


def measure_layout(module: nn.Module, spec: ObservationSpec, outputs: int, network: NetworkOptions) -> Layout:
    """The layout of the module's weights; refuses a module that can't read observations or has the wrong outputs."""
    sample = jax.ShapeDtypeStruct((2, *spec.seen_shape), spec.dtype)
    name = network.module or network.kind
    try:
        result, variables = jax.eval_shape(lambda x: module.init_with_output(jax.random.key(0), x), sample)
    except UserError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"the network {name!r} can't read observations {spec.seen_shape}: {reason}") from None
    if getattr(result, "shape", None) != (2, outputs):
        given = getattr(result, "shape", type(result).__name__)
        raise UserError(f"the network {name!r} returned shape {given} for a batch of 2; it must return (2, {outputs})")
    if set(variables) != {"params"}:
        raise UserError(f"the network {name!r} has variables {sorted(variables)}; it must have 'params' and no others")
    return Layout.of(variables["params"])


def name_module(given: Any) -> str | None:
    """The name of what was given as `network.module`; the name of a Python object carries the object along."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, nn.Module):
        kind = type(given).__name__
        raise UserError(
            f"network.module takes a function of the number of outputs, not the {kind} object itself; give for "
            f"example lambda outputs: {kind}(outputs)"
        )
    if not callable(given):
        raise UserError(f"network.module takes a name or a function of the number of outputs, not {given!r}")
    return Given(name_of(given), given)


def _build_module(path: str, _options: NetworkOptions, _spec: ObservationSpec, outputs: int) -> Any:
    build = path.call if isinstance(path, Given) else _find_builder(path)
    try:
        inspect.signature(build).bind(1)
    except TypeError:
        raise UserError(f"network.module {path!r} must take one argument, the number of outputs") from None
    return build(outputs)


def _find_builder(path: str) -> Callable[[int], Any]:
    if is_lost(path):
        raise UserError(f"network.module {path} was a Python object; name it, for example as path/file.py:build")
    place, name = split(path)
    if not place or not name:
        raise UserError(
            f"network.module {path!r} does not name a function; write it as package.module:build or path/file.py:build"
        )
    if is_file(place) and not Path(place).is_file():
        raise UserError(f"network.module {path!r}: there is no file {place}")
    try:
        module = load_file(Path(place)) if is_file(place) else import_module(place)
    except Exception as error:
        raise UserError(f"network.module {path!r} can't be imported: {type(error).__name__}: {error}") from None
    build: Any = attribute(module, name)
    if not callable(build):
        raise UserError(f"network.module {path!r}: {place} has no function {name!r}")
    return build
