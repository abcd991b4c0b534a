"""Pong from its pixels to a mean of 18 over 20 greedy episodes, on two cores; to `results/pong-learned.json`.

    python benchmarks/pong_learned.py                        # trains; Ctrl-C and the same command again go on
    python benchmarks/pong_learned.py --name again --seed 1  # another run, kept and drawn beside those before

Two asynchronous workers, each with a replay of its own, update one network without locks, once for every step that they
play. Pictures of 44 × 44 and the smaller network of the first DQN: each update costs a fraction of the usual one.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import figures

HERE = Path(__file__).parent
WORDS = shlex.split(
    "PongNoFrameskip-v4 --env-option img_height=44 img_width=44 --network.kind first --topology hogwild "
    "--topology.method replay --topology.exploration same --topology.target-steps 1000 --topology.pull-period 1 "
    "--actors 2 --envs-per-actor 4 --agent.double --agent.n-step 3 --agent.batch-size 32 --agent.replay-ratio 32 "
    "--agent.optimizer adam --agent.learning-rate 1.5e-4 --agent.optimizer-epsilon 1e-6 --agent.replay-capacity 100000 "
    "--agent.learning-starts 5000 --agent.epsilon-steps 40000 --agent.epsilon-end 0.02 --env-steps 2000000 "
    "--eval-every 25000 --eval-episodes 20 --eval-max-steps 10000 --checkpoint-every 50000 --log-every 2000 "
    "--target-score 18"
)


def train(run: Path, seed: int) -> None:
    """Begin the run, or go on with it."""
    place = ["--runs-dir", str(run.parent)]
    fresh = ["train", *WORDS, "--seed", str(seed), "--name", run.name, *place]
    typed = ["resume", run.name, *place] if run.exists() else fresh
    code = subprocess.run([sys.executable, "-m", "repertory", *typed], check=False).returncode
    if code:
        sys.exit(code)


def solved(run: Path) -> bool:
    """Whether there is nothing left to train."""
    result = run / "result.json"
    return result.exists() and json.loads(result.read_text())["status"] == "solved"


def seed_of(run: Path) -> int:
    """The one that it was begun with."""
    return int(json.loads((run / "config.json").read_text())["config"]["seed"])


def record(run: Path) -> dict[str, Any]:
    """What the run's own files say."""
    result = json.loads((run / "result.json").read_text())
    kept = ("status", "score", "env_steps", "updates", "seconds", "resumes", "evaluations")
    return {"name": run.name, "seed": seed_of(run), **{key: result[key] for key in kept}}


def main() -> None:
    """Train, then keep and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="pong-learned")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs-dir", type=Path, default=Path("runs"))
    options = parser.parse_args()
    run = options.runs_dir / options.name
    if run.exists() and seed_of(run) != options.seed:
        sys.exit(f"{run} was begun with seed {seed_of(run)}, not {options.seed}: choose another --name")
    if not solved(run):
        train(run, options.seed)
    place = HERE / "results/pong-learned.json"
    before: list[dict[str, Any]] = json.loads(place.read_text())["runs"] if place.exists() else []
    runs = [one for one in before if one["name"] != run.name] + [record(run)]
    place.write_text(json.dumps({"command": shlex.join(["repertory", "train", *WORDS]), "runs": runs}, indent=1) + "\n")
    figures.curves("pong-learned", "PongNoFrameskip-v4", [{**one, "system": one["name"]} for one in runs])
    print(json.dumps({key: value for key, value in runs[-1].items() if key != "evaluations"}))


if __name__ == "__main__":
    main()
