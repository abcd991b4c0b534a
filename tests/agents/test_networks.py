"""Networks: observations as inputs, layers against their twins, weights as a vector, and a user's own module."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import twins
from repertory.agents.networks import (
    LECUN,
    NetworkOptions,
    NoisyDense,
    PatchConv,
    WholeConv,
    build_network,
    build_policy_network,
    choose_kind,
    encode,
)
from repertory.agents.q_learning import QLearningOptions, make_q_learning
from repertory.agents.vector import Layout
from repertory.errors import UserError
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

VECTOR = EnvironmentSpec(ObservationSpec((3,), "float32", (Part("number", 3),)), actions=4)


def image(*shape: int, stack: int = 1) -> ObservationSpec:
    return ObservationSpec(shape, "uint8", (Part("pixel", int(np.prod(shape))),), stack)


def pixels(spec: ObservationSpec) -> Any:
    return np.random.default_rng(0).integers(0, 256, (2, *spec.seen_shape)).astype(np.uint8)


# Observations as inputs.


def test_numbers_are_read_as_they_are() -> None:
    x = np.array([[1.5, -2.0, 3.0]], np.float32)
    np.testing.assert_array_equal(encode(jnp.array(x), VECTOR.observation), x)


def test_binaries_stored_small_are_read_as_numbers() -> None:
    spec = ObservationSpec((2,), "uint8", (Part("number", 2),))
    encoded = encode(jnp.array([[0, 1]], jnp.uint8), spec)
    assert encoded.dtype == jnp.float32
    np.testing.assert_array_equal(encoded, [[0.0, 1.0]])


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_categories_are_read_one_hot(dtype: Any) -> None:
    spec = ObservationSpec((2,), dtype, (Part("category", 2, 3),))
    encoded = encode(jnp.array([[0, 2], [1, 1]], dtype), spec)
    np.testing.assert_array_equal(encoded, [[1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 1, 0]])


def test_mixed_parts_are_each_read_as_what_they_are() -> None:
    parts = (Part("number", 2), Part("category", 1, 4), Part("pixel", 1), Part("category", 2, 2))
    spec = ObservationSpec((6,), "float32", parts)
    encoded = encode(jnp.array([[0.5, -7.0, 3.0, 51.0, 1.0, 0.0]]), spec)
    np.testing.assert_allclose(encoded, [[0.5, -7.0, 0, 0, 0, 1, 0.2, 0, 1, 1, 0]], rtol=1e-6)
    assert encoded.shape[1] == sum(part.width for part in parts)


def test_stack_of_planes_becomes_channels() -> None:
    spec = image(84, 84, stack=4)
    x = pixels(spec)
    encoded = encode(jnp.array(x), spec)
    np.testing.assert_allclose(encoded, np.moveaxis(x, 1, 3) / 255.0, rtol=1e-6)


@pytest.mark.parametrize("shape", [(10, 10, 4), (10, 10, 10), (84, 84, 3)])
def test_image_with_channels_last_keeps_its_axes(shape: tuple[int, ...]) -> None:
    spec = image(*shape)
    x = pixels(spec)
    np.testing.assert_allclose(encode(jnp.array(x), spec), x / 255.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (VECTOR.observation, "mlp"),
        (image(84, 84, stack=4), "nature"),
        (image(3, 64, 64), "nature"),
        (image(96, 96, 3), "nature"),
        (image(36, 36, 4), "nature"),
        (image(35, 35, 4), "small"),
        (image(10, 10, 4), "small"),
        (image(2, 2, 2), "mlp"),
        (image(8, 2, 3), "mlp"),
    ],
)
def test_auto_looks_at_height_and_width(spec: ObservationSpec, kind: str) -> None:
    assert choose_kind(NetworkOptions(), spec).name == kind


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        ("nature", [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (7 * 7 * 64, 512), (512, 3)]),
        ("first", [(8, 8, 4, 16), (4, 4, 16, 32), (9 * 9 * 32, 256), (256, 3)]),
    ],
)
def test_networks_for_screens_are_those_of_the_papers(kind: Any, shapes: list[tuple[int, ...]]) -> None:
    spec = image(84, 84, stack=4)
    module = build_network(NetworkOptions(kind), spec, (3,), False)
    variables = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, *spec.seen_shape), jnp.uint8))
    kernels = [leaf.shape for leaf in jax.tree.leaves(variables) if len(leaf.shape) > 1]
    assert sorted(kernels) == sorted(shapes)


@pytest.mark.parametrize("kind", ["nature", "first", "small"])
def test_convolutions_of_what_is_no_image_are_refused(kind: Any) -> None:
    with pytest.raises(UserError, match=r"use --network\.kind mlp"):
        choose_kind(NetworkOptions(kind=kind), VECTOR.observation)


# Layers.


def test_patches_times_matrix_is_a_convolution() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 10, 9, 4))
    module = PatchConv(features=6)
    variables: Any = module.init(jax.random.key(1), x)
    dense = variables["params"]["Dense_0"]
    bias = jnp.arange(6.0)
    variables = {"params": {"Dense_0": {"kernel": dense["kernel"], "bias": bias}}}
    conv = {"params": {"kernel": dense["kernel"].reshape(3, 3, 4, 6), "bias": bias}}
    want = nn.Conv(6, (3, 3), padding="VALID").apply(conv, x)
    np.testing.assert_allclose(module.apply(variables, x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rows", "columns"), [(20, 12), (21, 14), (18, 15)])
def test_convolution_of_whole_pictures_fills_them_up_with_zeros(rows: int, columns: int) -> None:
    x = jax.random.normal(jax.random.key(0), (2, rows, columns, 3))
    module = WholeConv(features=5, size=8, stride=4)
    variables: Any = module.init(jax.random.key(1), x)
    kernel = np.asarray(variables["params"]["Conv_0"]["kernel"])
    filled = np.pad(x, ((0, 0), (0, -rows % 4), (0, -columns % 4), (0, 0)))
    want = [
        [np.tensordot(filled[:, 4 * i : 4 * i + 8, 4 * j : 4 * j + 8], kernel, 3) for j in range(-(-columns // 4) - 1)]
        for i in range(-(-rows // 4) - 1)
    ]
    np.testing.assert_allclose(module.apply(variables, x), np.moveaxis(want, 2, 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["nature", "first"])
@pytest.mark.parametrize("side", [36, 42, 45, 64, 84])
def test_no_edge_of_a_picture_goes_unseen(kind: Any, side: int) -> None:
    spec = image(side, side, stack=2)
    module = build_network(NetworkOptions(kind), spec, (3,), False)
    picture = jax.random.uniform(jax.random.key(0), (1, *spec.seen_shape), maxval=255.0)
    variables: Any = module.init(jax.random.key(1), picture)
    slope = jax.grad(lambda seen: module.apply(variables, seen).sum())(picture)
    assert (jnp.abs(slope) > 0).all()


def noisy(params: dict[str, Any], x: Any, seed: int) -> Any:
    """A noisy layer's outputs with that seed's noise."""
    features = len(params["bias"])
    variables = {"params": {name: jnp.array(value, jnp.float32) for name, value in params.items()}}
    return np.asarray(NoisyDense(features).apply(variables, jnp.array(x), rngs={"noise": jax.random.key(seed)}))


def noises(inputs: int, features: int, seed: int) -> tuple[Any, Any]:
    """f(ε) of both sides, read off a layer whose means are 0 and one of whose deviations is 1."""
    zero = {"kernel": np.zeros((inputs, features)), "bias": np.zeros(features)}
    kernel_only = zero | {"kernel_sigma": np.ones((inputs, features)), "bias_sigma": np.zeros(features)}
    bias_only = zero | {"kernel_sigma": np.zeros((inputs, features)), "bias_sigma": np.ones(features)}
    out = noisy(bias_only, np.zeros((1, inputs), np.float32), seed)[0]
    return noisy(kernel_only, np.eye(inputs, dtype=np.float32), seed)[:, 0] / out[0], out


def test_noise_is_factorised() -> None:
    rng = np.random.default_rng(0)
    ε_in, ε_out = noises(5, 4, seed=7)
    names = {"kernel": (5, 4), "kernel_sigma": (5, 4), "bias": (4,), "bias_sigma": (4,)}
    p = {name: rng.normal(size=shape).astype(np.float32) for name, shape in names.items()}
    x = rng.normal(size=(3, 5)).astype(np.float32)
    want = twins.noisy_linear(x, p["kernel"], p["kernel_sigma"], p["bias"], p["bias_sigma"], ε_in, ε_out)
    np.testing.assert_allclose(noisy(p, x, seed=7), want, rtol=1e-4, atol=1e-4)


def test_both_noises_are_signed_roots_of_their_own_gaussians() -> None:
    count = 1500
    gaussians = [np.sign(ε) * ε**2 for ε in noises(count, count, seed=0)]
    for gaussian in gaussians:
        assert abs(gaussian.mean()) < 5 / count**0.5
        assert abs(gaussian.std() - 1.0) < 5 / (2 * count) ** 0.5
        assert np.mean(np.abs(gaussian) < 1.0) == pytest.approx(0.6827, abs=5 * 0.466 / count**0.5)
    assert abs(np.mean(gaussians[0] * gaussians[1])) < 5 / count**0.5


def test_noisy_layer_starts_as_the_paper_says() -> None:
    params: Any = NoisyDense(64).init(jax.random.key(0), jnp.zeros((1, 100)))["params"]
    for name in ("kernel", "bias"):
        assert 0.09 < np.abs(params[name]).max() <= 0.1
        np.testing.assert_allclose(params[f"{name}_sigma"], 0.05, rtol=1e-6)


# First weights.

POLICIES = {
    "first": (NetworkOptions("first"), image(44, 44, stack=4)),
    "nature": (NetworkOptions("nature"), image(84, 84, stack=4)),
    "nature-lstm": (NetworkOptions("nature", lstm_size=8), image(84, 84, stack=4)),
    "first-separate": (NetworkOptions("first", separate=True), image(44, 44, stack=4)),
    "small": (NetworkOptions("small", start="he"), image(10, 10, 4)),
    "mlp": (NetworkOptions("mlp", start="he"), VECTOR.observation),
}


def first_kernels(module: nn.Module, spec: ObservationSpec) -> dict[str, Any]:
    """Matrices of all layers but an LSTM's, `[inputs, outputs]`, by name."""
    tree = module.init(jax.random.key(3), jnp.zeros((1, *spec.seen_shape), spec.dtype))["params"]
    found = {jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree_util.tree_leaves_with_path(tree)}
    return {name: x.reshape(-1, x.shape[-1]) for name, x in found.items() if "kernel" in name and "cell" not in name}


