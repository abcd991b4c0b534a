"""Scores of the presets over several seeds: mean and 95 % interval, and the curve, to `benchmarks/results/scores/`.

    python benchmarks/scores.py CartPole-v1 --seeds 5
    python benchmarks/scores.py MinAtar/Breakout-v1 --seeds 5 --plot minatar-breakout

The score of a run is its last evaluation: 20 greedy episodes at the preset's number of env steps.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
from pathlib import Path
from typing import Any

import figures
import repertory

HERE = Path(__file__).parent
STUDENT_T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Two-sided 95 % quantiles of Student's t for this many seeds."""


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval; 0 for a single value, which tells nothing of its spread."""
    if len(values) < 2:
        return values[0], 0.0
    return statistics.mean(values), STUDENT_T[len(values)] * statistics.stdev(values) / math.sqrt(len(values))


def one_run(environment: str, seed: int, runs_dir: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Train with the preset."""
    run = repertory.train(environment, seed=seed, runs_dir=runs_dir, quiet=True, **options)
    result = dict(run.result)
    shutil.rmtree(run.directory)
    return result


def main() -> None:
    """Parse, train, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--env-steps", type=int, default=None)
    parser.add_argument("--runs-dir", type=Path, default=Path("/tmp/repertory-scores"))
    parser.add_argument("--plot", default=None, help="the name of the figure in docs/figures")
    parser.add_argument("--merge", action="store_true", help="add to the seeds that are recorded already")
    options = parser.parse_args()
    place = HERE / "results/scores" / (options.environment.replace("/", "-").lower() + ".json")
    runs: list[dict[str, Any]] = []
    changes = {} if options.env_steps is None else {"env_steps": options.env_steps}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        result = one_run(options.environment, seed, options.runs_dir, changes)
        runs.append({"seed": seed, **{key: result[key] for key in KEPT}})
        print(f"seed {seed}: {result['score']:.1f} in {result['seconds']:.0f} s", flush=True)
    if options.merge and place.exists():  # read only now: another process may have written meanwhile
        runs = sorted([*json.loads(place.read_text())["runs"], *runs], key=lambda run: run["seed"])
    mean, half = interval([run["score"] for run in runs])
    record = {"environment": options.environment, "mean": mean, "interval_95": half, "runs": runs}
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(record, indent=1) + "\n")
    if options.plot is not None:
        figures.curves(options.plot, options.environment, [{**run, "system": "single"} for run in runs])
    print(json.dumps({"environment": options.environment, "mean": mean, "interval_95": half, "seeds": len(runs)}))


KEPT = ("score", "env_steps", "updates", "seconds", "env_steps_per_s", "updates_per_s", "evaluations")

if __name__ == "__main__":
    main()
