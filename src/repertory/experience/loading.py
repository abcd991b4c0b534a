"""Finding an environment by its name, and building one of them; imports gymnasium and our errors.

A name is an id in Gymnasium's registry (`CartPole-v1`), an id with the module that registers it
(`my_package:MyEnv-v0`), or a file with a function in it (`path/file.py:factory`) that is called with the
options and returns a `gymnasium.Env`. Every environment has the option `reward_clipping`: if it takes none
of that name itself, its rewards are cut to -1 at least and 1 at most.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.wrappers import ClipReward

from repertory.errors import EnvironmentFailure, UserError, nearest
from repertory.experience import atari, minatar_games
from repertory.experience.stepping import missing_dependency, raised

Env = gym.Env[Any, Any]
CLIPPING = "reward_clipping"


@dataclass(frozen=True)
class Source:
    """Where the environments of one name come from: a registered spec, or a factory."""

    name: str
    spec: EnvSpec | None = None
    factory: Callable[..., Any] | None = None

    def build(self, options: Mapping[str, Any], *, render: bool = False, who: str = "the environment") -> Env:
        """One environment; `who` begins the sentence if that fails."""
        own, clipped = self._without_clipping(options)
        try:
            env = self._create({**own, **({"render_mode": "rgb_array"} if render else {})})
        except Exception as error:
            raise self.refusal(error, options, who) from error
        if not isinstance(env, gym.Env):
            raise UserError(f"{self.name} returned a {type(env).__name__}, not a gymnasium.Env")
        return ClipReward(env, -1.0, 1.0) if clipped else env

    def _without_clipping(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """The options that are the environment's own, and whether its rewards are to be clipped for it."""
        own = dict(options)
        if CLIPPING not in own or CLIPPING in self._parameters():
            return own, False
        clipped = own.pop(CLIPPING)
        if not isinstance(clipped, bool):
            raise UserError(f"{CLIPPING} of {self.name} must be true or false, not {clipped!r}")
        return own, clipped

    def _create(self, options: dict[str, Any]) -> Any:
        if self.factory is not None:
            if "render_mode" in options and not _takes(self.factory, "render_mode"):
                del options["render_mode"]
            return self.factory(**options)
        assert self.spec is not None
        # Without Gymnasium's checks of every step: what they check is checked here, faster.
        lean = copy.copy(self.spec)
        lean.order_enforce = False
        return gym.make(lean, **{"disable_env_checker": True, **options})

    def refusal(self, error: Exception, options: Mapping[str, Any], who: str) -> UserError:
        """The sentence for an exception from building an environment."""
        if isinstance(error, UserError):
            return error
        if isinstance(error, gym.error.DependencyNotInstalled):
            return missing_dependency(self.name, error)
        unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if isinstance(error, TypeError) and unknown:
            option = unknown[1]
            if option in options:
                known = {*self._parameters(), CLIPPING}
                return UserError(f"{self.name} has no option {option!r}{nearest(option, known)}")
            if option == "render_mode":
                return UserError(f"{self.name} cannot be rendered: it takes no render_mode")
        return EnvironmentFailure(f"{who} could not be built: {self.name} {raised(error)}")

    def _parameters(self) -> list[str]:
        """The names of the arguments that the environment's constructor takes."""
        creator = self.factory
        if self.spec is not None and self.spec.entry_point is not None:
            entry = self.spec.entry_point
            creator = load_env_creator(entry) if isinstance(entry, str) else entry
        if creator is None:
            return []
        hidden = {"self", "render_mode", "num_envs", "autoreset_mode"}
        named = [p.name for p in inspect.signature(creator).parameters.values() if p.kind is not p.VAR_KEYWORD]
        return [name for name in named if name not in hidden]


def find(name: str) -> Source:
    """The environment of that name, or a sentence that says why there is none."""
    place, colon, last = name.rpartition(":")
    if colon and place.endswith(".py"):
        return Source(name, factory=_factory(Path(place), last))
    if colon:
        _import(place, name)
    return Source(name, spec=_registered(last))


def _registered(name: str) -> EnvSpec:
    if name not in gym.registry:
        if name.startswith("MinAtar/"):
            minatar_games.register()
        else:
            atari.register(name)
    if name not in gym.registry:
        closest = difflib.get_close_matches(name, gym.registry, n=1, cutoff=0.0)[0]
        raise UserError(f"there is no environment {name!r}; did you mean {closest!r}?")
    return gym.registry[name]


def _import(module: str, name: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise EnvironmentFailure(f"importing {module} for {name!r} {raised(error)}") from error
        raise UserError(f"there is no module {module!r} to import for the environment {name!r}") from error
    except Exception as error:
        raise EnvironmentFailure(f"importing {module} for {name!r} {raised(error)}") from error


def _factory(path: Path, function: str) -> Callable[..., Any]:
    if not path.is_file():
        raise UserError(f"there is no file {path} to take the environment {function!r} from")
    module = _load(path.resolve())
    factory = getattr(module, function, None)
    if not callable(factory):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserError(f"{path} has no function {function!r}{nearest(function, known or ['none'])}")
    found: Callable[..., Any] = factory
    return found


def _load(path: Path) -> ModuleType:
    """The file as a module of a private name, imported again only after it has changed."""
    key = hashlib.sha256(f"{path}:{path.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    name = f"_repertory_environment_{key}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception):
            raise EnvironmentFailure(f"importing {path} {raised(error)}") from error
        raise
    return module


def _takes(function: Callable[..., Any], argument: str) -> bool:
    known = inspect.signature(function).parameters
    return argument in known or any(p.kind is p.VAR_KEYWORD for p in known.values())
