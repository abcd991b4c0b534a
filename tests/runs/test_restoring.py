"""Which checkpoint a run goes on from or is played with: what is there stays, and what was chosen is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import repertory
from commands import result, words
from repertory import cli
from repertory.runs import checkpoint
from repertory.runs.directory import RunDirectory
from repertory.runs.opening import best_evaluation, load_state, load_weights

OPTIONS = words(
    "CartPole-v1 --env-steps 1300 --checkpoint-every 300 --keep-checkpoints 9 --eval-every 300 --eval-episodes 2 "
    "--eval-max-steps 60 --envs-per-actor 4 --agent.learning-starts 100 --agent.batch-size 16 --agent.replay-ratio 4 "
    "--quiet --agent.updates-per-call 1 --network.hidden 16 16 --agent.replay-capacity 200000"
)


STEPS = [300, 600, 900, 1200, 1300]
KNOWN = ", ".join(map(str, STEPS))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trained")
    assert cli.main(["train", *OPTIONS, "--name", "run", "--runs-dir", str(place)]) == 0
    return place / "run"


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained, tmp_path / "runs/run")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs/run"


def steps(run: Path) -> list[int]:
    return [checkpoint.manifest(path)["step"] for path in checkpoint.whole(run / "checkpoints")]


def damage(path: Path) -> None:
    """One bit of the learner's weights: sizes stay right."""
    content = bytearray((path / "learner.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "learner.safetensors").write_bytes(content)


def test_checkpoint_holds_what_is_filled_and_not_the_capacity(run: Path) -> None:
    size = sum(file.stat().st_size for file in checkpoint.whole(run / "checkpoints")[-1].iterdir())
    assert size < 200_000, "1,300 steps of 16 + 14 bytes, and 700 weights with their optimiser"


@pytest.mark.parametrize("topology", ["apex", "parameter_server"])
def test_checkpoint_of_a_prioritized_replay_with_room_is_small_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topology: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [*OPTIONS, "--topology", topology, "--engine", "inline", "--agent.prioritized", "--actors", "2"]
    arguments += ["--topology.memory", "local"] if topology == "parameter_server" else []
    assert cli.main(["train", *arguments, "--name", "run"]) == 0
    newest = checkpoint.whole(tmp_path / "runs/run/checkpoints")[-1]
    assert sum(file.stat().st_size for file in newest.iterdir()) < 300_000
    assert count_priorities(newest) > 1000
    assert cli.main(["resume", "run", "--env-steps", "1400", "--quiet"]) == 0
    assert count_priorities(checkpoint.whole(tmp_path / "runs/run/checkpoints")[-1]) > 1100


def count_priorities(path: Path) -> int:
    """Steps of a checkpoint that can be sampled."""
    return int(np.count_nonzero(checkpoint.load(path, parts=["channels"])["channels"]["experience"]["priorities"]))


def test_resume_says_where_it_starts_and_deletes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert steps(run) == STEPS
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert cli.main(["resume", "run", "--env-steps", "1350", "--from", "600", "--quiet"]) == 0
    said = capsys.readouterr().err
    assert "going on from env step 600; the checkpoint of env step 1,300 stays until newer ones take its place" in said
    left = [json.loads(line) for line in (run / "metrics.before-resume-1.jsonl").read_text().splitlines()]
    assert [row["env_steps"] for row in left] == [row["env_steps"] for row in map(json.loads, lines)][-len(left) :]
    assert min(row["env_steps"] for row in left) > 600
    assert set(STEPS) < set(steps(run))


def test_resume_goes_on_from_the_newest_unless_asked_otherwise(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["resume", "run", "--env-steps", "1400", "--quiet"]) == 0
    assert "going on from env step 1,300; --from exact goes back to 1,200" in capsys.readouterr().err
    assert not list(run.glob("metrics.before-resume-*"))


@pytest.mark.parametrize("command", ["resume run --env-steps 1400 --from exact", "evaluate run --checkpoint exact"])
def test_exact_checkpoint_that_is_not_there_is_one_sentence_and_the_others_stay(
    run: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in checkpoint.whole(run / "checkpoints")[:-1]:
        shutil.rmtree(path)
    assert cli.main(command.split()) == 2
    sentence = "repertory: runs/run has no exact checkpoint; there are checkpoints of env steps: 1300\n"
    assert capsys.readouterr().err.endswith(sentence)
    assert steps(run) == [1300]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("resume run --from 700", f"runs/run has no checkpoint of env step 700; there are: {KNOWN}"),
        (
            "evaluate run --checkpoint 7",
            f"runs/run has no checkpoint of env step 7; there are: {KNOWN}",
        ),
        ("evaluate run --checkpoint last", "a checkpoint is newest, exact, best or a number of env steps, not 'last'"),
    ],
)
@pytest.mark.usefixtures("run")
def test_checkpoint_that_is_not_there_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: str, sentence: str
) -> None:
    assert cli.main(arguments.split()) == 2
    assert capsys.readouterr().err == f"repertory: {sentence}\n"


