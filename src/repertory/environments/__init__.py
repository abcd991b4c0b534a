"""Gymnasium environments: finding, building and stepping them. Here: registers this package's own ones.

`import repertory` takes 0.03 s and 12 MB. Importing Gymnasium there, to register environments that most runs never
use, would make it 0.18 s and 38 MB, also for `repertory --help` and for processes that play nothing. So ours are
registered at once where Gymnasium is imported already, and else right after it has registered its own: a finder waits
for that import, and removes itself. The environment itself is imported when it is made.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

SLOW_CARTPOLE = "repertory/SlowCartPole-v1"
MASKED_CARTPOLE = "repertory/MaskedCartPole-v1"
T_MAZE = "repertory/TMaze-v1"
_OURS = {
    SLOW_CARTPOLE: ("tasks:SlowCartPole", 475.0, 500),
    MASKED_CARTPOLE: ("tasks:MaskedCartPole", 475.0, 500),
    T_MAZE: ("tasks:TMaze", 0.9, 100),
}
"""Where each is imported from, the score at which it is solved, and the steps after which an episode is truncated."""
_GYMNASIUM = "gymnasium.envs"
"""The module that registers Gymnasium's own environments."""


def register_with_gymnasium() -> None:
    """Now, or as soon as Gymnasium is imported."""
    if _GYMNASIUM in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Waiting())


def _register() -> None:
    # Not from `gymnasium` itself, which is still being imported when its environments are.
    from gymnasium.envs.registration import register, registry

    for name, (place, solved, steps) in _OURS.items():
        if name not in registry:  # Gymnasium warns of a second time
            register(name, f"repertory.environments.{place}", reward_threshold=solved, max_episode_steps=steps)


class _Waiting:
    """A finder that finds no module itself, but registers our environments after Gymnasium's loader has run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _GYMNASIUM:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_register(module: ModuleType) -> None:
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _register()

        setattr(spec.loader, "exec_module", load_and_register)  # noqa: B010
        return spec
