"""Every role compiles before the clock runs, and that changes nothing."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from numpy.typing import NDArray

from actor_groups import LoneGroup
from commands import assert_same_state
from inline_runs import inline_run, play, roles
from pictures import Pictures
from repertory.engines.driver import Driver
from repertory.roles.actor import powers_of_two


class MaskedPictures(Pictures):
    """The same, and the last action is never legal."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        seen, _ = super().reset(seed=seed, options=options)
        return seen, {"action_mask": LEGAL}

    def step(self, action: int) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        return *super().step(action)[:4], {"action_mask": LEGAL}


LEGAL = np.array([1, 1, 0], np.int8)
gymnasium.register("MaskedPictures-v0", MaskedPictures)
PICTURES = {"environment": "Pictures-v0", "actors": 3, "env_steps": 400}
TOPOLOGIES: list[tuple[str, dict[str, Any]]] = [
    ("single", {}),
    ("collectors", {}),
    ("apex", {}),
    ("parameter_server", {}),
    ("parameter_server", {"shards": 3, "compression": "topk"}),
    ("parameter_server", {"mode": "synchronous"}),
    ("parameter_server", {"mode": "synchronous", "max_gradient_age": 1}),
    ("parameter_server", {"fetch_period": 2, "push_period": 3}),
    ("gorila", {}),
    *(("hogwild", {"method": method}) for method in ("one_step_q", "n_step_q", "sarsa", "replay")),
    *(("all_reduce", {"compression": compression}) for compression in ("none", "float16", "int8", "topk")),
    ("a3c", {}),
    ("ga3c", {}),
    ("impala", {}),
    ("impala", {"learners": 2}),
    ("seed_rl", {}),
    ("sample_factory", {}),
]
ON_PICTURES = ["collectors", "parameter_server", "all_reduce", "a3c", "ga3c", "impala", "seed_rl"]


def alone(topology: str) -> dict[str, int]:
    """A single agent plays by itself."""
    return {"actors": 1} if topology == "single" else {}


def compiled_by(work: Callable[[], None], caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was compiled meanwhile."""
    caplog.clear()
    jax.config.update("jax_log_compiles", True)  # in every thread
    try:
        with caplog.at_level(logging.WARNING, "jax"):
            work()
    finally:
        jax.config.update("jax_log_compiles", False)
    return [record.getMessage()[:90] for record in caplog.records if record.getMessage().startswith("Compiling ")]


def check(begin: Callable[[], Driver], caplog: pytest.LogCaptureFixture) -> None:
    jax.clear_caches()  # what an earlier test has compiled does not count
    driver = begin()
    try:
        assert compiled_by(lambda: play(driver), caplog) == []
        assert driver.counters.updates > 5
    finally:
        driver.close()


@pytest.mark.parametrize(
    ("topology", "options"),
    TOPOLOGIES,
    ids=["-".join([name, *map(str, options.values())]) for name, options in TOPOLOGIES],
)
def test_no_worker_compiles_once_a_run_has_started(
    topology: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    check(lambda: inline_run(topology, options, **alone(topology)), caplog)


@pytest.mark.parametrize("topology", ON_PICTURES)
def test_no_worker_compiles_once_a_run_on_pictures_has_started(topology: str, caplog: pytest.LogCaptureFixture) -> None:
    check(lambda: inline_run(topology, **PICTURES), caplog)


@pytest.mark.parametrize("masked", [False, True])
def test_actors_that_share_a_process_compile_for_every_number_of_them_before_they_play(
    masked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    jax.clear_caches()
    wishes = {"environment": "MaskedPictures-v0" if masked else "Pictures-v0", "envs_per_actor": 2, "actors": 5}
    found = LoneGroup(agent={"epsilon_start": 0.0, "epsilon_end": 0.0}, **wishes)

    def ask_about_every_number() -> None:
        found.threads.settle()
        for size in range(1, 6):
            for some in powers_of_two(range(size)):
                found.group.choose(some)

    assert compiled_by(ask_about_every_number, caplog) == []
    found.threads.close()


@pytest.mark.parametrize("topology", sorted({topology for topology, _ in TOPOLOGIES}))
def test_warming_up_changes_nothing_that_a_checkpoint_holds(topology: str) -> None:
    driver = inline_run(topology, **alone(topology))
    play(driver, 600)
    before = copy.deepcopy(driver.settle())
    for role in roles(driver, object):
        role.warm_up()
    assert_same_state(driver.settle(), before)
    driver.close()
