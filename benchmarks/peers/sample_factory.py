"""Sample Factory's asynchronous PPO on our workload, through its public interface: prints one JSON line.

w3  Pong with the Nature network, 2 workers of 8 environments, one epoch a batch of 1,024: agent steps/s
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

# Our folder to the end of the path: this file has the name of the package that it imports.
HERE = Path(__file__).resolve().parent
sys.path.sort(key=lambda place: Path(place).resolve() == HERE)

import gymnasium as gym  # noqa: E402
from ale_py.registration import register_v0_v4_envs  # noqa: E402
from sample_factory.algo.runners.runner import AlgoObserver, Runner  # noqa: E402
from sample_factory.algo.utils.misc import ExperimentStatus  # noqa: E402
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args  # noqa: E402
from sample_factory.envs.env_utils import register_env  # noqa: E402
from sample_factory.train import make_runner  # noqa: E402
from sf_examples.atari.atari_params import atari_override_defaults  # noqa: E402
from sf_examples.atari.atari_utils import make_atari_env  # noqa: E402
from slow import pss_mb  # noqa: E402

SETTINGS = {
    "env": "atari_pong",
    "experiment": "pong",
    "device": "cpu",
    "async_rl": True,
    "serial_mode": False,
    "batched_sampling": False,
    "worker_num_splits": 2,  # a worker steps one half of its environments while the other half waits for actions
    "batch_size": 1024,
    "rollout": 32,
    "num_epochs": 1,
    "num_batches_per_epoch": 1,
    "with_vtrace": False,
    "summaries_use_frameskip": False,  # it counts agent steps then, not frames
    # Nothing but playing and learning while the clock runs.
    "train_for_env_steps": 10**9,
    "save_every_sec": 10**5,
    "save_best_every_sec": 10**5,
    "decorrelate_envs_on_one_worker": False,
    "decorrelate_experience_max_seconds": 0,
}
"""The rest is as in its own Atari example, the network too."""


class Timer(AlgoObserver):
    """Marks the clock `warm` seconds after the first update, and stops so many seconds later."""

    def __init__(self, warm: float, seconds: float) -> None:
        self.warm, self.seconds = warm, seconds
        self.first: float | None = None
        self.mark: tuple[float, int, int] | None = None

    def on_training_step(self, runner: Runner, updates: int) -> None:
        """After each update; those that were under way when it stopped do not count."""
        now = (time.perf_counter(), sum(runner.env_steps.values()), updates)
        if self.first is None:
            self.first = now[0]
        if self.mark is None:
            self.mark = now if now[0] - self.first >= self.warm else None
        elif not runner.stopped:
            self.last = now
            if now[0] - self.mark[0] >= self.seconds:
                self.pss_mb = pss_mb()  # before its processes end
                runner.cfg.train_for_env_steps = 0

    def figures(self) -> dict[str, float]:
        """Rates between the mark and the end."""
        assert self.first is not None
        assert self.mark is not None
        seconds = self.last[0] - self.mark[0]
        return {
            "seconds": seconds,
            "env_steps_per_s": (self.last[1] - self.mark[1]) / seconds,
            "updates_per_s": (self.last[2] - self.mark[2]) / seconds,
            "first_update_s": self.first - BEGAN,
            "pss_mb": self.pss_mb,
        }


def make_pong(name: str, *arguments: Any, **options: Any) -> Any:
    """Its own Atari environment; the Gymnasium that it needs is too old for ale-py to register with by itself."""
    if "PongNoFrameskip-v4" not in gym.registry:
        register_v0_v4_envs()
    return make_atari_env(name, *arguments, **options)


def configuration(workers: int, envs_per_worker: int, seed: int, folder: str) -> Any:
    """Its Atari defaults with our settings, as from its command line."""
    ours = {"num_workers": workers, "num_envs_per_worker": envs_per_worker, "seed": seed, "train_dir": folder}
    words = [f"--{key}={value}" for key, value in (SETTINGS | ours).items()]
    parser, partial = parse_sf_args(words)
    atari_override_defaults(partial.env, parser)
    return parse_full_cfg(parser, words)


def pong(options: argparse.Namespace) -> dict[str, Any]:
    """w3"""
    register_env("atari_pong", make_pong)
    timer = Timer(options.warm, options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        _, runner = make_runner(configuration(options.workers, options.envs_per_worker, options.seed, folder))
        runner.register_observer(timer)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
    if status != ExperimentStatus.SUCCESS:
        raise SystemExit(f"Sample Factory ended with status {status}")
    return {"workers": options.workers, "envs_per_worker": options.envs_per_worker, **timer.figures()}


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=("w3",))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--envs-per-worker", type=int, default=8)
    parser.add_argument("--warm", type=float, default=15.0, help="seconds from the first update until the clock starts")
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("rl").setLevel(logging.ERROR)
    result = pong(options)
    print(json.dumps({"peer": "sample-factory", "workload": options.workload, "algo": "appo", **result}))


if __name__ == "__main__":
    main()