def test_damaged_newest_checkpoint_gives_way_and_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = checkpoint.whole(run / "checkpoints")[-1]
    damage(newest)
    assert cli.main(["evaluate", "run", "--episodes", "1"]) == 0
    said = capsys.readouterr().err
    assert f"{newest.name}" in said
    assert "is damaged: its checksum is" in said
    assert "taking step-000000001200 instead" in said
    assert repertory.load(run).weights.size
    assert repertory.evaluate(run, episodes=1)["episodes"] == 1
    assert capsys.readouterr().err.count("taking step-000000001200 instead") == 2, "Python is told as well"
    assert cli.main(["resume", "run", "--env-steps", "1400", "--quiet"]) == 0
    assert "going on from env step 1,200" in capsys.readouterr().err


def test_checkpoint_that_was_asked_for_by_name_is_not_replaced(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(checkpoint.whole(run / "checkpoints")[-1])
    assert cli.main(["evaluate", "run", "--episodes", "1", "--checkpoint", "1300"]) == 2
    assert "is damaged" in capsys.readouterr().err
    assert cli.main(["evaluate", "run", "--episodes", "1", "--checkpoint", "600"]) == 0


def test_incomplete_checkpoint_is_passed_over_and_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newest = checkpoint.whole(run / "checkpoints")[-1]
    (newest / "manifest.json").unlink()
    assert cli.main(["evaluate", "run", "--episodes", "1"]) == 0
    assert f"{newest.name} is damaged or incomplete, and is passed over" in capsys.readouterr().err


def weights(state: dict[str, Any]) -> bytes:
    return np.asarray(state["learned"]["00"]).tobytes()


def test_best_agent_is_kept_played_and_gone_on_from(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, evaluations = RunDirectory(run), result(run)["evaluations"]
    best = max(evaluations, key=lambda evaluation: evaluation["mean"])
    assert best_evaluation(directory) == best == result(run)["best"]
    kept = checkpoint.load(checkpoint.whole(run / "best")[-1])
    assert set(kept) == {"learner", "evaluation"}, "weights only"
    assert cli.main(["evaluate", "run", "--checkpoint", "best", "--episodes", "2", "--json"]) == 0
    played = json.loads(capsys.readouterr().out)
    assert played["mean"] > 0
    state = load_state(directory, "best", lambda _: None)
    assert state is not None
    assert state["env_steps"] == 1300
    best_weights = weights(load_weights(directory, "best", lambda _: None))
    assert weights(state["learner"]) == best_weights
    assert np.asarray(state["learner"]["learned"]["01"]).tobytes() == best_weights, "the target, too"
    assert best_weights != weights(load_weights(directory, "newest", lambda _: None)) or best is evaluations[-1]
    assert cli.main(["resume", "run", "--env-steps", "1400", "--from", "best", "--quiet"]) == 0
    assert "going on from env step 1,300 with the weights of the best evaluation" in capsys.readouterr().err


def test_best_weights_are_those_that_were_evaluated(run: Path) -> None:
    step = result(run)["best"]["env_steps"]
    best, then = (load_weights(RunDirectory(run), which, lambda _: None) for which in ("best", str(step)))
    assert weights(best) == weights(then), "an evaluation and a checkpoint of the same env step"


def test_worse_resumed_run_does_not_replace_the_best(run: Path) -> None:
    path = checkpoint.whole(run / "best")[-1]
    kept = checkpoint.load(path)
    kept["evaluation"]["mean"] = 10_000.0
    shutil.rmtree(path)
    checkpoint.save(run / "best", kept, step=300, keep=1, exact=False)
    assert cli.main(["resume", "run", "--env-steps", "1700", "--quiet"]) == 0
    assert result(run)["best"]["mean"] == 10_000.0


def test_run_that_fails_is_saved_with_its_last_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fragile.py").write_text(
        "import gymnasium as gym\n"
        "class Fragile(gym.Wrapper):\n"
        "    steps = 0\n"
        "    def step(self, action):\n"
        "        Fragile.steps += 1\n"
        "        if Fragile.steps > 900:\n"
        "            raise ValueError('the wheel came off')\n"
        "        return super().step(action)\n"
        "def make(): return Fragile(gym.make('CartPole-v1'))\n"
    )
    arguments = ["fragile.py:make", *OPTIONS[1:], "--checkpoint-every", "100000", "--eval-every", "100000"]
    assert cli.main(["train", *arguments, "--name", "run"]) == 2
    ended = result(tmp_path / "runs/run")
    assert ended["status"] == "failed"
    assert ended["env_steps"] >= 890
    state = checkpoint.load(checkpoint.whole(tmp_path / "runs/run/checkpoints")[-1])
    assert state["env_steps"] == ended["env_steps"]
