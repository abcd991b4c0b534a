"""Settings that were seen to work, by environment; each says the score it reached (see docs/results.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from repertory.runs.config import RunOptions, change


@dataclass(frozen=True)
class Preset:
    """Options for the environments whose id begins with `prefix`, and what they were seen to reach."""

    prefix: str
    seen: str
    options: Mapping[str, Any] = field(default_factory=dict)


PRESETS = (
    Preset(
        "CartPole",
        "not measured yet",
        {
            "env_steps": 50_000,
            "envs_per_actor": 16,
            "eval_every": 2_000,
            "agent": {
                "batch_size": 128,
                "learning_rate": 1e-3,
                "replay_ratio": 64.0,
                "updates_per_call": 16,
                "n_step": 3,
                "learning_starts": 1_000,
                "epsilon_steps": 5_000,
                "epsilon_end": 0.04,
                "target_period": 200,
                "replay_capacity": 50_000,
            },
        },
    ),
)

RAINBOW = {
    "double": True,
    "dueling": True,
    "prioritized": True,
    "distributional": True,
    "noisy": True,
    "n_step": 3,
}


def find_preset(environment: str) -> Preset:
    """The preset for an environment; an unknown one gets the defaults."""
    name = environment.rpartition(":")[2]
    for preset in PRESETS:
        if name.startswith(preset.prefix):
            return preset
    return Preset("", "no preset: the defaults of the options")


def defaults(environment: str, agent: str = "dqn") -> RunOptions:
    """The options of an environment's preset, for an agent."""
    options: RunOptions = change(RunOptions(environment), find_preset(environment).options)
    options = change(options, {"agent_name": agent})
    if agent == "rainbow":
        options = change(options, {"agent": RAINBOW})
    return options
