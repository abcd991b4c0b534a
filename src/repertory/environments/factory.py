"""Environments by name, stepped together; imports numpy and gymnasium, never jax.

`make` chooses how they are stepped: Atari by `ale_py`'s vector environment; many environments of a kind that
has its own vector implementation by that; all others one by one. Whichever it is, a `Step` means the same,
and no transition crosses a reset.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from repertory.environments import atari, tasks
from repertory.environments.deadlines import bounded, close_within, doing
from repertory.environments.loading import CLIPPING, Env, Source, find, name_environment, registered_id
from repertory.environments.registration import SLOW_CARTPOLE
from repertory.environments.stepping import Environments, Step
from repertory.environments.vectors import OneByOne, Vector, Vectorised
from repertory.errors import UserError
from repertory.specs import EnvironmentSpec

__all__ = [
    "Environments",
    "Step",
    "describe",
    "evaluation_options",
    "make",
    "name_environment",
    "registered_id",
    "seeds",
]

_VECTOR_FROM = 8
"""From this many environments on, CartPole's own vector implementation is faster than one by one."""


def make(
    name: str,
    count: int,
    *,
    options: Mapping[str, Any] | None = None,
    worker: int = 0,
    render: bool = False,
    autoreset: AutoresetMode | None = None,
    next_step_autoreset: bool = False,
) -> Environments:
    """`count` environments of that name; `autoreset` forces a Gymnasium vector environment in that mode.

    With `next_step_autoreset` an episode's end takes a step of its own, whatever steps them: the next call only resets.
    """
    if count < 1:
        raise UserError(f"{count} environments were asked for; at least 1 is needed")
    with doing(f"loading {name}"):
        source, chosen = find(name), dict(options or {})
    if source.spec is not None and atari.is_atari(source.spec):
        return _atari(source, chosen, count, worker, autoreset)
    if autoreset is not None:
        return _forced(source, chosen, count, worker, render, autoreset)
    if count >= _VECTOR_FROM and not render and (native := _native(source, chosen, count)) is not None:
        if not next_step_autoreset or native.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP:
            return Vectorised(name, native, worker)
        native.close()
    build = functools.partial(_build, source, chosen, worker, render)
    return OneByOne(name, build, count, worker, next_step_autoreset=next_step_autoreset)


def describe(name: str, options: Mapping[str, Any] | None = None) -> EnvironmentSpec:
    """What the environment of that name looks like: builds one, looks, closes it."""
    with bounded():
        environments = make(name, 1, options=options)
    close_within(name, [environments.close])
    return environments.spec


def evaluation_options(name: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The options under which a score is the game's own: rewards as they are, Atari whole, nothing that only waits."""
    with bounded(), doing(f"loading {name}"):
        spec, own = find(name).spec, dict(options or {})
    if atari.is_atari(spec):
        return {**own, CLIPPING: False, "episodic_life": False}
    own |= {CLIPPING: False} if CLIPPING in own else {}
    if spec is not None and spec.id == SLOW_CARTPOLE:
        own |= tasks.SCORED
    return own


def seeds(run_seed: int, worker: int, count: int, *key: int) -> list[int]:
    """One independent 31-bit seed for each environment of a worker; `key` tells restarts or rounds apart."""
    # The key goes behind the run's seed as a spawn key: SeedSequence([1]) equals SeedSequence([1, 0]).
    sequences = [np.random.SeedSequence(run_seed, spawn_key=(worker, index, *key)) for index in range(count)]
    return [int(sequence.generate_state(1)[0] >> 1) for sequence in sequences]


def _build(source: Source, options: Mapping[str, Any], worker: int, render: bool, index: int) -> Env:
    who = f"environment {index} of worker {worker}"
    return source.build(options, render=render and index == 0, who=who)


def _native(source: Source, options: Mapping[str, Any], count: int) -> Vector | None:
    """The environment's own vector implementation, if it has one that takes these options."""
    if source.spec is None or source.spec.vector_entry_point is None:
        return None
    if CLIPPING in options or options.get("max_episode_steps") == -1:
        return None
    try:
        env: Vector = gym.make_vec(source.spec, count, vectorization_mode="vector_entry_point", **options)
    except Exception:
        return None  # one by one then, which says what is wrong if the options are
    return env if isinstance(env.metadata.get("autoreset_mode"), AutoresetMode) else None


def _forced(
    source: Source, options: Mapping[str, Any], count: int, worker: int, render: bool, mode: AutoresetMode
) -> Vectorised:
    builds = [functools.partial(_build, source, options, worker, render, index) for index in range(count)]
    return Vectorised(source.name, SyncVectorEnv(builds, autoreset_mode=mode), worker, seeding=list)


def _atari(
    source: Source, options: Mapping[str, Any], count: int, worker: int, mode: AutoresetMode | None
) -> Vectorised:
    assert source.spec is not None
    try:
        return atari.make(source.name, source.spec, options, count, worker, mode)
    except Exception as error:
        raise source.refusal(error, options, f"the vector environment of worker {worker}") from error
