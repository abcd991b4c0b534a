"""A network that is slow to act with and cheap to learn with: an encoder that is not trained, and a small head.

As with an encoder trained elsewhere. It applies one matrix many times, so that a reply's time grows with the number
of environments, as a convolution's does, and is not that of reading weights. How many times, `FROZEN_DEPTH` says.

    python benchmarks/frozen_encoder.py --rows 4 --ms 8    # how many make a reply to 4 take 8 ms, on this machine
"""

from __future__ import annotations

import argparse
import os
import time

import flax.linen as nn
import jax
import jax.numpy as jnp

from repertory.runtime import start_jax

WIDTH, DEPTH = 512, int(os.environ.get("FROZEN_DEPTH", "200"))
TRIALS, STEP = 200, 20


class FrozenEncoder(nn.Module):
    """Only the head learns."""

    outputs: int

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        inward = nn.Dense(WIDTH, name="inward")
        turn = self.param("turn", nn.initializers.orthogonal(), (WIDTH, WIDTH))
        seen, frozen = jax.lax.stop_gradient((nn.tanh(inward(observation)), turn))
        encoded = jax.lax.fori_loop(0, DEPTH, lambda _, x: jnp.tanh(x @ frozen), seen)
        return nn.Dense(self.outputs)(encoded + seen)


def build(outputs: int) -> nn.Module:
    """For `network.module`."""
    return FrozenEncoder(outputs)


def main() -> None:
    """Print the depth that takes so long; the shortest of many trials counts, which is the same on a busy machine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--ms", type=float, default=8.0)
    options = parser.parse_args()
    start_jax(1)
    network, seen = build(2), jnp.ones((options.rows, 4))
    weights = network.init(jax.random.key(0), seen)
    answer = jax.jit(network.apply)
    taken = []
    for _ in range(TRIALS):
        began = time.perf_counter()
        jax.block_until_ready(answer(weights, seen))
        taken.append(time.perf_counter() - began)
    print(max(STEP, round(DEPTH * options.ms / 1e3 / min(taken) / STEP) * STEP))


if __name__ == "__main__":
    main()
