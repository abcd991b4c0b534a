"""Who takes part in a study, with which options and which budget; refuses what can't run before anything runs.

The budget is the same for all. `seconds` are those of the wall clock from the first step on, evaluations included, for
every topology: `single` trains nothing during an evaluation, the others play it beside the training, on cores that
their workers would have had. A budget of seconds is divided by the clock, as nobody knows the speeds beforehand: so all
are evaluated equally often. A budget of env steps is divided by env steps, also where seconds limit it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import tyro

from repertory import topologies
from repertory.agents import registry
from repertory.errors import UserError, nearest
from repertory.runs.config import SEEDS, RunOptions, change, flag, names_of, read_pairs, value_of
from repertory.runs.directory import check_name
from repertory.runs.launch import check_memory, draft, replay_bytes
from repertory.runs.presets import defaults, find_preset
from repertory.studies.results import Contestant
from repertory.studies.words import plural


@dataclass(frozen=True)
class StudyOptions:
    """What every study with runs of its own is told."""

    environment: tyro.conf.Positional[str] = ""
    """A Gymnasium id, `module:Id`, or `path/file.py:factory`."""
    seeds: int = 5
    """Runs of each contestant: with the seeds 0, 1, 2, ..."""
    seconds: float | None = None
    """Each run trains for so many seconds, evaluations included."""
    env_steps: int | None = None
    """Each run ends after so many env steps."""
    target_score: float | None = None
    """Each run ends as soon as an evaluation's mean reaches this."""
    evaluations: int = 25
    """How often each run is evaluated, spread evenly over its seconds or env steps."""
    envs_per_actor: int | None = None
    """Environments that each actor steps together; by default as many as the preset says."""
    env_option: tuple[str, ...] = ()
    """KEY=VALUE handed to the environment's constructor."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE: an option of `repertory train` for all contestants that have it, as agent.learning_rate=1e-3; again
    for each further one."""
    name: str | None = None
    """The study directory's name; by default made of the command and the environment."""
    studies_dir: Path = Path("studies")
    """Where study directories lie."""
    cold: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """No short run of each contestant first: then compiling is on the clock of its first run."""
    drop_checkpoints: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Remove each run's checkpoint, replay included, as soon as it has finished."""
    retry_failed: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Make runs again that failed before."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(aliases=("-q",))] = False
    """No line for each run."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as one JSON line and nothing else."""


@dataclass(frozen=True)
class CompareOptions(StudyOptions):
    """Train topologies on an environment one after another, with the same budget, and report which suits it."""

    topologies: str = "all"
    """Comma-separated: NAME, or NAME:AGENT as seed_rl:dqn; `all` is every topology with the agent it is for."""
    actors: int | None = None
    """Actors of each topology but `single`; by default as many as the topology says."""


@dataclass(frozen=True)
class AblateOptions(StudyOptions):
    """Train a DQN with every part on, then with each part off, then the four DQNs, and report what each is worth."""

    components: str = "replay,target,double,dueling,n-step,prioritized"
    """Comma-separated parts that are on, and each off once; also distributional and noisy."""
    envs_per_actor: int | None = 1
    """Environments that are stepped together. With several, an agent without a replay would still learn from a mix of
    episodes."""


@dataclass(frozen=True)
class ScaleOptions(StudyOptions):
    """Train one topology with more and more actors, and report what each doubling gives."""

    topology: str = topologies.SCALED
    """NAME, or NAME:AGENT as seed_rl:dqn."""
    actors: str = "1,2,4,8,16"
    """Comma-separated numbers of actors."""
    seeds: int = 1
    """Runs for each number of actors: with the seeds 0, 1, 2, ..."""


@dataclass(frozen=True)
class ReportOptions:
    """Make the report of a study from runs that there are, or that of a study anew."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Names or directories of runs, or the directory of one study."""
    runs_dir: Path = Path("runs")
    """Where run directories lie."""
    target_score: float | None = None
    """The score that counts as solved; by default what all runs were told."""
    to: Path | None = None
    """The directory to write; by default studies/report-ENVIRONMENT, and of a study its own."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as one JSON line and nothing else."""


POSITIVE = ("seeds", "seconds", "env_steps", "evaluations", "envs_per_actor")


def check(options: StudyOptions) -> None:
    if not options.environment:
        raise UserError("a study needs an environment, for example: repertory compare CartPole-v1")
    for name in (*POSITIVE, "target_score"):
        value = value_of(options, name)
        if value is not None and not math.isfinite(value):
            raise UserError(f"{flag(name)} must be a finite number, not {value}")
        if name in POSITIVE and value is not None and value <= 0:
            raise UserError(f"{flag(name)} must be above 0, not {value}")
    if options.seeds > SEEDS:
        raise UserError(f"--seeds must not be above {SEEDS}, it is {options.seeds}")
    if options.name is not None:
        check_name(options.name)