def variances(module: nn.Module, spec: ObservationSpec) -> list[tuple[int, Any]]:
    """Outputs of each layer, and the variance of its weights times its inputs, output by output."""
    found = first_kernels(module, spec).values()
    return [(kernel.shape[1], (kernel**2).mean(axis=0) * len(kernel)) for kernel in found]


@pytest.mark.parametrize("name", POLICIES)
def test_first_layers_keep_signals_alive_and_policies_begin_as_chance_does(name: str) -> None:
    options, spec = POLICIES[name]
    layers = variances(build_policy_network(options, spec, 6), spec)
    hidden = [found.mean() for outputs, found in layers if outputs not in (1, 6, 7)]
    assert len(hidden) >= 2
    np.testing.assert_allclose(hidden, 2.0, rtol=0.25)
    heads = np.concatenate([found for outputs, found in layers if outputs in (1, 6, 7)])
    np.testing.assert_allclose(np.sqrt(heads), [0.01] * 6 + [1.0], rtol=0.7)


@pytest.mark.parametrize(
    ("options", "spec", "policy", "variance"),
    [
        (NetworkOptions(), image(84, 84, stack=4), True, 2),
        (NetworkOptions(start="lecun"), image(84, 84, stack=4), True, 1),
        (NetworkOptions(), image(84, 84, stack=4), False, 1),
        (NetworkOptions(start="he"), image(84, 84, stack=4), False, 2),
        (NetworkOptions(), image(10, 10, 4), True, 1),
        (NetworkOptions(), VECTOR.observation, True, 1),
    ],
)
def test_policies_that_read_screens_begin_with_larger_weights_unless_told_otherwise(
    options: NetworkOptions, spec: ObservationSpec, policy: bool, variance: int
) -> None:
    module = build_policy_network(options, spec, 6) if policy else build_network(options, spec, (6,), False)
    layers = variances(module, spec)
    hidden = [found.mean() for outputs, found in layers if outputs not in (6, 7)]
    (head,) = (found for outputs, found in layers if outputs in (6, 7))
    np.testing.assert_allclose(hidden, variance, rtol=0.25)
    assert (head[:6].mean() < 1e-3) == (policy and variance == 2), "only a policy's outputs begin small"
    assert (head[6:] if policy else head).mean() == pytest.approx(1, rel=0.5)


