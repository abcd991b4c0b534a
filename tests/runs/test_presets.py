"""Presets are files: those of the package hold what was measured, a user's own works the same way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import repertory
from repertory import cli, topologies
from repertory.agents import registry
from repertory.errors import UserError
from repertory.runs.config import check, resolve, to_dict, value_of
from repertory.runs.presets import defaults, find_preset, known, read_preset

FAMILIES = (
    "acrobot", "atari", "cartpole", "lunar_lander", "minatar", "mountain_car", "slow_cartpole", "t_maze",
)  # fmt: skip
PAIRS = [(name, agent) for name, topology in topologies.known().items() for agent in topology.agents]
CARTPOLE: dict[tuple[str, str], dict[str, Any]] = {
    ("single", "dqn"): {
        "env_steps": 50_000, "envs_per_actor": 16, "eval_every": 1_000, "engine": "inline", "agent.batch_size": 128,
        "agent.learning_rate": 1e-3, "agent.learning_rate_steps": 50_000, "agent.n_step": 20, "agent.target_tau": 0.02,
        "agent.replay_capacity": 10_000, "agent.learning_starts": 500, "agent.replay_ratio": 64.0,
        "agent.updates_per_call": 16, "agent.epsilon_steps": 4_000, "agent.epsilon_end": 0.04, "agent.value_min": 0.0,
        "agent.value_max": 100.0, "agent.optimizer": "adam", "agent.double": True,
    },
    ("apex", "dqn"): {
        "agent.optimizer": "adam", "agent.optimizer_epsilon": 1e-8, "agent.learning_rate": 1e-3,
        "agent.max_gradient_norm": 10.0, "agent.target_period": 500, "agent.prioritized": True, "agent.n_step": 3,
        "topology.pull_period": 20, "topology.exploration": "ladder", "topology.actor_priorities": True,
    },
    ("gorila", "dqn"): {
        "env_steps": 50_000, "agent.learning_rate": 0.01, "agent.learning_rate_steps": 0, "agent.double": True,
        "agent.optimizer": "adagrad", "agent.optimizer_epsilon": 0.1, "agent.max_gradient_norm": 10.0,
        "agent.target_tau": 0.0, "agent.target_period": 50, "topology.shards": 2, "topology.max_gradient_age": 100,
        "topology.outlier_deviations": 5.0,
    },
    ("parameter_server", "dqn"): {"env_steps": 100_000, "agent.learning_rate_steps": 100_000, "topology.shards": 1},
    ("hogwild", "dqn"): {
        "env_steps": 400_000, "eval_every": 2_500, "envs_per_actor": 8, "agent.learning_rate": 0.005,
        "agent.learning_rate_steps": 400_000, "agent.optimizer": "shared_rmsprop", "agent.optimizer_epsilon": 1.0,
        "agent.epsilon_steps": 20_000, "agent.loss": "squared", "topology.method": "n_step_q",
        "topology.target_steps": 500, "topology.exploration": "sampled", "topology.update_steps": 5,
    },
    ("hogwild", "sarsa"): {"topology.method": "sarsa", "topology.target_steps": 500, "agent.sarsa": True},
    ("ga3c", "a3c"): {
        "env_steps": 600_000, "envs_per_actor": 8, "agent.unroll": 16, "agent.batch_unrolls": 16,
        "agent.learning_rate": 5e-4, "agent.learning_rate_steps": 600_000, "agent.entropy": 0.02,
        "agent.probability_floor": 1e-6, "agent.max_gradient_norm": 1.0, "agent.optimizer": "adam",
        "agent.reduction": "mean", "agent.correction": "none", "topology.queue": 1,
    },
    ("ga3c", "impala"): {"agent.learning_rate": 1e-3, "agent.entropy": 0.01, "topology.queue": 2},
    ("impala", "appo"): {
        "log_every": 5_000, "checkpoint_every": 200_000, "agent.ratio_clip": 0.2, "agent.epochs": 2,
        "agent.minibatches": 2, "agent.entropy": 0.01, "agent.normalize_advantage": False, "agent.unroll": 16,
        "agent.correction": "vtrace",
    },
    ("impala", "impala"): {"agent.ratio_clip": 0.0, "agent.epochs": 1},
    ("sample_factory", "appo"): {"agent.epochs": 2, "topology.groups": 2, "topology.max_policy_lag": 1000},
}  # fmt: skip


@pytest.mark.parametrize(("topology", "agent"), CARTPOLE)
def test_presets_hold_what_was_measured(topology: str, agent: str) -> None:
    options = defaults("CartPole-v1", agent, topology)
    found = {name: value_of(options, name) for name in CARTPOLE[topology, agent]}
    assert found == CARTPOLE[topology, agent]


def test_there_is_a_file_for_each_family_and_each_finds_its_own() -> None:
    assert tuple(known()) == FAMILIES
    for preset in known().values():
        for prefix in preset.match:
            assert find_preset(f"{prefix}Something-v0") is preset
        assert preset.seen
        assert preset.seeds
    assert find_preset("PongNoFrameskip-v4").name == "atari"
    assert find_preset("FrozenLake-v1").match == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_preset_gives_valid_options_for_every_topology_and_agent(family: str) -> None:
    preset = known()[family]
    named = [entry.partition(" ")[::2] for entry in (*preset.topologies, *preset.unrolls.get("topologies", {}))]
    for topology, agent in named:
        assert (topology, agent or topologies.find(topology).agents[0]) in PAIRS
    for topology, agent in PAIRS:
        resolve(check(defaults(f"{preset.match[0]}Something-v0", agent, topology)))


MINE = """
match = ["FrozenLake"]
seen = "0.7 at 20,000 env steps"
seeds = "3"

