"""What can't work is refused in one sentence with exit code 2, and before anything is made."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

import repertory
from commands import Command, result, words
from repertory import cli
from repertory.errors import UserError
from repertory.runs import checkpoint
from repertory.runs.config import flag, names_of, options_for, value_of
from repertory.runs.player import load_player
from repertory.topologies import known

SHORT = words(
    "--env-steps 1200 --checkpoint-every 400 --eval-every 400 --eval-episodes 2 --eval-max-steps 30 --quiet "
    "--envs-per-actor 4 --agent.learning-starts 100 --agent.batch-size 16 --agent.replay-ratio 4 "
    "--agent.updates-per-call 1 --network.hidden 16 16"
)

ENVIRONMENT = """
import gymnasium as gym
import numpy as np

class Faulty(gym.Env):
    def __init__(self, fault="", at=50):
        if fault == "constructor":
            raise RuntimeError("out of coins")
        self.observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.fault, self.at, self.total = fault, at, 0

    def reset(self, *, seed=None, options=None):
        if self.fault == "reset" and self.total >= self.at:
            raise RuntimeError("out of coins")
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.total += 1
        fault = self.fault if self.total == self.at else ""
        if fault == "step":
            raise RuntimeError("out of coins")
        observation = np.zeros(5 if fault == "shape" else 3, np.float32)
        if fault == "nan":
            observation[1] = np.nan
        return observation, float("inf") if fault == "inf" else 1.0, self.total % 10 == 0, False, {}

def number():
    return 3
"""

NETWORKS = """
import flax.linen as nn

def number(outputs):
    return 3

def too_wide(outputs):
    return nn.Dense(outputs + 1)

def raises(outputs):
    raise ValueError("no such layer")

class Unreadable(nn.Module):
    @nn.compact
    def __call__(self, x):
        raise ValueError("no such layer")

def unreadable(outputs):
    return Unreadable()

