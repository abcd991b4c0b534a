"""Spaces: what is stored can be turned back into what was observed, and what cannot be stored is refused."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import Space, spaces
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given, settings
from hypothesis import strategies as st

from repertory.agents.networks import encode
from repertory.environments.factory import make
from repertory.environments.spaces import Encoder, UnfitError, discrete_actions
from repertory.errors import EnvironmentFailure, UserError
from repertory.experience.lanes import LaneStorage
from repertory.specs import EnvironmentSpec, ObservationSpec, Part
from space_trees import trees


def decode(space: Space[Any], numbers: list[float]) -> Any:
    """The slow way back: takes a leaf's numbers off the front."""
    if isinstance(space, spaces.Dict):
        return {key: decode(inner, numbers) for key, inner in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(decode(inner, numbers) for inner in space)
    size = int(np.prod(space.shape))
    taken, numbers[:size] = numbers[:size], []
    start = getattr(space, "start", 0)
    return (np.array(taken).reshape(space.shape) + start).astype(space.dtype)


def numbers(spec: ObservationSpec, row: np.ndarray) -> list[float]:
    """What is stored, number by number."""
    found, flat = [], row.ravel()
    for part in spec.parts:
        piece, flat = flat[: part.stored], flat[part.stored :]
        found += np.frombuffer(piece.tobytes(), np.float32 if part.wide else piece.dtype).tolist()
    return found


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return np.array_equal(left, right)


@settings(max_examples=150, deadline=None)
@given(trees, st.integers(0, 2**31))
def test_encoding_is_lossless_one_by_one_and_batched(space: Space[Any], seed: int) -> None:
    space.seed(seed)
    encoder, samples = Encoder(space), [space.sample() for _ in range(3)]
    batch = concatenate(space, samples, create_empty_array(space, 3))
    stored = np.empty((3, *encoder.spec.shape), encoder.spec.dtype)
    for row, sample in zip(stored, samples, strict=True):
        row[...] = encoder.one(sample)
        assert same(decode(space, numbers(encoder.spec, row)), sample)
    for other in (encoder.many(batch, 3, copy=True), encoder.stack(samples)):
        assert other.dtype == encoder.spec.dtype
        np.testing.assert_array_equal(other, stored)


@settings(max_examples=100, deadline=None)
@given(trees)
def test_parts_cover_what_is_stored(space: Space[Any]) -> None:
    spec = Encoder(space).spec
    assert sum(part.stored for part in spec.parts) == int(np.prod(spec.shape))


@settings(max_examples=100, deadline=None)
@given(trees, st.integers(0, 2**31))
def test_a_network_reads_the_same_inputs_as_from_a_row_of_floats(space: Space[Any], seed: int) -> None:
    space.seed(seed)
    encoder, samples = Encoder(space), [space.sample() for _ in range(3)]
    stored = encoder.stack(samples)
    floats = np.array([numbers(encoder.spec, row) for row in stored], np.float32)
    inputs, start = [], 0
    for part in encoder.spec.parts:
        piece = floats[:, start : start + part.size]
        start += part.size
        if part.kind == "category":
            piece = np.eye(part.categories, dtype=np.float32)[piece.astype(int)].reshape(3, -1)
        inputs.append(piece / np.float32(255) if part.kind == "pixel" else piece)
    wanted = np.concatenate(inputs, axis=1)
    assert encoder.spec.inputs == wanted.shape[1]
    got = np.asarray(encode(stored, encoder.spec))
    if encoder.spec.planes_first:
        got = np.moveaxis(got, 3, 1)
    np.testing.assert_array_equal(got.reshape(3, -1), wanted)


CAMERA = spaces.Dict({"image": spaces.Box(0, 255, (64, 64, 3), np.uint8), "state": spaces.Box(-1, 1, (5,), np.float32)})


def test_a_picture_beside_a_vector_is_stored_in_bytes_and_named() -> None:
    spec = Encoder(CAMERA).spec
    assert spec.nbytes == 64 * 64 * 3 + 4 * 5
    assert LaneStorage.fields(EnvironmentSpec(spec, 2), 2, 10)["observation"].nbytes == 2 * 10 * (64 * 64 * 3 + 4 * 5)
    assert spec.pictures == ("image (64×64×3)",)


@pytest.mark.parametrize(
    "space",
    [
        CAMERA["image"],
        spaces.Tuple((CAMERA["state"], spaces.Discrete(3))),
        spaces.Dict({"table": spaces.Box(0, 255, (64, 64), np.uint8), "state": CAMERA["state"]}),
    ],
)
def test_no_picture_is_flattened_where_there_is_none_or_nothing_else(space: Space[Any]) -> None:
    assert Encoder(space).spec.pictures == ()


class Blinking(gym.Env[Any, Any]):
    """A camera and a sensor that breaks at step 3."""

    observation_space = CAMERA
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        self.steps = 0
        return {"image": np.full((64, 64, 3), 255, np.uint8), "state": np.zeros(5, np.float32)}, {}

    def step(self, _action: int) -> Any:
        self.steps += 1
        observation = {"image": np.full((64, 64, 3), 255, np.uint8), "state": np.zeros(5, np.float32)}
        observation["state"][3] = np.nan if self.steps == 3 else 1.0
        return observation, 1.0, False, False, {}


@pytest.mark.parametrize("mode", [None, *gym.vector.AutoresetMode])
def test_a_number_beside_a_picture_that_is_not_finite_is_named(mode: gym.vector.AutoresetMode | None) -> None:
    gym.register("Blinking-v0", Blinking)
    try:
        envs = make("Blinking-v0", 2, autoreset=mode)
        envs.reset([0, 1])
        for _ in range(2):
            envs.step(np.zeros(2, int))
        with pytest.raises(EnvironmentFailure, match=r"step 3\) returned an observation .* not finite: nan at \[3\]"):
            envs.step(np.zeros(2, int))
    finally:
        del gym.registry["Blinking-v0"]


def part_cases() -> list[tuple[Space[Any], tuple[int, ...], str, tuple[Part, ...]]]:
    pixels = spaces.Box(0, 255, (2, 2, 3), np.uint8)
    binary, number = spaces.MultiBinary(3), spaces.Box(-1, 1, (2,), np.float64)
    number_part = Part("number", 2)
    return [
        (pixels, (2, 2, 3), "uint8", (Part("pixel", 12),)),
        (binary, (3,), "uint8", (Part("number", 3),)),
        (number, (2,), "float32", (number_part,)),
        (spaces.Discrete(5, start=7), (1,), "uint8", (Part("category", 1, 5),)),
        (spaces.Discrete(257), (1,), "float32", (Part("category", 1, 257),)),
        (
            spaces.MultiDiscrete([[3, 3], [2, 3]]),
            (4,),
            "uint8",
            (Part("category", 2, 3), Part("category", 1, 2), Part("category", 1, 3)),
        ),
        (
            spaces.Dict({"b": binary, "a": pixels}),
            (15,),
            "uint8",
            (Part("pixel", 12), Part("number", 3)),
        ),
        (spaces.Tuple((number, pixels)), (20,), "uint8", (Part("number", 2, wide=True), Part("pixel", 12))),
        (spaces.Tuple((number, spaces.Discrete(257))), (3,), "float32", (number_part, Part("category", 1, 257))),
    ]


@pytest.mark.parametrize(("space", "shape", "dtype", "parts"), part_cases())
def test_a_space_is_stored_compactly_and_says_how_it_is_read(
    space: Space[Any], shape: tuple[int, ...], dtype: str, parts: tuple[Part, ...]
) -> None:
    spec = Encoder(space).spec
    assert (spec.shape, spec.dtype, spec.parts) == (shape, dtype, parts)


def test_plain_float32_batch_is_not_copied_unless_asked() -> None:
    encoder, batch = Encoder(spaces.Box(-1, 1, (3,), np.float32)), np.zeros((2, 3), np.float32)
    assert encoder.many(batch, 2, copy=False) is batch
    assert not np.shares_memory(encoder.many(batch, 2, copy=True), batch)


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Tuple(())])
def test_unsupported_space_is_named(space: Space[Any]) -> None:
    with pytest.raises(UserError, match=type(space).__name__):
        Encoder(space)


