"""Settings that were seen to work, by environment; each says the score it reached (see docs/results.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from repertory.environments.factory import registered_id
from repertory.runs.config import CRITIC_AGENTS, RunOptions, change, options_for
from repertory.topologies import find


@dataclass(frozen=True)
class Preset:
    """Options for the environments whose id begins with `prefix`, and what they were seen to reach."""

    prefix: str
    seen: str
    options: Mapping[str, Any] = field(default_factory=dict)
    by_topology: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    critic: Mapping[str, Any] = field(default_factory=dict)
    """For agents that learn from unrolls; of `by_topology` they get the entries "topology agent" alone."""
    ablation: Mapping[str, Any] = field(default_factory=dict)
    """For a study of DQN's parts: settings with which it learns without the later ones, too."""


_CARTPOLE = {
    "batch_size": 128,
    "learning_rate": 1e-3,
    "learning_rate_steps": 50_000,
    "n_step": 20,
    "target_tau": 0.02,
    "replay_capacity": 10_000,
    "learning_starts": 500,
    "replay_ratio": 64.0,
    "updates_per_call": 16,
    "epsilon_steps": 4_000,
    "epsilon_end": 0.04,
    "value_min": 0.0,
    "value_max": 100.0,
}

_CARTPOLE_CRITIC: Mapping[str, Any] = {
    "env_steps": 600_000,
    "envs_per_actor": 8,
    "eval_every": 10_000,
    "checkpoint_every": 200_000,
    "log_every": 5_000,
    "agent": {
        "unroll": 16,
        "batch_unrolls": 16,
        "learning_rate": 1e-3,
        "learning_rate_steps": 600_000,
        "reduction": "mean",
        "optimizer": "adam",
        "optimizer_epsilon": 1e-5,
        "max_gradient_norm": 1.0,
        "normalize_advantage": False,
    },
}


def _adam(learning_rate: float, target_period: int = 500, max_gradient_norm: float = 10.0) -> Mapping[str, Any]:
    """Ape-X with the optimiser that a preset was measured with; the paper's is for hundreds of millions of frames."""
    return {
        "learning_rate": learning_rate,
        "optimizer": "adam",
        "optimizer_epsilon": 1e-8,
        "max_gradient_norm": max_gradient_norm,
        "target_period": target_period,
    }


_APPO = {"agent": {"ratio_clip": 0.2, "epochs": 2, "minibatches": 2, "entropy": 0.01}}

_CARTPOLE_TOPOLOGIES: Mapping[str, Mapping[str, Any]] = {
    "apex": {"agent": _adam(1e-3), "company": {"pull_period": 20}},
    "gorila": {
        "agent": {
            "learning_rate": 0.01,
            "learning_rate_steps": 0,
            "optimizer_epsilon": 0.1,
            "double": True,
            "max_gradient_norm": 10.0,
            "target_period": 50,
        },
    },
    "hogwild": {
        "env_steps": 400_000,
        "eval_every": 2_500,
        "envs_per_actor": 8,
        "agent": {
            "learning_rate": 0.005,
            "learning_rate_steps": 400_000,
            "optimizer_epsilon": 1.0,
            "epsilon_steps": 20_000,
        },
        "company": {"method": "n_step_q", "target_steps": 500},
    },
    "hogwild sarsa": {"company": {"method": "sarsa"}},
    "ga3c a3c": {
        "agent": {"learning_rate": 5e-4, "learning_rate_steps": 600_000, "entropy": 0.02},
        "company": {"queue": 1},
    },
    **{f"{topology} appo": _APPO for topology in ("impala", "seed_rl", "sample_factory")},
}

_CARTPOLE_ABLATION: Mapping[str, Any] = {
    "env_steps": 100_000,
    "agent": {"learning_rate_steps": 100_000, "replay_capacity": 100_000, "target_tau": 0.005},
}
"""The DQN of 2015 with returns of 10 steps: 500 on each of 5 seeds. With a memory of 10,000 it forgets: 195, 500, 405,
76, 500; with the faster target of 0.02 one seed of five came to 83."""

