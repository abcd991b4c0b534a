"""Networks by name: those of this package, those from outside, and a user's own module; imports JAX and Flax.

A package brings a network by an entry point of the group `repertory.networks` that names a `NetworkKind`; a program
calls `register`. Both are chosen by `--network.kind NAME`. A module that is given as `--network.module` is a kind
that has no name in the table.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from repertory.agents.kinds import Kinds
from repertory.agents.networks import (
    CONVOLUTIONS,
    LECUN,
    EncodedModule,
    Initializer,
    Network,
    NetworkOptions,
    Recurrent,
    Separate,
)
from repertory.agents.vector import Layout
from repertory.errors import UserError
from repertory.specs import ObservationSpec
from repertory.user_code import Given, attribute, import_module, is_file, is_lost, load_file, name_of, split

POLICY_GAIN = 0.01
"""So small that a policy begins as chance does."""
Build = Callable[[NetworkOptions, ObservationSpec, int], nn.Module]


@dataclass(frozen=True)
class NetworkKind:
    """How networks of one name are built."""

    name: str
    summary: str
    build: Build | None = None
    """Takes options, the observation's spec and the number of outputs. The module maps float32 `[batch, ...]`, images
    with their planes last, to `[batch, outputs]`. None = built in."""
    images: bool = False
    """Whether it reads images only."""
    convolves: bool = True
    """Whether it has, or may have, convolutions: these are never scanned on the CPU."""


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
    """The network that the options ask for; `auto` goes by the observation."""
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


def first_weights(options: NetworkOptions, gains: Sequence[float] = (1.0,)) -> tuple[Initializer, Initializer]:
    """Of hidden layers, and of a head whose outputs have these gains each: small ones begin near 0.

    Orthogonal matrices, which others take for this, learned no sooner, and have to be factorised first.
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
    """The network that the options ask for, with `sum(streams)` outputs."""
    kind = choose_kind(options, spec)
    if kind.build is None:
        return Network(spec, kind.name, tuple(options.hidden), streams, noisy, *first_weights(options, gains))
    if noisy or options.start == "he":
        wish = "--agent.noisy" if noisy else "--network.start he"
        raise UserError(
            f"{wish} changes the layers of a built-in network and cannot reach into {kind.name!r}; drop one of the two"
        )
    given = "network.module" if options.module else "network.kind"
    return EncodedModule(spec, _checked(f"{given} {kind.name!r}", partial(kind.build, options, spec, sum(streams))))


def build_policy_network(options: NetworkOptions, spec: ObservationSpec, actions: int) -> nn.Module:
    """A row of action preferences and a value, `[batch, actions + 1]`."""
    if options.start == "auto" and choose_kind(options, spec).name in CONVOLUTIONS:
        options = replace(options, start="he")
    gains = [POLICY_GAIN] * actions + [1.0]
    if options.lstm_size:
        inner = build_network(options, spec, (options.lstm_size,), False, (math.sqrt(2),))
        return Recurrent(inner, options.lstm_size, actions + 1, first_weights(options, gains)[1])
    if options.separate:
        policy = build_network(options, spec, (actions,), False, gains[:-1])
        return Separate(policy, build_network(options, spec, (1,), False))
    return build_network(options, spec, (actions + 1,), False, gains)


def measure_layout(module: nn.Module, spec: ObservationSpec, outputs: int, network: NetworkOptions) -> Layout:
    """The layout of the module's weights; refuses a module that can't read or has the wrong outputs."""
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
    """The name of what was given as `network.module`; that of a Python object carries the object along."""
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


def _checked(what: str, build: Callable[[], Any]) -> nn.Module:
    """What `build` returns; every way in which it can fail is one sentence."""
    try:
        network = build()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} raised {type(error).__name__}: {error}") from None
    if not isinstance(network, nn.Module):
        raise UserError(f"{what} returned {type(network).__name__}, not a flax.linen.Module")
    return network


def _build_module(path: str, _options: NetworkOptions, _spec: ObservationSpec, outputs: int) -> Any:
    """By the user's `build(outputs)`, found by its name."""
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
    build = attribute(module, name)
    if not callable(build):
        raise UserError(f"network.module {path!r}: {place} has no function {name!r}")
    found: Callable[[int], Any] = build
    return found
