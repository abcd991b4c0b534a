"""Atari games by `ale_py`'s own vector environment (extra `atari`); imports numpy, gymnasium, and our errors.

84×84 grey frames, four of them stacked, four emulator frames a step with the brighter of the last two, up to
30 no-ops at the start (Mnih et al. 2015). Rewards are clipped to their sign unless the option
`reward_clipping` is false. `repeat_action_probability` is the id's (0.25 for `ALE/*-v5`, 0 for
`*NoFrameskip-v4`) unless given; all other arguments of `AtariVectorEnv` are options too.

A stack of the first frames of an episode is filled up with zeros: seen by experiment, and held by a test.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import math
import re
from collections.abc import Mapping, Sequence
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

_ENTRY_POINT = "ale_py.env:AtariEnv"
_NAMES = re.compile(r"ALE/|.*(NoFrameskip|Deterministic)-v\d$")
_ZOOM = 4


def register(name: str) -> None:
    """Puts the Atari games into Gymnasium's registry; without `ale_py`, refuses a `name` that needs it."""
    if importlib.util.find_spec("ale_py") is not None:
        ale = importlib.import_module("ale_py")
        ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)
    elif _NAMES.match(name):
        raise missing_extra(name, "atari")


def is_atari(spec: EnvSpec | None) -> bool:
    """Whether a registered environment is one of `ale_py`'s."""
    return spec is not None and spec.entry_point == _ENTRY_POINT


def make(
    name: str, spec: EnvSpec, options: Mapping[str, Any], count: int, worker: int, mode: AutoresetMode | None
) -> Vectorised:
    """`count` games in one vector environment."""
    create = importlib.import_module("ale_py.vector_env").AtariVectorEnv
    _check_options(name, create, options)
    own = {key: spec.kwargs[key] for key in ("game", "repeat_action_probability")}
    chosen = {**own, "num_threads": 1, "frameskip": 4, "stack_num": 4, "grayscale": True, **options}
    env: Vector = create(num_envs=count, autoreset_mode=mode or AutoresetMode.NEXT_STEP, **chosen)
    return Vectorised(
        name,
        env,
        worker,
        seeding=_seeds,
        observation=_observation(env.single_observation_space, chosen["stack_num"]),
        frame_skip=chosen["frameskip"],
        masked=False,
        reuses_arrays=False,
        picture_of=functools.partial(_picture, grey=chosen["grayscale"]),
    )


def _check_options(name: str, create: Any, options: Mapping[str, Any]) -> None:
    ours = {"game", "num_envs", "batch_size", "autoreset_mode"}
    known = set(inspect.signature(create).parameters) - ours
    for option in options:
        if option not in known:
            raise UserError(f"{name} has no option {option!r}{nearest(option, known)}")


def _observation(space: gym.Space[Any], stack: int) -> ObservationSpec:
    assert space.shape is not None
    shape = space.shape[1:] if stack > 1 else space.shape
    return ObservationSpec(shape, "uint8", (Part("pixel", math.prod(shape)),), stack, "zero")


def _seeds(seeds: Sequence[int]) -> NDArray[np.int64]:
    """`ale_py` takes 31 bits."""
    return np.array(seeds, np.int64) & 0x7FFFFFFF


def _picture(stack: Array, grey: bool) -> Array:
    """The newest frame, larger."""
    frame = stack[-1][..., None].repeat(3, axis=2) if grey else stack[-1]
    return np.asarray(frame.repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1))
