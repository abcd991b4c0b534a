"""Prioritised replay, sample + priority update, on full lanes: one JSON line with calls per second by batch size.

`small`: capacity 1,000,000 of 4 float32. `pixels`: capacity 100,000 of 84×84×4 uint8, stored as single frames.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

from repertory.experience.lanes import LaneStorage
from repertory.experience.replay import Prioritization, Replay
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

LANES = 64
BATCH_SIZES = (512, 32)


def spec(kind: str) -> tuple[EnvironmentSpec, int]:
    """What is stored, and how many steps."""
    if kind == "small":
        return EnvironmentSpec(ObservationSpec((4,), "float32", (Part("number", 4),)), 2), 1_000_000
    return EnvironmentSpec(ObservationSpec((84, 84), "uint8", (Part("pixel", 4 * 84 * 84),), stack=4), 6), 100_000


def fill(lanes: LaneStorage, rng: np.random.Generator, steps: int) -> float:
    """Write steps in episodes of about 20 until the ring is full; steps per second."""
    shape = (LANES, *lanes.spec.observation.seen_shape)
    seen = [rng.standard_normal(shape).astype(lanes.spec.observation.dtype) for _ in range(16)]
    everyone = np.arange(LANES)
    lanes.begin(everyone, seen[0], None)
    actions, rewards, none = np.zeros(LANES, np.int64), np.ones(LANES, np.float32), np.zeros(LANES, bool)
    began = time.perf_counter()
    for step in range(steps // LANES):
        ended = rng.random(LANES) < 0.05
        lanes.append(everyone, actions, rewards, ended, none, seen[step % 16], None, 0)
        if ended.any():
            lanes.begin(everyone[ended], seen[step % 16][ended], None)
    return steps / (time.perf_counter() - began)


def calls_per_s(replay: Replay, batch_size: int, rng: np.random.Generator, seconds: float) -> float:
    """Sample a batch and write its priorities back, for a while."""
    errors = (rng.random(batch_size) + 0.01).astype(np.float32)
    calls, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        sample = replay.sample(batch_size, rng, 0.4).split(1)
        replay.update_priorities(sample.lane, sample.slot, errors)
        calls += 1
    return calls / (time.perf_counter() - began)


def main() -> None:
    """Fill, sample, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", choices=("small", "pixels"), default="small")
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    environment, capacity = spec(options.spec)
    lanes = LaneStorage(environment, LANES, LaneStorage.length_for(capacity, LANES))
    replay = Replay(lanes, prioritization=Prioritization(0.6), buffers=3)
    adds = fill(lanes, rng, int(capacity * 1.1))
    replay.sample(32, rng, 0.4)
    calls = {f"batch {size}": calls_per_s(replay, size, rng, options.seconds) for size in BATCH_SIZES}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"calls_per_s": calls, "adds_per_s": adds, "peak_rss_mb": peak, "spec": options.spec}))


if __name__ == "__main__":
    main()