def items_of(text: str, option: str) -> list[str]:
    """The items of a comma-separated list, each once."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise UserError(f"{option} needs at least one item")
    for item in items:
        if items.count(item) > 1:
            raise UserError(f"{option} names {item!r} twice")
    return items


def known(item: str, names: tuple[str, ...], what: str) -> str:
    if item not in names:
        raise UserError(f"unknown {what} {item!r}{nearest(item, names)}")
    return item


Settings = Mapping[str, Any]
"""Values of options by dotted names, as `agent.n_step`."""
OWN = (
    "environment", "topology_name", "agent_name", "actors", "envs_per_actor", "env_option", "seed", "seconds",
    "env_steps", "target_score", "name", "runs_dir", "dry_run", "quiet", "json", "config", "preset",
)  # fmt: skip
"""Options of `train` that a study has itself."""
FOR_EVER = 10**12
"""Env steps that no run comes to."""
COMPARE_S, SCALE_S = 60.0, 20.0
"""Seconds of each run, if no budget is given."""
N_STEP = 3
"""Steps of n-step returns where the preset has only one (Hessel et al. 2018)."""
FEW = 10
"""Steps of the four DQNs' returns at most, chosen on CartPole-v1. With 20 the parts hardly matter: one without replay
and target came to 485. With 1 the full one is not steady: it reaches 500 and loses it again."""
OFF: Mapping[str, Settings] = {
    "replay": {"agent.replay": False, "agent.prioritized": False},
    "target": {"agent.target": False},
    "double": {"agent.double": False},
    "dueling": {"agent.dueling": False},
    "n-step": {"agent.n_step": 1},
    "prioritized": {"agent.prioritized": False},
    "distributional": {"agent.distributional": False},
    "noisy": {"agent.noisy": False},
}
"""What switches each part of a DQN off; without a replay there is nothing to prioritise."""
FOUR = {"neither": "replay target", "target only": "replay", "replay only": "target", "full DQN": ""}
"""The four DQNs (Mnih et al. 2015), by what is off. Without a replay, each step is learned from once, as it comes:
memory, batch and update are one step each. Without a target, the network bootstraps from itself."""


@dataclass(frozen=True)
class Entrant:
    """A contestant, and the options of its runs; each run has a seed and a name besides."""

    contestant: Contestant
    options: RunOptions
    kept_bytes: int
    """What a run leaves on the disk, about."""


@dataclass(frozen=True)
class Variant:
    """Who would take part: the preset's options, and what makes it differ from the others."""

    name: str
    preset: RunOptions
    settings: Settings = dataclasses.field(default_factory=dict)


def compare(asked: CompareOptions) -> list[Entrant]:
    """The topologies that are named; `all` stands for those that are not."""
    check(asked)
    if asked.actors is not None and asked.actors < 1:
        raise UserError(f"--actors must be above 0, not {asked.actors}")
    items = items_of(asked.topologies, "--topologies")
    rest = [name for name in topologies.known() if name not in items]
    names = [name for item in items for name in (rest if item == "all" else [item])]
    found = _enter(asked, [Variant(name, _preset(asked.environment, name, asked.actors)) for name in names], COMPARE_S)
    for one, other in combinations(found, 2):
        if one.options == other.options:
            raise UserError(f"{one.contestant.name!r} and {other.contestant.name!r} are the same; name one")
    return found


def scale(asked: ScaleOptions) -> list[Entrant]:
    """One topology with more and more actors, the fewest first."""
    check(asked)
    preset, items = _preset(asked.environment, asked.topology), items_of(asked.actors, "--actors")
    for item in items:
        if not item.isdecimal() or int(item) < 1:
            raise UserError(f"--actors takes numbers above 0, not {item!r}")
    counts = sorted({int(item) for item in items})
    return _enter(asked, [Variant(plural(count, "actor"), preset, {"actors": count}) for count in counts], SCALE_S)


def _preset(environment: str, item: str, actors: int | None = None) -> RunOptions:
    """The preset for `topology` or `topology:agent`, with so many actors, if it may have several."""
    name, separator, agent = item.partition(":")
    topology = topologies.find(name)
    trained = known(agent, tuple(registry.known()), f"agent of {name}") if separator else topology.agents[0]
    options = defaults(environment, trained, name)
    one = actors is None or topology.options.one_actor
    changed: RunOptions = options if one else change(options, {"actors": actors})
    return changed


def ablate(asked: AblateOptions) -> list[Entrant]:
    """The agent with every part on first, then it without each, then the four DQNs; no two are the same."""
    check(asked)
    parts = [known(item, tuple(OFF), "component") for item in items_of(asked.components, "--components")]
    preset = change(defaults(asked.environment, "dqn", topologies.DEFAULT), find_preset(asked.environment).ablation)
    plain = {**_off(OFF), "agent.replay": True, "agent.target": True, "agent.n_step": min(preset.agent.n_step, FEW)}
    every = {**plain, **_on(parts, preset)}
    settings = {name: {**plain, **_off(off.split())} for name, off in FOUR.items()}
    settings |= {"all parts": every, **{f"no {part}": {**every, **_off([part])} for part in parts}}
    once: dict[str, Settings] = {}
    for name, each in settings.items():
        if each not in once.values():
            once[name] = each
    for name in _chosen(asked):
        if name in plain:
            raise UserError(f"--set {name} would change nothing: each variant sets it itself; choose by --components")
    order = sorted(once, key=lambda name: (once[name] != every, name in FOUR))
    return _enter(asked, [Variant(name, preset, once[name]) for name in order], fallback_s=None)