@pytest.mark.parametrize(
    ("space", "observation", "words"),
    [
        (spaces.Box(-1, 1, (3,)), np.zeros(4, np.float32), r"shape \(4,\)"),
        (spaces.Box(-1, 1, (3,)), np.zeros((), np.float32), r"shape \(\)"),
        (spaces.Box(0, 255, (3,), np.uint8), np.zeros(3, np.float32), "dtype float32"),
        (spaces.Discrete(3), 3, "outside"),
        (spaces.Discrete(3, start=1), 0, "outside"),
        (spaces.Dict({"x": spaces.Box(-1, 1, (2,))}), {"x": np.zeros(1)}, "at x"),
    ],
)
def test_unfit_observation_is_refused(space: Space[Any], observation: Any, words: str) -> None:
    with pytest.raises(UnfitError, match=words):
        Encoder(space).one(observation)


def test_only_discrete_actions_are_accepted() -> None:
    assert discrete_actions("E", spaces.Discrete(4, start=2)) == (4, 2)
    with pytest.raises(UserError, match=r"^E has a continuous action space Box.*discretise"):
        discrete_actions("E", spaces.Box(-1, 1, (2,)))
    with pytest.raises(UserError, match="MultiDiscrete"):
        discrete_actions("E", spaces.MultiDiscrete([2, 2]))