# Weights as a vector.


def test_layout_cuts_the_vector_where_it_was_joined() -> None:
    rng = np.random.default_rng(0)
    tree = {"b": {"kernel": rng.normal(size=(3, 4)), "bias": rng.normal(size=4)}, "a": rng.normal(size=(2, 2, 2))}
    tree = jax.tree_util.tree_map(lambda x: jnp.array(x, jnp.float32), tree)
    layout = Layout.of(tree)
    assert layout.names == ("a", "b/bias", "b/kernel")
    assert (layout.offsets, layout.size) == ((0, 8, 12), 24)
    vector = layout.ravel(tree)
    jax.tree_util.tree_map(np.testing.assert_array_equal, layout.unravel(vector), tree)
    np.testing.assert_array_equal(layout.ravel(layout.unravel(vector)), vector)


def test_layout_of_shapes_is_the_layout_of_arrays() -> None:
    tree = {"x": jnp.zeros((2, 3)), "y": jnp.zeros(())}
    assert Layout.of(jax.eval_shape(lambda: tree)) == Layout.of(tree)


# A user's own module.

SOURCE = """
import flax.linen as nn
import jax.numpy as jnp

class Net(nn.Module):
    outputs: int
    fault: str = ""
    @nn.compact
    def __call__(self, x):
        assert self.fault != "assert"
        if self.fault == "raise":
            raise ValueError("no such layer\\nsecond line")
        if self.fault == "bare":
            return jnp.zeros((x.shape[0], self.outputs))
        x = nn.Dense(self.outputs)(x)
        if self.fault == "norm":
            x = nn.BatchNorm(use_running_average=False)(x)
        return (x, x) if self.fault == "tuple" else x

def good(outputs): return Net(outputs)
def wide(outputs): return Net(outputs + 1)
def pair(outputs): return Net(outputs, "tuple")
def raising(outputs): return Net(outputs, "raise")
def asserting(outputs): return Net(outputs, "assert")
def bare(outputs): return Net(outputs, "bare")
def norm(outputs): return Net(outputs, "norm")
def text(outputs): return "a network"
def greedy(outputs, layers): return Net(outputs)
number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that a user wrote."""
    (tmp_path / "own_networks.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_networks", raising=False)
    return "own_networks"


