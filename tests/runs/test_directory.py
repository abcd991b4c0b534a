"""Run directories: names, configuration with its origin, results, and the list of runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from repertory.errors import UserError
from repertory.runs import directory as module
from repertory.runs.directory import RunDirectory, fresh_name, list_runs, write_json

NOW = datetime(2026, 11, 15, 20, 45)


def make_run(runs_dir: Path, name: str, environment: str = "CartPole-v1") -> RunDirectory:
    run = RunDirectory.create(runs_dir, name)
    run.write_config({"environment": environment, "seed": 3})
    return run


def test_second_run_of_a_name_is_refused_with_what_to_do(tmp_path: Path) -> None:
    RunDirectory.create(tmp_path / "runs", "first")
    with pytest.raises(UserError, match=r"repertory resume first.*--name"):
        RunDirectory.create(tmp_path / "runs", "first")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "/", "-x", ".hidden", "a\nb", "a\0", "x" * 201])
def test_names_that_are_no_directory_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name of a run"):
        RunDirectory.create(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_runs_directory_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="runs-dir"):
        RunDirectory.create(tmp_path / "file" / "runs", "a")
    with pytest.raises(UserError, match="runs-dir"):
        RunDirectory.create(tmp_path / "file", "a")


def test_run_is_opened_by_name_or_by_path(tmp_path: Path) -> None:
    made = make_run(tmp_path, "first")
    for path in ("first", "first/", str(made.path), made.path):
        assert RunDirectory.open(path, tmp_path).path.resolve() == made.path.resolve()


def test_absent_run_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no runs in"):
        RunDirectory.open("cartpole", tmp_path / "absent")
    make_run(tmp_path, "cartpole-1")
    with pytest.raises(UserError, match="did you mean 'cartpole-1'"):
        RunDirectory.open("cartpole", tmp_path)


def test_directory_without_config_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"no config\.json"):
        RunDirectory.open("other", tmp_path)


def test_config_comes_back_and_its_origin_is_kept(tmp_path: Path) -> None:
    run = make_run(tmp_path, "first")
    assert run.read_config() == {"environment": "CartPole-v1", "seed": 3}
    found = run.read_origin()
    assert found["command"] == sys.argv
    assert found["versions"]["python"] == sys.version.split()[0]
    assert found["versions"]["numpy"]
    assert datetime.fromisoformat(found["started"]).tzinfo is not None


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", '{"config": 1}'])
def test_damaged_config_is_one_sentence(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path, "first")
    run.config_path.write_text(text)
    with pytest.raises(UserError, match=r"config\.json"):
        run.read_config()


def checkout(path: Path) -> None:
    path.mkdir()
    (path / "code.py").write_text("x = 1\n")
    (path / "untracked.txt").write_text("not part of it")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "code.py"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(path), *command], check=True)


def test_git_commit_and_changes_are_saved(tmp_path: Path, monkeypatch: Any) -> None:
    checkout(tmp_path / "code")
    monkeypatch.chdir(tmp_path / "code")
    clean = make_run(tmp_path, "clean")
    assert clean.read_origin()["git"]["dirty"] is False
    assert not (clean.path / "git.diff").exists()

    Path("code.py").write_text("x = 2\n")
    dirty = make_run(tmp_path, "dirty")
    assert dirty.read_origin()["git"] == {**clean.read_origin()["git"], "dirty": True}
    assert "+x = 2" in (dirty.path / "git.diff").read_text()

    monkeypatch.setattr(module, "DIFF_BYTES", 50)
    assert (make_run(tmp_path, "capped").path / "git.diff").stat().st_size == 50


@pytest.mark.parametrize("path", ["/nowhere", os.environ["PATH"]])
def test_without_git_or_checkout_the_commit_is_null(tmp_path: Path, monkeypatch: Any, path: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert make_run(tmp_path, "first").read_origin()["git"] is None


def test_result_comes_back_as_strict_json(tmp_path: Path) -> None:
    run = make_run(tmp_path, "first")
    assert run.read_result() is None
    run.write_result({"score": float("nan"), "scores": [1.0, float("inf")], "status": "finished"})
    assert "NaN" not in run.result_path.read_text()
    assert run.read_result() == {"score": None, "scores": [1.0, None], "status": "finished"}


def test_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"a": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}


def test_fresh_names_are_safe_and_unique(tmp_path: Path) -> None:
    assert fresh_name("CartPole-v1", 0, NOW) == "cartpole-v1-s0-20261115-204500"
    assert fresh_name("ALE/Pong-v5", 1, NOW) == "ale-pong-v5-s1-20261115-204500"
    assert fresh_name("../../é", 1, NOW) == "run-s1-20261115-204500"
    names = []
    for _ in range(3):
        names.append(fresh_name("CartPole-v1", 0, NOW, tmp_path))
        RunDirectory.create(tmp_path, names[-1])
    assert [name[-6:] for name in names] == ["204500", "4500-2", "4500-3"]


def test_list_says_how_each_run_stands(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "absent") == []
    (tmp_path / "other").mkdir()
    finished, stopped = make_run(tmp_path, "finished"), make_run(tmp_path, "stopped", "ALE/Pong-v5")
    finished.write_result({"env_steps": 50, "score": 500.0})
    lines = ['{"env_steps": 1, "score": 7.5}', '{"env_steps": 2, "score": null}', '{"env_steps": 3']
    stopped.metrics_path.write_text("\n".join(lines))
    found = {run["name"]: run for run in list_runs(tmp_path)}
    assert set(found) == {"finished", "stopped"}
    assert found["finished"] | {"status": "finished", "env_steps": 50, "score": 500.0} == found["finished"]
    assert found["stopped"] | {"status": "interrupted", "env_steps": 2, "score": 7.5} == found["stopped"]
    assert found["stopped"]["environment"] == "ALE/Pong-v5"
    assert datetime.fromisoformat(found["stopped"]["updated"]).tzinfo is not None


def test_damaged_run_does_not_break_the_list(tmp_path: Path) -> None:
    make_run(tmp_path, "first").config_path.write_text("{")
    make_run(tmp_path, "second").config_path.write_text('{"config": [1]}')
    assert [run["environment"] for run in list_runs(tmp_path)] == [None, None]


def test_run_is_held_once_and_then_let_go(tmp_path: Path) -> None:
    run = make_run(tmp_path, "first")
    with run.hold():
        assert list_runs(tmp_path)[0]["status"] == "running"
        with pytest.raises(UserError, match="another process"), run.hold():
            pass
    with run.hold():
        pass
    assert list_runs(tmp_path)[0]["status"] == "interrupted"


def test_resumed_run_keeps_what_it_was_first_started_with(tmp_path: Path, monkeypatch: Any) -> None:
    run = make_run(tmp_path, "first")
    monkeypatch.setattr(sys, "argv", ["repertory", "resume", "first"])
    run.write_config({"environment": "CartPole-v1", "seed": 3, "env_steps": 9})
    assert run.read_config()["env_steps"] == 9
    assert run.read_origin()["command"] != sys.argv
    assert json.loads(run.config_path.read_text())["resumed"][0]["command"] == sys.argv
