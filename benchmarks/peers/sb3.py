"""Stable-Baselines3 on our workloads, through its public interface: prints one JSON line.

w1  CartPole-v1 DQN, MLP 120-84, batch 128, one update per env step: updates/s
w2  CartPole-v1 with its zoo's tuned settings: seconds until 20 greedy episodes average 475
w3  Pong with the Nature network: agent steps/s; DQN on one environment, or A2C on 8 in a process each
slow  CartPole-v1 with 5 ms of sleep a step, a process each, DQN with one update of 128 per 16 env steps: env steps/s
"""

from __future__ import annotations

import time

BEGAN = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
from typing import Any  # noqa: E402

import gymnasium as gym  # noqa: E402
import torch  # noqa: E402
from slow import BATCH, LEARNING_STARTS, STEPS_PER_UPDATE, Slow, pss_mb, warm_up  # noqa: E402
from stable_baselines3 import A2C, DQN, PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_atari_env, make_vec_env  # noqa: E402
from stable_baselines3.common.evaluation import evaluate_policy  # noqa: E402
from stable_baselines3.common.vec_env import SubprocVecEnv, VecFrameStack  # noqa: E402

ALGORITHMS = {"w1": ("dqn",), "w2": ("dqn", "ppo"), "w3": ("dqn", "a2c"), "slow": ("dqn",)}
A2C_WORKERS = 8


class Timer(BaseCallback):
    """Marks the clock at env step `begin`, and stops after so many more steps or seconds."""

    def __init__(self, begin: int, *, steps: int | None = None, seconds: float | None = None) -> None:
        super().__init__()
        self.begin, self.steps, self.seconds = begin, steps, seconds
        self.mark: tuple[float, int, int] | None = None

    def _on_training_start(self) -> None:
        self.ready = time.perf_counter()

    def _on_step(self) -> bool:
        now = (time.perf_counter(), self.num_timesteps, self.model._n_updates)
        if self.mark is None:
            self.mark = now if self.num_timesteps >= self.begin else None
            return True
        self.last = now
        enough = self.steps is not None and now[1] - self.mark[1] >= self.steps
        late = self.seconds is not None and now[0] - self.mark[0] >= self.seconds
        return not (enough or late)

    def figures(self) -> dict[str, float]:
        """Rates between the mark and the end."""
        assert self.mark is not None
        seconds = self.last[0] - self.mark[0]
        return {
            "seconds": seconds,
            "env_steps_per_s": (self.last[1] - self.mark[1]) / seconds,
            "updates_per_s": (self.last[2] - self.mark[2]) / seconds,
        }


