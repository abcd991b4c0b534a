"""Ray RLlib (its new API stack) on our workloads, through its public interface: prints one JSON line.

slow  CartPole-v1 with 5 ms of sleep a step, a runner each, DQN with one update of 128 per 16 env steps: env steps/s
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
from typing import Any  # noqa: E402

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "PYTHONWARNINGS": "ignore"}

import gymnasium as gym  # noqa: E402
import ray  # noqa: E402
from ray.rllib.algorithms.dqn import DQNConfig  # noqa: E402
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: E402
from ray.tune.registry import register_env  # noqa: E402
from slow import BATCH, LEARNING_STARTS, STEPS_PER_UPDATE, Slow, pss_mb, warm_up  # noqa: E402

REPORT_EVERY = 2.0  # seconds; the clock is read between reports


def configuration(workers: int, seed: int) -> DQNConfig:
    """A round is 16 env steps of every runner, all at once, then as many updates as there are runners."""
    return (
        DQNConfig()
        .environment("slow-cartpole")
        .env_runners(num_env_runners=workers, rollout_fragment_length=STEPS_PER_UPDATE)
        .learners(num_learners=0)  # in this process
        .training(
            lr=2.5e-4,
            train_batch_size_per_learner=BATCH,
            # Steps replayed per step sampled; RLlib reckons with one runner more than sample.
            training_intensity=BATCH / STEPS_PER_UPDATE * workers / (workers + 1),
            num_steps_sampled_before_learning_starts=LEARNING_STARTS,
            target_network_update_freq=500,
            epsilon=0.05,
            double_q=False,
            dueling=False,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 10_000},
        )
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[120, 84], fcnet_activation="relu", head_fcnet_hiddens=[])
        )
        .reporting(min_time_s_per_iteration=REPORT_EVERY, min_sample_timesteps_per_iteration=0)
        .debugging(seed=seed, log_level="ERROR")
    )


def slow(options: argparse.Namespace) -> dict[str, Any]:
    """slow"""
    register_env("slow-cartpole", lambda _: Slow(gym.make("CartPole-v1")))
    algorithm = configuration(options.workers, options.seed).build_algo()
    ready = time.perf_counter()

    def mark() -> tuple[float, int, float]:
        report = algorithm.train()
        trained = report["learners"]["default_policy"]["num_module_steps_trained_lifetime"]
        return time.perf_counter(), report["env_runners"]["num_env_steps_sampled_lifetime"], trained / BATCH

    first = mark()
    while first[1] < warm_up(options.workers):
        first = mark()
    last = mark()
    while last[0] - first[0] < options.seconds:
        last = mark()
    seconds, memory = last[0] - first[0], pss_mb()
    algorithm.stop()
    return {
        "workers": options.workers,
        "seconds": seconds,
        "env_steps_per_s": (last[1] - first[1]) / seconds,
        "updates_per_s": (last[2] - first[2]) / seconds,
        "startup_s": ready - BEGAN,
        "pss_mb": memory,
    }


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=("slow",))
    parser.add_argument("--workers", type=int, default=4, help="env runners")
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ray.init(
        num_cpus=options.workers + 1,  # slots, not cores: runners mostly sleep
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    result = slow(options)
    ray.shutdown()
    print(json.dumps({"peer": "ray[rllib]", "workload": options.workload, "algo": "dqn", **result}))


if __name__ == "__main__":
    main()
