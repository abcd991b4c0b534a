"""The slow CartPole: it waits and computes as asked, is CartPole otherwise, and costs `import repertory` nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from repertory.environments.factory import evaluation_options, make
from repertory.environments.vectors import OneByOne
from repertory.errors import UserError
from repertory.runs.presets import defaults

NAME = "repertory/SlowCartPole-v1"
NO_WAIT = {"latency_s": 0.0, "busy_s": 0.0}


def durations(clock: Callable[[], float], steps: int = 8, **options: float) -> list[float]:
    """What each step of an environment takes, by that clock."""
    env = gym.make(NAME, disable_env_checker=True, **options)
    env.reset(seed=0)
    taken = []
    for step in range(steps):  # left and right in turn: the pole stands that long
        before = clock()
        env.step(step % 2)
        taken.append(clock() - before)
    return taken


def test_step_sleeps_for_the_latency() -> None:
    taken = durations(time.perf_counter, latency_s=0.03)
    assert min(taken) >= 0.03
    assert min(taken) < 0.045  # the quickest: others may have been held up by the machine
    assert max(durations(time.thread_time, latency_s=0.03)) < 0.015


def test_latency_is_five_milliseconds_unless_given() -> None:
    assert 0.005 <= min(durations(time.perf_counter, steps=30)) < 0.01


def test_busy_step_takes_cpu_time_of_its_own_thread() -> None:
    done = threading.Event()

    def compete() -> None:
        while not done.is_set():
            pass

    rival = threading.Thread(target=compete)  # its CPU time, and the wall clock, must not count
    rival.start()
    try:
        taken = durations(time.thread_time, latency_s=0.0, busy_s=0.03)
    finally:
        done.set()
        rival.join()
    assert min(taken) >= 0.03
    assert min(taken) < 0.045


def test_sleeping_and_computing_add_up() -> None:
    assert min(durations(time.perf_counter, latency_s=0.02, busy_s=0.02)) >= 0.04


def test_game_is_cartpole_for_the_same_seeds_and_actions() -> None:
    slow, plain = make(NAME, 2, options={"latency_s": 0.0002, "busy_s": 0.0002}), make("CartPole-v1", 2)
    assert slow.spec == plain.spec
    np.testing.assert_array_equal(slow.reset([3, 4])[0], plain.reset([3, 4])[0])
    rng, ends = np.random.default_rng(0), 0
    for _ in range(200):
        actions = rng.integers(0, 2, 2)
        one, other = slow.step(actions), plain.step(actions)
        for field in ("reward", "terminated", "truncated", "observation", "first"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
        ends += int(one.begun.sum())
    assert ends > 4


def test_episodes_are_cut_where_those_of_cartpole_are() -> None:
    slow, plain = gym.spec(NAME), gym.spec("CartPole-v1")
    assert slow.max_episode_steps == plain.max_episode_steps == 500
    assert slow.reward_threshold == plain.reward_threshold


def test_each_environment_waits_by_itself() -> None:
    assert gym.spec(NAME).vector_entry_point is None
    envs = make(NAME, 16, options={"latency_s": 0.002})
    assert isinstance(envs, OneByOne)
    envs.reset(range(16))
    before = time.perf_counter()
    envs.step(np.zeros(16, int))
    assert time.perf_counter() - before >= 16 * 0.002


@pytest.mark.parametrize("option", ["latency_s", "busy_s"])
@pytest.mark.parametrize("value", [-0.001, float("nan"), float("inf"), -float("inf"), "nan", None])
def test_wrong_duration_is_refused_in_one_sentence(option: str, value: Any) -> None:
    words = rf"^{NAME} needs a finite number of seconds, 0 or more, as {option}, not "
    for attempt in (lambda: make(NAME, 1, options={option: value}), lambda: gym.make(NAME, **{option: value})):
        with pytest.raises(UserError, match=words) as caught:
            attempt()
        assert str(caught.value).endswith(repr(value))


def test_unknown_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=rf"{NAME} has no option 'latency'; did you mean 'latency_s'"):
        make(NAME, 1, options={"latency": 0.1})


@pytest.mark.parametrize("name", [NAME, f"repertory:{NAME}"])
def test_evaluation_does_not_wait(name: str) -> None:
    given = {"latency_s": 0.3, "busy_s": 0.3, "sutton_barto_reward": True}
    assert evaluation_options(name) == NO_WAIT
    assert evaluation_options(name, given) == {**NO_WAIT, "sutton_barto_reward": True}
    assert min(durations(time.perf_counter, **evaluation_options(name))) < 0.004


def test_preset_learns_as_on_cartpole() -> None:
    slow, plain = defaults(NAME), defaults("CartPole-v1")
    assert slow.agent == plain.agent != defaults("Unknown-v0").agent
    assert (slow.envs_per_actor, slow.env_steps, slow.eval_every) == (1, 20_000, 5_000)


@pytest.mark.parametrize("topology", ["single", "collectors", "apex", "parameter_server", "gorila", "all_reduce"])
def test_preset_is_as_long_with_each_topology_that_replays(topology: str) -> None:
    assert defaults(NAME, topology=topology).env_steps == 20_000


REGISTERED = {
    "repertory first": f"""
import sys, repertory
assert not {{"jax", "gymnasium", "numpy"}} & set(sys.modules)
import gymnasium
gymnasium.make("{NAME}", latency_s=0.01)""",
    "gymnasium first": f"import gymnasium, repertory; gymnasium.make('{NAME}', latency_s=0.01)",
    "by module": f"import gymnasium; gymnasium.make('repertory:{NAME}', latency_s=0.01)",
}
NOTHING_STAYS = "import sys; assert not [f for f in sys.meta_path if 'repertory' in type(f).__module__]"


@pytest.mark.parametrize("order", REGISTERED)
def test_gymnasium_knows_it_whichever_is_imported_first(order: str) -> None:
    code = f"{REGISTERED[order]}\n{NOTHING_STAYS}\nassert 'jax' not in sys.modules"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
