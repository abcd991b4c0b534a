"""A network that is dear to answer with and cheap to learn with: an encoder that is not trained, and a small head.

As with an encoder trained elsewhere. It applies one matrix many times, so that an answer's time grows with the number
of environments, as a convolution's does, and is not that of reading weights.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

WIDTH, DEPTH = 512, 200


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
