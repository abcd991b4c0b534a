"""Who takes part in a study, with which options; refuses what can't run before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repertory.errors import UserError, nearest
from repertory.runs.config import RunOptions, change, names_of, read_pairs
from repertory.runs.staging import check_memory, draft
from repertory.studies.budget import budget_of
from repertory.studies.findings import Contestant
from repertory.studies.options import StudyOptions

OWN = (
    "environment", "topology_name", "agent_name", "actors", "envs_per_actor", "env_option", "seed", "seconds",
    "env_steps", "target_score", "name", "runs_dir", "dry_run", "quiet", "json", "config", "preset",
)  # fmt: skip
"""Options of `train` that a study has itself."""
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Entry:
    """A contestant, and the options of its runs; each run has a seed and a name besides."""

    contestant: Contestant
    options: RunOptions
    kept_bytes: int
    """What a run leaves on the disk, about."""


@dataclass(frozen=True)
class Candidate:
    """Who would take part: the preset's options, and what makes it differ from the others, by dotted names."""

    name: str
    preset: RunOptions
    settings: Settings = dataclasses.field(default_factory=dict)


def enter(asked: StudyOptions, candidates: list[Candidate], fallback_s: float | None) -> list[Entry]:
    """Candidates with everything that was asked for; what makes them differ has the last word."""
    budget = budget_of(asked, [candidate.preset for candidate in candidates], fallback_s)
    common: dict[str, Any] = {**budget.changes, "env_option": asked.env_option}
    if asked.envs_per_actor is not None:
        common["envs_per_actor"] = asked.envs_per_actor
    chosen = _chosen(asked, candidates)
    runs = [
        apply(apply(change(candidate.preset, common), chosen, known_only=True), candidate.settings)
        for candidate in candidates
    ]
    return _admit(candidates, runs)


def apply(options: RunOptions, settings: Settings, *, known_only: bool = False) -> RunOptions:
    """Options with settings by dotted names; with `known_only`, without those it does not have."""
    names = names_of(type(options))
    for name, value in settings.items():
        if name in names or not known_only:
            options = change(options, _nested(name, value))
    return options


def _nested(name: str, value: Any) -> dict[str, Any]:
    first, _, rest = name.partition(".")
    return {first: _nested(rest, value) if rest else value}


def asked_for(asked: StudyOptions) -> dict[str, Any]:
    """What `--set` says, by dotted names."""
    return {name.replace("-", "_"): value for name, value in read_pairs(asked.set, "--set").items()}


def _chosen(asked: StudyOptions, candidates: list[Candidate]) -> dict[str, Any]:
    """What `--set` says, if at least one candidate has such an option."""
    chosen = asked_for(asked)
    known = {name for candidate in candidates for name in names_of(type(candidate.preset))} - set(OWN)
    for name in chosen:
        if name in OWN:
            raise UserError(f"--set {name} is not for studies: they have an option of their own for it")
        if name not in known:
            raise UserError(f"--set {name}: no contestant has such an option{nearest(name, known)}")
    return chosen


def _admit(candidates: list[Candidate], runs: list[RunOptions]) -> list[Entry]:
    """All of them, or all reasons why some can't run."""
    entries, refusals, differing = [], {}, _differing(candidates)
    for candidate, options in zip(candidates, runs, strict=True):
        try:
            entries.append(_entry(candidate, options, differing))
        except UserError as error:
            refusals[candidate.name] = str(error)
    reasons = set(refusals.values())
    if len(reasons) == 1 and len(refusals) == len(candidates):
        raise UserError(reasons.pop())
    if refusals:
        each = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise UserError(f"{len(refusals)} of {len(candidates)} contestants can't run: {each}")
    return entries


def _differing(candidates: list[Candidate]) -> set[str]:
    """Names of settings that not all have in common."""
    names = {name for candidate in candidates for name in candidate.settings}
    return {name for name in names if len({repr(each.settings.get(name)) for each in candidates}) > 1}


def _entry(candidate: Candidate, options: RunOptions, differing: set[str]) -> Entry:
    """Only drafted: neither environments nor networks are at work yet."""
    resolved, plan = draft(options)
    check_memory(plan)
    plan.make_agent()  # a network that can't be built is refused, too
    own = {name: value for name, value in candidate.settings.items() if name in differing}
    contestant = Contestant(candidate.name, resolved.topology_name, resolved.agent_name, resolved.actors, own)
    return Entry(contestant, options, 0 if plan.unrolled else plan.replay_bytes)