[options]
env_steps = 321

[options.agent]
n_step = 7

[topologies.apex.topology]
pull_period = 11

[unrolls]
env_steps = 654

[unrolls.topologies."impala appo".agent]
epochs = 3
"""


def test_a_users_own_file_works_the_same_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    pairs = (("single", "dqn"), ("apex", "dqn"), ("impala", "appo"))
    own = [defaults("CartPole-v1", agent, topology, str(path)) for topology, agent in pairs]
    assert [options.env_steps for options in own] == [321, 321, 654]
    assert [options.agent.n_step for options in own[:2]] == [7, 3], "a topology's own defaults come after"
    assert own[0].agent.batch_size == 32, "not that of the environment's preset"
    assert value_of(own[1], "topology.pull_period") == 11
    assert own[2].agent.epochs == 3
    assert cli.main(["train", "CartPole-v1", "--preset", str(path), "--dry-run"]) == 0
    assert "0.7 at 20,000 env steps" in capsys.readouterr().out
    assert cli.main(["train", "CartPole-v1", "--preset", "acrobot", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["env_steps"] == 100_000


def test_python_takes_the_same_preset_and_the_run_keeps_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    wishes = {"eval_every": 321, "eval_episodes": 1, "eval_max_steps": 5, "runs_dir": tmp_path, "quiet": True}
    run = repertory.train("CartPole-v1", preset=path, **wishes)
    kept = json.loads((run.directory / "config.json").read_bytes())["config"]
    assert (kept["env_steps"], kept["agent"]["n_step"]) == (321, 7)
    assert (kept["topology_name"], kept["topology"]) == ("single", {})
    assert "preset" not in kept
    assert "preset" not in to_dict(defaults("CartPole-v1", preset=str(path)))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[option]\nseed = 3", "it has no part 'option'; did you mean 'options'?"),
        ("options = 3", "'options' must be a table of options, not 3"),
        ("seen = 3", "'seen' must be a text, not 3"),
        ('match = "CartPole"', "'match' must be a list of texts with which ids begin, not 'CartPole'"),
        ('match = [""]', "'match' must be a list of texts with which ids begin"),
        ("[topologies.apx]\nseed = 3", "unknown topology 'apx'; did you mean 'apex'?"),
        ('[topologies."apex dqm"]\nseed = 3', "unknown agent 'dqm'; did you mean 'dqn'?"),
        ("[topologies]\napex = 3", "'topologies.apex' must be a table of options, not 3"),
        ("[options]\nenv_step = 3", "unknown option 'env_step'; did you mean 'env_steps'?"),
        ("[options.agent]\nbach_size = 3", "agent 'dqn' has no option 'bach_size'; did you mean 'batch_size'?"),
        ('[options]\nenv_steps = "many"', "option 'env_steps' must be int, not 'many'"),
        ("[options]\nenv_steps = 0", "--env-steps must be above 0, not 0"),
        ("unrolls = 3", "'unrolls' must be a table of options, not 3"),
        ("options = = 3", "as TOML"),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, sentence: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert cli.main(["train", "CartPole-v1", "--preset", str(path), "--dry-run"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert sentence in said.err
    assert str(path) in said.err or sentence.startswith("--env-steps")


def test_a_preset_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown preset 'cartpol'; did you mean 'cartpole'"):
        find_preset("CartPole-v1", "cartpol")
    with pytest.raises(UserError, match="No such file"):
        read_preset(tmp_path / "absent.toml")


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["presets"]) == 0
    text = capsys.readouterr().out
    assert "cartpole: CartPole…" in text
    assert "500 on each of 5 seeds at 50,000 env steps" in text
    assert cli.main(["presets", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert tuple(rows) == FAMILIES
    assert rows["minatar"]["environments"] == ["MinAtar/"]
    assert rows["acrobot"]["seeds"] == "0 to 4"
    assert {"gorila", "hogwild", "impala appo"} <= set(rows["cartpole"]["topologies"])


def test_names_of_agents_set_what_their_papers_say() -> None:
    assert {name for name, kind in registry.known().items() if kind.learns_from == "unrolls"} == {
        "a3c",
        "impala",
        "appo",
    }
    assert defaults("FrozenLake-v1", "rainbow").agent.distributional
    assert defaults("FrozenLake-v1", "sarsa").agent.sarsa
    assert defaults("FrozenLake-v1", "appo", "impala").agent.unroll == 32
    assert defaults("FrozenLake-v1", "appo", "impala").envs_per_actor == 8
