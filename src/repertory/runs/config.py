"""A run's configuration: composes the options of the rooms below, and refuses what can't work, in one sentence."""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from repertory import topologies
from repertory.agents.actor_critic import ActorCriticOptions
from repertory.agents.networks import NetworkOptions
from repertory.agents.q_learning import QLearningOptions
from repertory.engines import ENGINES
from repertory.errors import UserError, nearest
from repertory.runtime import usable_cores
from repertory.topologies.options import CompanyOptions

SEEDS = 2**32
"""Seeds lie below it: JAX's keys keep no more bits."""
VALUE_AGENTS, CRITIC_AGENTS = ("dqn", "rainbow", "sarsa"), ("a3c", "impala", "appo")
AGENTS = VALUE_AGENTS + CRITIC_AGENTS


@dataclass(frozen=True)
class RunOptions:
    """Train an agent on an environment."""

    environment: tyro.conf.Positional[str]
    """A Gymnasium id, `module:Id`, or `path/file.py:factory`."""
    agent_name: Annotated[str, tyro.conf.arg(name="agent")] = "dqn"
    """Which agent: dqn, rainbow (every part on), sarsa, a3c, impala, appo; by default what suits the topology."""
    topology: str = "single"
    """Who does what: single, collectors, apex, parameter_server, gorila, hogwild, all_reduce, a3c, ga3c, impala,
    seed_rl, sample_factory; `repertory show NAME` draws it."""
    config: Path | None = None
    """A .json or .toml file of options, or a run's directory to take over its; the command line has the last word."""
    engine: str = "inline"
    """What hosts the roles: inline (one process), processes (many on this machine)."""
    env_steps: int = 100_000
    """Stop after this many env steps (agent decisions, all environments added up)."""
    seconds: float | None = None
    """Stop after this many seconds of training."""
    target_score: float | None = None
    """Stop as soon as an evaluation's mean reaches this."""
    eval_every: int = 10_000
    """Env steps between evaluations."""
    eval_every_s: float | None = None
    """Seconds between evaluations, besides those by env steps."""
    eval_episodes: int = 20
    """Greedy episodes of an evaluation."""
    eval_max_steps: int = 30_000
    """Steps after which an evaluation episode counts as it stands."""
    seed: int = 0
    """Everything random in the run follows from it."""
    name: str | None = None
    """The run directory's name; by default made of environment, seed and time."""
    runs_dir: Path = Path("runs")
    """Where run directories lie."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print what would be done, and stop."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(aliases=("-q",))] = False
    """No live view, and no warnings of Gymnasium; the result is still printed."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as one JSON line and nothing else."""
    env_option: tuple[str, ...] = ()
    """KEY=VALUE handed to the environment's constructor."""
    actors: int = 1
    """Actors; each plays its own environments."""
    envs_per_actor: int = 1
    """Environments that each actor steps together."""
    threads: int = 0
    """Threads that share a convolutional network's batch in each process that learns; 0 = as many as there are cores
    for them."""
    log_every: int = 1_000
    """Env steps between lines of metrics."""
    checkpoint_every: int = 10_000
    """Env steps between checkpoints; running episodes are cut there, so that a resumed run is the same run."""
    keep_checkpoints: int = 2
    """How many checkpoints are kept."""
    agent: QLearningOptions = field(default_factory=QLearningOptions)
    network: NetworkOptions = field(default_factory=NetworkOptions)
    company: CompanyOptions = field(default_factory=CompanyOptions)


@dataclass(frozen=True)
class CriticRunOptions(RunOptions):
    """Train an actor-critic agent on an environment."""

    agent: ActorCriticOptions = field(default_factory=ActorCriticOptions)  # type: ignore[assignment]


def options_for(agent: str) -> type[RunOptions]:
    """The options of runs with this agent."""
    return CriticRunOptions if agent in CRITIC_AGENTS else RunOptions


def environment_options(options: RunOptions) -> dict[str, Any]:
    """`KEY=VALUE` texts as a dictionary; values are Python literals where they can be read as such."""
    return read_pairs(options.env_option, "--env-option")


def read_pairs(texts: Iterable[str], option: str) -> dict[str, Any]:
    """Each text as a key and a value."""
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


