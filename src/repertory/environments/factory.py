"""Finding environments by name, building them, and choosing how they are stepped; never imports jax.

A name is an id in Gymnasium's registry (`CartPole-v1`), an id with the module that registers it
(`my_package:MyEnv-v0`), or a function in a file or module (`path/file.py:factory`, `my_package.mazes:factory`) that is
called with the options and returns a `gymnasium.Env`. From Python, the function or class itself may be given. Every
environment has the option `reward_clipping`: if it takes none of that name itself, its rewards are clipped to -1 … 1.

Atari is stepped by `ale_py`'s vector environment; many environments of a kind that has its own vector implementation by
that; all others one by one. In each case a `Step` means the same, and no transition crosses a reset.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import importlib
import inspect
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import logger
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import ClipReward

from repertory.environments import SLOW_CARTPOLE, games, tasks
from repertory.environments.deadlines import Overdue, bounded, close_within, doing
from repertory.environments.stepping import Environments, Step, missing_dependency, raised
from repertory.environments.vectors import Env, OneByOne, Vector, Vectorised
from repertory.errors import EnvironmentFailure, UserError, nearest
from repertory.specs import EnvironmentSpec
from repertory.user_code import Given, attribute, import_module, is_file, is_lost, load_file, name_of, split

__all__ = [
    "Environments",
    "Step",
    "describe",
    "evaluation_options",
    "hushed",
    "make",
    "name_environment",
    "registered_id",
    "seeds",
]

CLIPPING = "reward_clipping"
_VECTOR_FROM = 8
"""From this many environments on, CartPole's own vector implementation is faster than one by one."""
_KNOWN = ("gymnasium.", "repertory.")
"""Beginnings of the entry points that every process registers by itself."""
_BUILT: weakref.WeakValueDictionary[int, Env] = weakref.WeakValueDictionary()
"""Environments of this process that are still in use."""
_NEAR = 0.7
"""Names that are less alike than this are not suggested."""


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

    With `next_step_autoreset` a reset always takes a step of its own: the call after an episode's end only resets.
    """
    if count < 1:
        raise UserError(f"the number of environments must be at least 1, not {count}")
    with doing(f"loading {name}"):
        source, chosen = find(name), dict(options or {})
    if source.spec is not None and games.is_atari(source.spec):
        try:
            return games.make_atari(name, source.spec, chosen, count, worker, autoreset)
        except Exception as error:
            raise source.refusal(error, chosen, f"the vector environment of worker {worker}") from error

    def build(index: int) -> Env:
        return source.build(chosen, render=render and index == 0, label=f"environment {index} of worker {worker}")

    if autoreset is not None:
        builds = [functools.partial(build, index) for index in range(count)]
        return Vectorised(name, SyncVectorEnv(builds, autoreset_mode=autoreset), worker, seeding=list)
    if count >= _VECTOR_FROM and not render and (native := source.build_vector(chosen, count)) is not None:
        if not next_step_autoreset or native.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP:
            return Vectorised(name, native, worker)
        native.close()
    return OneByOne(name, build, count, worker, next_step_autoreset=next_step_autoreset)


def describe(name: str, options: Mapping[str, Any] | None = None) -> EnvironmentSpec:
    """Builds one environment, reads its spaces, closes it."""
    with bounded():
        environments = make(name, 1, options=options)
    close_within(name, [environments.close])
    return environments.spec


def evaluation_options(name: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Options under which a score is the game's own: rewards not clipped, whole Atari episodes, no artificial delay."""
    with bounded(), doing(f"loading {name}"):
        spec, own = find(name).spec, dict(options or {})
    if games.is_atari(spec):
        return {**own, CLIPPING: False, "episodic_life": False}
    own |= {CLIPPING: False} if CLIPPING in own else {}
    if spec is not None and spec.id == SLOW_CARTPOLE:
        own |= tasks.SCORED
    return own


def seeds(run_seed: int, worker: int, count: int, *key: int) -> list[int]:
    """One independent 31-bit seed for each environment of a worker; `key` distinguishes restarts or rounds."""
    # The key goes behind the run's seed as a spawn key: SeedSequence([1]) equals SeedSequence([1, 0]).
    sequences = [np.random.SeedSequence(run_seed, spawn_key=(worker, index, *key)) for index in range(count)]
    return [int(sequence.generate_state(1)[0] >> 1) for sequence in sequences]


@contextlib.contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """With `quiet`, Gymnasium prints only errors meanwhile, also in processes that a run starts."""
    before = warning_level()
    if quiet:
        set_warning_level(max(before, logger.ERROR))
    try:
        yield
    finally:
        set_warning_level(before)


def warning_level() -> int:
    """Gymnasium's lowest level of messages that are printed; worker processes get the same."""
    return logger.min_level


def set_warning_level(number: int) -> None:
    logger.min_level = number


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


