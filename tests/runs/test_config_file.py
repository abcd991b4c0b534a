"""`train --config FILE`: the command line wins over the file, the file over the preset; what can't be is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import repertory
from commands import words
from repertory import cli
from repertory.errors import UserError
from repertory.runs.config import to_dict
from repertory.runs.config_file import ConfigFile, read
from repertory.runs.presets import defaults

SHORT = words(
    "--env-steps 300 --eval-every 300 --eval-episodes 2 --eval-max-steps 30 --agent.learning-starts 100 --quiet "
    "--agent.batch-size 16 --network.hidden 16 16 --envs-per-actor 4"
)
TOML = """
environment = "CartPole-v1"
env-steps = 300
eval_every = 300
eval_episodes = 2
eval_max_steps = 30
quiet = true

[agent]
learning_starts = 100
batch-size = 16

[network]
hidden = [16, 16]
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs go into a fresh directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose user chose a few options."""
    place = tmp_path_factory.mktemp("run")
    told = ["train", "CartPole-v1", *SHORT, "--agent.n-step", "4", "--seed", "5", "--runs-dir", str(place)]
    assert cli.main([*told, "--name", "first"]) == 0
    return place / "first"


def saved(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("runs", name, "config.json").read_bytes())["config"]
    return found


@pytest.mark.parametrize("kind", ["toml", "json"])
def test_file_gives_the_options_and_the_command_line_has_the_last_word(place: Path, kind: str) -> None:
    nested = {
        "environment": "CartPole-v1", "env-steps": 300, "eval_every": 300, "eval_episodes": 2, "eval_max_steps": 30,
        "quiet": True, "agent": {"learning_starts": 100}, "agent.batch-size": 16, "network.hidden": [16, 16],
    }  # fmt: skip
    (place / f"mine.{kind}").write_text(TOML if kind == "toml" else json.dumps(nested))
    told = ["train", "--config", f"mine.{kind}", "--name", "run", "--agent.batch-size", "8", "--env-steps=320"]
    assert cli.main(told) == 0
    found = saved("run")
    assert found["environment"] == "CartPole-v1"
    assert (found["env_steps"], found["eval_every"]) == (320, 300)
    assert (found["agent"]["batch_size"], found["agent"]["learning_starts"]) == (8, 336)
    assert found["network"]["hidden"] == [16, 16]
    assert found["envs_per_actor"] == 16, "the preset's"
    assert "config" not in found


def test_a_runs_own_file_makes_the_same_run_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given in (run, run / "config.json"):
        assert cli.main(["train", "--config", str(given), "--quiet", "--name", given.name]) == 0
        before = json.loads((run / "config.json").read_bytes())["config"]
        again = saved(given.name)
        call = ("name", "runs_dir")
        assert {k: v for k, v in again.items() if k not in call} == {k: v for k, v in before.items() if k not in call}
        results = [json.loads((place / "result.json").read_bytes()) for place in (run, Path("runs", given.name))]
        assert results[0]["score"] == results[1]["score"]
        assert results[0]["updates"] == results[1]["updates"]
    assert cli.main(["train", "--config", str(run), "--dry-run", "--env-steps", "777", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["env_steps"] == 777


def test_a_runs_own_file_under_another_topology_gives_what_was_chosen(run: Path) -> None:
    file = read(run)
    assert file.options("CartPole-v1", "dqn", "single").agent.n_step == 4
    other = file.options("CartPole-v1", "dqn", "apex")
    usual = defaults("CartPole-v1", "dqn", "apex")
    assert other.agent.n_step == 4, "chosen"
    assert other.seed == 5, "chosen"
    assert other.engine == usual.engine == "processes", "not chosen, so that of the topology"
    assert other.actors == usual.actors
    assert other.topology == usual.topology
    assert file.agent("single") == "dqn"
    assert file.agent("impala") == "", "dqn was not chosen: it was the default"


def test_topology_agent_and_engine_may_stand_in_the_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ('environment = "CartPole-v1"', 'topology = "impala"', 'agent = "appo"', 'engine = "inline"')
    (place / "a.toml").write_text("\n".join(lines))
    assert cli.main(["train", "--config", "a.toml", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["topology"], told["agent"], told["engine"]) == ("impala", "appo", "inline")
    assert cli.main(["train", "Acrobot-v1", "--config=a.toml", "--topology", "seed_rl", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["environment"], told["topology"], told["agent"]) == ("Acrobot-v1", "seed_rl", "appo")


def test_python_takes_the_same_files(place: Path) -> None:
    (place / "mine.toml").write_text(TOML)
    run = repertory.train(config="mine.toml", seed=3)
    assert run.result["environment"] == "CartPole-v1"
    assert saved(run.directory.name)["seed"] == 3
    assert saved(run.directory.name)["agent"]["batch_size"] == 16
    with pytest.raises(UserError, match="train needs an environment"):
        repertory.train(seed=3)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.toml", "env_step = 3", "unknown option 'env_step'; did you mean 'env_steps'?"),
        ("a.toml", "[agent]\nbach_size = 3", "agent 'dqn' has no option 'bach_size'; did you mean 'batch_size'?"),
        ("a.toml", 'env_steps = "many"', "option 'env_steps' must be int, not 'many'"),
        ("a.toml", "topology = 3", "option 'topology' takes a dictionary of options, not 3"),
        ("a.toml", 'topology = "singel"', "unknown topology 'singel'; did you mean 'single'?"),
        ("a.toml", "agent = 3", "option 'agent' takes a dictionary of options, not 3"),
        ("a.toml", "env_steps = = 3", "--config can't read a.toml as TOML"),
        ("a.json", "{", "--config can't read a.json as JSON"),
        ("a.json", "[1, 2]", "a.json holds no options"),
        ("a.yaml", "env_steps: 3", "--config takes a .json or .toml file, or a run's directory, not 'a.yaml'"),
        ("a.toml", 'config = "b.toml"', "a.toml names another config: a file can't"),
        ("b.toml", "", "--config can't read a.toml: No such file or directory"),
    ],
)
def test_what_can_not_be_is_one_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, sentence: str
) -> None:
    (place / name).write_text(text)
    given = "a.toml" if name == "b.toml" else name
    assert cli.main(["train", "CartPole-v1", "--config", given]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert sentence in said.err


STRANGE = """
import pathlib
pathlib.Path("imported").touch()
import gymnasium as gym


