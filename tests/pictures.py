"""An environment of pictures, and a user's own network: for tests in several directories."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import gymnasium
import numpy as np
from numpy.typing import NDArray


class Pictures(gymnasium.Env[NDArray[np.uint8], int]):
    """Noise to look at; an episode takes 3 to 9 steps, and is cut short at 7."""

    observation_space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.left, self.played = int(self.np_random.integers(3, 10)), 0
        return self.picture(), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        self.played += 1
        over, cut = self.played >= self.left, self.played >= 7
        return self.picture(), float(action - 1), over, cut and not over, {}

    def picture(self) -> NDArray[np.uint8]:
        return self.np_random.integers(0, 256, (36, 36, 1)).astype(np.uint8)


NAME = "Pictures-v0"
gymnasium.register(NAME, Pictures)


def build(outputs: int) -> nn.Module:
    """A user's own network."""
    return nn.Sequential([nn.Dense(6), nn.tanh, nn.Dense(outputs)])
