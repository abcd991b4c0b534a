"""Actors that share a process: each plays its own episodes, whichever workers share its batches."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import repertory
from actor_groups import LONG, lone_group
from commands import until
from inline_runs import inline_run, turns
from repertory.channels.counters import RECENT
from repertory.engines.actor_threads import Threads
from repertory.errors import EnvironmentFailure
from repertory.experience.lanes import FINAL
from repertory.roles.actor import Actor, powers_of_two
from repertory.roles.policies import ladder
from repertory.runs import checkpoint

ENVIRONMENTS = Path(__file__).parents[1] / "fault_environments.py"


@pytest.mark.parametrize("envs_per_actor", [1, 2, 12])
def test_every_step_follows_the_physics_and_is_counted_for_its_worker(envs_per_actor: int) -> None:
    with lone_group(envs_per_actor=envs_per_actor, env_steps=6_000, seed=3) as found:
        found.play(lambda: found.env_steps >= 6_000)
        table = found.table
        assert found.problems() == []
        for rank, actor in enumerate(found.group.actors):
            steps, ends = found.steps_in_lanes(rank)
            assert actor.stats.own_env_steps == steps > 500
            assert int(actor.stats.row["episodes"]) == ends > 5
            lengths = actor.stats.row["episode_length"][: min(ends, RECENT)]
            assert (lengths == actor.stats.row["episode_return"][: min(ends, RECENT)]).all(), "each step is worth 1"
            assert int(actor.stats.row["work"]) >= steps / envs_per_actor
        assert 6_000 <= found.env_steps <= 6_000 + found.wiring.plan.environments
        assert table["idle_s"][: len(found.group.actors)].max() < 5


def test_a_step_keeps_the_version_and_the_values_with_which_its_action_was_chosen() -> None:
    with lone_group("apex", envs_per_actor=1, own={"pull_period": 3}, env_steps=10**6) as found:
        weights = {0: found.publish(0)}
        for version in range(1, 40):
            weights[version] = found.publish(version)
            goal = 50 * version
            found.play(lambda goal=goal: found.env_steps >= goal)  # type: ignore[misc]
        lanes, agent = found.lanes, found.wiring.plan.agent
        assert agent.numpy_forward is not None
        values = {version: agent.numpy_forward(each) for version, each in weights.items()}
        mixed = set()
        for lane in range(lanes.count):
            for slot in np.flatnonzero((lanes.flags[lane, : lanes.head[lane]] & FINAL) == 0):
                version = int(lanes.version[lane, slot])
                row = values[version](lanes.observation[lane, slot][None], None)[0]
                kept = lanes.value[:, lane, slot] if lanes.value is not None else None
                np.testing.assert_allclose(kept, [row[lanes.action[lane, slot]], row.max()], rtol=1e-4, atol=1e-5)
                mixed.add(version)
        assert len(mixed) > 15


def test_each_worker_explores_by_its_own_rate() -> None:
    with lone_group("apex", envs_per_actor=1, env_steps=8_000) as found:
        found.play(lambda: found.env_steps >= 8_000)
        lanes = found.lanes
        assert lanes.value is not None
        for rank in range(4):
            steps = (lanes.flags[rank, : lanes.head[rank]] & FINAL) == 0
            taken, best = lanes.value[:, rank, : lanes.head[rank]][:, steps]
            expected = ladder(0.4, 7.0, rank, 4) / 2  # chance takes the best of two actions half of the time
            assert np.mean(taken < best) == pytest.approx(expected, abs=4 * (expected / steps.sum()) ** 0.5 + 1e-3)


def test_weights_are_pulled_after_so_many_replies_to_each_worker_on_average() -> None:
    greedy = {"epsilon_start": 0.0, "epsilon_end": 0.0}
    with lone_group(envs_per_actor=2, own={"pull_period": 50}, agent=greedy) as found:
        policy: Any = found.group.policy
        pulls: list[int] = []
        pull = policy.pull

        def counted() -> None:
            pulls.append(found.env_steps)
            pull()

        policy.pull = counted
        found.play(lambda: len(pulls) >= 3)
        assert pulls[0] == 0
        assert np.diff(pulls) == pytest.approx([400] * (len(pulls) - 1), abs=16)


@pytest.mark.parametrize(("wishes", "any_number"), [({"noisy": True}, False), ({}, True)])
def test_networks_that_are_compiled_get_requests_in_few_sizes(wishes: dict[str, Any], any_number: bool) -> None:
    with lone_group(envs_per_actor=1, actors=7, agent=wishes) as found:
        sizes: list[int] = []
        submit = found.group.policy.submit
        found.group.policy.submit = lambda seen, mask: (sizes.append(len(seen)), submit(seen, mask))[1]  # type: ignore[method-assign]
        found.play(lambda: found.env_steps >= 300)
        assert found.group.any_number == any_number
        assert any_number or set(sizes) <= {1, 2, 4}
        assert found.problems() == []


@pytest.mark.parametrize("count", [0, 1, 6, 7, 32])
def test_pieces_of_powers_of_two_are_everything_in_order(count: int) -> None:
    pieces = list(powers_of_two(range(count)))
    assert [item for piece in pieces for item in piece] == list(range(count))
    assert [len(piece) for piece in pieces] == sorted((1 << bit for bit in range(6) if count >> bit & 1), reverse=True)


def test_no_worker_plays_while_it_is_held_back_and_all_go_on_afterwards() -> None:
    with lone_group(envs_per_actor=1, env_steps=10**6) as found:
        allowed = [100]
        found.group.may_play = lambda: found.env_steps < allowed[0]
        found.play(lambda: found.env_steps >= 100)
        played = found.env_steps
        assert played <= 104
        assert not any(found.threads.step() for _ in range(5))
        assert found.threads.held
        assert found.env_steps == played
        allowed[0] = 200
        found.play(lambda: found.env_steps >= 200)
        assert 200 <= found.env_steps <= 204
        assert found.problems() == []


def test_a_group_is_not_at_rest_while_a_thread_is_about_to_send_all_on() -> None:
    with lone_group(envs_per_actor=1, env_steps=10**6) as found:
        found.play(lambda: found.env_steps >= 20)
        looked, go_on = threading.Event(), threading.Event()

        def may_play() -> bool:
            looked.set()
            return go_on.wait(10)

        found.group.may_play = may_play
        leader = threading.Thread(target=found.threads.step)
        leader.start()
        assert looked.wait(10)
        threading.Timer(0.1, go_on.set).start()
        found.threads.settle()
        at_rest = found.env_steps
        leader.join(10)
        time.sleep(0.2)
        assert found.env_steps == at_rest


def test_workers_with_failing_environments_begin_anew_and_the_others_play_on() -> None:
    wishes = {"environment": f"{ENVIRONMENTS}:unlucky", "env_option": ("chance=0.01",)}
    with lone_group(envs_per_actor=1, env_steps=10**6, **wishes) as found:
        found.play(lambda: len(found.failures) >= 20 and found.env_steps > 1_000)
        assert {rank for rank, _ in found.failures} == {0, 1, 2, 3}
        assert all(f"environment 0 of worker {rank} (seed " in what for rank, what in found.failures)
        assert found.problems() == []
        for rank, actor in enumerate(found.group.actors):
            assert actor.stats.own_env_steps == found.steps_in_lanes(rank)[0]
            assert int(actor.stats.row["starts"]) == 1 + [failed for failed, _ in found.failures].count(rank)


def test_environments_that_fail_while_they_begin_end_the_group() -> None:
    wishes = {"environment": f"{ENVIRONMENTS}:unlucky", "env_option": ("chance=0.01",)}
    with lone_group(envs_per_actor=1, env_steps=10**6, **wishes) as found:

        def fails(actor: Actor, error: EnvironmentFailure) -> None:  # noqa: ARG001  # the name of the port
            raise error

        found.threads.recover = fails
        with pytest.raises(EnvironmentFailure, match="out of luck"):
            found.play(lambda: False)


def test_a_hanging_environment_is_not_beaten_for_and_its_place_is_known_and_the_others_play_on() -> None:
    with lone_group(envs_per_actor=1, env_steps=10**6) as found:
        found.play(lambda: found.env_steps >= 100)
        stuck, entered, release = found.group.actors[2], threading.Event(), threading.Event()
        step = stuck.environments._steps[0]  # type: ignore[attr-defined]

        def hang(action: Any) -> Any:
            entered.set()
            release.wait(60)
            return step(action)

        stuck.environments._steps[0] = hang  # type: ignore[attr-defined]
        beats, played = found.table["beat"][:4], stuck.stats.own_env_steps
        found.go_on(entered.is_set)
        others, beaten, steps = [0, 1, 3], beats.copy(), found.env_steps

        def others_go_on() -> bool:
            return bool((beats[others] > beaten[others] + 10).all()) and found.env_steps > steps + 100

        found.go_on(others_go_on)
        assert beats[2] == beaten[2]
        assert stuck.stats.own_env_steps <= played + 1
        assert found.table["place"][:4, 0].tolist()[2] == 0
        assert found.table["place"][2, 3] == stuck.rank
        threading.Timer(0.2, release.set).start()
        found.threads.settle()
        assert stuck.stats.own_env_steps == found.steps_in_lanes(2)[0] > played, "what was under way is stored"
        assert found.problems() == []


def test_a_group_that_is_dismissed_waits_for_no_worker() -> None:
    with lone_group(envs_per_actor=1, env_steps=10**6) as found:
        stuck, release = found.group.actors[0], threading.Event()
        found.play(lambda: found.env_steps >= 10)
        stuck.environments._steps[0] = lambda _: release.wait(20)  # type: ignore[attr-defined]
        found.threads.step()
        found.threads.dismissed = lambda: True
        began = time.monotonic()
        found.threads.settle()
        assert time.monotonic() - began < 10
        release.set()


def test_what_a_group_notes_is_what_each_of_it_would_note_alone() -> None:
    with lone_group(envs_per_actor=1) as found:
        found.play(lambda: found.env_steps >= 100)
        states = found.threads.state()["actors"]
        alone = inline_run("collectors", agent=LONG, actors=4, envs_per_actor=1)
        for rank in range(4):
            (actor,) = turns(alone)[f"collector {rank}"]
            actor.load_state(states[rank])
            assert actor.state() == states[rank]
        alone.close()
        found.threads.load_state({"actors": states})
        assert found.threads.state()["actors"] == states


def test_threads_do_one_thing_at_a_time_and_tell_what_was_raised() -> None:
    told: list[tuple[int, Any]] = []
    threads, gate = Threads(2, lambda index, outcome: told.append((index, outcome))), threading.Event()
    threads.do(0, gate.wait, 10)
    threads.do(0, str, 7)
    threads.do(1, int, "x")
    until(lambda: told, what="the first report")
    (index, error), *more = told
    assert (index, more) == (1, [])
    assert isinstance(error, ValueError)
    gate.set()
    threads.end(5)
    assert told[1:] == [(0, True), (0, "7")]


def test_a_thread_that_does_not_come_back_is_left_behind() -> None:
    threads = Threads(2, lambda *_: None)
    threads.do(0, time.sleep, 20)
    began = time.monotonic()
    threads.end(0.1)
    assert time.monotonic() - began < 10


def test_run_of_groups_stops_at_its_budget_and_resumes_from_a_checkpoint_of_all(tmp_path: Path) -> None:
    run = repertory.train(
        "CartPole-v1",
        topology="collectors",
        actors=5,
        envs_per_actor=1,
        env_steps=3_000,
        eval_episodes=1,
        eval_max_steps=20,
        eval_every=2_000,
        checkpoint_every=1_000,
        quiet=True,
        runs_dir=tmp_path,
        name="run",
        network_options={"hidden": (16, 16)},
        agent_options={"batch_size": 16, "learning_starts": 200, "replay_ratio": 2.0},
        topology_options={"actors_per_process": 3},
    )
    assert run.result["status"] == "completed"
    assert 3_000 <= run.result["env_steps"] <= 3_005
    saved = checkpoint.load(checkpoint.whole(run.directory / "checkpoints")[-1])
    streams = [saved["workers"][f"collector {rank}"]["roles"][0]["rng"]["state"]["state"] for rank in range(5)]
    assert len(set(streams)) == 5
    again = repertory.resume(run, env_steps=4_000)
    assert again.result["status"] == "completed"
    assert 4_000 <= again.result["env_steps"] <= 4_005
