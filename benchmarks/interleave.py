"""Run commands in turn, several times, and compare medians: machines are noisy, ratios of one go are not.

    python benchmarks/interleave.py learner --repeats 5 --peer-python ~/venvs/sb3/bin/python

Each command prints one JSON line last. The figures of every run, the medians and the ratios go to
`benchmarks/results/NAME.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Contest:
    """What is compared: commands by name (`{repeat}` is filled in), and the figure that counts."""

    commands: dict[str, list[str]]
    figure: str
    note: str


def contests(ours: str, peer: str, replay_peer: str, rllib: str, factory: str) -> dict[str, Contest]:
    """Every comparison by name."""
    pong = [ours, str(HERE / "pong_speed.py"), "--seconds", "30"]
    hogwild = ["--topology", "hogwild", "--actors", "2", "--threads", "1"]
    sb3, learner = [peer, str(HERE / "peers/sb3.py")], [ours, str(HERE / "learner_speed.py")]
    replay = [ours, str(HERE / "replay_speed.py")]
    cpprb = [replay_peer, str(HERE / "peers/cpprb_replay.py")]
    solve = [ours, "-m", "repertory.cli", "train", "CartPole-v1", "--target-score", "475", "--json", "--env-steps"]
    solve += ["200000", "--seed", "{repeat}", "--runs-dir", "/tmp/repertory-benchmarks"]
    unrolls = [ours, str(HERE / "pong_unrolls.py"), "--seconds", "60", "--topology"]
    slow = [ours, str(HERE / "double_buffering.py")]
    return {
        "pong-unrolls": Contest(
            {
                "ours, a3c": [*unrolls, "a3c", "--envs-per-actor", "16"],
                "sample factory appo": [factory, str(HERE / "peers/sample_factory.py"), "w3", "--seconds", "60"],
                "stable-baselines3 a2c": [*sb3, "w3", "--algo", "a2c", "--seconds", "60"],
            },
            "env_steps_per_s",
            "Pong, Nature network, agent steps/s while learning once from every step",
        ),
        "pong-unrolls-ours": Contest(
            {
                "a3c": [*unrolls, "a3c", "--envs-per-actor", "16"],
                "impala": [*unrolls, "impala", "--threads", "2"],
                "sample_factory": [*unrolls, "sample_factory", "--threads", "2"],
                "seed_rl": [*unrolls, "seed_rl", "--threads", "2"],
                "ga3c": [*unrolls, "ga3c"],
            },
            "env_steps_per_s",
            "Pong, Nature network, agent steps/s while learning once from every step",
        ),
        "double-buffering": Contest(
            {"two groups": [*slow, "--groups", "2"], "one group": [*slow, "--groups", "1"]},
            "env_steps_per_s",
            "sample_factory, steps of 2 ms latency, 8 environments a worker in two groups or in one",
        ),
        "learner": Contest(
            {
                "ours, 16 environments, 16 updates a call": [*learner, "--environments", "16"],
                "ours, 1 environment, 1 update a call": [*learner, "--environments", "1"],
                "stable-baselines3": [*sb3, "w1"],
            },
            "updates_per_s",
            "CartPole-v1, MLP 120-84, batch 128, one update per env step, uniform replay",
        ),
        "solve": Contest(
            {
                "ours": solve,
                "stable-baselines3 dqn": [*sb3, "w2", "--algo", "dqn", "--seed", "{repeat}"],
                "stable-baselines3 ppo": [*sb3, "w2", "--algo", "ppo", "--seed", "{repeat}"],
            },
            "total_s",
            "CartPole-v1, seconds with start-up until 20 greedy episodes average 475",
        ),
        "replay": Contest(
            {
                f"{side} {spec}": [*command, "--spec", spec]
                for spec in ("small", "pixels")
                for side, command in (("ours", replay), ("cpprb", cpprb))
            },
            "calls_per_s",
            "prioritised replay, sample + priority update",
        ),
        "collectors-learner": Contest(
            {
                "ours, 1 collector": [ours, str(HERE / "collectors_speed.py"), "learner", "--actors", "1"],
                "stable-baselines3": [*sb3, "w1"],
            },
            "updates_per_s",
            "CartPole-v1, MLP 120-84, batch 128, replay ratio 128: collectors and learner in processes of their own",
        ),
        "collectors-collect": Contest(
            {"ours, 1 collector": [ours, str(HERE / "collectors_speed.py"), "collect", "--actors", "1"]},
            "env_steps_per_s",
            "CartPole-v1, 512 environments, batch 128, replay ratio 1",
        ),
        "collectors-busy": Contest(
            {
                f"ours, {actors} collectors": [ours, str(HERE / "collectors_speed.py"), "busy", "--actors", str(actors)]
                for actors in (1, 2)
            },
            "env_steps_per_s",
            "repertory/SlowCartPole-v1, busy_s=0.005, one environment a collector",
        ),
        "collectors-slow": Contest(
            {
                **{
                    f"{side}, {actors}": [ours, *words, "--actors", str(actors)]
                    for actors in (1, 4, 16, 64)
                    for side, words in {
                        "ours": (str(HERE / "collectors_speed.py"), "slow"),
                        "the environments alone": (str(HERE / "bare_environments.py"),),
                    }.items()
                },
                "stable-baselines3 dqn, 16": [*sb3, "slow", "--workers", "16", "--seconds", "12"],
                "rllib dqn, 16": [rllib, str(HERE / "peers/rllib.py"), "slow", "--workers", "16", "--seconds", "12"],
            },
            "env_steps_per_s",
            "CartPole-v1 with 5 ms of sleep a step, one environment a collector, 1 update of 128 per 16 env steps",
        ),
        "pong-asynchronous": Contest(
            {
                "ours, standard, 1 thread": [*pong, "--threads", "1", "--replay-ratio", "32"],
                "ours, 2 asynchronous workers": [*pong, *hogwild, "--replay-ratio", "32"],
                "ours, standard, 2 threads": [*pong, "--threads", "2", "--replay-ratio", "32"],
            },
            "updates_per_s",
            "Pong, Nature network, batch 32, one update a step: gradient steps/s",
        ),
        "pong-dqn": Contest(
            {
                "ours, 2 asynchronous workers": [*pong, *hogwild],
                "ours, standard": pong,
                "stable-baselines3 dqn": [*sb3, "w3", "--algo", "dqn", "--seconds", "40"],
            },
            "env_steps_per_s",
            "Pong, Nature network, batch 32, one update per 4 agent steps",
        ),
        "pong": Contest(
            {
                "ours": [ours, str(HERE / "pong_speed.py"), "--seconds", "45"],
                "stable-baselines3 dqn": [*sb3, "w3", "--algo", "dqn", "--seconds", "45"],
            },
            "env_steps_per_s",
            "Pong, Nature network, batch 32, one update per 4 agent steps",
        ),
    }


def run(command: list[str], repeat: int) -> dict[str, Any]:
    """One command's last JSON line; how long it took goes along."""
    filled = [word.replace("{repeat}", str(repeat)) for word in command]
    done = subprocess.run(
        filled, capture_output=True, text=True, timeout=1200, env=os.environ | {"PYTHONUNBUFFERED": "1"}
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{' '.join(filled)} printed no result:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    if "startup_s" in result and "total_s" not in result:
        result["total_s"] = result["startup_s"] + result["seconds"]
    return result


def medians(results: list[dict[str, Any]], figure: str) -> Any:
    """Median of a figure, or of each entry of a figure that is a table."""
    values = [result[figure] for result in results]
    if isinstance(values[0], dict):
        return {key: statistics.median(value[key] for value in values) for key in values[0]}
    return statistics.median(values)


def main() -> None:
    """Parse, run in turn, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contest")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with stable-baselines3")
    parser.add_argument("--replay-python", default=sys.executable, help="a Python with cpprb")
    parser.add_argument("--rllib-python", default=sys.executable, help="a Python with ray[rllib]")
    parser.add_argument("--factory-python", default=sys.executable, help="a Python with sample-factory")
    options = parser.parse_args()
    pythons = (options.peer_python, options.replay_python, options.rllib_python, options.factory_python)
    contest = contests(sys.executable, *pythons)[options.contest]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in contest.commands}
    for repeat in range(options.repeats):
        for name, command in contest.commands.items():
            results[name].append(run(command, repeat))
            print(f"{repeat} {name}: {results[name][-1][contest.figure]}", flush=True)
    table = {name: medians(rows, contest.figure) for name, rows in results.items()}
    record = {"note": contest.note, "figure": contest.figure, "machine": machine(), "medians": table, "runs": results}
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / f"results/{options.contest}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({"contest": options.contest, "figure": contest.figure, "medians": table}))


def machine() -> str:
    """What the figures were taken on."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


if __name__ == "__main__":
    main()
