"""What the first weights of a policy that reads pictures decide; to `results/first_weights.json`.

    python benchmarks/first_weights.py --seeds 3

A ball falls through a grey picture of 44 × 44, and a paddle has 10 steps to be under it: 1 or -1, chance makes -0.8.
One worker of A3C with 8 environments and the Nature network, Adam, 160,000 env steps; only `--network.start` differs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

import repertory

HERE = Path(__file__).parent
COLUMNS, CELL, GREY, BALL, PADDLE = 11, 4, 87, 236, 180
OPTIONS: dict[str, Any] = {
    "topology": "a3c",
    "actors": 1,
    "envs_per_actor": 8,
    "env_steps": 160_000,
    "eval_every": 20_000,
    "eval_episodes": 100,
    "agent_options": {
        "unroll": 5,
        "reduction": "mean",
        "optimizer": "adam",
        "learning_rate": 7e-4,
        "optimizer_epsilon": 1e-5,
        "max_gradient_norm": 0.5,
        "value_weight": 1.0,
    },
}


class Catch(gym.Env[NDArray[np.uint8], int]):
    """The ball is two pixels wide: next to nothing of what there is to see."""

    observation_space = gym.spaces.Box(0, 255, (COLUMNS * CELL, COLUMNS * CELL, 1), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """The ball begins anywhere at the top."""
        super().reset(seed=seed, options=options)
        self.column, self.row, self.paddle = int(self.np_random.integers(COLUMNS)), 0, COLUMNS // 2
        return self._picture(), {}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Left, nothing, right."""
        self.paddle = min(COLUMNS - 1, max(0, self.paddle + int(action) - 1))
        self.row += 1
        over = self.row == COLUMNS - 1
        reward = (1.0 if self.paddle == self.column else -1.0) if over else 0.0
        return self._picture(), reward, over, False, {}

    def _picture(self) -> NDArray[np.uint8]:
        picture = np.full(self.observation_space.shape or (), GREY, np.uint8)
        top, left, own = self.row * CELL, self.column * CELL, self.paddle * CELL
        picture[top : top + 2, left : left + 2] = BALL
        picture[-2:, own : own + CELL] = PADDLE
        return picture


def main() -> None:
    """Train in turn, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    place = HERE / "results/first_weights.json"
    before: dict[str, list[dict[str, Any]]] = json.loads(place.read_text()) if place.exists() else {}
    found: dict[str, list[dict[str, Any]]] = {"lecun": [], "he": []}
    for seed in range(seeds):
        for start, runs in found.items():
            with tempfile.TemporaryDirectory() as scratch:
                own = {"network_options": {"kind": "nature", "start": start}, "seed": seed, "runs_dir": scratch}
                run = repertory.train(f"{__file__}:Catch", **OPTIONS, **own, quiet=True)
            evaluations = [(one["env_steps"], round(one["mean"], 2)) for one in run.result["evaluations"]]
            runs.append({"seed": seed, "seconds": run.result["seconds"], "evaluations": evaluations})
            print(start, seed, evaluations, flush=True)
    place.write_text(json.dumps({**before, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