POSITIVE = (
    "env_steps", "eval_every", "eval_episodes", "eval_max_steps", "actors", "envs_per_actor", "log_every",
    "checkpoint_every", "keep_checkpoints", "agent.batch_size", "agent.learning_rate", "agent.n_step",
    "agent.target_period", "agent.replay_capacity", "agent.replay_ratio", "agent.updates_per_call",
    "agent.optimizer_epsilon", "company.pull_period", "company.shards", "company.fetch_period", "company.push_period",
    "company.update_steps", "company.target_steps", "company.topk_share", "company.heartbeat_s",
    "company.staleness_bound", "company.groups", "company.learners", "company.predictors", "company.trainers",
    "company.policy_workers", "company.inference_least", "company.adjust_s",
)  # fmt: skip
POSITIVE_OF_CRITICS = (
    "agent.unroll", "agent.batch_unrolls", "agent.learning_rate", "agent.rho_clip", "agent.c_clip", "agent.epochs",
    "agent.minibatches", "agent.optimizer_epsilon",
)  # fmt: skip
NOT_NEGATIVE = (
    "seed", "threads", "agent.learning_starts", "agent.epsilon_steps", "agent.max_gradient_norm",
    "agent.importance_steps", "agent.learning_rate_end", "agent.learning_rate_steps", "company.max_gradient_age",
    "company.outlier_deviations", "company.restarts", "company.ladder_exponent", "company.queue",
    "company.max_policy_lag", "company.inference_patience_s", "company.actors_per_process", "network.core",
)  # fmt: skip
NOT_NEGATIVE_OF_CRITICS = (
    "agent.learning_rate_end", "agent.learning_rate_steps", "agent.ratio_clip", "agent.entropy", "agent.entropy_end",
    "agent.entropy_steps", "agent.value_weight", "agent.probability_floor", "agent.max_gradient_norm",
)  # fmt: skip
SHARES = (
    "agent.discount", "agent.target_tau", "agent.epsilon_start", "agent.epsilon_end", "agent.priority_exponent",
    "agent.importance_exponent", "company.ladder_base", "company.topk_share",
)  # fmt: skip
SHARES_OF_CRITICS = ("agent.discount", "agent.trace")


def flag(name: str) -> str:
    """The command line's spelling of an option."""
    return "--" + name.replace("_", "-")


def check(options: RunOptions) -> RunOptions:
    """The same options, or a sentence that says which one can't be."""
    for name in names_of(type(options)):
        if isinstance(value_of(options, name), float) and not math.isfinite(value_of(options, name)):
            raise UserError(f"{flag(name)} must be a finite number, not {value_of(options, name)}")
    critic = isinstance(options, CriticRunOptions)
    for name in _of(critic, POSITIVE, POSITIVE_OF_CRITICS):
        if not value_of(options, name) > 0:
            raise UserError(f"{flag(name)} must be above 0, not {value_of(options, name)}")
    for name in _of(critic, NOT_NEGATIVE, NOT_NEGATIVE_OF_CRITICS):
        if value_of(options, name) < 0:
            raise UserError(f"{flag(name)} must not be negative, it is {value_of(options, name)}")
    for name in _of(critic, SHARES, SHARES_OF_CRITICS):
        if not 0 <= value_of(options, name) <= 1:
            raise UserError(f"{flag(name)} must lie between 0 and 1, it is {value_of(options, name)}")
    if options.seed >= SEEDS:
        raise UserError(f"--seed must lie below {SEEDS}, it is {options.seed}")
    for name in ("seconds", "eval_every_s"):
        if value_of(options, name) is not None and value_of(options, name) <= 0:
            raise UserError(f"{flag(name)} must be above 0, not {value_of(options, name)}")
    if options.agent_name not in AGENTS:
        raise UserError(f"unknown agent {options.agent_name!r}{nearest(options.agent_name, AGENTS)}")
    if options.engine not in ENGINES:
        raise UserError(f"unknown engine {options.engine!r}{nearest(options.engine, ENGINES)}")
    if not options.network.hidden or min(options.network.hidden) < 1:
        raise UserError(f"--network.hidden needs widths above 0, not {options.network.hidden}")
    if critic != (options.agent_name in CRITIC_AGENTS):
        raise UserError(f"these options are not for agent {options.agent_name!r}; give its name when they are made")
    _check_numbers(options)
    if critic:
        _check_critics(options)
    else:
        _check_agent(options.agent)
        _check_company(options)
    return options


def _of(critic: bool, names: tuple[str, ...], own: tuple[str, ...]) -> list[str]:
    """The names that runs of this kind have."""
    return [name for name in names if not (critic and name.startswith("agent."))] + list(own if critic else ())