class UntilSolved(BaseCallback):
    """20 greedy episodes every 5,000 env steps; stops at a mean of 475."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.envs = make_vec_env("CartPole-v1", n_envs=20, seed=10_000 + seed)
        self.next, self.solved = 5_000, False

    def _on_step(self) -> bool:
        if self.num_timesteps < self.next:
            return True
        self.next += 5_000
        mean, _ = evaluate_policy(self.model, self.envs, n_eval_episodes=20, deterministic=True)
        self.solved = float(mean) >= 475
        return not self.solved


def learner(options: argparse.Namespace) -> dict[str, Any]:
    """w1"""
    model = DQN(
        "MlpPolicy",
        gym.make("CartPole-v1"),
        learning_rate=2.5e-4,
        buffer_size=10_000,
        learning_starts=1_000,
        batch_size=128,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=500,
        exploration_fraction=0.5,
        exploration_final_eps=0.05,
        policy_kwargs={"net_arch": [120, 84]},
        seed=options.seed,
        device="cpu",
    )
    timer = Timer(1_100, steps=options.steps)
    model.learn(1_200 + options.steps, callback=timer)
    return timer.figures()


def solve(options: argparse.Namespace) -> dict[str, Any]:
    """w2"""
    limit = 200_000
    if options.algo == "dqn":
        model: Any = DQN(
            "MlpPolicy",
            gym.make("CartPole-v1"),
            learning_rate=2.3e-3,
            batch_size=64,
            buffer_size=100_000,
            learning_starts=1_000,
            gamma=0.99,
            target_update_interval=10,
            train_freq=256,
            gradient_steps=128,
            exploration_fraction=0.16 * 5e4 / limit,
            exploration_final_eps=0.04,
            policy_kwargs={"net_arch": [256, 256]},
            seed=options.seed,
            device="cpu",
        )
    else:

        def falling(start: float) -> Any:
            return lambda left: max(0.01, 1 - (1 - left) * limit / 1e5) * start

        model = PPO(
            "MlpPolicy",
            make_vec_env("CartPole-v1", n_envs=8, seed=options.seed),
            n_steps=32,
            batch_size=256,
            gae_lambda=0.8,
            gamma=0.98,
            n_epochs=20,
            ent_coef=0.0,
            learning_rate=falling(1e-3),
            clip_range=falling(0.2),
            seed=options.seed,
            device="cpu",
        )
    watch = UntilSolved(options.seed)
    model.learn(limit, callback=watch)
    return {
        "solved": watch.solved,
        "env_steps": model.num_timesteps,
        "total_s": time.perf_counter() - BEGAN,
    }


def make_pong() -> gym.Env:
    """Registered here, since an environment in a process of its own does not inherit it."""
    import ale_py

    gym.register_envs(ale_py)
    return gym.make("PongNoFrameskip-v4")


def pong(options: argparse.Namespace) -> dict[str, Any]:
    """w3"""
    return pong_a2c(options) if options.algo == "a2c" else pong_dqn(options)


def pong_a2c(options: argparse.Namespace) -> dict[str, Any]:
    """w3 with A2C: one update per 5 steps of every environment"""
    games = make_atari_env(make_pong, n_envs=A2C_WORKERS, seed=options.seed, vec_env_cls=SubprocVecEnv)
    envs = VecFrameStack(games, 4)
    model = A2C("CnnPolicy", envs, ent_coef=0.01, vf_coef=0.25, device="cpu")
    timer = Timer(1_500, seconds=options.seconds)
    model.learn(10**8, callback=timer)
    envs.close()
    return {"workers": A2C_WORKERS, **timer.figures()}


def pong_dqn(options: argparse.Namespace) -> dict[str, Any]:
    """w3 with DQN: one update per 4 steps"""
    envs = VecFrameStack(make_atari_env(make_pong, n_envs=1, seed=options.seed), 4)
    model = DQN(
        "CnnPolicy",
        envs,
        learning_rate=1e-4,
        buffer_size=20_000,
        learning_starts=1_000,
        batch_size=32,
        train_freq=4,
        gradient_steps=1,
        target_update_interval=1_000,
        exploration_fraction=0.001,
        exploration_final_eps=0.01,
        device="cpu",
    )
    timer = Timer(1_500, seconds=options.seconds)
    model.learn(10**8, callback=timer)
    return timer.figures()


def slow(options: argparse.Namespace) -> dict[str, Any]:
    """slow"""
    n = options.workers
    envs = make_vec_env("CartPole-v1", n_envs=n, seed=options.seed, wrapper_class=Slow, vec_env_cls=SubprocVecEnv)
    common = math.gcd(STEPS_PER_UPDATE, n)
    model = DQN(
        "MlpPolicy",
        envs,
        learning_rate=2.5e-4,
        buffer_size=10_000,
        learning_starts=LEARNING_STARTS,
        batch_size=BATCH,
        train_freq=STEPS_PER_UPDATE // common,  # in steps of all environments at once
        gradient_steps=n // common,
        target_update_interval=500,
        exploration_initial_eps=0.05,
        exploration_final_eps=0.05,
        policy_kwargs={"net_arch": [120, 84]},
        seed=options.seed,
        device="cpu",
    )
    timer = Timer(warm_up(n), seconds=options.seconds)
    model.learn(10**8, callback=timer)
    result = {"workers": n, **timer.figures(), "startup_s": timer.ready - BEGAN, "pss_mb": pss_mb()}
    envs.close()
    return result


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=ALGORITHMS)
    parser.add_argument("--algo", choices=("dqn", "ppo", "a2c"), default="dqn")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--workers", type=int, default=4, help="environments of `slow`")
    parser.add_argument("--threads", type=int, default=0, help="torch's threads; 0 = its own choice")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.algo not in ALGORITHMS[options.workload]:
        parser.error(f"{options.workload} is for {' and '.join(ALGORITHMS[options.workload])}, not {options.algo}")
    if options.threads:
        torch.set_num_threads(options.threads)
    result = {"w1": learner, "w2": solve, "w3": pong, "slow": slow}[options.workload](options)
    print(json.dumps({"peer": "stable-baselines3", "workload": options.workload, "algo": options.algo, **result}))


if __name__ == "__main__":
    main()