def two(outputs, more):
    return nn.Dense(outputs)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Everything happens in a fresh directory, with the user's files in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "faulty.py").write_text(ENVIRONMENT)
    (tmp_path / f"{tmp_path.name}_networks.py").write_text(NETWORKS)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 1200 env steps with whole checkpoints at 800 and 1200."""
    place = tmp_path_factory.mktemp("trained")
    assert cli.main(["train", "CartPole-v1", *SHORT, "--name", "run", "--runs-dir", str(place)]) == 0
    assert len(checkpoint.whole(place / "run/checkpoints")) == 2
    return place / "run"


@pytest.fixture
def run(trained: Path, place: Path) -> Path:
    """A copy of that run that may be spoiled."""
    return Path(shutil.copytree(trained, place / "runs/run"))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    """The one sentence with which a command is refused."""
    capsys.readouterr()
    code = cli.main([str(argument) for argument in arguments])
    said = capsys.readouterr()
    assert code == 2, said
    assert said.out == ""
    assert said.err.startswith("repertory: ")
    assert said.err.count("\n") == 1, said.err
    return said.err.removeprefix("repertory: ").strip()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train CartPol-v1", "there is no environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ("train CartPole-v1 --agent.bach-size 3", "did you mean '--agent.batch-size'?"),
        ("train CartPole-v1 --agent.bach-size=3", "did you mean '--agent.batch-size'?"),
        ("train CartPole-v1 --agent.no-replya", "did you mean '--agent.no-replay'?"),
        ("trian CartPole-v1", "unknown command 'trian'; did you mean 'train'?"),
        ("train CartPole-v1 --topology singel", "unknown topology 'singel'; did you mean 'single'?"),
        ("show singel", "unknown topology 'singel'; did you mean 'single'?"),
        ("train CartPole-v1 --engine inlien", "unknown engine 'inlien'; did you mean 'inline'?"),
        ("train CartPole-v1 --agent rainbwo", "unknown agent 'rainbwo'; did you mean 'rainbow'?"),
        ("train CartPole-v1 --agent.batch-size x", "--agent.batch-size: invalid literal for int()"),
        ("train CartPole-v1 --agent.batch-size 3.5", "--agent.batch-size: invalid literal for int()"),
        ("train CartPole-v1 --agent.batch-size", "Missing value for argument '--agent.batch-size'"),
        ("train CartPole-v1 --agent.loss cubic", "invalid choice 'cubic' for argument '--agent.loss'"),
        ("train CartPole-v1 surplus", "Unrecognized options: surplus"),
        ("train", "train needs an environment, for example: repertory train CartPole-v1"),
        ("train --seed 3", "train needs an environment"),
        ("resume", "The run's name, or its directory. (required)"),
        ("train Pendulum-v1", "Pendulum-v1 has a continuous action space"),
        ("train CartPole-v1 --agent.epsilon-start 1.5", "--agent.epsilon-start must lie between 0 and 1, it is 1.5"),
        ("train CartPole-v1 --agent.epsilon-end -0.1", "--agent.epsilon-end must lie between 0 and 1, it is -0.1"),
        ("train CartPole-v1 --agent.epsilon-start 0.1 --agent.epsilon-end 0.2", "is above --agent.epsilon-start"),
        ("train CartPole-v1 --seed -1", "--seed must lie between 0 and 4294967295, it is -1"),
        ("train CartPole-v1 --seed 4294967296", "--seed must lie between 0 and 4294967295, it is 4294967296"),
        ("train CartPole-v1 --agent.learning-rate nan", "--agent.learning-rate must be a finite number, not nan"),
        ("train CartPole-v1 --agent.replay-ratio inf", "--agent.replay-ratio must be a finite number, not inf"),
        ("train CartPole-v1 --seconds nan", "--seconds must be a finite number, not nan"),
        ("train CartPole-v1 --network.hidden 0", "--network.hidden needs widths above 0"),
        ("train CartPole-v1 --network.kind nature", "reads images"),
        ("train CartPole-v1 --env-option gravity", "--env-option takes KEY=VALUE, not 'gravity'"),
        ("train CartPole-v1 --env-option a=1 --env-option b=2", "--env-option was given twice"),
        ("train FrozenLake-v1 --env-option is_slipery=false", "did you mean 'is_slippery'?"),
        ("train absent.py:Faulty", "there is no file absent.py"),
        ("train faulty.py:Fualty", "faulty.py has no function 'Fualty'; did you mean 'Faulty'?"),
        ("train faulty.py:number", "returned a int, not a gymnasium.Env"),
        ("train absent:Maze-v0", "there is no module 'absent'"),
        ("train CartPole-v1 --agent.prioritized --agent.no-replay", "--agent.prioritized needs a replay"),
        ("train CartPole-v1 --agent.replay-capacity 10", "can't hold --agent.learning-starts"),
        ("train CartPole-v1 --name ../up", "'../up' cannot be the name of a run"),
        ("train CartPole-v1 --topology collectors --agent.no-replay", "'collectors' needs an experience replay"),
        ("train CartPole-v1 --topology all_reduce --agent.no-replay", "choose --topology hogwild, or single"),
        ("train CartPole-v1 --topology gorila --agent.noisy", "which noisy networks do not support"),
        ("train CartPole-v1 --topology hogwild --agent.noisy", "choose --topology collectors, or --agent.no-noisy"),
        (
            "train CartPole-v1 --topology parameter_server --agent.prioritized --topology.memory shared",
            "topology 'parameter_server' can't prioritise a memory that several processes sample from",
        ),
        (
            "train CartPole-v1 --topology hogwild --topology.method replay --agent.prioritized",
            "topology 'hogwild' can't prioritise a memory that several processes sample from",
        ),
        (
            "train CartPole-v1 --topology collectors --topology.actor-priorities",
            "--topology.actor-priorities needs --agent.prioritized",
        ),
        ("train CartPole-v1 --topology apex --agent.no-prioritized", "or give --topology.no-actor-priorities"),
        (
            "train CartPole-v1 --topology parameter_server --topology.mode synchronous --topology.push-period 2",
            "--topology.push-period must be 1 where servers wait for every worker's gradient",
        ),
        (
            "train CartPole-v1 --agent sarsa --topology hogwild --topology.method n_step_q",
            "bootstraps from the best action; for Sarsa choose sarsa",
        ),
        (
            "train CartPole-v1 --topology hogwild --topology.method replay --agent.no-replay",
            "--topology.method replay needs an experience replay",
        ),
        ("train CartPole-v1 --agent rainbow --topology gorila", "topology 'gorila' does not train agent 'rainbow'"),
        (
            "train CartPole-v1 --agent a3c --topology hogwild",
            "topology 'hogwild' does not train agent 'a3c'; known: dqn",
        ),
        (
            "train CartPole-v1 --topology all_reduce --agent.noisy",
            "sends gradients, which noisy networks do not support",
        ),
        ("train CartPole-v1 --agent rainbow --topology apex", "topology 'apex' does not train agent 'rainbow'"),
        (
            "train CartPole-v1 --actors 4",
            "topology 'single' has one actor, not 4: for more environments give --envs-per-actor, for more processes "
            "--topology collectors --actors 4",
        ),
        ("train CartPole-v1 --agent a3c --topology collectors", "topology 'collectors' does not train agent 'a3c'"),
        ("train CartPole-v1 --agent dqn --topology impala", "topology 'impala' does not train agent 'dqn'"),
        ("train CartPole-v1 --agent appo --topology a3c", "topology 'a3c' does not train agent 'appo'"),
        ("train CartPole-v1 --agent appo --topology ga3c", "topology 'ga3c' does not train agent 'appo'"),
        ("train CartPole-v1 --agent a3c --topology seed_rl", "topology 'seed_rl' does not train agent 'a3c'"),
        ("train CartPole-v1 --agent impala", "topology 'single' does not train agent 'impala'"),
        ("train CartPole-v1 --topology impla", "unknown topology 'impla'; did you mean 'impala'?"),
        ("train CartPole-v1 --topology impala --agent.unrol 8", "did you mean '--agent.unroll'?"),
        ("train CartPole-v1 --topology impala --agent.batch-size 8", "agent 'impala' has no option --agent.batch-size"),
        ("train CartPole-v1 --network.hiden 3", "unknown option --network.hiden; did you mean '--network.hidden'?"),
        ("train CartPole-v1 --network.lstm-size 8", "are for actor-critic agents: a3c, impala, appo"),
        ("train CartPole-v1 --topology impala --agent.minibatches 99", "is more than --agent.batch-unrolls 16"),
        (
            "train CartPole-v1 --topology sample_factory --envs-per-actor 3",
            "--envs-per-actor 3 can't be cut into --topology.groups 2 equal groups",
        ),
        (
            "train CartPole-v1 --topology ga3c --actors 1 --topology.trainers 3 --agent.batch-unrolls 16",
            "--agent.batch-unrolls 16 is more than the 0 unrolls that agents can finish for each of 3 trainers",
        ),
        (
            "train CartPole-v1 --topology ga3c --engine inline --topology.adjust-from 1 1 1",
            "--topology.adjust-from goes by the clock, and inline runs do not: use --engine processes",
        ),
        (
            "train CartPole-v1 --topology ga3c --topology.adjust-from 1 1",
            "--topology.adjust-from takes predictors, trainers and agents to start with",
        ),
        (
            "train CartPole-v1 --topology ga3c --topology.adjust-from 1 3 1",
            "each from 1 to how many there are (2, 2, 2)",
        ),
        (
            "train CartPole-v1 --topology ga3c --topology.adjust-from 1 1 0",
            "each from 1 to how many there are (2, 2, 2)",
        ),
        (
            "train CartPole-v1 --topology impala --topology.learners 3",
            "--topology.learners 3 needs at least as many actors, not 2",
        ),
        (
            "train CartPole-v1 --topology impala --agent appo --topology.learners 2",
            "--agent.epochs and --agent.minibatches above 1 need a single learner",
        ),
        ("train CartPole-v1 --topology ga3c --agent.epochs 2", "need a single learner that makes all updates"),
        ("train CartPole-v1 --topology a3c --agent.epochs 2", "need a single learner that makes all updates"),
        (
            "train CartPole-v1 --topology seed_rl --agent dqn --topology.groups 2",
            "--topology.groups 2 is for agents that learn from unrolls",
        ),
        ("train CartPole-v1 --topology seed_rl --agent dqn --agent.noisy", "noisy networks would not explore"),
        ("train CartPole-v1 --topology impala --network.lstm-size 4 --network.separate", "exclude each other"),
        ("resume absent", "there is no run 'absent'; there are no runs in runs"),
        ("evaluate absent", "there is no run 'absent'; there are no runs in runs"),
    ],
)
def test_bad_argument_is_one_sentence(
    capsys: pytest.CaptureFixture[str], place: Path, arguments: str, sentence: str
) -> None:
    assert sentence in refusal(capsys, *arguments.split())
    assert not (place / "runs").exists()


def test_engine_that_a_topology_is_not_made_for_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = dataclasses.replace(known()["single"], name="alone", engines=("inline",))
    monkeypatch.setitem(cast(dict[str, Any], known()), "alone", alone)
    sentence = refusal(capsys, "train", "CartPole-v1", "--topology", "alone", "--engine", "processes")
    assert "topology 'alone' does not run on engine 'processes'" in sentence


WRONG = (
    "shards impala", "compression hogwild", "learners apex", "learners seed_rl", "method a3c", "method collectors",
    "adjust_from impala", "adjust_from collectors", "groups collectors", "groups a3c", "policy_workers seed_rl",
    "predictors sample_factory", "queue parameter_server", "mode all_reduce", "exploration single",
    "actor_priorities gorila", "actor_priorities single", "scale_learning_rate parameter_server",
)  # fmt: skip
"""An option, and a topology that does not read it."""


@pytest.mark.parametrize("wrong", WRONG)
def test_option_that_the_topology_does_not_read_is_refused_everywhere(
    capsys: pytest.CaptureFixture[str], place: Path, wrong: str
) -> None:
    option, topology = wrong.split()
    readers = [name for name, kind in known().items() if hasattr(kind.options, option)]
    spelled = f"--topology.{option.replace('_', '-')}"
    told = refusal(capsys, "train", "CartPole-v1", "--topology", topology, spelled, "2")
    assert told.startswith(f"topology {topology!r} has no option {spelled} (an option of {', '.join(readers)}); ")
    assert told.endswith(("?", "it has none of its own")) or "; known: --topology." in told
    sentence = f"topology {topology!r} has no option {option!r} (an option of {', '.join(readers)})"
    (place / "mine.toml").write_text(f"[topology]\n{option} = 2\n")
    assert sentence in refusal(capsys, "train", "CartPole-v1", "--topology", topology, "--config", "mine.toml")
    (place / "preset.toml").write_text(f"[options.topology]\n{option} = 2\n")
    refused = refusal(capsys, "train", "CartPole-v1", "--topology", topology, "--preset", "preset.toml")
    assert refused.startswith(f"preset preset.toml: {sentence}")
    with pytest.raises(UserError, match=re.escape(sentence)):
        repertory.train("CartPole-v1", topology=topology, topology_options={option: 2})
    assert not (place / "runs").exists()


def test_option_that_the_agent_does_not_have_is_refused_everywhere(
    capsys: pytest.CaptureFixture[str], place: Path
) -> None:
    told = refusal(capsys, "train", "CartPole-v1", "--agent.batch-unrolls", "2")
    assert told == (
        "agent 'dqn' has no option --agent.batch-unrolls (an option of a3c, impala, appo); did you mean "
        "'--agent.batch-size'?"
    )
    sentence = "agent 'dqn' has no option 'batch_unrolls' (an option of a3c, impala, appo); did you mean 'batch_size'?"
    (place / "mine.toml").write_text("[agent]\nbatch_unrolls = 2\n")
    assert sentence in refusal(capsys, "train", "CartPole-v1", "--config", "mine.toml")
    with pytest.raises(UserError, match=re.escape(sentence)):
        repertory.train("CartPole-v1", agent_options={"batch_unrolls": 2})


def test_options_of_older_versions_are_told_their_new_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--company.shards is now --topology.shards" in refusal(capsys, "train", "CartPole-v1", "--company.shards", 2)
    assert refusal(capsys, "train", "CartPole-v1", "--company.heartbeat-s=3").endswith("is now --heartbeat-s")
    with pytest.raises(UserError, match="company_options are topology_options"):
        repertory.train("CartPole-v1", company_options={"shards": 2})


def test_run_of_an_earlier_version_is_refused(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    saved = json.loads((run / "config.json").read_bytes())
    saved["config"]["company"] = saved["config"].pop("topology")
    saved["config"]["topology"] = saved["config"].pop("topology_name")
    saved["origin"]["versions"]["repertory"] = "0.0.9"
    (run / "config.json").write_text(json.dumps(saved))
    for command in ("resume", "evaluate"):
        sentence = refusal(capsys, command, "run")
        assert sentence.startswith("runs/run is a run of an earlier repertory (0.0.9): its config.json has `company`")
        assert sentence.endswith("; train again, or use that version")
    assert cli.main(["runs"]) == 0


def test_checkpoints_of_an_earlier_format_are_refused(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    for path in checkpoint.whole(run / "checkpoints"):
        about = json.loads((path / "manifest.json").read_bytes())
        del about["crc32"]
        about |= {"format_version": 2, "repertory": "0.0.9"}
        about["crc32"] = zlib.crc32(json.dumps(about, sort_keys=True).encode())
        (path / "manifest.json").write_text(json.dumps(about))
    for command in (("resume", "run", "--env-steps", 1300, "--quiet"), ("evaluate", "run")):
        sentence = refusal(capsys, *command)
        assert "has checkpoint format 2 (of repertory 0.0.9) but repertory " in sentence
        assert sentence.endswith(" reads format 3; train again, or use that version")


ANY_NUMBER = {"target_score", "agent.value_min", "agent.value_max"}
MAY_BE_ZERO = ANY_NUMBER | {
    "seed", "threads", "restarts", "network.lstm_size", "agent.learning_starts", "agent.epsilon_steps",
    "agent.max_gradient_norm", "agent.importance_steps", "agent.learning_rate_end", "agent.learning_rate_steps",
    "agent.discount", "agent.target_tau", "agent.epsilon_start", "agent.epsilon_end", "agent.priority_exponent",
    "agent.importance_exponent", "agent.ratio_clip", "agent.entropy", "agent.entropy_end", "agent.entropy_steps",
    "agent.value_weight", "agent.probability_floor", "agent.trace", "topology.max_gradient_age",
    "topology.outlier_deviations", "topology.ladder_base", "topology.ladder_exponent", "topology.queue",
    "topology.max_policy_lag", "topology.inference_patience_s", "topology.actors_per_process",
}  # fmt: skip


def numeric_options() -> list[tuple[str, str]]:
    """A topology and an option: of `single` all, of `impala` the agent's, too, of the others their own."""
    found = []
    for topology, kind in known().items():
        options = options_for(kind.agents[0], topology)("CartPole-v1", seconds=1.0, eval_every_s=1.0, target_score=1.0)
        parts = {"single": "", "impala": ("agent.", "topology.")}.get(topology, "topology.")
        numbers = [name for name in names_of(type(options)) if type(value_of(options, name)) in (int, float)]
        found += [(topology, name) for name in numbers if name.startswith(parts)]
    assert len(found) > 110
    return found


