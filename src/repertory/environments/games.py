"""Atari by `ale_py`'s own vector environment (extra `atari`), and MinAtar as Gymnasium environments (extra `minatar`).

Atari: 84×84 grey frames, four of them stacked, four emulator frames a step with the brighter of the last two, up to
30 no-ops at the start (Mnih et al. 2015). Rewards are clipped to their sign unless the option `reward_clipping` is
false. `repeat_action_probability` is the id's (0.25 for `ALE/*-v5`, 0 for `*NoFrameskip-v4`) unless given; all other
arguments of `AtariVectorEnv` are options too. A stack of the first frames of an episode is filled up with zeros: seen
by experiment, and held by a test.

MinAtar (Young and Tian 2019, https://arxiv.org/abs/1903.03176): importing the package's own binding imports seaborn and
matplotlib, 2.4 s and their memory in every process. The games themselves need only numpy, so their files are loaded
directly; what the package's `Environment` adds to a game (sticky actions) is `MinAtarGame.step`. Defaults are the
package's: sticky actions 0.1, difficulty ramps. `-v1` has the game's minimal action set, `-v0` all six. No time
limit.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from repertory.environments.stepping import Array
from repertory.environments.vectors import Vector, Vectorised
from repertory.errors import UserError, missing_extra, nearest
from repertory.specs import ObservationSpec, Part
from repertory.user_code import load_file

_ENTRY_POINT = "ale_py.env:AtariEnv"
_NAMES = re.compile(r"ALE/|.*(NoFrameskip|Deterministic)-v\d$")
_ZOOM = 4
GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
"""MinAtar's."""
_PIXELS_PER_CELL = 16


def register_atari(name: str) -> None:
    """Adds the Atari games to Gymnasium's registry; without `ale_py`, refuses a `name` that needs it."""
    if importlib.util.find_spec("ale_py") is not None:
        ale = importlib.import_module("ale_py")
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
    elif _NAMES.match(name):
        raise missing_extra(name, "atari")


def is_atari(spec: EnvSpec | None) -> bool:
    return spec is not None and spec.entry_point == _ENTRY_POINT


def make_atari(
    name: str, spec: EnvSpec, options: Mapping[str, Any], count: int, worker: int, mode: AutoresetMode | None
) -> Vectorised:
    create = importlib.import_module("ale_py.vector_env").AtariVectorEnv
    known = set(inspect.signature(create).parameters) - {"game", "num_envs", "batch_size", "autoreset_mode"}
    for option in options:
        if option not in known:
            raise UserError(f"{name} has no option {option!r}{nearest(option, known)}")
    own = {key: spec.kwargs[key] for key in ("game", "repeat_action_probability")}
    chosen = {**own, "num_threads": 1, "frameskip": 4, "stack_num": 4, "grayscale": True, **options}
    env: Vector = create(num_envs=count, autoreset_mode=mode or AutoresetMode.NEXT_STEP, **chosen)
    stack, shape = chosen["stack_num"], env.single_observation_space.shape or ()
    shape = shape[1:] if stack > 1 else shape

    def picture(stack: Array) -> Array:
        frame = stack[-1][..., None].repeat(3, axis=2) if chosen["grayscale"] else stack[-1]
        return np.asarray(frame.repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1))

    return Vectorised(
        name,
        env,
        worker,
        seeding=lambda seeds: np.array(seeds, np.int64) & 0x7FFFFFFF,  # `ale_py` takes 31 bits
        observation=ObservationSpec(shape, "uint8", (Part("pixel", math.prod(shape)),), stack, "zero"),
        frame_skip=chosen["frameskip"],
        masked=False,
        reuses_arrays=False,
        picture_of=picture,
    )


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
        """With probability `sticky_action_prob` the previous action again."""
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


def register_minatar() -> None:
    """Adds `MinAtar/<Game>-v0` and `-v1` to Gymnasium's registry."""
    if importlib.util.find_spec("minatar") is None:
        raise missing_extra("MinAtar", "minatar")
    for game in GAMES:
        for version, minimal in (("v0", False), ("v1", True)):
            name = f"MinAtar/{game.title().replace('_', '')}-{version}"
            if name not in gym.registry:
                gym.register(name, f"{__name__}:MinAtarGame", kwargs={"game": game, "minimal_actions": minimal})


def _module(game: str) -> ModuleType:
    package = importlib.util.find_spec("minatar")
    if package is None or package.origin is None:
        raise missing_extra("MinAtar", "minatar")
    return load_file(Path(package.origin).parent / "environments" / f"{game}.py")


def _palette(channels: int) -> NDArray[np.uint8]:
    """Black, then evenly spread hues."""
    angles = np.arange(channels)[:, None] / channels + np.array([0, 1 / 3, 2 / 3])
    colours = 40 + 215 * (0.5 + 0.5 * np.cos(2 * np.pi * angles))
    return np.concatenate([np.zeros((1, 3)), colours]).astype(np.uint8)
