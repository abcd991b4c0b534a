"""Learning curves of several systems on one environment, one after the other; to `benchmarks/results/curves/`.

    python benchmarks/curves.py MinAtar/Breakout-v1 --env-steps 2000000
    python benchmarks/curves.py repertory/TMaze-v1 --systems impala impala,lstm --target-score 0.95

Each system runs by its preset with `--actors 2` on the `processes` engine; `,lstm` adds an LSTM of 32.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import figures
import repertory

HERE = Path(__file__).parent
SYSTEMS = ("a3c", "ga3c", "impala", "seed_rl", "sample_factory")


def train(environment: str, system: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run's evaluations."""
    topology, _, lstm = system.partition(",")
    changes: dict[str, Any] = {"network_options": {"lstm_size": 32}} if lstm else {}
    if options.env_steps:
        changes["env_steps"] = options.env_steps
    if options.target_score is not None:
        changes["target_score"] = options.target_score
    run = repertory.train(
        environment, topology=topology, actors=2, seed=seed, runs_dir=options.runs_dir, quiet=True, **changes
    )
    kept = ("status", "score", "env_steps", "updates", "seconds", "env_steps_per_s", "restarts", "evaluations")
    return {"system": system, "seed": seed, **{key: run.result[key] for key in kept}}


def main() -> None:
    """Parse, train, save after every run, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment")
    parser.add_argument("--systems", nargs="*", default=SYSTEMS)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--env-steps", type=int, default=0)
    parser.add_argument("--target-score", type=float, default=None)
    parser.add_argument("--runs-dir", type=Path, default=Path("/tmp/repertory-curves"))
    options = parser.parse_args()
    name = options.environment.replace("/", "-").lower()
    place = HERE / "results/curves" / f"{name}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = json.loads(place.read_text()) if place.exists() else []
    for system in options.systems:
        for seed in range(options.seeds):
            runs = [run for run in runs if (run["system"], run["seed"]) != (system, seed)]
            runs.append(train(options.environment, system, seed, options))
            best = max(evaluation["mean"] for evaluation in runs[-1]["evaluations"])
            shown = {key: runs[-1][key] for key in ("status", "score", "env_steps", "seconds")}
            print(system, seed, {**shown, "best": best}, flush=True)
            place.write_text(json.dumps(runs, indent=1) + "\n")
    figures.curves(f"curves-{name}", options.environment, runs)


if __name__ == "__main__":
    main()