@pytest.mark.parametrize(("topology", "name"), numeric_options())
def test_number_out_of_range_is_refused(capsys: pytest.CaptureFixture[str], topology: str, name: str) -> None:
    for value, allowed in ((-1, ANY_NUMBER), (0, MAY_BE_ZERO)):
        if name not in allowed:
            chosen = ("train", "CartPole-v1", "--topology", topology, "--dry-run")
            sentence = refusal(capsys, *chosen, flag(name), value)
            assert sentence.startswith(flag(name)), sentence


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        ("absent:build", "can't be imported: ModuleNotFoundError: No module named 'absent'"),
        ("{networks}", "write it as package.module:build"),
        ("absent.py:build", "network.module 'absent.py:build': there is no file absent.py"),
        ("{networks}.py:absent", "networks.py has no function 'absent'"),
        ("{networks}.py:number", "returned int, not a flax.linen.Module"),
        ("{networks}:absent", "has no function 'absent'"),
        ("{networks}:number", "returned int, not a flax.linen.Module"),
        ("{networks}:too_wide", "returned shape (2, 3) for a batch of 2; it must return (2, 2)"),
        ("{networks}:unreadable", "can't read observations (4,): no such layer"),
        ("{networks}:two", "must take one argument, the number of outputs"),
        ("{networks}:raises", "raised ValueError: no such layer"),
    ],
)
def test_bad_network_module_is_one_sentence(
    capsys: pytest.CaptureFixture[str], place: Path, module: str, sentence: str
) -> None:
    path = module.format(networks=f"{place.name}_networks")
    assert sentence in refusal(capsys, "train", "CartPole-v1", "--network.module", path)


