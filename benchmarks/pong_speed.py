"""Agent steps and gradient steps per second of DQN on Pong while learning; prints one JSON line.

python benchmarks/pong_speed.py                                    # one process, one update of 32 per 4 steps
python benchmarks/pong_speed.py --topology hogwild --actors 2      # two asynchronous workers with local replays
python benchmarks/pong_speed.py --replay-ratio 32                  # one update a step
"""

from __future__ import annotations

import argparse
import json
import tempfile

import repertory
from repertory.runs import metrics

ASYNCHRONOUS = {"method": "replay", "exploration": "same", "target_steps": 4_000, "pull_period": 4}
WARM_UP = 1_150
"""Env steps after which the clock starts; learning starts at 1,000."""


def main() -> None:
    """Train for a while, and say how fast it was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--environments", type=int, default=8, help="all together")
    parser.add_argument("--topology", choices=("single", "hogwild"), default="single")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--replay-ratio", type=float, default=8.0)
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as directory:
        run = repertory.train(
            "PongNoFrameskip-v4",
            env_steps=10**7,
            seconds=options.seconds + 10,
            topology=options.topology,
            actors=options.actors,
            threads=options.threads,
            topology_options=ASYNCHRONOUS if options.topology == "hogwild" else {},
            envs_per_actor=options.environments // options.actors,
            eval_every=10**9,
            eval_episodes=1,
            eval_max_steps=10,
            checkpoint_every=10**9,
            log_every=50,
            runs_dir=directory,
            quiet=True,
            agent_options={
                "batch_size": 32,
                "replay_ratio": options.replay_ratio,
                "updates_per_call": max(1, options.environments // 4) if options.topology == "single" else 1,
                "optimizer": "adam",
                "optimizer_epsilon": 1e-8,
                "learning_rate": 1e-4,
                "n_step": 1,
                "double": False,
                "dueling": False,
                "prioritized": False,
                "target_period": 1_000,
                "target_tau": 0.0,
                "replay_capacity": 20_000,
                "learning_starts": 1_000,
                "epsilon_steps": 10_000,
                "epsilon_end": 0.01,
            },
        )
        rows = metrics.read(run.directory / "metrics.jsonl")
        first = next(row for row in rows if row["env_steps"] >= WARM_UP)
        last = rows[-2]
        seconds = last["seconds"] - first["seconds"]
        print(
            json.dumps(
                {
                    "env_steps_per_s": round((last["env_steps"] - first["env_steps"]) / seconds, 1),
                    "updates_per_s": round((last["updates"] - first["updates"]) / seconds, 1),
                    "topology": options.topology,
                    "actors": options.actors,
                    "seconds": round(seconds, 1),
                    **{key: value for key, value in last.items() if key.startswith(("policy_lag", "gradient_age"))},
                    "rss_mb": last["rss_mb"],
                    "time": {key: value for key, value in last.items() if key.startswith("time/")},
                }
            )
        )


if __name__ == "__main__":
    main()
