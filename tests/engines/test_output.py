"""What is printed: the result alone where it is asked for, and nothing that can't be printed ever ends a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commands import Command, result, rows, words
from repertory.errors import UserError, plain
from repertory.output import Forgiving

TALKING, COLOURFUL = (
    f"{Path(__file__).parents[1] / 'fault_environments.py'}:{name}" for name in ("talking", "colourful")
)
SHORT = words("--env-steps 600 --eval-every 400 --eval-episodes 1 --eval-max-steps 20 --network.hidden 8 --name run")
MEMORY = words("--agent.batch-size 8 --agent.learning-starts 100 --agent.replay-ratio 1 --log-every 50")
TOPOLOGIES = ("single", "collectors")


def started(place: Path, *arguments: str, **given: Any) -> subprocess.Popen[bytes]:
    """`repertory ...` with streams of its own."""
    return subprocess.Popen([sys.executable, "-m", "repertory", *arguments], cwd=place, **given)


@pytest.mark.parametrize("topology", [*TOPOLOGIES, "all_reduce"])
def test_json_is_all_that_stdout_carries_whatever_environments_print(topology: str, tmp_path: Path) -> None:
    command = ["train", TALKING, "--topology", topology, *SHORT, *MEMORY, "--json"]
    process = started(tmp_path, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    (line,) = out.splitlines()
    assert json.loads(line)["status"] == "completed"
    assert b"an episode begins\n" in err
    assert b"an episode begins, says C\n" in err


def test_json_is_all_that_stdout_carries_after_an_evaluation_or_a_refusal(tmp_path: Path) -> None:
    assert Command(tmp_path, "train", TALKING, *SHORT, *MEMORY, "--quiet").wait() == 0
    scored = Command(tmp_path, *words("evaluate run --episodes 2 --json"))
    assert scored.wait() == 0, scored.err
    assert json.loads(scored.out)["episodes"] == 2
    refused = Command(tmp_path, "train", TALKING, *words("--actors 0 --json"))
    assert (refused.wait(), refused.out) == (2, "")


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_training_goes_on_when_its_output_is_no_longer_read(topology: str, tmp_path: Path) -> None:
    """As with `2>&1 | head -1`: the environments' own prints fail as well."""
    read, write = os.pipe()
    options = ["--topology", topology, *SHORT, *MEMORY, "--env-option", "raw=false"]
    process = started(tmp_path, "train", TALKING, *options, stdout=write, stderr=write)
    os.close(write)
    with os.fdopen(read, "rb", buffering=0) as pipe:
        assert pipe.readline()
    assert process.wait(120) == 0
    found = result(tmp_path / "runs/run")
    assert (found["status"], found["restarts"]) == ("completed", 0)


def test_closed_streams_are_taken_for_no_file_of_the_run(tmp_path: Path) -> None:
    command = " ".join([sys.executable, "-m", "repertory", "train", TALKING, *SHORT, *MEMORY])
    done = subprocess.run(["sh", "-c", f"{command} <&- >&- 2>&-"], cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0
    assert result(tmp_path / "runs/run")["status"] == "completed"
    assert len(rows(tmp_path / "runs/run")) > 3
    for path in (tmp_path / "runs/run").rglob("*.json*"):
        assert b"an episode begins" not in path.read_bytes(), path


def test_terminal_that_shows_ascii_alone_gets_ascii(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    train = ["train", "CartPole-v1", *SHORT, *MEMORY]
    for command in (train, ["evaluate", "run"], ["runs"], ["show", "apex"], ["doctor"], ["train", "--help"], ["shwo"]):
        process = started(tmp_path, *command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == (2 if command == ["shwo"] else 0), said
        assert b"Traceback" not in said
        assert said.decode("ascii").strip()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_text_of_an_environment_is_shown_without_what_a_terminal_would_obey(topology: str, tmp_path: Path) -> None:
    options = ["--topology", topology, *SHORT, *MEMORY, "--restarts", "0"]
    process = started(tmp_path, "train", COLOURFUL, *options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert b"raised RuntimeError: out of paint" in said
    assert b"Traceback" in said
    assert not {byte for byte in said.decode() if byte < " "} - {"\n", "\t"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://a.b\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x9b2Jb\x07c\x00d\x7fe", "abcde"),
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\u202ereversed", "reversed"),
        ("ε – 火", "ε – 火"),
        ("\x1b[", ""),
    ],
)
def test_plain_text_has_nothing_that_a_terminal_would_obey(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert str(UserError(text)) == shown


class Failing:
    """A stream whose reader is gone, or that knows few letters."""

    encoding = "ascii"

    def __init__(self, error: type[Exception] | None = None) -> None:
        self.error, self.text = error, ""

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        text.encode(self.encoding)
        self.text += text
        return len(text)

    def flush(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError, OSError, ValueError])
def test_what_a_stream_does_not_take_is_dropped(error: type[Exception]) -> None:
    print("lost", file=Forgiving(Failing(error)), flush=True)


def test_letters_that_a_stream_does_not_know_have_stand_ins() -> None:
    stream = Failing()
    print("score – · ε × 火", file=Forgiving(stream))
    assert stream.text == "score - | e x ?\n"