def fail_in_environment(capsys: pytest.CaptureFixture[str], fault: str) -> tuple[str, str]:
    """What stands above the sentence, and the sentence."""
    code = cli.main(["train", "faulty.py:Faulty", "--env-option", f"fault={fault}", "--name", fault, *SHORT])
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    above, _, sentence = said.err.strip().rpartition("repertory: ")
    assert "\n" not in sentence
    return above, sentence


@pytest.mark.parametrize("fault", ["constructor", "reset", "step"])
def test_environments_own_traceback_stands_whole_above_the_sentence(
    capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    above, sentence = fail_in_environment(capsys, fault)
    assert above.startswith("Traceback (most recent call last):\n")
    assert above.endswith("RuntimeError: out of coins\n")
    assert "faulty.py" in above
    assert 'raise RuntimeError("out of coins")' in above
    assert sentence.startswith("environment 0 of worker 0 ")
    assert "raised RuntimeError: out of coins" in sentence


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("reset", "raised RuntimeError: out of coins (in reset)"),
        ("step", "raised RuntimeError: out of coins"),
        ("nan", "returned an observation that is not finite: nan at [1]"),
        ("inf", "returned a reward that is not finite: inf"),
        ("shape", "returned an observation of shape (5,) where its space says (3,)"),
    ],
)
def test_failing_environment_is_named_with_seed_and_step_and_the_run_has_failed(
    capsys: pytest.CaptureFixture[str], place: Path, fault: str, what: str
) -> None:
    above, sentence = fail_in_environment(capsys, fault)
    who, _, rest = sentence.partition(") ")
    assert who.startswith("environment 0 of worker 0 (seed ")
    assert who.endswith(", step 50")
    assert rest == what
    assert ("Traceback" in above) == (fault in ("reset", "step"))
    failed = result(place / "runs" / fault)
    assert failed["status"] == "failed"
    assert what in failed["error"]
    assert 150 <= failed["env_steps"] <= 200


