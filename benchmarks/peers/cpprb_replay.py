"""cpprb's prioritised replay on the work of `../replay_speed.py`: prints one JSON line."""

from __future__ import annotations

import argparse
import json
import resource
import time

import cpprb
import numpy as np

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--spec", choices=("small", "pixels"), default="small")
parser.add_argument("--seconds", type=float, default=4.0)
options = parser.parse_args()

small = options.spec == "small"
shape, dtype, capacity = ((4,), np.float32, 1_000_000) if small else ((4, 84, 84), np.uint8, 100_000)
fields = {
    "obs": {"shape": shape, "dtype": dtype},
    "act": {"dtype": np.int64},
    "rew": {"dtype": np.float32},
    "next_obs": {"shape": shape, "dtype": dtype},
    "done": {"dtype": np.float32},
}
rng = np.random.default_rng(0)
buffer = cpprb.PrioritizedReplayBuffer(capacity, fields, alpha=0.6)
chunk = {
    "obs": rng.standard_normal((64, *shape)).astype(dtype),
    "act": np.zeros(64, np.int64),
    "rew": np.ones(64, np.float32),
    "next_obs": rng.standard_normal((64, *shape)).astype(dtype),
    "done": np.zeros(64, np.float32),
}
began = time.perf_counter()
for _ in range(int(capacity * 1.1) // 64):
    buffer.add(**chunk)
adds = capacity * 1.1 / (time.perf_counter() - began)
calls = {}
for size in (512, 32):
    priorities = (rng.random(size) + 0.01).astype(np.float32)
    made, began = 0, time.perf_counter()
    while time.perf_counter() - began < options.seconds:
        sample = buffer.sample(size, beta=0.4)
        buffer.update_priorities(sample["indexes"], priorities)
        made += 1
    calls[f"batch {size}"] = made / (time.perf_counter() - began)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"calls_per_s": calls, "adds_per_s": adds, "peak_rss_mb": peak, "spec": options.spec}))
