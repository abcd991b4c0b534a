"""Everything random follows from the seed, and no two environments of a run share a stream."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import rows, timeless, words
from inline_runs import roles
from repertory import cli
from repertory.engines import make_driver
from repertory.environments import factory
from repertory.roles.actor import Actor
from repertory.runs.config import change
from repertory.runs.launch import prepare
from repertory.runs.presets import defaults

SHORT = words(
    "--env-steps 1500 --checkpoint-every 600 --log-every 100 --eval-every 500 --eval-episodes 3 --eval-max-steps 60 "
    "--agent.learning-starts 200 --agent.batch-size 16 --agent.replay-ratio 4 --agent.updates-per-call 2 "
    "--network.hidden 16 16 --quiet"
)

LOGGED = """
import json
import gymnasium as gym
import numpy as np

class Logged(gym.Env):
    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        first = self.np_random.random(2, np.float32)
        with open("resets.jsonl", "a") as file:
            print(json.dumps([seed, first.tolist()]), file=file)
        return first, {}

    def step(self, action):
        return self.np_random.random(2, np.float32), 0.0, self.np_random.random() < 0.05, False, {}
"""


def train(name: str, *arguments: Any) -> list[dict[str, Any]]:
    assert cli.main(["train", "CartPole-v1", *SHORT, "--name", name, *map(str, arguments)]) == 0
    return [timeless(row) for row in rows(Path("runs") / name)]


@pytest.mark.parametrize(("agent", "count"), [("dqn", 1), ("rainbow", 16)])
def test_same_seed_makes_the_same_run_and_another_seed_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str, count: int
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--agent", agent, "--envs-per-actor", count]
    one = train("one", "--seed", 4, *options)
    assert len(one) >= 15
    assert any(row["loss"] is not None for row in one)
    assert train("again", "--seed", 4, *options) == one
    other = train("other", "--seed", 5, *options)
    for key in ("loss", "episode_return", "score"):
        assert [row[key] for row in other] != [row[key] for row in one], key


@pytest.mark.parametrize("environment", ["CartPole-v1", "Acrobot-v1"])
def test_no_two_environments_share_a_stream(environment: str) -> None:
    wishes = {"envs_per_actor": 32, "network": {"hidden": [8]}}
    driver = make_driver("inline", prepare(change(defaults(environment), wishes))[1])
    driver.start()
    seen = [row.copy() for actor in roles(driver, Actor) for row in actor.observation]
    for _, _ in zip(range(20), driver.rounds(), strict=False):
        pass
    driver.settle()
    driver.start()
    seen += [row for actor in roles(driver, Actor) for row in actor.observation]
    driver.close()
    assert len(seen) == 64
    assert_pairwise_different(seen)


def assert_pairwise_different(seen: list[Any]) -> None:
    for one, other in combinations(seen, 2):
        assert not np.array_equal(one, other)


def test_training_restarts_and_evaluations_never_use_a_seed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("logged.py").write_text(LOGGED)
    arguments = ["train", "logged.py:Logged", *SHORT, "--envs-per-actor", "32", "--name", "run"]
    assert cli.main(arguments) == 0
    resets = [json.loads(line) for line in Path("resets.jsonl").read_text().splitlines()]
    looks = {0, 1, 2}  # seeds of the look at the spaces and of the evaluator's warm-up; nothing is learned there
    seeded = [(seed, first) for seed, first in resets if seed is not None and seed not in looks]
    assert len(seeded) == 32 * 3 + 3 * 3, "two checkpoints restart 32 environments; three evaluations of 3"
    assert len({seed for seed, _ in seeded}) == len(seeded)
    assert_pairwise_different([first for seed, first in resets if seed not in looks])


def test_seeds_differ_between_runs_workers_environments_and_rounds() -> None:
    keys = [(run, worker, moment) for run in (0, 1, 2**31) for worker in (0, 1, 10**6) for moment in (0, 1, 64, 10**9)]
    drawn = [seed for run, worker, moment in keys for seed in factory.seeds(run, worker, 16, moment)]
    assert len(set(drawn)) == len(drawn) == 16 * len(keys)
    assert all(0 <= seed < 2**31 for seed in drawn)
