"""MinAtar's games as Gymnasium environments (extra `minatar`); imports numpy, gymnasium, and our errors.

The package's own binding works, but importing it imports seaborn and matplotlib: 2.4 s and their memory in
every process. The games themselves need only numpy, so their files are loaded directly; what the package's
`Environment` adds to a game (sticky actions) is `MinAtarGame.step`. Defaults are the package's: sticky
actions 0.1, difficulty ramps. `-v1` has the game's minimal action set, `-v0` all six. MinAtar has no time
limit, and none is added.

Young and Tian 2019, https://arxiv.org/abs/1903.03176
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from repertory.errors import missing_extra

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
_PIXELS_PER_CELL = 16


class MinAtarGame(gym.Env[Any, Any]):
    """One game; observations are 10×10 cells × channels, true or false."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(
        self,
        game: str,
        minimal_actions: bool,
        sticky_action_prob: float = 0.1,
        difficulty_ramping: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = render_mode
        self._game = _module(game).Env(ramping=difficulty_ramping)
        self._sticky = sticky_action_prob
        self._actions = self._game.minimal_action_set() if minimal_actions else list(range(6))
        self._last = 0
        self.action_space = gym.spaces.Discrete(len(self._actions))
        self.observation_space = gym.spaces.Box(0, 1, tuple(self._game.state_shape()), np.bool_)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.bool_], dict[str, Any]]:
        """As the package: an action may stick across episodes, but not across seeds."""
        del options
        if seed is not None:
            self._game.random = np.random.RandomState(seed)
            self._last = 0
        self._game.reset()
        return self._game.state(), {}

    def step(self, action: int) -> tuple[NDArray[np.bool_], float, bool, bool, dict[str, Any]]:
        """One move; now and then the previous one again."""
        if self._game.random.rand() >= self._sticky:
            self._last = self._actions[action]
        reward, terminal = self._game.act(self._last)
        return self._game.state(), reward, terminal, False, {}

    def render(self) -> NDArray[np.uint8]:
        """The topmost channel of each cell, in its colour."""
        state = self._game.state()
        top = np.max(state * np.arange(1, state.shape[2] + 1), axis=2)
        frame: NDArray[np.uint8] = _palette(state.shape[2])[top]
        return frame.repeat(_PIXELS_PER_CELL, axis=0).repeat(_PIXELS_PER_CELL, axis=1)


def register() -> None:
    """Adds `MinAtar/<Game>-v0` and `-v1` to Gymnasium's registry, where they are not there yet."""
    if importlib.util.find_spec("minatar") is None:
        raise missing_extra("MinAtar", "minatar")
    for game in GAMES:
        for version, minimal in (("v0", False), ("v1", True)):
            name = f"MinAtar/{game.title().replace('_', '')}-{version}"
            if name not in gym.registry:
                gym.register(name, f"{__name__}:MinAtarGame", kwargs={"game": game, "minimal_actions": minimal})


@functools.cache
def _module(game: str) -> ModuleType:
    package = importlib.util.find_spec("minatar")
    if package is None or package.origin is None:
        raise missing_extra("MinAtar", "minatar")
    path = Path(package.origin).parent / "environments" / f"{game}.py"
    spec = importlib.util.spec_from_file_location(f"_repertory_minatar_{game}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _palette(channels: int) -> NDArray[np.uint8]:
    """Black, then hues spread evenly round the colour circle."""
    angles = np.arange(channels)[:, None] / channels + np.array([0, 1 / 3, 2 / 3])
    colours = 40 + 215 * (0.5 + 0.5 * np.cos(2 * np.pi * angles))
    return np.concatenate([np.zeros((1, 3)), colours]).astype(np.uint8)