@dataclass(frozen=True)
class Source:
    """Where the environments of one name come from: a registered spec, or a factory."""

    name: str
    spec: EnvSpec | None = None
    factory: Callable[..., Any] | None = None
    id: str = ""
    """The id under which what was given from Python is registered; empty if it has none."""

    def registered(self) -> Source:
        """Of what was given from Python: registered in this process too.

        A package that registers its environments when it is imported comes first.
        """
        if self.spec is not None and self.id not in gym.registry:
            if isinstance(self.spec.entry_point, str):
                with contextlib.suppress(Exception):
                    importlib.import_module(self.spec.entry_point.partition(":")[0])
            gym.registry.setdefault(self.id, self.spec)
        return replace(self, spec=None if self.factory else gym.registry[self.id])

    def build(self, options: Mapping[str, Any], *, render: bool = False, label: str = "the environment") -> Env:
        """One environment; `label` names it in the message if that fails."""
        own, clipped = dict(options), False
        if CLIPPING in own and CLIPPING not in self._parameters():
            clipped = own.pop(CLIPPING)
            if not isinstance(clipped, bool):
                raise UserError(f"{CLIPPING} of {self.name} must be true or false, not {clipped!r}")
        try:
            with doing(f"building {self.name}"):
                env = self._create({**own, **({"render_mode": "rgb_array"} if render else {})})
        except Exception as error:
            raise self.refusal(error, options, label) from error
        if not isinstance(env, gym.Env):
            raise UserError(f"{self.name} returned a {type(env).__name__}, not a gymnasium.Env")
        if _BUILT.get(id(env.unwrapped)) is env.unwrapped:
            raise UserError(f"{self.name} returned the same environment twice; let it make a new one at each call")
        _BUILT[id(env.unwrapped)] = env.unwrapped
        return ClipReward(env, -1.0, 1.0) if clipped else env

    def _create(self, options: dict[str, Any]) -> Any:
        if self.factory is not None:
            if "render_mode" in options:
                known = inspect.signature(self.factory).parameters
                if "render_mode" not in known and all(p.kind is not p.VAR_KEYWORD for p in known.values()):
                    del options["render_mode"]
            return self.factory(**options)
        assert self.spec is not None
        # Without Gymnasium's checks of every step: what they check is checked here, faster.
        lean = copy.copy(self.spec)
        lean.order_enforce = False
        return gym.make(lean, **{"disable_env_checker": True, **options})

    def build_vector(self, options: Mapping[str, Any], count: int) -> Vector | None:
        """The environment's own vector implementation, if it has one that takes these options."""
        if self.spec is None or self.spec.vector_entry_point is None:
            return None
        if CLIPPING in options or options.get("max_episode_steps") == -1:
            return None
        try:
            env: Vector = gym.make_vec(self.spec, count, vectorization_mode="vector_entry_point", **options)
        except Exception:
            return None  # if the options are wrong, building one by one says so
        return env if isinstance(env.metadata.get("autoreset_mode"), AutoresetMode) else None

    def refusal(self, error: Exception, options: Mapping[str, Any], label: str) -> UserError:
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
        return EnvironmentFailure(f"{label} could not be built: {self.name} {raised(error)}")

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
    """The name of what was given to train on; the name of a Python object carries the object along."""
    if isinstance(given, str):
        spec = portable(given)
        carried = spec is not None and not games.is_atari(spec)
        return Given(given, Source(given, spec, id=given)) if carried else given
    if isinstance(given, gym.Env | gym.vector.VectorEnv):
        kind = type(given.unwrapped).__name__
        remade = f"{kind}()" if given.spec is None else f"gym.make({given.spec.id!r})"
        raise UserError(
            f"the {kind} object is an environment, and a run makes several of its own; give a function that makes "
            f"one: train(lambda: {remade})"
        )
    if not callable(given):
        raise UserError(f"an environment is a name or a function that makes one, not {given!r}")
    name = name_of(given)
    id_ = _registered_as(Source(name, factory=given), options)
    return Given(name, Source(name, portable(id_), given, id_))


def _registered_as(source: Source, options: Mapping[str, Any]) -> str:
    """The id of what a callable makes; empty if it has none, or fails: the run reports that when it builds one."""
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
    """The key of an environment's preset: its name, or the id under which a given one is registered."""
    return name.call.id if isinstance(name, Given) else name


def find(name: str) -> Source:
    """The environment of that name, or a sentence that says why there is none."""
    if isinstance(name, Given):
        source: Source = name.call
        return source.registered()
    if is_lost(name):
        raise UserError(f"the environment {name} was a Python object; name it, for example as path/file.py:function")
    place, last = split(name)
    if not place:
        return Source(name, spec=_registered(last))
    if is_file(place):
        return Source(name, factory=_factory(Path(place), last))
    try:
        module = import_module(place)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name is not None and place.startswith(error.name):
            raise UserError(f"there is no module {place!r} to import for the environment {name!r}") from error
        raise EnvironmentFailure(f"importing {place} for {name!r} {raised(error)}") from error
    if last not in gym.registry and callable(found := attribute(module, last)):
        return Source(name, factory=found)
    return Source(name, spec=_registered(last, place))


def _registered(name: str, module: str = "") -> EnvSpec:
    if name not in gym.registry:
        if name.startswith("MinAtar/"):
            games.register_minatar()
        else:
            games.register_atari(name)
    if name not in gym.registry:
        near = _nearest(name)
        if module:
            raise UserError(f"there is no environment {name!r} in {module}, registered or as a function{near}")
        raise UserError(f"there is no environment {name!r}{near} (if a package registers it, write package:{name})")
    return gym.registry[name]


def _nearest(name: str) -> str:
    """`; did you mean 'CartPole-v1'?` if one is near; versions and namespaces, which many share, count little."""

    def stem(name: str) -> str:
        return re.sub(r"-v\d+$", "", name.rpartition("/")[2]).lower()

    stems: dict[str, list[str]] = {}
    for each in gym.registry:
        stems.setdefault(stem(each), []).append(each)
    near = difflib.get_close_matches(stem(name), stems, n=1, cutoff=_NEAR)
    if not near:
        return ""
    return f"; did you mean {difflib.get_close_matches(name, stems[near[0]], n=1, cutoff=0.0)[0]!r}?"


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
