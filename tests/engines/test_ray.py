"""The ray engine: alone on this machine, and with actors on another host, which is a network namespace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commands import until
from repertory.engines.cluster import Node, choose
from repertory.engines.placement import homes_of, share_out
from repertory.errors import UserError
from repertory.runs.launch import sketch

pytest.importorskip("ray")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from cluster import Hosts, available

WHY_NOT = available()
MACHINES = [Node("a", "10.0.0.1", 4, driver=True), Node("b", "10.0.0.2", 8), Node("c", "10.0.0.3", 4)]


def train(command: list[str], directory: Path, hosts: Hosts | None = None) -> dict[str, Any]:
    """The result of a run; its driver is on the first host, if there are hosts."""
    words = [sys.executable, "-m", "repertory", "train", *command, "--engine", "ray", "--json"]
    options: Any = {"cwd": directory, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(words, **options) if hosts is None else hosts[0].popen(words, **options)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, f"{out}\n{err}"
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def test_cluster_of_one_machine_starts_and_ends_with_the_run(tmp_path: Path) -> None:
    command = ["CartPole-v1", "--topology", "collectors", "--env-steps", "2000", "--eval-episodes", "2"]
    assert train(command, tmp_path)["status"] == "completed"
    search = ["pgrep", "-f", "repertory-ray-.*session"]
    until(lambda: subprocess.run(search, capture_output=True).returncode == 1, what="the end of the cluster")


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_steps_of_actors_on_another_host_arrive_and_are_learned_from(tmp_path: Path) -> None:
    """The environment's file is on the driver's machine only."""
    (tmp_path / "poles.py").write_text("import gymnasium as gym\n\n\ndef make():\n    return gym.make('CartPole-v1')\n")
    with Hosts(2) as hosts:
        far = ["--address", hosts.head, "--topology.nodes", "far"]
        result = train(["poles.py:make", "--topology", "collectors", "--env-steps", "3000", *far], tmp_path, hosts)
    lines = [json.loads(line) for line in (Path(tmp_path) / result["directory"] / "metrics.jsonl").open()]
    sent = {name: value for name, value in lines[-1].items() if name.startswith("link/")}
    assert (result["status"], result["restarts"]) == ("completed", 0)
    assert result["updates"] > 100
    assert lines[-1]["replay_size"] >= result["env_steps"], "what counts has arrived"
    assert all(value > 0 for value in sent.values()), sent
    assert len(sent) == 6


@pytest.mark.parametrize(
    ("nodes", "actors"),
    [(["all"], [3, 8, 4]), (["far"], [0, 10, 5]), (["10.0.0.3"], [0, 0, 15]), (["10.0.0.1", "10.0.0.3"], [6, 0, 9])],
)
def test_actors_are_shared_out_by_cores(nodes: list[str], actors: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repertory.engines.cluster.usable_cores", lambda: 4)
    assert share_out(15, choose(MACHINES, nodes)) == actors


def test_machine_that_is_not_in_the_cluster_is_refused() -> None:
    with pytest.raises(UserError, match=r"10\.9\.9\.9.*not in the cluster: 10\.0\.0\.1, 10\.0\.0\.2, 10\.0\.0\.3"):
        choose(MACHINES, ["10.9.9.9"])
    with pytest.raises(UserError, match="more machines than the driver's"):
        choose(MACHINES[:1], ["far"])


def test_workers_are_with_the_driver_unless_they_play() -> None:
    topology = sketch("collectors")
    homes = dict(zip([str(worker) for worker in topology.roster()], homes_of(topology, [0, 1, 1]), strict=True))
    assert homes == {"collector 0": 1, "collector 1": 2, "memory 0": 0, "learner 0": 0, "evaluator 0": 0}
    assert set(homes_of(topology, [])) == {0}
