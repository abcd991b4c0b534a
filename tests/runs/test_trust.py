"""A run directory names code, and its author may be a stranger: only what this user trained with is imported.

A stranger is the same user with nothing remembered: another state directory.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import repertory
from commands import words
from repertory import cli
from repertory.errors import UserError

SHORT = words(
    "--env-steps 200 --eval-every 200 --eval-episodes 2 --eval-max-steps 30 --envs-per-actor 2 --agent.batch-size 8 "
    "--agent.learning-starts 50 --agent.updates-per-call 1 --agent.replay-capacity 400 --agent.n-step 1 --quiet"
)
CODE = """
from pathlib import Path
import flax.linen as nn
import gymnasium as gym

with Path("imported.txt").open("a") as file:
    file.write(__file__ + "\\n")


class Torso(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.outputs)(x)


def make(**options):
    return gym.make("CartPole-v1", **options)


def build(outputs):
    return Torso(outputs)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh directory with the user's code, and a user who remembers nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(CODE)
    be(monkeypatch, "me")
    return tmp_path


def be(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(Path.cwd() / f"state of {who}"))


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on, a user who has trained nothing here; nothing of what was imported is there any more."""

    def become() -> None:
        be(monkeypatch, "a stranger")
        for name in [name for name in sys.modules if name.startswith("_repertory_file_")]:
            monkeypatch.delitem(sys.modules, name)
        Path("imported.txt").unlink(missing_ok=True)

    return become


def train(environment: str, *options: str, name: str = "run") -> None:
    assert cli.main(["train", environment, *SHORT, "--name", name, *options]) == 0


def edit(run: Path, **changes: Any) -> None:
    """Change the configuration of a run by hand."""
    config = json.loads((run / "config.json").read_bytes())
    for name, value in changes.items():
        room = config["config"]["network"] if name == "module" else config["config"]
        room[name] = value
    (run / "config.json").write_text(json.dumps(config))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert cli.main(list(arguments)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


EVALUATE, RESUME = words("evaluate run --episodes 2"), words("resume run --env-steps 300 --quiet")


@pytest.mark.parametrize("part", ["environment", "network"])
def test_a_strangers_run_imports_nothing_until_it_is_trusted(
    part: str, place: Path, stranger: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    code = "mine.py:make" if part == "environment" else "mine.py:build"
    train(*([code] if part == "environment" else ["CartPole-v1", "--network.module", code]))
    stranger()
    before = list(sys.path)
    for command in (EVALUATE, RESUME):
        said = refusal(capsys, *command)
        assert f"runs/run names code that you have not trained with on this machine: {place}/{code}" in said
        assert "add --trust" in said
    for function in (repertory.evaluate, repertory.resume):
        with pytest.raises(UserError, match=r"trust=True"):
            function("run")
    assert not Path("imported.txt").exists()
    assert sys.path == before
    assert cli.main([*EVALUATE, "--trust"]) == 0
    assert Path("imported.txt").read_text() == f"{place}/mine.py\n"
    refusal(capsys, *EVALUATE)  # looking on once is not training
    assert cli.main([*RESUME, "--trust"]) == 0
    assert cli.main(EVALUATE) == 0


def test_reading_commands_import_nothing(stranger: Callable[[], None]) -> None:
    train("mine.py:make")
    stranger()
    assert cli.main(["runs"]) == 0
    assert cli.main(["report", "run"]) == 0
    assert not Path("imported.txt").exists()


def test_ones_own_run_is_opened_wherever_it_lies(capsys: pytest.CaptureFixture[str]) -> None:
    train("mine.py:make", "--network.module", "mine.py:build")
    assert cli.main(EVALUATE) == 0
    shutil.move("runs/run", "elsewhere")
    assert cli.main(["evaluate", "elsewhere", "--episodes", "2"]) == 0
    assert cli.main(["resume", "elsewhere", "--env-steps", "300", "--quiet"]) == 0
    capsys.readouterr()


CHANGES: tuple[dict[str, Any], ...] = (
    {"environment": "theirs.py:make"},
    {"environment": "mine.py:build"},
    {"environment": "theirs:make"},
    {"environment": "theirs:CartPole-v1"},
    {"env_option": ["max_episode_steps=3"]},
    {"module": "theirs.py:build"},
    {"module": "theirs:build"},
)


def test_ones_own_run_that_was_changed_is_not_trusted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("mine.py:make")
    (place / "theirs.py").write_text(CODE)
    Path("imported.txt").unlink(missing_ok=True)
    config = Path("runs/run/config.json").read_bytes()
    for changes in CHANGES:
        edit(Path("runs/run"), **changes)
        for command in (EVALUATE, RESUME):
            assert "add --trust" in refusal(capsys, *command), changes
        Path("runs/run/config.json").write_bytes(config)
    assert not Path("imported.txt").exists()
    assert cli.main(EVALUATE) == 0


def test_the_same_name_in_another_directory_is_other_code(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train("mine.py:make")
    (place / "parcel").mkdir()
    shutil.copytree(place / "runs", place / "parcel/runs")
    (place / "parcel/mine.py").write_text(CODE)
    monkeypatch.chdir(place / "parcel")
    assert f"{place}/parcel/mine.py:make" in refusal(capsys, *EVALUATE)
    assert not Path("imported.txt").exists()


def test_a_module_in_the_current_directory_is_found_and_remembered_with_its_place(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "my_mazes.py").write_text(CODE)
    train("my_mazes:make")
    assert cli.main(EVALUATE) == 0
    (place / "parcel").mkdir()
    shutil.copytree(place / "runs", place / "parcel/runs")
    (place / "parcel/my_mazes.py").write_text(CODE)
    monkeypatch.chdir(place / "parcel")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(place)])
    monkeypatch.delitem(sys.modules, "my_mazes")  # as in another process
    assert f"my_mazes:make ({place}/parcel/my_mazes.py)" in refusal(capsys, *EVALUATE)


def test_what_the_user_names_himself_is_trusted(place: Path, stranger: Callable[[], None]) -> None:
    train("mine.py:make")
    stranger()
    (place / "other.py").write_text(CODE)
    assert cli.main([*EVALUATE, "--environment", "other.py:make"]) == 0
    assert Path("imported.txt").read_text() == f"{place}/other.py\n"


def test_a_run_that_this_session_made_needs_no_memory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "a file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "a file"))
    options = {"envs_per_actor": 2, "eval_episodes": 2, "eval_max_steps": 30, "quiet": True, "name": "run"}
    run = repertory.train("mine.py:make", env_steps=200, **options)
    assert repertory.evaluate(run, episodes=2)["episodes"] == 2
    assert repertory.resume(run, env_steps=300).result["env_steps"] == 300


def test_a_memory_that_cannot_be_written_stops_no_training_but_is_told(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "a file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "a file"))
    train("mine.py:make")
    told = "trained_with.jsonl (Not a directory); to resume or evaluate it later, add --trust"
    assert told in capsys.readouterr().err
    assert told in Path("runs/run/events.jsonl").read_text()
    assert "add --trust" in refusal(capsys, *EVALUATE)
    assert cli.main([*EVALUATE, "--trust"]) == 0


def test_runs_that_name_no_code_write_and_ask_nothing(place: Path, stranger: Callable[[], None]) -> None:
    train("CartPole-v1")
    assert not (place / "state of me").exists()
    stranger()
    assert cli.main(EVALUATE) == 0


def test_the_same_code_is_remembered_once(place: Path) -> None:
    for name in ("one", "two"):
        train("mine.py:make", name=name)
    memory = place / "state of me/repertory/trained_with.jsonl"
    assert [json.loads(line) for line in memory.read_text().splitlines()] == [
        {"code": f"{place}/mine.py:make", "options": []}
    ]
    assert memory.stat().st_mode & 0o077 == 0


def test_the_options_of_a_strangers_run_are_taken_over_without_its_code(
    place: Path, stranger: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    train("mine.py:make", "--network.module", "mine.py:build")
    stranger()
    again = words("train --config runs/run --name again --quiet")
    said = refusal(capsys, *again)
    assert f"{place}/mine.py:make and {place}/mine.py:build" in said
    assert "name it yourself, beside --config" in said
    assert f": {place}/mine.py:build;" in refusal(capsys, *again, "mine.py:make")
    with pytest.raises(UserError, match="name it yourself"):
        repertory.train(config="runs/run", name="again")
    with pytest.raises(UserError, match=r": [^ ]*/mine.py:build; if"):
        repertory.train("CartPole-v1", config="runs/run", name="again")
    assert not Path("imported.txt").exists()
    assert cli.main([*again, "mine.py:make", "--network.module", "mine.py:build"]) == 0


def test_an_agent_is_loaded_without_its_environments_code(stranger: Callable[[], None]) -> None:
    train("mine.py:make", name="plain")
    train("mine.py:make", "--network.module", "mine.py:build")
    stranger()
    assert repertory.load("plain").act(np.zeros(4, np.float32)) in (0, 1)
    with pytest.raises(UserError, match=r"names code .*/mine.py:build;"):
        repertory.load("run")
    assert not Path("imported.txt").exists()


def test_a_study_that_was_changed_makes_no_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = words("compare CartPole-v1 --topologies single --env-steps 200 --seeds 1 --quiet --cold")
    assert cli.main(command) == 0
    study = place / "studies/compare-cartpole-v1"
    (place / "theirs.py").write_text(CODE)
    programme = json.loads((study / "study.json").read_bytes())
    programme["options"][0]["network"]["module"] = "theirs.py:build"
    (study / "study.json").write_text(json.dumps(programme))
    shutil.rmtree(study / "runs")
    assert "it names other code: theirs.py:build" in refusal(capsys, *command)
    assert not Path("imported.txt").exists()


def test_one_file_with_environment_and_network_is_trusted_with_the_options_it_was_trained_with(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("mine.py:make")
    edit(Path("runs/run"), env_option=["render_mode=human"], module="./mine.py:make")
    assert f"{place}/mine.py:make" in refusal(capsys, *EVALUATE)


@pytest.mark.parametrize("module", ["__main__", "__mp_main__"])
def test_the_running_program_is_no_code_of_a_run(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It holds this very command line: a run could have anything trained."""
    train("CartPole-v1")
    edit(Path("runs/run"), environment=f"{module}:main", env_option=['arguments=["train", "mine.py:make"]'])
    refusal(capsys, *EVALUATE)
    refusal(capsys, *EVALUATE, "--trust")
    refusal(capsys, "train", "--config", "runs/run", "--dry-run")
    refusal(capsys, "train", f"{module}:main", "--dry-run")
    assert not Path("imported.txt").exists()
