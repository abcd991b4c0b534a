"""What holds for every channel: its declared writers are the true ones, and a mirror copies one side's arrays only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from machines import Machine, Me, Pair, assert_same
from repertory.agents.compression import make_compression
from repertory.channels.channel import (
    ALL_WORKERS,
    READER,
    WRITER,
    Channel,
    allocate,
    mirror_changed,
    mirror_counted,
    mirror_grown,
    prefixed,
    under,
)
from repertory.channels.gradients import AllGather
from repertory.channels.latest import Latest
from repertory.channels.mailbox import EvaluationMailbox
from repertory.channels.snapshot import Shared
from test_counters import make as make_counters
from test_counters import work
from test_gradients import make as make_gradients
from test_gradients import payloads
from test_lanes_channel import Actor
from test_lanes_channel import make as make_lanes
from test_mailbox import ask, episodes_of, make_evaluation, serve, weights_of
from test_mailbox import make as make_inference
from test_slots import Groups, make_batches, make_unrolls, ticket
from test_snapshot import STRUCTURE, state_of
from test_snapshot import make as make_snapshot

BY_MIRRORS = {"mirrored", "shift", "0/mirrored"}
"""Written by the mirror, for the side that it copies."""
Ports = list[tuple[str, Callable[[Any], Any]]]


def put(machine: Any) -> None:
    machine.channel.writer().put(ticket(np.arange(2)))


def release(machine: Any) -> None:
    reader = machine.channel.reader()
    reader.release(reader.take(), np.ones(2))


def free(machine: Any) -> None:
    storage = machine.channel.reader().storage
    storage.free(storage.ready())


def take(machine: Any) -> None:
    for server in range(2):
        reader = machine.channel.reader(Me(server))
        reader.payload(0)
        reader.take(reader.arrived())


def play(machine: Any) -> None:
    actor = Actor(machine, np.random.default_rng(0))
    [actor.play() for _ in range(30)]
    machine.channel.writer(Me()).wake_reader(0)


def prioritize(machine: Any) -> None:
    reader = machine.channel.reader()
    reader.wake_at(3)
    reader.priorities()[0] = 1.0
    reader.taken[0] = 1


def write_unrolls(machine: Any) -> None:
    groups = Groups(machine, np.random.default_rng(0))
    groups.to[0] = 1
    [groups.play(0) for _ in range(5)]


def gather(machine: Any) -> None:
    port = machine.channel.replica(Me(1, 2))
    port.submit({"value": np.ones(4)})
    port.halt()
    port.poll()
    port.submit({"value": np.ones(4)})
    port.withdraw()
    port.check(1, 5)


def evaluate(machine: Any) -> None:
    port = machine.channel.evaluator()
    number = port.take()[0]
    port.progress(2)
    port.reply(number, episodes_of(3))


def count(machine: Any) -> None:
    work(machine.channel, 1, 3)
    stats = machine.channel.stats(1)
    stats.enter(4)
    for name in machine.fields:
        if name not in ("note", "note_size"):
            stats.row[name] = 1
    machine.channel.write_note(1, {"a": 1})


def share(machine: Any) -> None:
    sharer = machine.channel.sharer()
    sharer.add(np.ones(7), (np.ones(7), np.int32(1)), 0)


def make_gather() -> AllGather:
    return AllGather("gradients", lambda: make_compression("none", 4).fields, 3)


CASES: dict[str, tuple[Callable[[], Channel], Ports]] = {
    "latest": (
        lambda: Latest("weights", lambda: 5),
        [(WRITER, lambda m: m.channel.writer(Me()).publish(1, np.ones(5))), (READER, lambda m: m.channel.latest())],
    ),
    "lanes": (lambda: make_lanes(prioritized=True), [(WRITER, play), (READER, prioritize)]),
    "batches": (make_batches, [(WRITER, put), (READER, release)]),
    "unrolls": (make_unrolls, [(WRITER, write_unrolls), (READER, free)]),
    "gradients": (
        make_gradients,
        [
            (WRITER, lambda m: m.channel.writer(Me(0)).push([1, 1], payloads(3), wake_workers=True)),
            (READER, take),
        ],
    ),
    "all_gather": (make_gather, [(WRITER, gather)]),
    "inference": (
        make_inference,
        [
            (WRITER, lambda m: ask(m.channel.asker(), 1, 3, first=True)),
            (READER, lambda m: serve(m.channel.server(Me()))),
            (WRITER, lambda m: (m.channel.asker().reply(1), m.channel.asker().states(1))),
        ],
    ),
    "evaluation": (
        make_evaluation,
        [
            (WRITER, lambda m: m.channel.ask(1, weights_of(1), 1.0)),
            (READER, evaluate),
            (WRITER, lambda m: m.channel.withdraw()),
        ],
    ),
    "counters": (make_counters, [(WRITER, count)]),
    "snapshot": (
        make_snapshot,
        [(WRITER, lambda m: m.channel.owner(Me()).save(state_of(3))), (WRITER, lambda m: m.channel.owner(Me()).load())],
    ),
    "shared": (lambda: Shared("weights", lambda: STRUCTURE), [(ALL_WORKERS, share)]),
}
NAMES = sorted(CASES)


@pytest.mark.parametrize("name", NAMES)
def test_every_commit_names_a_counter_of_the_same_side(name: str) -> None:
    fields = CASES[name][0]().fields()
    for field in fields.values():
        assert field.writer in (WRITER, READER, ALL_WORKERS)
        if field.commit:
            assert fields[field.commit].writer == field.writer
            assert fields[field.commit].dtype == "int64"
            assert not fields[field.commit].commit, "a counter commits itself"


@pytest.mark.parametrize("name", NAMES)
def test_each_array_is_written_by_its_declared_side_and_by_no_other(name: str) -> None:
    make, ports = CASES[name]
    machine: Machine[Any] = Machine(make())
    written: set[str] = set()
    for side, use in ports:
        before = machine.copy()
        with machine.writing(side, None):
            use(machine)
        changed = {field for field, array in machine.plain.items() if before[field].tobytes() != array.tobytes()}
        assert {machine.fields[field].writer for field in changed} <= {side}
        written |= changed | machine.journal.written
    silent = {field for field in set(machine.fields) - written if machine.fields[field].nbytes}
    assert silent <= ({"target_copies", "06"} if name == "shared" else BY_MIRRORS), "every array has a writer"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "shared"])
def test_mirror_copies_what_one_side_wrote_and_then_nothing(name: str) -> None:
    make, ports = CASES[name]
    pair: Pair[Any] = Pair(make)
    for side, use in ports:
        use(pair.near if side == WRITER else pair.far)
        if side == WRITER:
            pair.forth()
            assert pair.forth() == 0
        else:
            moved = pair.back()
            changes = any(pair.far.fields[field].writer == READER for field in pair.far.fields)
            assert (moved or 0) > 0 or not changes
            assert pair.back() == 0
    for field, array in pair.near.plain.items():
        plain_counts = name not in ("latest", "snapshot", "lanes")
        if field not in BY_MIRRORS and plain_counts and not pair.near.fields[field].commit:
            assert_same(pair.far.plain[field], array)


@pytest.mark.parametrize("name", NAMES)
def test_clear_forgets_all(name: str) -> None:
    channel = CASES[name][0]()
    arrays = allocate(channel.fields())
    for array in arrays.values():
        array[...] = 1
    channel.bind(arrays)
    channel.clear()
    assert not any(array.any() for array in arrays.values())


def test_copies_move_only_what_they_say() -> None:
    source = {"data": np.arange(6.0).reshape(3, 2), "count": np.array([1, 2, 0])}
    target = {name: np.zeros_like(array) for name, array in source.items()}
    every = np.arange(3)
    assert mirror_counted(source, target, "count", ("data",), every[:1]) == 16 + 8
    assert target["data"].tolist() == [[0, 1], [0, 0], [0, 0]]
    target["count"][2] = 5
    assert mirror_counted(source, target, "count", ("data",), every) == 16 + 8
    assert target["count"].tolist() == [1, 2, 5]
    assert mirror_grown({"count": np.array([0, 9, 9])}, target, "count") == 16
    assert target["count"].tolist() == [1, 9, 9]
    source["data"][2] = np.nan
    assert [mirror_changed(source, target, ("data",), every) for _ in range(2)] == [16, 0]
    assert mirror_changed(source, target, ("data",), np.zeros(0, np.int64)) == 0


def test_names_under_a_prefix_come_back() -> None:
    assert prefixed("3", {"a": 1}) == {"3/a": 1}
    assert under("3", {"3/a": 1, "30/b": 2}) == {"a": 1}


def test_evaluation_mailbox_counts_its_memory_by_the_size_that_it_is_told() -> None:
    assert EvaluationMailbox("evaluation", lambda: 10, 2).fields()["weights"].nbytes == 40