def test_run_directory_that_exists_is_refused(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    sentence = refusal(capsys, "train", "CartPole-v1", *SHORT, "--name", "run")
    assert sentence == "runs/run exists; go on with 'repertory resume run', or choose another --name"
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.usefixtures("run")
def test_unknown_run_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("resume", "evaluate"):
        assert refusal(capsys, command, "rnu") == "there is no run 'rnu'; did you mean 'run'?"


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("evaluate run --record film.avi", "--record writes .mp4 or .gif, not 'film.avi'"),
        ("evaluate run --record absent/film.gif", "--record can't write absent/film.gif"),
        ("evaluate run --episodes 0", "--episodes must be above 0, not 0"),
        ("evaluate run --seed -1", "seed must not be negative, it is -1"),
        ("resume run --env-steps 0", "--env-steps must be above 0, not 0"),
        ("resume run --env-steps 100", "has made its 1200 env steps already"),
    ],
)
def test_bad_argument_of_a_run_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: str, sentence: str
) -> None:
    assert sentence in refusal(capsys, *arguments.split())


def test_run_without_checkpoint_starts_anew_but_is_not_evaluated(capsys: pytest.CaptureFixture[str], run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "result.json").unlink()
    assert "has no whole checkpoint yet" in refusal(capsys, "evaluate", "run")
    assert cli.main(["resume", "run", "--quiet"]) == 0
    assert result(run)["status"] == "completed"
    assert result(run)["env_steps"] == 1200