def make():
    return gym.make("CartPole-v1")
"""


def test_code_that_a_strangers_run_names_is_not_imported(
    run: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = Path(shutil.copytree(run, place / "strange"))
    (place / "strange.py").write_text(STRANGE)
    told = json.loads((strange / "config.json").read_bytes())
    told["config"]["environment"] = "strange.py:make"
    (strange / "config.json").write_text(json.dumps(told))
    for given in (strange, strange / "config.json"):
        assert cli.main(["train", "--config", str(given), "--dry-run"]) == 2
        said = capsys.readouterr().err
        assert "names code that you have not trained with on this machine" in said
        assert said.endswith("if you trust it, name it yourself, beside --config\n")
        with pytest.raises(UserError, match="names code that you have not trained with"):
            repertory.train(config=given)
    assert not (place / "imported").exists()
    assert cli.main(["train", "strange.py:make", "--config", str(strange), "--dry-run"]) == 0
    assert (place / "imported").exists(), "the user named it"
    (strange / "config.json").write_text(json.dumps(told["config"]))
    assert cli.main(["train", "--config", str(strange), "--dry-run"]) == 2
    assert "is no run: its config.json has no options of one" in capsys.readouterr().err


def test_without_a_file_the_options_are_the_presets() -> None:
    assert to_dict(ConfigFile().options("CartPole-v1", None, "single")) == to_dict(defaults("CartPole-v1"))


def test_a_run_that_was_moved_still_gives_its_options(run: Path, place: Path) -> None:
    moved = Path(shutil.copytree(run, place / "elsewhere"))
    assert read(moved).options("CartPole-v1", "dqn", "single") == read(run).options("CartPole-v1", "dqn", "single")
