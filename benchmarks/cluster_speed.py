"""What a Ray cluster costs and how it grows. Hosts are network namespaces, all on the same cores.

    python benchmarks/cluster_speed.py cost      # one machine: --engine ray against --engine processes, in turn
    python benchmarks/cluster_speed.py growth    # SlowCartPole (5 ms), 8 collectors on each of 1, 2, 3 far hosts
    python benchmarks/cluster_speed.py pixels    # Pong, actors on far hosts: bytes, lag, where the time goes

Each writes its part of `benchmarks/results/cluster_speed.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from cluster import BIN, Hosts

RESULTS = Path(__file__).parent / "results" / "cluster_speed.json"
SLOW = "repertory/SlowCartPole-v1"
STEP_BYTES = 16 + 1 + 4 + 1 + 4 + 4
"""Of a CartPole step: observation, action, reward, flags, age, version of the weights."""
LONG = ["--env-steps", "100000000", "--eval-episodes", "1", "--target-score", "100000"]
RAY_ALONE = """
import json, os, time
from repertory.engines.cluster import Cluster
began = time.monotonic()
cluster = Cluster(None)
print(json.dumps(time.monotonic() - began), flush=True)
time.sleep(8)
cluster.close()
"""


def memory_mb(pid: int) -> float:
    """Of a process and all that it started; shared pages count once."""
    root = psutil.Process(pid)
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss / 2**20
        except psutil.Error:
            continue
    return total


def run(words: Sequence[str], seconds: float, hosts: Hosts | None = None) -> dict[str, Any]:
    """The result of a run, its last line of metrics, and its memory after two thirds of the time."""
    command = [str(BIN / "repertory"), "train", *words, "--json", "--seconds", str(seconds)]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with tempfile.TemporaryDirectory() as directory:
        options["cwd"] = directory
        process = subprocess.Popen(command, **options) if hosts is None else hosts[0].popen(command, **options)
        began, metrics = time.monotonic(), Path(directory)
        while process.poll() is None and not list(metrics.glob("runs/*/metrics.jsonl")):
            time.sleep(0.2)
        time.sleep(0.66 * seconds)
        memory = memory_mb(process.pid) if process.poll() is None else 0.0
        out, err = process.communicate(timeout=seconds + 240)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: {err[-2000:]}")
        result = json.loads(out.splitlines()[-1])
        lines = [json.loads(line) for line in (metrics / result["directory"] / "metrics.jsonl").open()]
    wall = time.monotonic() - began
    return {"result": result, "last": lines[-1], "lines": lines, "memory_mb": memory, "wall_s": wall}


def rate(done: dict[str, Any], name: str) -> float:
    return float(done["result"][name]) / float(done["result"]["seconds"])


def ray_alone() -> tuple[float, float]:
    """Seconds to start a cluster of this machine, and its memory."""
    process = subprocess.Popen([sys.executable, "-c", RAY_ALONE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seconds = json.loads(process.stdout.readline())
    time.sleep(4)
    memory = memory_mb(process.pid)
    process.wait(60)
    return seconds, memory


def cost(repeats: int, seconds: float) -> dict[str, Any]:
    rows = []
    for _ in range(repeats):
        for topology in ("collectors", "impala", "parameter_server"):
            words = ["CartPole-v1", "--topology", topology, *LONG]
            found = {engine: run([*words, "--engine", engine], seconds) for engine in ("processes", "ray")}
            start, memory = ray_alone()
            row: dict[str, Any] = {"topology": topology, "ray_start_s": round(start, 2), "ray_mb": round(memory)}
            for engine, done in found.items():
                row[engine] = {
                    "env_steps_per_s": round(rate(done, "env_steps"), 1),
                    "updates_per_s": round(rate(done, "updates"), 1),
                    "start_s": round(done["wall_s"] - done["result"]["seconds"], 2),
                    "memory_mb": round(done["memory_mb"]),
                }
            print(json.dumps(row), flush=True)
            rows.append(row)
    return {"rows": rows, "summary": [summary(rows, name) for name in dict.fromkeys(row["topology"] for row in rows)]}


def summary(rows: Sequence[dict[str, Any]], topology: str) -> dict[str, Any]:
    mine = [row for row in rows if row["topology"] == topology]
    found: dict[str, Any] = {"topology": topology}
    for name in ("env_steps_per_s", "updates_per_s"):
        found[name] = round(statistics.median(row["ray"][name] / row["processes"][name] for row in mine), 3)
    beyond = [row["ray"]["start_s"] - row["processes"]["start_s"] - row["ray_start_s"] for row in mine]
    memory = [(row["ray"]["memory_mb"] - row["ray_mb"]) / row["processes"]["memory_mb"] for row in mine]
    return found | {
        "start_beyond_ray_s": round(statistics.median(beyond), 2),
        "memory_beyond_ray": round(statistics.median(memory), 3),
    }


def growth(repeats: int, seconds: float) -> dict[str, Any]:
    rows = []
    with Hosts(4) as hosts:
        for _ in range(repeats):
            for far in (1, 2, 3):
                names = ",".join(host.address for host in hosts.hosts[1 : far + 1])
                words = [SLOW, "--topology", "collectors", "--engine", "ray", "--address", hosts.head]
                words += ["--topology.nodes", names, "--actors", str(8 * far), *LONG]
                done = run(words, seconds, hosts)
                row = {"far_hosts": far, "env_steps_per_s": round(rate(done, "env_steps"), 1), **traffic(done)}
                print(json.dumps(row), flush=True)
                rows.append(row)
    base = statistics.median(row["env_steps_per_s"] for row in rows if row["far_hosts"] == 1)
    linear = {
        far: round(statistics.median(r["env_steps_per_s"] for r in rows if r["far_hosts"] == far) / far / base, 3)
        for far in (1, 2, 3)
    }
    return {"rows": rows, "of_linear": linear}


def traffic(done: dict[str, Any]) -> dict[str, Any]:
    last = done["last"]
    links = {name: value for name, value in last.items() if name.startswith("link/")}
    ups = sum(value for name, value in links.items() if name.endswith("/up_mb"))
    return {
        "up_bytes_per_env_step": round(1e6 * ups / last["env_steps"], 1),
        "of_a_step": round(1e6 * ups / last["env_steps"] / STEP_BYTES, 3),
        "updates": last["updates"],
        "restarts": done["result"]["restarts"],
        **links,
    }


def pixels(repeats: int, seconds: float) -> dict[str, Any]:
    rows = []
    with Hosts(3) as hosts:
        for _ in range(repeats):
            for topology in ("collectors", "impala"):
                words = ["ALE/Pong-v5", "--topology", topology, "--engine", "ray", "--address", hosts.head]
                done = run([*words, "--topology.nodes", "far", "--actors", "4", *LONG], seconds, hosts)
                last, row = done["last"], {"topology": topology, **traffic(done)}
                row.pop("of_a_step")
                row |= {name: last[name] for name in last if name.endswith(("_per_s", "_lag_mean", "idle", "_ms"))}
                row |= {name: last[name] for name in last if name.startswith(("idle", "policy_lag", "time/"))}
                print(json.dumps(row), flush=True)
                rows.append(row)
    return {"rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("cost", "growth", "pixels"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    found = {"cost": cost, "growth": growth, "pixels": pixels}[options.part](options.repeats, options.seconds)
    print(json.dumps({name: value for name, value in found.items() if name != "rows"}))
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(known | {options.part: {"command": sys.argv[1:], **found}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
