"""Finding an environment by its name, and building one of them; imports gymnasium, our errors and the user's code.

A name is an id in Gymnasium's registry (`CartPole-v1`), an id with the module that registers it
(`my_package:MyEnv-v0`), or a function in a file or module (`path/file.py:factory`, `my_package.mazes:factory`) that is
called with the options and returns a `gymnasium.Env`. From Python, the function or class itself may be given. Every
environment has the option `reward_clipping`: if it takes none of that name itself, its rewards are cut to -1 at least
and 1 at most."""

from __future__ import annotations

import contextlib
import copy
import difflib
import importlib
import inspect
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
from gymnasium import logger
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.wrappers import ClipReward

from repertory.environments import atari, minatar_games
from repertory.environments.deadlines import Overdue, bounded, close_within, doing
from repertory.environments.stepping import missing_dependency, raised
from repertory.errors import EnvironmentFailure, UserError, nearest
from repertory.user_code import Given, attribute, import_module, is_file, is_lost, load_file, name_of, split


@contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """With `quiet`, only Gymnasium's errors are told meanwhile, in processes that a run starts as well."""
    before = warning_level()
    if quiet:
        set_warning_level(max(before, logger.ERROR))
    try:
        yield
    finally:
        set_warning_level(before)


def warning_level() -> int:
    """What is told now: for a process that is to tell the same."""
    return logger.min_level


def set_warning_level(number: int) -> None:
    """Tell nothing below it."""
    logger.min_level = number


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


Env = gym.Env[Any, Any]
CLIPPING = "reward_clipping"
_BUILT: weakref.WeakValueDictionary[int, Env] = weakref.WeakValueDictionary()
"""Environments of this process that somebody still has."""
_NEAR = 0.7
"""Names that are less alike than this are not suggested."""


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
            with doing(f"building {self.name}"):
                env = self._create({**own, **({"render_mode": "rgb_array"} if render else {})})
        except Exception as error:
            raise self.refusal(error, options, who) from error
        if not isinstance(env, gym.Env):
            raise UserError(f"{self.name} returned a {type(env).__name__}, not a gymnasium.Env")
        if _BUILT.get(id(env.unwrapped)) is env.unwrapped:
            raise UserError(f"{self.name} returned the same environment twice; let it make a new one at each call")
        _BUILT[id(env.unwrapped)] = env.unwrapped
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


def name_environment(given: Any, options: Mapping[str, Any]) -> str:
    """The name of what was given to train on; that of a Python object carries the object along."""
    if isinstance(given, str):
        spec = portable(given)
        carried = spec is not None and not atari.is_atari(spec)
        return Given(given, Recipe(None, given, spec)) if carried else given
    if isinstance(given, gym.Env | gym.vector.VectorEnv):
        raise UserError(
            f"{_described(given)} is an environment, and a run makes several of its own; give a function that makes "
            f"one: train(lambda: {_remade(given)})"
        )
    if not callable(given):
        raise UserError(f"an environment is a name or a function that makes one, not {given!r}")
    name = name_of(given)
    id_ = _registered_as(Source(name, factory=given), options)
    return Given(name, Recipe(given, id_, portable(id_)))


def _described(env: Any) -> str:
    return f"the {type(env.unwrapped).__name__} object"


def _remade(env: Any) -> str:
    return f"{type(env.unwrapped).__name__}()" if env.spec is None else f"gym.make({env.spec.id!r})"


def _registered_as(source: Source, options: Mapping[str, Any]) -> str:
    """The id of what a callable makes; empty if it has none, or fails: that is told when it is needed."""
    try:
        with bounded():
            env = source.build(options)
    except UserError as error:
        if isinstance(error.__cause__, Overdue):
            raise
        return ""
    close_within(source.name, [env.close])
    return "" if env.spec is None else env.spec.id


def registered_id(name: str) -> str:
    """What to find an environment's preset by: its name, or the id under which a given one is registered."""
    return name.call.id if isinstance(name, Given) else name


def find(name: str) -> Source:
    """The environment of that name, or a sentence that says why there is none."""
    if isinstance(name, Given):
        recipe: Recipe = name.call
        recipe.register()
        return Source(name, factory=recipe.factory, spec=None if recipe.factory else gym.registry[recipe.id])
    if is_lost(name):
        raise UserError(f"the environment {name} was a Python object; name it, for example as path/file.py:function")
    place, last = split(name)
    if not place:
        return Source(name, spec=_registered(last))
    if is_file(place):
        return Source(name, factory=_factory(Path(place), last))
    module = _import(place, name)
    if last not in gym.registry and callable(found := attribute(module, last)):
        return Source(name, factory=found)
    return Source(name, spec=_registered(last, place))


def _registered(name: str, module: str = "") -> EnvSpec:
    if name not in gym.registry:
        if name.startswith("MinAtar/"):
            minatar_games.register()
        else:
            atari.register(name)
    if name not in gym.registry:
        near = _nearest(name, gym.registry)
        if module:
            raise UserError(f"there is no environment {name!r} in {module}, registered or as a function{near}")
        raise UserError(f"there is no environment {name!r}{near} (if a package registers it, write package:{name})")
    return gym.registry[name]


def _nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'CartPole-v1'?` if one is near; versions and namespaces, which many share, count little."""
    stems: dict[str, list[str]] = {}
    for each in known:
        stems.setdefault(_stem(each), []).append(each)
    near = difflib.get_close_matches(_stem(name), stems, n=1, cutoff=_NEAR)
    if not near:
        return ""
    return f"; did you mean {difflib.get_close_matches(name, stems[near[0]], n=1, cutoff=0.0)[0]!r}?"


def _stem(name: str) -> str:
    return re.sub(r"-v\d+$", "", name.rpartition("/")[2]).lower()


def _import(module: str, name: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise EnvironmentFailure(f"importing {module} for {name!r} {raised(error)}") from error
        raise UserError(f"there is no module {module!r} to import for the environment {name!r}") from error
    except Exception as error:
        raise EnvironmentFailure(f"importing {module} for {name!r} {raised(error)}") from error


def _factory(path: Path, function: str) -> Callable[..., Any]:
    if not path.is_file():
        raise UserError(f"there is no file {path} to take the environment {function!r} from")
    try:
        module = load_file(path)
    except Exception as error:
        raise EnvironmentFailure(f"importing {path} {raised(error)}") from error
    factory = attribute(module, function)
    if not callable(factory):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserError(f"{path} has no function {function!r}{nearest(function, known or ['none'])}")
    found: Callable[..., Any] = factory
    return found


def _takes(function: Callable[..., Any], argument: str) -> bool:
    known = inspect.signature(function).parameters
    return argument in known or any(p.kind is p.VAR_KEYWORD for p in known.values())
