"""The options of studies, and which contestants take part with which options; what can't run is refused before any run.

All contestants get the same budget. `seconds` is wall-clock time from the first step on, evaluations included. A budget
of seconds is divided into evaluations by the clock, as speeds are not known beforehand: all contestants are evaluated
equally often. A budget of env steps is divided by env steps, even where seconds limit it as well."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import tyro

from repertory import topologies
from repertory.agents import registry
from repertory.errors import UserError, nearest
from repertory.limits import Positive, check_ranges
from repertory.runs.config import SEEDS, RunOptions, Switch, change, names_of, read_pairs
from repertory.runs.directory import check_name
from repertory.runs.launch import check_memory, draft, replay_bytes
from repertory.runs.presets import defaults, find_preset
from repertory.studies.results import Contestant
from repertory.studies.words import plural


@dataclass(frozen=True)
class StudyOptions:
    environment: tyro.conf.Positional[str] = ""
    """A Gymnasium id, `module:Id`, or `path/file.py:factory`."""
    seeds: Positive[int] = 5
    """Runs of each contestant, with the random seeds 0, 1, 2, ..."""
    seconds: Positive[float] | None = None
    """Each run trains for this many seconds, evaluations included."""
    env_steps: Positive[int] | None = None
    """Each run ends after this many env steps."""
    target_score: float | None = None
    """Each run ends as soon as the mean return of an evaluation reaches this score."""
    evaluations: Positive[int] = 25
    """Evaluations of each run, spread evenly over its seconds or env steps."""
    envs_per_actor: Positive[int] | None = None
    """Vectorized environments: how many each actor steps together; by default the preset's number."""
    env_option: tuple[str, ...] = ()
    """KEY=VALUE: keyword arguments of the environment's constructor."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE: an option of `repertory train` for all contestants that have it, as in agent.learning_rate=1e-3; give
    --set once for each option."""
    name: str | None = None
    """Name of the study directory; by default made of the command and the environment."""
    studies_dir: Path = Path("studies")
    """Directory in which the study directory is created."""
    cold: Switch = False
    """Skip the short warm-up run of each contestant; its first run then includes compilation time."""
    drop_checkpoints: Switch = False
    """Delete each run's checkpoint, replay included, as soon as the run has finished."""
    retry_failed: Switch = False
    """Repeat the runs that failed."""
    quiet: Annotated[Switch, tyro.conf.arg(aliases=("-q",))] = False
    """Print no line for each run."""
    json: Switch = False
    """Print the result as one JSON line and nothing else."""


@dataclass(frozen=True)
class CompareOptions(StudyOptions):
    """Train topologies on an environment one after another, with the same budget, and report which suits it."""

    topologies: str = "all"
    """Comma-separated: NAME, or NAME:AGENT as in seed_rl:dqn; `all` is every topology with its default agent."""
    actors: Positive[int] | None = None
    """Number of actors of each topology that can have several; by default the preset's number."""


@dataclass(frozen=True)
class AblateOptions(StudyOptions):
    """Train a DQN with every part on, then with each part off, then the four DQNs, and report what each is worth."""

    components: str = "replay,target,double,dueling,n-step,prioritized"
    """Comma-separated parts of the DQN: all on, then each off alone; distributional and noisy are possible, too."""
    envs_per_actor: Positive[int] | None = 1
    """Vectorized environments that are stepped together. With several, an agent without a replay would still learn from
    a mix of episodes."""


@dataclass(frozen=True)
class ScaleOptions(StudyOptions):
    """Train one topology with more and more actors, and report what each doubling gives."""

    topology: str = topologies.SCALED
    """Topology: NAME, or NAME:AGENT as in seed_rl:dqn."""
    actors: str = "1,2,4,8,16"
    """Comma-separated numbers of actors."""
    seeds: Positive[int] = 1
    """Runs for each number of actors, with the random seeds 0, 1, 2, ..."""


@dataclass(frozen=True)
class ReportOptions:
    """Report on existing runs as a study does, or write the report of a study again."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """Names or directories of runs, or the directory of one study."""
    runs_dir: Path = Path("runs")
    """Directory that holds the run directories."""
    target_score: float | None = None
    """Score that counts as solved; by default the target score of the runs, if it is the same for all."""
    to: Path | None = None
    """Directory to write the report to; by default studies/report-ENVIRONMENT, or the study's own."""
    json: Switch = False
    """Print the result as one JSON line and nothing else."""


def check(options: StudyOptions) -> None:
    if not options.environment:
        raise UserError("a study needs an environment, for example: repertory compare CartPole-v1")
    check_ranges(options)
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
"""Options of `train` that a study sets itself."""
FOR_EVER = 10**12
"""Env steps that no run reaches."""
COMPARE_S, SCALE_S = 60.0, 20.0
"""Seconds of each run, if no budget is given."""
N_STEP = 3
"""Steps of n-step returns where the preset has only one (Hessel et al. 2018)."""
FEW = 10
"""Most steps of the four DQNs' returns, chosen on CartPole-v1. With 20 the parts hardly matter: a DQN without replay
and target scored 485. With 1 the full DQN is not stable: it reaches 500 and loses it again."""
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
"""What switches each part of a DQN off; without a replay there is nothing to prioritize."""
FOUR = {"neither": "replay target", "target only": "replay", "replay only": "target", "full DQN": ""}
"""The four DQNs (Mnih et al. 2015), by what is off. Without a replay, each step is learned from once, as it comes:
memory, batch and update are one step each. Without a target, the network bootstraps from itself."""