def _check_critics(options: RunOptions) -> None:
    """Pairs that contradict each other, where unrolls are learned from."""
    company = options.company
    if not topologies.find(options.topology).has("evaluator") or options.topology == "single":
        return  # refused later, with what to choose instead
    if options.network.core and options.network.separate:
        raise UserError("--network.core and --network.separate exclude each other: both would want the last layers")
    if company.groups > 1 and topologies.find(options.topology).has("thread"):
        raise UserError(
            f"--company.groups {company.groups} is for actors that ask a server, not for {options.topology!r}"
        )
    alone = topologies.find(options.topology).has("learner") and company.learners == 1
    if options.agent.updates_per_batch > 1 and not alone:  # type: ignore[attr-defined]
        raise UserError("--agent.epochs and --agent.minibatches above 1 need one learner, who alone makes the updates")
    if options.agent.minibatches > options.agent.batch_unrolls:  # type: ignore[attr-defined]
        raise UserError(
            f"--agent.minibatches {options.agent.minibatches} is more than "  # type: ignore[attr-defined]
            f"--agent.batch-unrolls {options.agent.batch_unrolls}"  # type: ignore[attr-defined]
        )


def _check_numbers(options: RunOptions) -> None:
    """How many there may be of roles that only one topology has several of."""
    company = options.company
    if company.adjust_from:
        most = (company.predictors, company.trainers, options.actors)
        fits = len(company.adjust_from) == 3 and all(
            1 <= start <= limit for start, limit in zip(company.adjust_from, most, strict=True)
        )
        if options.topology != "ga3c" or not fits:
            raise UserError(
                "--company.adjust-from takes predictors, trainers and agents to start with, each from 1 to how many "
                f"there are {most}, and is for --topology ga3c; it is {company.adjust_from}"
            )
        if options.engine == "inline":
            raise UserError("--company.adjust-from goes by the clock: take --engine processes, inline runs repeat")
    if company.learners > 1 and (options.topology != "impala" or options.actors * company.groups < company.learners):
        raise UserError(
            f"--company.learners {company.learners} needs --topology impala and at least as many actors, "
            f"not {options.topology!r} with {options.actors}"
        )


def _check_agent(agent: QLearningOptions) -> None:
    """Pairs that contradict each other."""
    if agent.atoms < 2:
        raise UserError(f"--agent.atoms must be at least 2, not {agent.atoms}")
    if agent.value_min >= agent.value_max:
        raise UserError(f"--agent.value-min {agent.value_min} must lie below --agent.value-max {agent.value_max}")
    if agent.replay and agent.replay_capacity < max(agent.batch_size, agent.learning_starts):
        raise UserError(
            f"--agent.replay-capacity {agent.replay_capacity} can't hold --agent.learning-starts "
            f"{agent.learning_starts} steps and a batch of {agent.batch_size}; make it larger"
        )
    if agent.prioritized and not agent.replay:
        raise UserError("--agent.prioritized needs a replay; drop it or drop --agent.no-replay")
    if agent.epsilon_end > agent.epsilon_start:
        raise UserError(
            f"--agent.epsilon-end {agent.epsilon_end} lies above --agent.epsilon-start {agent.epsilon_start}"
        )


def _check_company(options: RunOptions) -> None:
    """Pairs of topology and options that make no sense together."""
    agent, company, topology = options.agent, options.company, topologies.find(options.topology)
    if options.network.core or options.network.separate:
        raise UserError("--network.core and --network.separate are for actor-critic agents: a3c, impala, appo")
    gradients = not topology.has("learner")
    if options.topology != "single" and not agent.replay and not topology.has("thread"):
        raise UserError(
            f"topology {options.topology!r} learns from a memory; for learning without one choose "
            "--topology hogwild, or single"
        )
    if company.groups > 1:
        raise UserError(f"--company.groups {company.groups} is for agents that learn from unrolls: impala, appo, a3c")
    if agent.noisy and topology.has("inference"):
        raise UserError(
            f"topology {options.topology!r} answers without noise, so noisy networks would not explore; choose "
            "--topology collectors, or --agent.no-noisy"
        )
    if gradients and agent.noisy:
        raise UserError(
            f"topology {options.topology!r} sends gradients of one vector, and noisy networks are not made for "
            "that; choose --topology collectors, or --agent.no-noisy"
        )
    if gradients and agent.prioritized and (company.memory == "shared" or topology.has("thread")):
        raise UserError(
            f"topology {options.topology!r} can't prioritise a memory that several processes draw from; choose "
            "--company.memory local with parameter servers, or --topology apex"
        )
    if company.actor_priorities and not (agent.prioritized and topology.has("memory")):
        raise UserError("--company.actor-priorities needs --agent.prioritized and --topology collectors or apex")
    if company.mode == "synchronous" and company.push_period > 1:
        raise UserError("--company.push-period must be 1 where servers wait for every worker's gradient")
    if options.topology != "hogwild" and company.method != "one_step_q":
        raise UserError(f"--company.method {company.method} is for --topology hogwild")
    if company.method == "n_step_q" and (options.agent_name == "sarsa" or agent.sarsa):
        raise UserError("--company.method n_step_q bootstraps from the best action; for Sarsa choose sarsa")
    if company.method == "replay" and not agent.replay:
        raise UserError("--company.method replay learns from a memory; drop it or drop --agent.no-replay")


