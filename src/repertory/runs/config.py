"""A run's options: composes those of the packages below, and refuses what can't work, in one sentence."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from repertory import topologies
from repertory.agents import registry
from repertory.agents.networks import NetworkOptions
from repertory.agents.q_learning import QLearningOptions
from repertory.engines import ENGINES
from repertory.errors import UserError, nearest
from repertory.limits import NonNegative, Positive, Range, check_ranges
from repertory.runtime import usable_cores
from repertory.topologies.graph import validate
from repertory.topologies.options import AgentOptions, TopologyOptions

SEEDS = 2**32
"""Seeds are below it: JAX's keys have no more bits."""
Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]
"""A flag without a `--no-` form."""


@dataclass(frozen=True)
class ChoiceOptions:
    """What is trained, and by which topology."""

    environment: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """A Gymnasium id, `module:Id`, or `path/file.py:factory`."""
    agent_name: Annotated[str, tyro.conf.arg(name="agent", metavar="NAME")] = "dqn"
    """Agent: dqn, rainbow (every part on), sarsa, a3c, impala, appo; by default the one that suits the topology."""
    topology_name: Annotated[str, tyro.conf.arg(name="topology", metavar="NAME")] = topologies.DEFAULT
    """Topology of workers: single, collectors, apex, impala, ...; `repertory show` lists all, and draws each."""
    engine: Annotated[str, tyro.conf.arg(metavar="NAME")] = "inline"
    """Engine that runs the workers: inline (one process), processes (many on this machine), ray (many machines)."""
    config: Path | None = None
    """A .json or .toml file of options, or a run's directory to use its options; the command line overrides them."""
    preset: str | None = None
    """Default settings: a .toml file or a name of `repertory presets`; by default the environment's preset."""


@dataclass(frozen=True, kw_only=True)
class StopOptions:
    """When the run stops, and its random seed."""

    env_steps: Positive[int] = 100_000
    """Total env steps after which the run stops (agent decisions, all environments added up)."""
    seconds: Positive[float] | None = None
    """Stop after this many seconds of training."""
    target_score: float | None = None
    """Stop as soon as the mean return of an evaluation reaches this score."""
    seed: Annotated[int, Range(0, SEEDS - 1)] = 0
    """Random seed of the whole run, 0 to 2**32 - 1."""


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Greedy episodes with a copy of the weights."""

    eval_every: Positive[int] = 10_000
    """Env steps between evaluations."""
    eval_every_s: Positive[float] | None = None
    """Seconds between evaluations, in addition to those by env steps."""
    eval_episodes: Positive[int] = 20
    """Number of greedy episodes in each evaluation."""
    eval_max_steps: Positive[int] = 30_000
    """Maximum episode length in evaluations, in steps; longer episodes are cut off, and their return so far counts."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """How environments are built."""

    envs_per_actor: Positive[int] = 1
    """Vectorized environments: how many each actor steps together; typically 1 to 32."""
    env_option: tuple[str, ...] = ()
    """KEY=VALUE: keyword arguments of the environment's constructor."""


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Number of actors and compute threads, heartbeats, and restarts of failed workers."""

    actors: Positive[int] = 1
    """Number of actors; each plays its own environments."""
    threads: NonNegative[int] = 0
    """Compute threads of each learner with a convolutional network; 0 = its share of the cores."""
    heartbeat_s: Positive[float] = 60.0
    """Heartbeat timeout: seconds without progress after which a worker is killed and restarted."""
    restarts: NonNegative[int] = 5
    """Maximum number of restarts of a worker in a row without progress; then the run ends."""


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """For --engine ray."""

    address: str | None = None
    """Ray cluster to join: auto, or HOST:PORT; by default a cluster of this machine alone is started and ended."""
    insecure: Switch = False
    """Join a cluster without token authentication: anyone who reaches its ports can run code there."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Logs, checkpoints and what is shown."""

    name: str | None = None
    """Name of the run directory; by default made of environment, seed and time."""
    runs_dir: Path = Path("runs")
    """Directory in which the run directory is created."""
    log_every: Positive[int] = 1_000
    """Logging interval: env steps between lines of metrics."""
    checkpoint_every: Positive[int] = 10_000
    """Env steps between checkpoints; running episodes end there, so that a resumed run continues exactly."""
    keep_checkpoints: Positive[int] = 2
    """Number of newest checkpoints to keep."""
    dry_run: Switch = False
    """Print what the run would do, and exit."""
    quiet: Annotated[Switch, tyro.conf.arg(aliases=("-q",))] = False
    """No live view, and no warnings of Gymnasium; the result is still printed."""
    json: Switch = False
    """Print the result as one JSON line and nothing else."""


