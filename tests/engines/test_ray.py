"""The ray engine on hosts that are network namespaces: learning, accounting, faults. Needs root and iproute2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from cluster import Hosts, available

WHY_NOT = available()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def train(hosts: Hosts, directory: Path, *words: str, seconds: float = 180.0) -> dict[str, Any]:
    """The result of a run whose driver is on the first host."""
    command = [sys.executable, "-m", "repertory", "train", *words, "--engine", "ray", "--address", hosts.head, "--json"]
    process = hosts[0].popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, f"{out}\n{err}"
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


@pytest.mark.parametrize("topology", ["collectors", "impala"])
def test_actors_on_far_hosts_learn(topology: str, tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        result = train(
            hosts, tmp_path, "CartPole-v1", "--topology", topology, "--topology.nodes", "far", "--target-score", "475"
        )
    assert result["status"] == "solved"