def resolve(options: RunOptions) -> RunOptions:
    """What follows from other options: an agent's name switches its parts, no replay learns each step once."""
    if isinstance(options, CriticRunOptions):
        return dataclasses.replace(options, threads=options.threads or _fair_threads(options))
    agent = options.agent
    if options.agent_name == "sarsa" or (options.topology == "hogwild" and options.company.method == "sarsa"):
        agent = dataclasses.replace(agent, sarsa=True)
    if options.topology == "hogwild" and options.company.method != "replay":
        return dataclasses.replace(
            options, agent=_without_memory(options, agent), threads=options.threads or _fair_threads(options)
        )
    count = options.actors * options.envs_per_actor
    first = count * (agent.n_step + 1)  # before that, no lane has a step whose return is complete
    agent = dataclasses.replace(agent, learning_starts=max(agent.learning_starts, first))
    if not agent.replay:
        agent = dataclasses.replace(
            agent,
            batch_size=count,
            replay_ratio=1.0,
            updates_per_call=1,
            learning_starts=first,
            replay_capacity=count * (agent.n_step + 64),
        )
    return dataclasses.replace(options, agent=agent, threads=options.threads or _fair_threads(options))


def _fair_threads(options: RunOptions) -> int:
    """Compute threads of each process that learns, so that all together are no more than the cores."""
    cores = usable_cores()
    if options.engine == "inline":
        return cores
    topology, company = topologies.find(options.topology), options.company
    if topology.has("learner"):
        return max(1, (cores - 1) // (company.learners if "learner" in topology.together else 1))
    return max(1, cores // (company.trainers if topology.has("trainer") else options.actors))


def _without_memory(options: RunOptions, agent: QLearningOptions) -> QLearningOptions:
    """Each step is learned from once; lanes are just long enough for that."""
    count, steps = options.actors * options.envs_per_actor, options.company.update_steps
    return dataclasses.replace(
        agent,
        batch_size=options.envs_per_actor * steps,
        replay_ratio=1.0,
        updates_per_call=1,
        learning_starts=0,
        n_step=1,
        replay_capacity=count * (2 * steps + 64),
    )


def value_of(options: Any, name: str) -> Any:
    """The value at a dotted name."""
    for part in name.split("."):
        options = getattr(options, part)
    return options


def names_of(cls: type, prefix: str = "") -> list[str]:
    """Dotted names of all options."""
    names = []
    hints = get_type_hints(cls)
    for item in dataclasses.fields(cls):
        kind = hints[item.name]
        if dataclasses.is_dataclass(kind):
            names += names_of(kind, f"{prefix}{item.name}.")  # type: ignore[arg-type]
        else:
            names.append(prefix + item.name)
    return names


def change(options: Any, changes: Mapping[str, Any], prefix: str = "") -> Any:
    """Options with the changes made; an unknown key is an error that names the nearest."""
    known = {item.name for item in dataclasses.fields(options)}
    values = {}
    for key, value in changes.items():
        if key not in known:
            raise UserError(f"unknown option {prefix + key!r}{nearest(key, known)}")
        current = getattr(options, key)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise UserError(f"option {prefix + key!r} takes a dictionary of options, not {value!r}")
            values[key] = change(current, value, f"{prefix}{key}.")
        else:
            values[key] = _as_kind(type(options), key, value, prefix)
    return dataclasses.replace(options, **values)


def _as_kind(cls: type, key: str, value: Any, prefix: str) -> Any:
    """The value as the option's type, or an error."""
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
    if isinstance(hint, type):
        return [hint]
    origin = get_origin(hint)
    if origin is tuple:
        return [tuple]
    return [
        kind for argument in get_args(hint) for kind in ([argument] if isinstance(argument, str) else _kinds(argument))
    ]


def to_dict(options: RunOptions) -> dict[str, Any]:
    """As JSON values."""
    values = dataclasses.asdict(options)
    del values["config"]  # what it says is in the others
    values["runs_dir"] = str(options.runs_dir)
    return values


def from_dict(values: Mapping[str, Any]) -> RunOptions:
    """What `to_dict` wrote."""
    values = dict(values)
    cls = options_for(str(values.get("agent_name", "dqn")))
    blank = cls(environment=str(values.pop("environment")))
    options: RunOptions = change(blank, values)
    return options
