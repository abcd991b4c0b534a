"""Completion scripts know every command and every option, and bash completes by them."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from repertory import cli
from repertory.completion import KINDS, SHELLS, options_of, script
from repertory.topologies import known


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script in a directory where there are two runs."""
    place = tmp_path_factory.mktemp("bash")
    (place / "completion.bash").write_text(script("bash"))
    for name in ("early", "eager"):
        (place / "runs" / name).mkdir(parents=True)
    return place / "completion.bash"


def test_every_command_can_be_completed() -> None:
    assert set(KINDS) == set(cli.COMMANDS)


def test_options_of_train_are_those_of_all_topologies_and_agents(capsys: pytest.CaptureFixture[str]) -> None:
    told = [
        options_in_help(["train", "CartPole-v1", "--topology", topology, "--agent", agent], capsys)
        for topology, kind in known().items()
        for agent in kind.agents
    ]
    assert set.union(*told) == set(options_of("train"))


@pytest.mark.parametrize("command", sorted(set(KINDS) - {"train"}))
def test_exactly_the_options_that_help_tells_are_completed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert options_in_help([command], capsys) == set(options_of(command))


def options_in_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> set[str]:
    with pytest.raises(SystemExit) as left:
        cli.main([*arguments, "--help"])
    assert left.value.code in (0, None)
    text = capsys.readouterr().out
    starts = re.findall(r"^[│ ]*((?:-\w, )?--[a-z][^ ,]*(?:, --[^ ,]+)*)", text, flags=re.MULTILINE)
    return {word for start in starts for word in start.split(", ")} - {"-h"}


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("tra", "train"),
        ("re", "report resume"),
        ("train Cart", "CartPole-v0 CartPole-v1"),
        ("train --topol", "--topology"),
        ("train --topology.sh", "--topology.shards"),
        ("train --topology.mo", "--topology.mode"),
        ("train --topology.mode s", "synchronous"),
        ("train --preset ca", "cartpole"),
        ("train CartPole-v1 --topology s", "sample_factory seed_rl single"),
        ("train CartPole-v1 --topology = s", "sample_factory seed_rl single"),
        ("train CartPole-v1 --topology =", None),
        ("train CartPole-v1 --agent.no-du", "--agent.no-dueling"),
        ("train --agent.optimizer-", "--agent.optimizer-epsilon"),
        ("train --agent.optimizer ad", "adagrad adam"),
        ("train --env-steps ''", ""),
        ("resume ea", "eager early"),
        ("evaluate run --checkpoint b", "best"),
        ("show im", "impala"),
        ("completion ''", "bash fish zsh"),
        ("compare CartPole-v1 --topologies a", "a3c all all_reduce apex"),
    ],
)
def test_bash_completes(bash: Path, typed: str, completed: str | None) -> None:
    count = len(typed.split())
    ask = f"COMP_WORDS=(repertory {typed}) COMP_CWORD={count}; _repertory; printf '%s\\n' \"${{COMPREPLY[@]}}\" | sort"
    command = ["bash", "--norc", "-c", f"source {bash}; {ask}"]
    done = subprocess.run(command, cwd=bash.parent, capture_output=True, text=True, timeout=20)
    assert done.stderr == ""
    found = done.stdout.split()
    if completed is None:
        assert {"single", "collectors", "apex"} <= set(found)
    else:
        assert found == completed.split()


def test_names_of_runs_are_never_expanded_by_the_shell(bash: Path, tmp_path: Path) -> None:
    for name in ("$(touch hacked)", "two words"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    ask = "COMP_WORDS=(repertory evaluate '') COMP_CWORD=2; _repertory; printf '%s\\n' \"${COMPREPLY[@]}\" | sort"
    command = ["bash", "--norc", "-c", f"source {bash}; {ask}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert done.stdout.splitlines() == ["$(touch hacked)", "two words"], done.stderr
    assert not (tmp_path / "hacked").exists()
    assert not (tmp_path / "runs/hacked").exists()


def test_tab_in_a_terminal_completes_without_starting_python(bash: Path) -> None:
    terminal, end = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"], stdin=end, stdout=end, stderr=end, cwd=bash.parent,
        env={"TERM": "dumb", "PS1": "> ", "PATH": os.environ["PATH"]}, start_new_session=True,
    )  # fmt: skip
    os.close(end)
    try:
        os.write(terminal, f"PATH=; source {bash}; echo rea''dy\n".encode())
        _await(terminal, "ready")
        os.write(terminal, b"repertory tra\t--topo\tape\t")
        assert "repertory train --topology apex" in _await(terminal, "apex")
    finally:
        shell.kill()
        shell.wait()
        os.close(terminal)


def _await(terminal: int, text: str, timeout: float = 20) -> str:
    """What the terminal has shown, once this is among it."""
    seen, end = "", time.monotonic() + timeout
    while text not in seen:
        assert time.monotonic() < end, seen
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
    return seen


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_script_is_printed_and_a_shell_that_is_there_can_read_it(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "--topology" in text or "-l topology" in text
    path = tmp_path / "script"
    path.write_text(text)
    if shutil.which(shell) is not None:
        assert subprocess.run([shell, "-n", path], capture_output=True, timeout=20).stderr == b""


def test_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "bassh"]) == 2
    assert "there is no completion for 'bassh'; did you mean 'bash'?" in capsys.readouterr().err
