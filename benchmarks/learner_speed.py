"""Updates per second of the whole loop (environments, replay, learning) on CartPole-v1: prints one JSON line."""

from __future__ import annotations

import argparse
import json
import tempfile

import repertory
from repertory.runs import metrics

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--environments", type=int, default=16)
parser.add_argument("--steps", type=int, default=20_000)
parser.add_argument("--batch-size", type=int, default=128)
options = parser.parse_args()

WARM_UP = 2_000

with tempfile.TemporaryDirectory() as directory:
    run = repertory.train(
        "CartPole-v1",
        env_steps=WARM_UP + options.steps,
        envs_per_actor=options.environments,
        eval_every=10**9,
        checkpoint_every=10**9,
        log_every=1_000,
        runs_dir=directory,
        quiet=True,
        network_options={"hidden": (120, 84)},
        agent_options={
            "batch_size": options.batch_size,
            "replay_ratio": float(options.batch_size),
            "updates_per_call": options.environments,
            "learning_rate": 2.5e-4,
            "discount": 0.99,
            "n_step": 1,
            "double": False,
            "dueling": False,
            "prioritized": False,
            "target_period": 500,
            "target_tau": 0.0,
            "replay_capacity": 10_000,
            "learning_starts": 1_000,
            "epsilon_steps": 5_000,
            "epsilon_end": 0.05,
        },
    )
    rows = [row for row in metrics.read(run.directory / "metrics.jsonl") if row["env_steps"] <= WARM_UP + options.steps]
    first = next(row for row in rows if row["env_steps"] >= WARM_UP)
    last = rows[-1]
    seconds = last["seconds"] - first["seconds"]
    print(
        json.dumps(
            {
                "updates_per_s": round((last["updates"] - first["updates"]) / seconds, 1),
                "env_steps_per_s": round((last["env_steps"] - first["env_steps"]) / seconds, 1),
                "seconds": seconds,
                "environments": options.environments,
                "time": {key: value for key, value in last.items() if key.startswith("time/")},
            }
        )
    )