def test_truncated_checkpoint_gives_way_to_the_whole_one_before(run: Path) -> None:
    earlier, newest = checkpoint.whole(run / "checkpoints")
    first = checkpoint.load(earlier)["history"]["evaluations"][0]
    largest = max(newest.iterdir(), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    saved = checkpoint.load(earlier)["learner"]["learned"]["00"]
    assert load_player(run).weights.tobytes() == saved.tobytes()
    assert cli.main(["evaluate", "run", "--episodes", "1"]) == 0
    assert cli.main(["resume", "run", "--env-steps", "1300", "--quiet"]) == 0
    assert result(run)["env_steps"] == 1300
    assert result(run)["evaluations"][0] == first, "it went on from the earlier one, not from the start"


class Bomb:
    """Unpickling it makes a file."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("exploded"),)


def test_pickle_in_place_of_the_arrays_is_refused_and_not_executed(
    capsys: pytest.CaptureFixture[str], run: Path, place: Path
) -> None:
    for path in checkpoint.whole(run / "checkpoints"):
        forge(path, "learner.safetensors", pickle.dumps(Bomb()))
    for command in ("evaluate", "resume"):
        extra = ["--env-steps", 1300, "--quiet"] if command == "resume" else []
        assert "is not the safetensors file" in refusal(capsys, command, "run", *extra)
    assert not (place / "exploded").exists()
    pickle.loads(pickle.dumps(Bomb()))
    assert (place / "exploded").exists(), "the bomb is live"


def forge(path: Path, name: str, content: bytes) -> None:
    """Replace a file of a checkpoint, and make the manifest agree."""
    (path / name).write_bytes(content)
    about = json.loads((path / "manifest.json").read_bytes())
    about["files"][name] = {"bytes": len(content), "crc32": zlib.crc32(content)}
    del about["crc32"]
    about["crc32"] = zlib.crc32(json.dumps(about, sort_keys=True).encode())
    (path / "manifest.json").write_text(json.dumps(about))


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("absent", "arguments", "extra"),
    [
        ("ale_py", "train ALE/Pong-v5", "atari"),
        ("minatar", "train MinAtar/Breakout-v1", "minatar"),
        ("imageio", "evaluate run --record film.gif", "video"),
        ("imageio_ffmpeg", "evaluate run --record film.mp4", "video"),
    ],
)
def test_missing_extra_is_answered_with_the_line_that_installs_it(
    place: Path, absent: str, arguments: str, extra: str
) -> None:
    command = Command(place, *arguments.split(), absent=absent)
    assert command.wait() == 2
    assert command.err.startswith("repertory: ")
    assert command.err.endswith(f"needs the extra '{extra}': pip install 'repertory[{extra}]'\n")
    assert command.err.count("\n") == 1


def test_replay_larger_than_memory_is_refused_before_it_is_allocated(capsys: pytest.CaptureFixture[str]) -> None:
    before = psutil.Process().memory_info()
    sentence = refusal(capsys, "train", "CartPole-v1", "--agent.replay-capacity", 10_000_000_000)
    after = psutil.Process().memory_info()
    assert sentence.startswith("a replay of 10,000,000,000 steps needs 3")
    assert "00 GB, but" in sentence
    assert after.rss - before.rss < 100e6
    assert after.vms - before.vms < 1e9


def test_unrolls_larger_than_memory_are_refused_before_they_are_allocated(capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refusal(capsys, "train", "CartPole-v1", "--topology", "impala", "--topology.queue", 10**9)
    assert sentence.startswith("2,000,000,002 slots of unrolls need ")
    assert "lower --topology.queue" in sentence


OFTEN = ["--log-every", "16", "--checkpoint-every", "300", "--json", "--name", "run", "--network.hidden", "256", "256"]


def check_completed_without_room(command: Command) -> None:
    assert command.wait() == 0, command.err
    assert "Traceback" not in command.err
    assert "warning: the checkpoint at step 300 was not saved" in command.err
    assert "training goes on" in command.err
    assert "lines of metrics could not be written" in command.err
    printed = json.loads(command.out)
    assert (printed["status"], printed["env_steps"]) == ("completed", 1200)


def test_training_goes_on_when_the_disk_is_full(place: Path) -> None:
    disk = place / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mounted, capture_output=True, timeout=10).returncode != 0:
        pytest.skip("only root can mount a small disk")
    try:
        command = Command(place, "train", "CartPole-v1", *SHORT, *OFTEN, "--runs-dir", disk)
        check_completed_without_room(command)
        assert "result.json was not written: No space left on device" in command.err
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=10)


def test_training_goes_on_when_files_may_not_grow(place: Path) -> None:
    command = Command(place, "train", "CartPole-v1", *SHORT, *OFTEN, file_bytes=30_000)
    check_completed_without_room(command)
    assert result(place / "runs/run")["status"] == "completed"
