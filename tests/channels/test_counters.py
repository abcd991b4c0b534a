"""`Counters`: each worker's numbers and note, and what a copy of them elsewhere holds."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machines import CUTS, Machine, Pair, assert_same
from repertory.channels.counters import ENTRIES, NOTE_BYTES, RECENT, SAVED, Counters, GroupStats

WORKERS = 3


def make() -> Counters:
    return Counters("counters", WORKERS)


def work(counters: Counters, worker: int, number: int) -> None:
    """Everything that a worker writes."""
    stats = counters.stats(worker)
    stats.played(number)
    stats.learned(1)
    stats.beat()
    stats.count("gradients", 2)
    stats.set("settled", number)
    stats.queue(number)
    stats.sampled(number)
    stats.episode(number + 0.5, number)
    stats.lag(np.array([number, -1]))
    stats.age(np.full(2, number))
    stats.replied(0.25)
    stats.loss(1.0, 2.0, 3.0)
    stats.loss(np.array([1.0, np.nan]), np.ones(2), np.ones(2))
    stats.gradient_norm(2.0, 1.0)
    stats.gradient_norm(np.array([0.5, np.inf, 3.0]), 1.0)
    GroupStats(counters.arrays, [worker]).add("idle_s", np.array([0]), 0.5)
    GroupStats(counters.arrays, [worker]).beat(np.array([0]))


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["work", "note", "note", "enter", "mirror", "mirror"]), st.integers(0, WORKERS - 1), CUTS
    ),
    max_size=40,
)


@settings(max_examples=80)
@given(MOVES)
def test_copy_holds_whole_notes_and_counts_nothing_that_it_does_not_hold(
    moves: list[tuple[str, int, int | None]],
) -> None:
    pair = Pair(make)
    written: list[list[dict[str, Any]]] = [[{}] for _ in range(WORKERS)]
    for number, (move, worker, cut) in enumerate(moves, 1):
        if move == "work":
            pair.write(lambda: work(pair.near.channel, worker, number), cut)  # noqa: B023
        elif move == "note":
            note = {"number": number, "text": "x" * (number % 7)}
            if pair.write(lambda: pair.near.channel.write_note(worker, note), cut)[0]:  # noqa: B023
                written[worker].append(note)
        elif move == "enter":
            pair.write(lambda: pair.near.channel.stats(worker).enter(number), cut)  # noqa: B023
        else:
            pair.forth(cut)
        for other in range(WORKERS):
            assert pair.far.channel.read_note(other) in written[other]
            row = pair.far.channel.stats(other).row
            if row["episodes"]:
                at = (int(row["episodes"]) - 1) % RECENT
                assert float(row["episode_return"][at]) >= 0.5, "what is counted is there"
            if row["epoch"] == pair.near.plain["epoch"][other] != 0:
                assert row["place"].tolist() == [-1] * 4, "an epoch is told after what it takes back"
    pair.settle()
    for name in ENTRIES:
        assert_same(pair.far.plain[name], pair.near.plain[name])
    for worker in range(WORKERS):
        assert pair.far.channel.read_note(worker) == pair.near.channel.read_note(worker)


def test_only_the_rows_of_a_machines_own_workers_are_copied() -> None:
    """Two machines, each with workers of its own, tell a third one."""
    first, second, third = (Machine(make()) for _ in range(3))
    own = {0: first, 2: first, 1: second}
    for worker, machine in own.items():
        work(machine.channel, worker, 10 + worker)
        machine.channel.write_note(worker, {"worker": worker})
    for _ in range(2):
        for machine in (first, second):
            rows = [worker for worker, home in own.items() if home is machine]
            machine.channel.mirror(machine.plain, third.arrays, rows=rows)
            assert machine.channel.mirror(machine.plain, third.arrays, rows=rows) == 0
    assert third.plain["env_steps"].tolist() == [10, 11, 12]
    assert third.channel.total("updates") == 3
    assert [third.channel.read_note(worker) for worker in range(WORKERS)] == [{"worker": w} for w in range(WORKERS)]
    assert first.plain["env_steps"].tolist() == [10, 0, 12]
    second.channel.mirror(second.plain, third.arrays, rows=[])
    assert third.plain["env_steps"].tolist() == [10, 11, 12]


def test_mirror_returns_the_bytes_of_the_rows_that_differ_and_no_number_is_equal_to_itself() -> None:
    pair = Pair(make)
    assert pair.forth() == 0
    stats = pair.near.channel.stats(1)
    stats.played(3)
    assert (pair.forth(), pair.forth(), pair.back()) == (8, 0, 0)
    stats.episode(np.nan, 4)
    assert (pair.forth(), pair.forth()) == (8 + 2 * 8 * RECENT, 0)
    pair.near.channel.write_note(1, {"a": 1})
    assert (pair.forth(), pair.forth()) == (NOTE_BYTES + 8, 0)


@pytest.mark.parametrize("cut", range(4))
def test_note_that_was_copied_in_part_is_none(cut: int) -> None:
    pair = Pair(make)
    for note in ({"long": "x" * 50}, {"b": 1}):
        pair.near.channel.write_note(1, note)
        pair.forth(cut if "b" in note else None)
    assert pair.far.channel.read_note(1) == ({"long": "x" * 50} if cut == 0 else {} if cut < 3 else {"b": 1})
    pair.settle()
    assert pair.far.channel.read_note(1) == {"b": 1}


def test_note_that_is_written_while_it_is_copied_is_never_half_one() -> None:
    pair, number = Pair(make), 100
    for looks in range(1, 20):
        number += 1
        note = {"number": number}
        pair.near.channel.write_note(0, note)
        pair.forth_while(looks, lambda: pair.near.channel.write_note(0, {"number": number + 100}))  # noqa: B023
        assert set(pair.far.channel.read_note(0)) <= {"number"}
        pair.forth()
        assert pair.far.channel.read_note(0) == pair.near.channel.read_note(0)
        number += 100


def test_note_that_does_not_fit_is_refused_and_the_one_before_is_kept() -> None:
    counters = Machine(make()).channel
    assert counters.read_note(2) == {}
    counters.write_note(2, {"a": [1, 2]})
    with pytest.raises(ValueError, match="more than fit"):
        counters.write_note(2, {"a": "x" * NOTE_BYTES})
    assert counters.read_note(2) == {"a": [1, 2]}
    assert json.dumps(counters.read_note(2)) == '{"a": [1, 2]}'


def test_numbers_of_a_worker_are_what_it_told() -> None:
    counters = Machine(make()).channel
    for worker in (0, 2):
        for number in (5, 6):
            work(counters, worker, number)
    row, stats = counters.stats(2).row, counters.stats(2)
    assert (stats.env_steps, stats.own_env_steps, stats.updates) == (22, 11, 4)
    assert (row["beat"], row["gradients"], row["settled"], row["queue"], row["samples"]) == (4, 4, 6, 7, 11)
    assert row["episode_return"][:2].tolist() == [5.5, 6.5]
    assert row["lag"][:4].tolist() == [5, 0, 6, 0]
    assert row["age"][:4].tolist() == [5, 5, 6, 6]
    assert (row["losses"], row["loss_sum"], row["entropy_sum"], row["value_sum"]) == (4, 4.0, 6.0, 8.0)
    assert (row["norms"], row["norm_sum"], row["clipped"]) == (6, 11.0, 4)
    assert (row["replies"], row["reply_s"], row["idle_s"]) == (2, 0.5, 1.0)
    stats.enter(3)
    assert (row["epoch"], row["beat"], row["waiting"], row["place"].tolist()) == (3, 0, 0, [-1] * 4)
    assert counters.arrays["env_steps"].tolist() == [11, 0, 11]


def test_many_lags_at_once_are_thinned_evenly() -> None:
    stats = Machine(make()).channel.stats(0)
    stats.lag(np.arange(1000))
    assert stats.row["lags"] == 125
    assert stats.row["lag"][:3].tolist() == [0, 8, 16]


def test_restart_keeps_what_a_checkpoint_keeps() -> None:
    counters = Machine(make()).channel
    work(counters, 1, 4)
    counters.write_note(1, {"a": 1})
    other = Machine(make()).channel
    other.load_state(counters.state())
    counters.restart()
    for name in ENTRIES:
        assert_same(counters.arrays[name], other.arrays[name])
    kept = {name for name in ENTRIES if counters.arrays[name].any()}
    assert kept == {"env_steps", "updates", "gradients", "episodes", "samples"} <= set(SAVED)
    assert counters.read_note(1) == {}
