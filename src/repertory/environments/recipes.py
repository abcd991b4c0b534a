"""What makes an environment that was given from Python; imports gymnasium.

Another process may not know what this one has registered with Gymnasium, as in a notebook. So a recipe carries the
registration along.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

_KNOWN = ("gymnasium.", "repertory.")
"""So begin the entry points that every process registers by itself."""


@dataclass(frozen=True)
class Recipe:
    """A callable that makes environments, or the registration of what was given by its id."""

    factory: Callable[..., Any] | None
    id: str
    """The id under which the environment is registered; empty if it has none."""
    registered: EnvSpec | None
    """Its registration, if other processes may lack it."""

    def register(self) -> None:
        """Register in this process what it lacks; a package that does so itself when it is imported comes first."""
        if self.registered is None or self.id in gym.registry:
            return
        if isinstance(self.registered.entry_point, str):
            with contextlib.suppress(Exception):
                importlib.import_module(self.registered.entry_point.partition(":")[0])
        gym.registry.setdefault(self.id, self.registered)


def portable(id_: str) -> EnvSpec | None:
    """A registration that works in any process; None if there is none, or if every process has it."""
    spec = gym.registry.get(id_)
    entry = None if spec is None else spec.entry_point
    if spec is None or (isinstance(entry, str) and entry.startswith(_KNOWN)):
        return None
    if isinstance(entry, str) and entry.startswith("__main__:"):
        spec = copy.copy(spec)
        spec.entry_point = load_env_creator(entry)  # type: ignore[assignment]
    return spec