PRESETS = (
    Preset(
        "CartPole",
        "500 on each of 5 seeds at 50,000 env steps",
        {
            "env_steps": 50_000,
            "envs_per_actor": 16,
            "eval_every": 1_000,
            "agent": _CARTPOLE,
        },
        {**_CARTPOLE_TOPOLOGIES, "parameter_server": {"env_steps": 100_000, "agent": {"learning_rate_steps": 100_000}}},
        _CARTPOLE_CRITIC,
        _CARTPOLE_ABLATION,
    ),
    Preset(
        "repertory/SlowCartPole",
        "498.4 at 20,000 env steps, mean of 5 seeds (491.9 to 500); trained with latency_s=0",
        {
            "env_steps": 20_000,
            "envs_per_actor": 1,
            "eval_every": 5_000,
            "agent": _CARTPOLE,
        },
        _CARTPOLE_TOPOLOGIES,
        _CARTPOLE_CRITIC,
    ),
    Preset(
        "repertory/TMaze",
        "1.0 on each of seeds 0 to 7 at 300,000 env steps with --topology impala --network.core 32",
        {"env_steps": 300_000, "envs_per_actor": 16, "eval_every": 20_000, "checkpoint_every": 100_000},
        critic={
            "agent": {
                "unroll": 20,
                "batch_unrolls": 16,
                "learning_rate": 3e-3,
                "learning_rate_steps": 300_000,
                "reduction": "mean",
                "optimizer": "adam",
                "optimizer_epsilon": 1e-5,
                "max_gradient_norm": 1.0,
                "normalize_advantage": False,
            },
        },
    ),
    Preset(
        "Acrobot",
        "-84.0 at 100,000 env steps, mean of 5 seeds (-90.5 to -78.2)",
        {
            "env_steps": 100_000,
            "envs_per_actor": 8,
            "eval_every": 10_000,
            "checkpoint_every": 50_000,
            "agent": {
                "batch_size": 128,
                "learning_rate": 6.3e-4,
                "learning_rate_steps": 100_000,
                "n_step": 3,
                "target_period": 250,
                "replay_capacity": 50_000,
                "learning_starts": 1_000,
                "replay_ratio": 32.0,
                "updates_per_call": 8,
                "epsilon_steps": 12_000,
                "epsilon_end": 0.05,
                "value_min": -100.0,
                "value_max": 0.0,
            },
        },
        {"apex": {"agent": _adam(6.3e-4, target_period=250)}},
    ),
    Preset(
        "MountainCar",
        "-107.3 at 120,000 env steps, mean of 5 seeds (-114.5 to -101.8)",
        {
            "env_steps": 120_000,
            "envs_per_actor": 8,
            "eval_every": 10_000,
            "checkpoint_every": 60_000,
            "agent": {
                "batch_size": 128,
                "learning_rate": 3e-3,
                "learning_rate_steps": 120_000,
                "loss": "squared",
                "max_gradient_norm": 0.0,
                "target_tau": 0.005,
                "replay_capacity": 100_000,
                "learning_starts": 1_000,
                "replay_ratio": 64.0,
                "updates_per_call": 8,
                "epsilon_steps": 30_000,
                "epsilon_end": 0.05,
                "value_min": -100.0,
                "value_max": 0.0,
            },
        },
        {"apex": {"agent": _adam(3e-3, max_gradient_norm=0.0)}},
    ),
    Preset(
        "LunarLander",
        "204 at 200,000 env steps (seed 0)",
        {
            "env_steps": 200_000,
            "envs_per_actor": 8,
            "eval_every": 20_000,
            "eval_max_steps": 1_000,
            "checkpoint_every": 50_000,
            "agent": {
                "batch_size": 128,
                "learning_rate": 1e-3,
                "learning_rate_steps": 200_000,
                "n_step": 3,
                "target_tau": 0.005,
                "replay_capacity": 100_000,
                "learning_starts": 2_000,
                "replay_ratio": 32.0,
                "updates_per_call": 8,
                "epsilon_steps": 24_000,
                "epsilon_end": 0.05,
                "value_min": -300.0,
                "value_max": 300.0,
            },
        },
        {"apex": {"agent": _adam(1e-3)}},
    ),
    Preset(
        "MinAtar/",
        "Breakout: 13.5 at 1,000,000 env steps, mean of 2 seeds; 13.6 to 21.4 by unrolls at 2,000,000; no other game",
        {
            "env_steps": 1_000_000,
            "envs_per_actor": 8,
            "eval_every": 50_000,
            "eval_max_steps": 10_000,
            "checkpoint_every": 100_000,
            "log_every": 5_000,
            "agent": {
                "batch_size": 32,
                "learning_rate": 2.5e-4,
                "target_period": 1_000,
                "replay_capacity": 100_000,
                "learning_starts": 5_000,
                "replay_ratio": 8.0,
                "updates_per_call": 8,
                "epsilon_steps": 100_000,
                "epsilon_end": 0.1,
            },
        },
        {"apex": {"agent": _adam(2.5e-4, target_period=1_000)}},
        critic={
            "env_steps": 2_000_000,
            "envs_per_actor": 16,
            "agent": {
                "unroll": 20,
                "batch_unrolls": 32,
                "learning_rate": 2e-3,
                "learning_rate_steps": 2_000_000,
                "entropy": 0.1,
                "entropy_end": 0.002,
                "entropy_steps": 1_500_000,
                "reduction": "mean",
                "optimizer": "adam",
                "optimizer_epsilon": 1e-5,
                "max_gradient_norm": 1.0,
                "normalize_advantage": False,
            },
        },
    ),
    Preset(
        "ALE/",
        "no score measured; Pong runs at 122 agent steps/s on 2 cores, and is learned in 30 and 67 minutes by the "
        "options in benchmarks/pong_learned.py",
        {
            "env_steps": 2_000_000,
            "envs_per_actor": 8,
            "eval_every": 100_000,
            "checkpoint_every": 100_000,
            "log_every": 1_000,
            "agent": {
                "batch_size": 32,
                "learning_rate": 1e-4,
                "target_period": 1_000,
                "replay_capacity": 100_000,
                "learning_starts": 10_000,
                "replay_ratio": 8.0,
                "updates_per_call": 2,
                "epsilon_steps": 100_000,
                "epsilon_end": 0.01,
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
    name = registered_id(environment).rpartition(":")[2]
    if "NoFrameskip" in name:  # the older ids of the Atari games
        name = f"ALE/{name}"
    for preset in PRESETS:
        if name.startswith(preset.prefix):
            return preset
    several = {"envs_per_actor": 8}  # else the default batch of unrolls would never come together
    return Preset("", "no preset: the defaults of the options", critic=several)


AGENT_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "rainbow": RAINBOW,
    "a3c": {
        "unroll": 5,
        "correction": "none",
        "reduction": "sum",
        "optimizer": "shared_rmsprop",
        "optimizer_epsilon": 0.1,
        "learning_rate": 7e-4,
    },
    "impala": {
        "unroll": 20,
        "correction": "vtrace",
        "reduction": "sum",
        "optimizer": "shared_rmsprop",
        "optimizer_epsilon": 0.01,
        "learning_rate": 6e-4,
    },
    "appo": {
        "unroll": 32,
        "batch_unrolls": 32,
        "correction": "vtrace",
        "ratio_clip": 0.1,
        "normalize_advantage": True,
        "entropy": 0.003,
        "max_gradient_norm": 4.0,
        "learning_rate": 1e-4,
        "optimizer_epsilon": 1e-6,
    },
}
"""What the papers say, where it is not the default."""


def choose_agent(topology: str) -> str:
    """The agent that a topology is for, if none is named."""
    return find(topology).agents[0]


def defaults(environment: str, agent: str | None = None, topology: str = "single") -> RunOptions:
    """The options of an environment's preset, for an agent and a topology; the later ones have the last word."""
    preset, agent = find_preset(environment), agent or choose_agent(topology)
    if (agent, topology) == ("a3c", "hogwild"):
        topology = "a3c"
    options: RunOptions = options_for(agent)(environment)
    critic = agent in CRITIC_AGENTS
    general = {key: value for key, value in preset.options.items() if not (critic and key == "agent")}
    options = change(options, {**general, "agent_name": agent, "topology": topology})
    options = change(options, {"agent": AGENT_DEFAULTS.get(agent, {})})
    options = change(options, find(topology).defaults)
    if critic:
        options = change(options, preset.critic)
    for key in [f"{topology} {agent}"] if critic else [topology, f"{topology} {agent}"]:
        options = change(options, preset.by_topology.get(key, {}))
    return options
