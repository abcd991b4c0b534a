"""Memory of a replay that holds 1,000,000 Atari steps, written in full: prints one JSON line."""

from __future__ import annotations

import json

import numpy as np
import psutil

from repertory.experience.lanes import LaneStorage
from repertory.experience.replay import Prioritization, Replay
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

STEPS, LANES, EPISODE = 1_000_000, 8, 1_000


def main() -> None:
    """Fill the ring once, draw from it, look at the process."""
    process = psutil.Process()
    before = process.memory_info().rss
    seen = ObservationSpec((84, 84), "uint8", (Part("pixel", 84 * 84),), stack=4, padding="zero")
    lanes = LaneStorage(EnvironmentSpec(seen, 6), LANES, LaneStorage.length_for(STEPS, LANES))
    replay = Replay(lanes, prioritization=Prioritization())
    rng = np.random.default_rng(0)
    everyone, none = np.arange(LANES), np.zeros(LANES, bool)
    frames = rng.integers(0, 256, (64, LANES, 4, 84, 84), dtype=np.uint8)
    lanes.begin(everyone, frames[0], None)
    for step in range(STEPS // LANES):
        ended = np.full(LANES, step % EPISODE == EPISODE - 1)
        lanes.append(
            everyone, np.zeros(LANES, int), np.ones(LANES, np.float32), ended, none, frames[step % 64], None, 0
        )
        if ended.any():
            lanes.begin(everyone, frames[step % 64], None)
    replay.sample(512, rng, 0.4)
    grown = process.memory_info().rss - before
    print(json.dumps({"steps": STEPS, "gigabytes": round(grown / 1e9, 3), "predicted": round(lanes.nbytes / 1e9, 3)}))


if __name__ == "__main__":
    main()
