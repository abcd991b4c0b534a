"""Every topology on `inline`, interrupted after a checkpoint, goes on bit for bit as the uninterrupted run."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from commands import Command, assert_same_run, env_steps, result, rows, until, words
from repertory import cli, topologies
from repertory.runs import checkpoint

COMMON = (
    "CartPole-v1 --engine inline --actors 2 --envs-per-actor 2 --network.hidden 8 --checkpoint-every 120 "
    "--log-every 40 --eval-every 150 --eval-episodes 2 --eval-max-steps 20 --quiet"
)
LANES = (
    "--agent.batch-size 8 --agent.updates-per-call 1 --agent.learning-starts 60 --agent.replay-ratio 4 "
    "--agent.replay-capacity 200 --agent.n-step 3 --agent.epsilon-steps 300"
)
ALONE = LANES.replace("60", "40") + " --actors 1"
ONCE = "--actors 1 --agent.no-replay --agent.n-step 3 --agent.epsilon-steps 300"
HOGWILD = "--topology.target-steps 100 --agent.epsilon-steps 300"
UNROLLS = "--agent.unroll 5 --agent.batch-unrolls 4"
LSTM = "--network.lstm-size 8"

VARIANTS = {
    "single": ALONE,
    "single-prioritized": f"{ALONE} --agent.prioritized",
    "single-no-replay": ONCE,
    "single-sarsa-no-replay": f"{ONCE} --agent sarsa",
    "collectors": f"{LANES} --agent.prioritized --topology.actor-priorities",
    "apex": f"{LANES} --agent.prioritized --topology.pull-period 20",
    "parameter_server": f"{LANES} --topology.mode synchronous --topology.shards 2 --topology.compression topk",
    "parameter_server-bounded": f"{LANES} --topology.mode bounded --topology.push-period 2 --topology.fetch-period 3",
    "gorila": f"{LANES} --topology.compression topk",
    "hogwild-one_step_q": f"{HOGWILD} --topology.method one_step_q",
    "hogwild-n_step_q": f"{HOGWILD} --topology.method n_step_q",
    "hogwild-replay": f"{LANES} --topology.method replay --topology.target-steps 100",
    "all_reduce": f"{LANES} --topology.compression topk",
    "a3c": "--agent.unroll 5",
    "ga3c": UNROLLS,
    "impala": f"{UNROLLS} --topology.learners 2",
    "impala-lstm": f"{UNROLLS} {LSTM}",
    "seed_rl-lstm": f"{UNROLLS} {LSTM}",
    "seed_rl-dqn": f"{LANES} --agent dqn",
    "sample_factory": f"{UNROLLS} --topology.policy-workers 2",
}
"""A topology, a word for what is special, and options."""


def arguments_of(variant: str) -> list[Any]:
    return [*words(COMMON), "--topology", variant.partition("-")[0], *words(VARIANTS[variant])]


def test_no_topology_is_left_out() -> None:
    assert {variant.partition("-")[0] for variant in VARIANTS} == set(topologies.known())


def copy_after(monkeypatch: pytest.MonkeyPatch, count: int, target: Path) -> None:
    """Once `count` checkpoints of a run are written, copy its directory: what a kill at this moment would leave."""
    save, saved = checkpoint.save, 0

    def saving(directory: Path, *arguments: Any, **named: Any) -> Path:
        nonlocal saved
        path = save(directory, *arguments, **named)
        saved += directory.name == "checkpoints"
        if saved == count and not target.exists():
            shutil.copytree(directory.parent, target)
        return path

    monkeypatch.setattr(checkpoint, "save", saving)


@pytest.mark.parametrize("variant", VARIANTS)
def test_run_that_goes_on_from_what_a_kill_leaves_equals_the_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    whole, broken = tmp_path / "runs/whole", tmp_path / "runs/broken"
    copy_after(monkeypatch, 1, broken)
    assert cli.main(["train", *arguments_of(variant), "--env-steps", "300", "--name", "whole"]) == 0
    saved = checkpoint.load(checkpoint.whole(broken / "checkpoints")[-1])
    assert 120 <= saved["env_steps"] < 140
    assert result(whole)["updates"] > saved["updates"] > 0
    assert cli.main(["resume", "broken", "--quiet"]) == 0
    assert result(broken)["resumes"] == 1
    assert_same_run(whole, broken)


@pytest.mark.parametrize("variant", ["apex", "parameter_server", "impala"])
def test_killed_and_resumed_run_equals_the_uninterrupted_one(tmp_path: Path, variant: str) -> None:
    arguments, run = arguments_of(variant), tmp_path / "runs/broken"
    broken = Command(tmp_path, "train", *arguments, "--env-steps", 10**7, "--name", "broken")
    until(lambda: checkpoint.latest(run / "checkpoints") is not None and env_steps(run) > 200, what="a checkpoint")
    broken.signal(signal.SIGKILL)
    assert broken.wait() == -signal.SIGKILL
    total = rows(run)[-1]["env_steps"] + 100
    whole = Command(tmp_path, "train", *arguments, "--env-steps", total, "--name", "whole")
    assert Command(tmp_path, "resume", "broken", "--quiet", "--env-steps", total).wait() == 0
    assert whole.wait() == 0
    assert result(run)["resumes"] == 1
    assert_same_run(tmp_path / "runs/whole", run)