def _on(parts: Iterable[str], preset: RunOptions) -> dict[str, Any]:
    """What switches parts on; returns are as long as the preset's, if those are longer than one step."""
    steps = preset.agent.n_step if preset.agent.n_step > 1 else N_STEP
    return {f"agent.{part.replace('-', '_')}": steps if part == "n-step" else True for part in parts}


def _off(parts: Iterable[str]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in OFF[part].items()}


def _enter(asked: StudyOptions, variants: list[Variant], fallback_s: float | None) -> list[Entrant]:
    """Variants with everything that was asked for; what makes them differ has the last word."""
    common = {**_budget(asked, [variant.preset for variant in variants], fallback_s), "env_option": asked.env_option}
    if asked.envs_per_actor is not None:
        common["envs_per_actor"] = asked.envs_per_actor
    chosen = _chosen(asked)
    _check_chosen(chosen, {name for variant in variants for name in names_of(type(variant.preset))} - {*OWN})
    runs = [
        apply(apply(change(variant.preset, common), chosen, known_only=True), variant.settings) for variant in variants
    ]
    return _admit(variants, runs)


def _budget(asked: StudyOptions, presets: list[RunOptions], fallback_s: float | None) -> dict[str, Any]:
    """What ends a run, whichever comes first, and how often it is evaluated until then, as options of `train`.

    With a target alone, runs may take as many env steps as the longest preset; the shortest one is divided.
    """
    seconds, env_steps = asked.seconds, asked.env_steps
    if seconds is None and env_steps is None and asked.target_score is None:
        seconds = fallback_s
    divided = env_steps
    if seconds is None and env_steps is None:
        env_steps, divided = max(run.env_steps for run in presets), min(run.env_steps for run in presets)
    return {
        "seconds": seconds,
        "env_steps": env_steps or FOR_EVER,
        "target_score": asked.target_score,
        "eval_every": FOR_EVER if divided is None else max(1, divided // asked.evaluations),
        "eval_every_s": None if seconds is None or divided is not None else seconds / asked.evaluations,
        "checkpoint_every": FOR_EVER,  # only at the end, as saving takes time
        "keep_checkpoints": 1,
    }


def budget_in_words(options: RunOptions) -> str:
    """ "60 s", "50,000 env steps", "until 475, at most 60 s"."""
    ends = [] if options.seconds is None else [f"{options.seconds:g} s"]
    ends += [] if options.env_steps >= FOR_EVER else [f"{options.env_steps:,} env steps"]
    most, target = " or ".join(ends), options.target_score
    return most if target is None else f"until {target:g}, at most {most}"


def apply(options: RunOptions, settings: Settings, *, known_only: bool = False) -> RunOptions:
    """Options with settings; with `known_only`, without those it does not have."""
    names = names_of(type(options))
    for name, value in settings.items():
        if name in names or not known_only:
            options = change(options, _nested(name, value))
    return options


def _nested(name: str, value: Any) -> dict[str, Any]:
    first, _, rest = name.partition(".")
    return {first: _nested(rest, value) if rest else value}


def _chosen(asked: StudyOptions) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in read_pairs(asked.set, "--set").items()}


def _check_chosen(chosen: Settings, names: set[str]) -> None:
    """At least one variant must have each option."""
    for name in chosen:
        if name in OWN:
            raise UserError(f"--set {name} is not for studies: they have an option of their own for it")
        if name not in names:
            raise UserError(f"--set {name}: no contestant has such an option{nearest(name, names)}")


def _admit(variants: list[Variant], runs: list[RunOptions]) -> list[Entrant]:
    """All of them, or all reasons why some can't run."""
    entrants, refusals, names = [], {}, {name for variant in variants for name in variant.settings}
    differing = {name for name in names if len({repr(each.settings.get(name)) for each in variants}) > 1}
    for variant, options in zip(variants, runs, strict=True):
        try:
            entrants.append(_entrant(variant, options, differing))
        except UserError as error:
            refusals[variant.name] = str(error)
    reasons = set(refusals.values())
    if len(reasons) == 1 and len(refusals) == len(variants):
        raise UserError(reasons.pop())
    if refusals:
        each = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise UserError(f"{len(refusals)} of {len(variants)} contestants can't run: {each}")
    return entrants


def _entrant(variant: Variant, options: RunOptions, differing: set[str]) -> Entrant:
    """Only drafted: neither environments nor networks are at work yet."""
    resolved, plan = draft(options)
    check_memory(plan)
    _ = plan.agent  # a network that can't be built is refused, too
    own = {name: value for name, value in variant.settings.items() if name in differing}
    contestant = Contestant(variant.name, resolved.topology_name, resolved.agent_name, resolved.actors, own)
    return Entrant(contestant, options, replay_bytes(plan))