GROUPS: Mapping[str, type] = {
    "run": StopOptions,
    "evaluation": EvaluationOptions,
    "environment": EnvironmentOptions,
    "worker": WorkerOptions,
    "cluster": ClusterOptions,
    "output": OutputOptions,
}
"""Options that every run has, under the headings that help shows them."""


@dataclass(frozen=True)
class RunOptions(
    OutputOptions, ClusterOptions, WorkerOptions, EnvironmentOptions, EvaluationOptions, StopOptions, ChoiceOptions
):
    """Train an agent on an environment."""

    agent: AgentOptions = field(default_factory=QLearningOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    topology: TopologyOptions = field(default_factory=topologies.find(topologies.DEFAULT).options)

    @property
    def learns_from(self) -> Literal["replay", "unrolls"]:
        return registry.find(self.agent_name).learns_from


def options_for(agent: str, topology: str) -> type[RunOptions]:
    """The options of a run with this agent on this topology: only those that the two read."""
    kinds: Any = (registry.find(agent).options, topologies.find(topology).options)
    return _composed(agent, topology, *kinds)


@cache
def _composed(agent: str, topology: str, agent_options: type, topology_options: type) -> type[RunOptions]:
    hints = get_type_hints(RunOptions, include_extras=True)
    own = [
        ("agent_name", hints["agent_name"], field(default=agent)),
        ("topology_name", hints["topology_name"], field(default=topology)),
        ("agent", agent_options, field(default_factory=agent_options)),
        ("topology", topology_options, field(default_factory=topology_options)),
    ]
    described = {"__doc__": RunOptions.__doc__, "__module__": __name__}
    return dataclasses.make_dataclass("RunOptions", own, bases=(RunOptions,), frozen=True, namespace=described)


def environment_options(options: RunOptions) -> dict[str, Any]:
    return read_pairs(options.env_option, "--env-option")


def read_pairs(texts: Iterable[str], option: str) -> dict[str, Any]:
    """`KEY=VALUE` texts as a dictionary; values are Python literals where they can be read as such."""
    result: dict[str, Any] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise UserError(f"{option} takes KEY=VALUE, not {text!r}")
        try:
            result[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            result[key] = {"true": True, "false": False}.get(value.lower(), value)
    return result


def flag(name: str) -> str:
    """The command line's spelling of an option."""
    return "--" + name.replace("_", "-")


def check(options: RunOptions) -> RunOptions:
    """The same options; a `UserError` for those that can't work."""
    check_ranges(options)
    kind, topology = registry.find(options.agent_name), topologies.find(options.topology_name)
    if options.engine not in ENGINES:
        raise UserError(f"unknown engine {options.engine!r}{nearest(options.engine, ENGINES)}")
    if (type(options.agent), type(options.topology)) != (kind.options, topology.options):
        given = f"agent {kind.name!r} and topology {topology.name!r}"
        raise UserError(f"these options are not for {given}; give their names when they are made")
    others = topologies.known().values() if options.engine not in topology.engines else ()
    validate(topology, engine=options.engine, agent=kind.name, like=kind.like, others=others)
    options.network.check()
    if kind.learns_from == "replay" and (options.network.lstm_size or options.network.separate):
        raise UserError("--network.lstm-size and --network.separate are for actor-critic agents: a3c, impala, appo")
    options.agent.check()
    options.topology.check(options)
    return options


def resolve(options: RunOptions) -> RunOptions:
    """Fill in the options that follow from others."""
    cores = usable_cores()
    fair = cores if options.engine == "inline" else options.topology.threads(options, cores)
    return dataclasses.replace(options, agent=options.topology.resolve(options), threads=options.threads or fair)


def value_of(options: Any, name: str) -> Any:
    for part in name.split("."):
        options = getattr(options, part)
    return options


def names_of(cls: type, prefix: str = "") -> list[str]:
    """Dotted names of all options."""
    hints = get_type_hints(cls)
    names: list[str] = []
    for name in (item.name for item in dataclasses.fields(cls)):
        inner = dataclasses.is_dataclass(hints[name])
        names += names_of(hints[name], f"{prefix}{name}.") if inner else [prefix + name]
    return names


def change(options: Any, changes: Mapping[str, Any], prefix: str = "", of: Any = None) -> Any:
    """Options with these changes; the error for an unknown key names the nearest."""
    known = {item.name for item in dataclasses.fields(options)}
    values = {}
    for key, value in changes.items():
        if key not in known:
            raise unknown_option(of or options, prefix + key, repr(key), known)
        current = getattr(options, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise UserError(f"option {prefix + key!r} takes a dictionary of options, not {value!r}")
            values[key] = change(current, value, f"{prefix}{key}.", of or options)
        else:
            values[key] = _as_kind(type(options), key, value, prefix)
    return dataclasses.replace(options, **values)


def unknown_option(of: Any, name: str, spelled: str, known: Collection[str]) -> UserError:
    """The error for an option that these options, or a class of them, do not have; `known` are candidates."""
    room, _, key = name.rpartition(".")
    if name.partition(".")[0] in ("company", "company_options"):  # of older versions
        new = key if key in RunOptions.__dataclass_fields__ else f"topology.{key or 'NAME'}"
        python = ", and company_options are topology_options" if new.startswith("topology") else ""
        return UserError(f"--company.{flag(key or 'NAME')[2:]} is now {flag(new)}{python}")
    rooms: dict[str, Mapping[str, Any]] = {"agent": registry.known(), "topology": topologies.known()}
    kinds = rooms.get(room)
    if kinds is None or not hasattr(of, f"{room}_name"):
        shown = spelled if spelled.startswith("-") else repr(name)
        return UserError(f"unknown option {shown}{nearest(spelled, known)}")
    having = [other for other, kind in kinds.items() if key in kind.options.__dataclass_fields__]
    instead = f" (an option of {', '.join(having)})" if having else ""
    hint = nearest(spelled.strip("'"), known) if known else "; it has none of its own"
    return UserError(f"{room} {getattr(of, f'{room}_name')!r} has no option {spelled}{instead}{hint}")


def _as_kind(cls: type, key: str, value: Any, prefix: str) -> Any:
    kinds = _kinds(get_type_hints(cls)[key])
    if isinstance(value, list):
        value = tuple(value)
    if Path in kinds and isinstance(value, str):
        return Path(value)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    literals = [kind for kind in kinds if isinstance(kind, str)]
    if literals and value not in literals:
        raise UserError(f"option {prefix + key!r} is {value!r}{nearest(str(value), literals)}")
    types = tuple(kind for kind in kinds if isinstance(kind, type))
    if types and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
        names = " or ".join(kind.__name__ for kind in types)
        raise UserError(f"option {prefix + key!r} must be {names}, not {value!r}")
    return value


def _kinds(hint: Any) -> list[Any]:
    """The types and literals that a hint allows."""
    if isinstance(hint, type | str):
        return [hint]
    if get_origin(hint) is tuple:
        return [tuple]
    return [kind for argument in get_args(hint) for kind in _kinds(argument)]


def to_dict(options: RunOptions) -> dict[str, Any]:
    """As JSON values."""
    values = dataclasses.asdict(options)
    del values["config"], values["preset"]  # their settings are in the other options
    values["runs_dir"] = str(options.runs_dir)
    return values


def from_dict(values: Mapping[str, Any]) -> RunOptions:
    """What `to_dict` wrote."""
    values = dict(values)
    if "company" in values:
        raise UserError("these options are of an older version; --company.NAME is now --topology.NAME")
    blank = ChoiceOptions(str(values.pop("environment")))
    kind = options_for(*(str(values.get(name, getattr(blank, name))) for name in ("agent_name", "topology_name")))
    options: RunOptions = change(kind(blank.environment), values)
    return options
