"""The parts of a DQN, each off alone; and the four DQNs with and without replay and target (Mnih et al. 2015).

Without a replay, each step is learned from once, as it comes: memory, batch and update are one step each, where one
environment is played. Without a target, the network bootstraps from itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from repertory.errors import UserError
from repertory.runs.config import RunOptions, change
from repertory.runs.presets import defaults, find_preset
from repertory.studies.entries import Candidate, Entry, asked_for, enter
from repertory.studies.options import AblateOptions, check, known, listed

Settings = Mapping[str, Any]
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
"""What switches each part off; without a replay there is nothing to prioritise."""
FOUR: Mapping[str, tuple[str, ...]] = {
    "neither": ("replay", "target"),
    "target only": ("replay",),
    "replay only": ("target",),
    "full DQN": (),
}
"""The four DQNs, by what is off."""


def entries(asked: AblateOptions) -> list[Entry]:
    """The agent with every part on first, then it without each, then the four DQNs."""
    check(asked)
    parts = [known(item, tuple(OFF), "component") for item in listed(asked.components, "--components")]
    preset = change(defaults(asked.environment, "dqn", "single"), find_preset(asked.environment).ablation)
    plain = {**_off(OFF), "agent.replay": True, "agent.target": True, "agent.n_step": min(preset.agent.n_step, FEW)}
    every = {**plain, **_on(parts, preset)}
    settings = {name: {**plain, **_off(parts_off)} for name, parts_off in FOUR.items()}
    settings["all parts"] = every
    settings |= {f"no {part}": {**every, **_off([part])} for part in parts}
    once = _once(settings)
    _refuse_parts(asked_for(asked), plain)
    order = sorted(once, key=lambda name: (once[name] != every, name in FOUR))
    return enter(asked, [Candidate(name, preset, once[name]) for name in order], fallback_s=None)


def _refuse_parts(names: Iterable[str], switched: Settings) -> None:
    """What variants switch can't be set for all of them."""
    for name in names:
        if name in switched:
            raise UserError(f"--set {name} would change nothing: each variant sets it itself; choose by --components")


def _on(parts: Iterable[str], preset: RunOptions) -> dict[str, Any]:
    """What switches parts on; returns are as long as the preset's, if those are longer than one step."""
    steps = preset.agent.n_step if preset.agent.n_step > 1 else N_STEP
    return {f"agent.{part.replace('-', '_')}": steps if part == "n-step" else True for part in parts}


def _off(parts: Iterable[str]) -> dict[str, Any]:
    """What switches parts off."""
    return {name: value for part in parts for name, value in OFF[part].items()}


def _once(settings: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Without those that are another under a second name."""
    found: dict[str, dict[str, Any]] = {}
    for name, each in settings.items():
        if each not in found.values():
            found[name] = each
    return found