def agent_with(module: str, **options: Any) -> Any:
    return make_q_learning(QLearningOptions(**options), NetworkOptions(module=module), VECTOR)


def test_users_module_is_used(own: str) -> None:
    agent = agent_with(f"{own}:good")
    assert agent.layout.size == 3 * 4 + 4
    assert agent.values(jnp.ones(16), np.ones((2, 3), np.float32), None, None).tolist() == [[4.0] * 4] * 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (":wide", "returned shape (2, 5) for a batch of 2; it must return (2, 4)"),
        (":pair", "returned shape tuple"),
        (":raising", "can't read observations (3,): no such layer"),
        (":asserting", "can't read observations (3,): AssertionError"),
        (":bare", "must have 'params'"),
        (":norm", "must have 'params' and no others"),
        (":text", "returned str, not a flax.linen.Module"),
        (":greedy", "must take one argument"),
        (":number", "has no function 'number'"),
        (":missing", "has no function 'missing'"),
        ("", "write it as package.module:build"),
        (":", "write it as package.module:build"),
        ("_nowhere:build", "can't be imported"),
    ],
)
def test_a_module_that_does_not_fit_is_refused_in_a_sentence(own: str, name: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        agent_with(own + name)
    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    assert message[-1] != "."


def test_a_path_without_a_module_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"write it as package\.module:build"):
        agent_with(":build")


def test_noise_cannot_reach_into_a_users_module(own: str) -> None:
    with pytest.raises(UserError, match="drop one of the two"):
        agent_with(f"{own}:good", noisy=True)


def test_first_weights_of_a_users_module_are_its_own(own: str) -> None:
    with pytest.raises(UserError, match=r"--network.start he .* drop one of the two"):
        build_policy_network(NetworkOptions(module=f"{own}:good", start="he"), image(84, 84, stack=4), 6)
    module: Any = build_policy_network(NetworkOptions(module=f"{own}:good", lstm_size=8), image(84, 84, stack=4), 6)
    assert module.head_init is LECUN


@pytest.mark.parametrize(("kind", "shape"), [("nature", (10, 10, 4)), ("small", (2, 2, 1))])
def test_images_too_small_for_the_network_are_refused(kind: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError):
        make_q_learning(QLearningOptions(), NetworkOptions(kind=kind), EnvironmentSpec(image(*shape), 3))