@dataclass(frozen=True)
class Entrant:
    """A contestant, and the options that its runs have in common."""

    contestant: Contestant
    options: RunOptions
    kept_bytes: int
    """What a run leaves on the disk, about."""


@dataclass(frozen=True)
class Variant:
    """A contestant before it is checked: a preset, and the settings that make it differ from the others."""

    name: str
    preset: RunOptions
    settings: Settings = dataclasses.field(default_factory=dict)


def compare(asked: CompareOptions) -> list[Entrant]:
    """The topologies that are named; `all` stands for those that are not."""
    check(asked)
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
    """The preset for `topology` or `topology:agent`, with this many actors if the topology can have several."""
    name, separator, agent = item.partition(":")
    topology = topologies.find(name)
    trained = known(agent, tuple(registry.known()), f"agent of {name}") if separator else topology.agents[0]
    options = defaults(environment, trained, name)
    one = actors is None or topology.options.one_actor
    changed: RunOptions = options if one else change(options, {"actors": actors})
    return changed


def ablate(asked: AblateOptions) -> list[Entrant]:
    """The agent with every part on, then without each part, then the four DQNs; duplicates are left out."""
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
    """What switches parts on; n-step returns are as long as the preset's, if that has more than one step."""
    steps = preset.agent.n_step if preset.agent.n_step > 1 else N_STEP
    return {f"agent.{part.replace('-', '_')}": steps if part == "n-step" else True for part in parts}


def _off(parts: Iterable[str]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in OFF[part].items()}


def _enter(asked: StudyOptions, variants: list[Variant], fallback_s: float | None) -> list[Entrant]:
    """Variants with all options of the command; what makes them differ is applied last."""
    common = {**_budget(asked, [variant.preset for variant in variants], fallback_s), "env_option": asked.env_option}
    if asked.envs_per_actor is not None:
        common["envs_per_actor"] = asked.envs_per_actor
    chosen = _chosen(asked)
    names = {name for variant in variants for name in names_of(type(variant.preset))} - {*OWN}
    for name in chosen:
        if name in OWN:
            raise UserError(f"--set {name} is not for studies: they have an option of their own for it")
        if name not in names:
            raise UserError(f"--set {name}: no contestant has such an option{nearest(name, names)}")
    every = {name for variant in variants for name in variant.settings}
    differing = {name for name in every if len({repr(each.settings.get(name)) for each in variants}) > 1}
    entrants, refusals = [], {}
    for variant in variants:
        options = apply(change(variant.preset, common), chosen, known_only=True)
        try:
            entrants.append(_entrant(variant, apply(options, variant.settings), differing))
        except UserError as error:
            refusals[variant.name] = str(error)
    reasons = set(refusals.values())
    if len(reasons) == 1 and len(refusals) == len(variants):
        raise UserError(reasons.pop())
    if refusals:
        each = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise UserError(f"{len(refusals)} of {len(variants)} contestants can't run: {each}")
    return entrants


def _budget(asked: StudyOptions, presets: list[RunOptions], fallback_s: float | None) -> dict[str, Any]:
    """The stopping conditions of a run and its evaluation intervals, as options of `train`.

    With a target alone, each run may take as many env steps as the longest preset; the evaluations divide the shortest.
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
        "checkpoint_every": FOR_EVER,  # only at the end: saving takes time
        "keep_checkpoints": 1,
    }


def budget_in_words(options: RunOptions) -> str:
    """ "60 s", "50,000 env steps", "until 475, at most 60 s"."""
    ends = [] if options.seconds is None else [f"{options.seconds:g} s"]
    ends += [] if options.env_steps >= FOR_EVER else [f"{options.env_steps:,} env steps"]
    most, target = " or ".join(ends), options.target_score
    return most if target is None else f"until {target:g}, at most {most}"


def apply(options: RunOptions, settings: Settings, *, known_only: bool = False) -> RunOptions:
    """Options with settings by dotted name; `known_only` ignores settings that these options do not have."""
    names = names_of(type(options))
    for name, value in settings.items():
        if name in names or not known_only:
            for part in reversed(name.split(".")):
                value = {part: value}
            options = change(options, value)
    return options


def _chosen(asked: StudyOptions) -> dict[str, Any]:
    return {name.replace("-", "_"): value for name, value in read_pairs(asked.set, "--set").items()}


def _entrant(variant: Variant, options: RunOptions, differing: set[str]) -> Entrant:
    resolved, plan = draft(options)
    check_memory(plan)
    _ = plan.agent  # a network that can't be built is refused, too
    own = {name: value for name, value in variant.settings.items() if name in differing}
    contestant = Contestant(variant.name, resolved.topology_name, resolved.agent_name, resolved.actors, own)
    return Entrant(contestant, options, replay_bytes(plan))
