"""Compressed gradients against slow twins: what is sent, what is kept, what it costs, what is never let through."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from repertory.agents.compression import CHUNK, METHODS, Compression, make_compression
from repertory.errors import UserError

Floats = NDArray[np.float32]

# One number; less than a chunk; just a chunk; a last chunk of one; several chunks that do not come out even.
SIZES = [1, 5, 1024, 1025, 2500]
MLP, CONVOLUTIONAL = 10_934, 1_693_362
KEEPING = [name for name in METHODS if name in ("int8", "topk")]
any_gradient = {
    "size": st.sampled_from(SIZES),
    "seed": st.integers(0, 2**32 - 1),
    "scale": st.sampled_from([1e-9, 1e-3, 1.0, 1e6]),
    "decades": st.sampled_from([0.0, 1.0, 6.0]),
    "zeros": st.sampled_from([0.0, 0.9, 1.0]),
}


@cache
def compression_of(name: str, size: int, share: float = 0.01) -> Compression:
    """The method; compiled once for all tests."""
    return make_compression(name, size, share=share)


def draw(size: int, seed: int, scale: float = 1.0, decades: float = 1.0, zeros: float = 0.0) -> Floats:
    """Numbers of both signs over so many decades below the scale, some of them 0."""
    rng = np.random.default_rng(seed)
    values = rng.choice([-1, 1], size) * scale * 10.0 ** -rng.uniform(0, decades, size)
    return np.where(rng.random(size) < zeros, 0.0, values).astype(np.float32)


def send(compression: Compression, gradient: Floats, residual: Any = None) -> tuple[dict[str, Any], Floats, Floats]:
    """Payload, decoded gradient and new residual."""
    before = compression.residual() if residual is None else jnp.asarray(residual)
    payload, after = compression.encode(jnp.asarray(gradient), before)
    slots = {name: np.asarray(array) for name, array in payload.items()}
    return slots, np.asarray(compression.decode(payload)), np.asarray(after)


def twin_roots(gradient: Floats) -> NDArray[np.float16]:
    """sign(g) √(256 |g|), number by number."""
    codes = []
    for g in gradient:
        m = min(abs(g), np.float32(65504.0**2 / 256))
        codes.append(math.copysign(float(np.sqrt(np.float32(m * np.float32(256)))), g))
    return np.array(codes, np.float16)


def twin_codes(total: Floats) -> tuple[NDArray[np.int8], Floats, Floats]:
    """Codes, scales and what is left over, chunk by chunk: s = 2^⌊log₂(2 max |x| / 127)⌋, q = round(x / s)."""
    codes, scales, kept = [], [], []
    for start in range(0, len(total), CHUNK):
        chunk = total[start : start + CHUNK]
        bound = float(np.float32(max(abs(x) for x in chunk)) * np.float32(2 / 127))
        s = math.ldexp(1.0, math.frexp(bound)[1] - 1) if bound > 0 else 0.0
        scales.append(s)
        for x in chunk:
            q = round(float(x) / s) if s > 0 else 0
            codes.append(q)
            kept.append(float(x) - q * s)
    return np.array(codes, np.int8), np.array(scales, np.float32), np.array(kept, np.float32)


def twin_largest(total: Floats, count: int) -> tuple[Floats, Floats]:
    """What is sent and what is kept, after sorting all numbers; of equal ones the first goes first."""
    sent, kept = np.zeros_like(total), total.copy()
    for i in sorted(range(len(total)), key=lambda i: -abs(total[i]))[:count]:
        sent[i], kept[i] = total[i], 0.0
    return sent, kept


# What is sent.


@settings(deadline=None, max_examples=40)
@given(**any_gradient)
def test_uncompressed_gradient_arrives_as_it_was(**drawn: Any) -> None:
    gradient = draw(**drawn)
    _, decoded, _ = send(compression_of("none", len(gradient)), gradient)
    np.testing.assert_array_equal(decoded, gradient)


@settings(deadline=None, max_examples=100)
@given(**any_gradient)
@example(size=1025, seed=0, scale=1e-11, decades=2.0, zeros=0.0)
@example(size=1025, seed=0, scale=1e30, decades=60.0, zeros=0.0)
def test_float16_sends_the_twins_roots(**drawn: Any) -> None:
    gradient = draw(**drawn)
    payload, decoded, _ = send(compression_of("float16", len(gradient)), gradient)
    roots = twin_roots(gradient)
    np.testing.assert_array_equal(payload["value"], roots)
    np.testing.assert_array_equal(decoded, [float(root) * abs(float(root)) / 256 for root in roots])


@settings(deadline=None, max_examples=100)
@given(**any_gradient | {"scale": st.floats(1.5e-10, 1.6e7), "decades": st.sampled_from([0.0, 1.0])})
@example(size=1, seed=0, scale=1e6, decades=0.0, zeros=0.0)
@example(size=1, seed=0, scale=1e-9, decades=0.0, zeros=0.0)
def test_float16_is_off_by_a_thousandth_at_most_over_all_gradients_there_are(**drawn: Any) -> None:
    gradient = draw(**drawn)
    _, decoded, _ = send(compression_of("float16", len(gradient)), gradient)
    assert (np.abs(decoded - gradient) <= np.abs(gradient) / 1023).all()


def test_float16_clips_what_is_too_large_and_keeps_its_sign() -> None:
    _, decoded, _ = send(compression_of("float16", 5), np.array([1e8, -1e38, 2e7, -1.0, 0.0], np.float32))
    np.testing.assert_allclose(decoded, [65504.0**2 / 256, -(65504.0**2) / 256, 65504.0**2 / 256, -1.0, 0.0])


@settings(deadline=None, max_examples=100)
@given(**any_gradient)
@example(size=5, seed=0, scale=127.0, decades=0.0, zeros=0.0)
@example(size=5, seed=0, scale=63.5, decades=0.0, zeros=0.0)
@example(size=2500, seed=0, scale=1e30, decades=30.0, zeros=0.0)
def test_int8_sends_the_twins_codes_and_is_off_by_half_a_scale_at_most(**drawn: Any) -> None:
    gradient, residual = draw(**drawn), draw(**drawn | {"seed": drawn["seed"] + 1}) * np.float32(0.1)
    payload, decoded, kept = send(compression_of("int8", len(gradient)), gradient, residual)
    total = gradient + residual
    codes, scales, left = twin_codes(total)
    np.testing.assert_array_equal(payload["code"], codes)
    np.testing.assert_array_equal(payload["scale"], scales)
    np.testing.assert_array_equal(kept, left)
    for start, scale in zip(range(0, len(total), CHUNK), payload["scale"], strict=True):
        chunk = slice(start, start + CHUNK)
        assert scale <= np.abs(total[chunk]).max() / 63
        assert (np.abs(decoded[chunk].astype(float) - total[chunk]) <= scale / 2).all()


@settings(deadline=None, max_examples=100)
@given(**any_gradient, share=st.sampled_from([0.001, 0.01, 0.3, 1.0]))
def test_topk_sends_the_twins_numbers(share: float, **drawn: Any) -> None:
    gradient, residual = draw(**drawn), draw(**drawn | {"seed": drawn["seed"] + 1}) * np.float32(3)
    compression = compression_of("topk", len(gradient), share)
    count = max(1, round(share * len(gradient)))
    payload, decoded, kept = send(compression, gradient, residual)
    sent, left = twin_largest(gradient + residual, count)
    assert len(set(payload["index"].tolist())) == count
    np.testing.assert_array_equal(decoded, sent)
    np.testing.assert_array_equal(kept, left)


@pytest.mark.parametrize("order", ["sorted", "falling", "equal", "one layer large", "mostly 0"])
def test_topk_is_exact_however_the_large_numbers_lie(order: str) -> None:
    gradient = draw(MLP, 0, decades=3.0)
    arranged = {
        "sorted": np.sort(np.abs(gradient)),
        "falling": np.sort(np.abs(gradient))[::-1],
        "equal": np.sign(gradient),
        "one layer large": np.concatenate([gradient[:9_000], 100 * gradient[9_000:]]),
        "mostly 0": np.where(np.arange(MLP) % 400, 0, gradient),
    }[order].astype(np.float32)
    _, decoded, kept = send(compression_of("topk", MLP), arranged)
    sent, left = twin_largest(arranged, 109)
    np.testing.assert_array_equal(decoded, sent)
    np.testing.assert_array_equal(kept, left)


# What is kept.


@settings(deadline=None, max_examples=100)
@given(**any_gradient, name=st.sampled_from(KEEPING))
def test_what_is_sent_and_what_is_kept_is_the_whole_to_the_bit(name: str, **drawn: Any) -> None:
    gradient, residual = draw(**drawn), draw(**drawn | {"seed": drawn["seed"] + 1})
    _, decoded, kept = send(compression_of(name, len(gradient)), gradient, residual)
    np.testing.assert_array_equal(decoded + kept, gradient + residual)


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("size", [1, 400])
def test_over_many_rounds_the_mean_of_what_arrives_becomes_the_gradient(name: str, size: int) -> None:
    compression, gradient = compression_of(name, size, 0.05), draw(size, 0, decades=2.0)
    residual, arrived, errors = compression.residual(), np.zeros(size), {}
    for rounds in range(1, 801):
        payload, residual = compression.encode(jnp.asarray(gradient), residual)
        arrived += np.asarray(compression.decode(payload), float)
        errors[rounds] = np.abs(arrived / rounds - gradient).max()
    assert errors[800] < 0.01 * np.abs(gradient).max()
    assert errors[800] <= errors[100] / 4
    assert size == 1 or errors[1] > 100 * errors[800], "a method that loses nothing would prove nothing"


def test_numbers_too_small_for_a_scale_are_kept_until_they_are_not() -> None:
    compression, gradient = compression_of("int8", 5), np.full(5, 2e-38, np.float32)
    payload, decoded, residual = send(compression, gradient)
    np.testing.assert_array_equal(payload["code"], 0)
    np.testing.assert_array_equal(decoded, 0.0)
    np.testing.assert_array_equal(residual, gradient)
    for _ in range(99):
        _, more, residual = send(compression, gradient, residual)
        decoded = decoded + more
    np.testing.assert_allclose(decoded, 100 * gradient, rtol=0.5)


# What is never let through.


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 1025, MLP])
def test_gradient_that_is_not_finite_arrives_as_such_and_leaves_the_residual(name: str, bad: float, size: int) -> None:
    compression = compression_of(name, size)
    _, _, residual = send(compression, draw(size, 0))
    for place in {0, size // 2, size - 1}:
        gradient = draw(size, 1)
        gradient[place] = bad
        _, decoded, after = send(compression, gradient, residual)
        assert not np.isfinite(decoded).all()
        np.testing.assert_array_equal(after, residual)


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("other", [0.0, 3e38])
def test_overflow_while_encoding_counts_as_not_finite(name: str, other: float) -> None:
    most = np.finfo(np.float32).max
    residual = np.array([other, 0, 0, 0, 1], np.float32)
    _, decoded, after = send(compression_of(name, 5), np.array([most, 1, 2, 3, 4], np.float32), residual)
    assert np.isfinite(after).all()
    assert np.isfinite(decoded).all() or np.array_equal(after, residual)


# What it costs, and where it lies.


@pytest.mark.parametrize("size", [MLP, CONVOLUTIONAL])
@pytest.mark.parametrize(("name", "most"), [("none", 1.0), ("float16", 0.5), ("int8", 0.26), ("topk", 0.03)])
def test_payload_takes_no_more_than_its_share_of_the_bytes(name: str, most: float, size: int) -> None:
    compression = compression_of(name, size)
    shapes, _ = jax.eval_shape(compression.encode, jnp.zeros(size), compression.residual())
    assert compression.nbytes == sum(array.size * array.dtype.itemsize for array in shapes.values())
    assert compression.nbytes <= most * 4 * size


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("size", [0, *SIZES])
def test_payload_has_the_announced_shapes_for_every_size(name: str, size: int) -> None:
    compression = compression_of(name, size)
    payload, decoded, residual = send(compression, draw(size, 0))
    assert {key: (array.shape, array.dtype.name) for key, array in payload.items()} == compression.fields
    assert compression.nbytes == sum(array.nbytes for array in payload.values())
    assert (decoded.shape, decoded.dtype) == ((size,), np.float32)
    assert residual.size == compression.residual().size == (size if name in KEEPING else 0)
    assert not np.any(compression.residual())


@pytest.mark.parametrize("name", METHODS)
def test_a_slot_may_be_written_again_once_its_gradient_is_decoded(name: str) -> None:
    compression = compression_of(name, 2500)
    payload, decoded, _ = send(compression, draw(2500, 0))
    slots = {key: np.empty(shape, dtype) for key, (shape, dtype) in compression.fields.items()}
    for key, array in payload.items():
        slots[key][:] = array
    again = jax.block_until_ready(compression.decode(slots))
    for array in slots.values():
        array[:] = 1
    np.testing.assert_array_equal(again, decoded)


@pytest.mark.parametrize("name", METHODS)
def test_gradients_are_the_same_to_the_bit_inside_any_program(name: str) -> None:
    compression = compression_of(name, 2500)
    payloads = [send(compression, draw(2500, seed, decades=3.0))[0] for seed in range(3)]
    alone = sum(np.asarray(compression.decode(payload)) for payload in payloads)
    fused = jax.jit(lambda payloads: sum(compression.decode(payload) for payload in payloads))
    with jax.disable_jit():
        apart = sum(np.asarray(compression.decode(payload)) for payload in payloads)
    np.testing.assert_array_equal(fused(payloads), alone)
    np.testing.assert_array_equal(apart, alone)


# What is refused.


@pytest.mark.parametrize(
    ("name", "hint"), [("top_k", "did you mean 'topk'"), ("zip", "known: float16, int8, none, topk")]
)
def test_unknown_method_is_answered_with_the_known_ones(name: str, hint: str) -> None:
    with pytest.raises(UserError, match=hint):
        make_compression(name, 5)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, math.nan])
def test_share_outside_its_bounds_is_refused(share: float) -> None:
    with pytest.raises(UserError, match="share"):
        make_compression("topk", 5, share=share)


@pytest.mark.parametrize("name", KEEPING)
def test_residual_of_another_size_is_refused(name: str) -> None:
    with pytest.raises(AssertionError):
        compression_of(name, 5).encode(jnp.zeros(5), jnp.zeros(1))
