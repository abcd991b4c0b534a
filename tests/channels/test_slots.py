"""Slots: what is handed over arrives once, as it was, and comes back; a side that is killed loses no slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from machines import CUTS, Machine, Pair, assert_same
from naive import make_spec
from repertory.channels.channel import Bells, allocate
from repertory.channels.slots import BatchReader, BatchSlots, BatchWriter, UnrollSlots
from repertory.experience.replay import Sample
from repertory.experience.unrolls import Census, UnrollWriter


def ticket(ids: NDArray[np.int64]) -> Sample:
    """All different from any other."""
    whole, real = ids.astype(np.int32), ids.astype(np.float32)
    seen = np.repeat(real[:, None], 3, axis=1)
    return Sample(seen, whole, real, real, seen, whole, None, np.ones_like(real), -ids, ids, whole)


def make_batches(count: int = 3, updates: int = 1, rows: int = 2) -> BatchSlots:
    return BatchSlots("batches", lambda: ticket(np.arange(rows * updates)), count, updates)


class Batches:
    """A replay on one machine and a learner on the other, which may be the same one."""

    def __init__(self, source: BatchSlots, target: BatchSlots, rows: int) -> None:
        self.source, self.target, self.rows = source, target, rows
        self.drawn = self.absorbed = 0
        self.put: list[NDArray[np.int64]] = []
        self.released: list[int] = []
        self.returned: list[int] = []
        self.held: Sample | None = None
        self.start_replay()
        self.start_learner()

    def start_replay(self) -> None:
        """Errors that the one before had not read are lost with it."""
        self.writer: BatchWriter = self.source.writer()
        self.absorbed = self.writer.freed

    def start_learner(self) -> None:
        self.reader: BatchReader = self.target.reader()
        self.held = None

    def fill(self) -> None:
        """Read the errors that came back, and fill a slot if there is one."""
        while self.absorbed < self.writer.freed:
            lane, slot, errors = self.writer.errors(self.absorbed)
            assert_same(lane, -slot)
            assert_same(slot, self.put[self.absorbed])
            assert_same(errors, slot.astype(np.float32) + 0.5)
            self.returned.append(self.absorbed)
            self.absorbed += 1
        if self.writer.filled - self.absorbed < self.writer.count:
            self.drawn += 1
            ids = self.drawn * self.rows + np.arange(self.rows)
            self.writer.put(ticket(ids))
            self.put.append(ids)

    def take(self) -> None:
        sample, behind = self.reader.take(), self.reader.next()
        done = len(self.released)
        for found, batch in ((sample, done), (behind, done + 1)):
            if found is not None:
                ids = self.put[batch]
                assert_same(found.slot.ravel(), ids)
                for name, array in ticket(ids)._asdict().items():
                    if array is not None:
                        assert_same(np.ravel(getattr(found, name)), np.ravel(array))
        self.held = sample

    def release(self) -> None:
        if self.held is not None:
            self.reader.release(self.held, self.held.reward + 0.5)
            self.released.append(len(self.released))
            self.held = None


BATCH_MOVES = ["fill", "fill", "take", "release", "new replay", "new learner", "forth", "back"]


@settings(max_examples=120)
@given(
    count=st.integers(1, 4),
    updates=st.integers(1, 3),
    moves=st.lists(st.tuples(st.sampled_from(BATCH_MOVES), CUTS), max_size=80),
)
def test_batches_arrive_once_in_order_and_their_errors_come_back(
    count: int, updates: int, moves: list[tuple[str, int | None]]
) -> None:
    pair = Pair(lambda: make_batches(count, updates))
    batches, lost = Batches(pair.near.channel, pair.far.channel, 2 * updates), set[int]()
    for move, cut in moves:
        if move in ("forth", "back"):
            pair.forth(cut) if move == "forth" else pair.back(cut)
        elif move == "new learner" or (move in ("take", "release") and not pair.read(getattr(batches, move), cut)[0]):
            batches.start_learner()
        elif move == "new replay" or (move == "fill" and not pair.write(batches.fill, cut)[0]):
            lost |= set(range(batches.absorbed, batches.writer.freed))
            batches.start_replay()
        near, far = pair.near.plain, pair.far.plain
        order = [near["filled"], far["filled"], far["freed"], near["freed"]]
        counts = [int(array[0]) for array in order]
        assert counts == sorted(counts, reverse=True)
        assert counts[0] - batches.absorbed <= count, "no slot is filled whose errors were not read"
        assert counts[0] == len(batches.put)
        assert counts[2] == len(batches.released)
    for _ in range(2 * count + 2):
        pair.settle()
        batches.take()
        batches.release()
        pair.settle()
        batches.fill()
    assert len(batches.released) >= count, "slots are used again"
    assert sorted({*batches.returned, *lost}) == list(range(batches.absorbed))
    assert not lost & set(batches.returned)


def test_each_ring_wakes_the_other_end() -> None:
    rung: list[str] = []
    channel = make_batches()
    channel.bind(allocate(channel.fields()), Bells(lambda: rung.append("learner"), lambda: rung.append("replay")))
    batches = Batches(channel, channel, 2)
    for work in (batches.fill, batches.fill, batches.take, batches.release):
        work()
    assert rung == ["learner", "learner", "replay"]
    assert batches.reader.example().weight.tolist() == [[1.0, 1.0]]


def test_mirror_of_batches_returns_the_bytes_of_the_new_ones() -> None:
    pair = Pair(make_batches)
    batches = Batches(pair.near.channel, pair.far.channel, 2)
    each = sum(field.nbytes // 3 for field in pair.near.fields.values() if field.commit == "filled")
    batches.fill()
    batches.fill()
    assert (pair.forth(), pair.forth(), pair.back()) == (2 * each + 8, 0, 0)
    batches.take()
    batches.release()
    assert (pair.back(), pair.back(), pair.forth()) == (2 * 4 + 8, 0, 0)


WRITERS, DEPTH, ROWS, ENVIRONMENTS, STATE = 2, 2, 2, 2, 3


def make_unrolls() -> UnrollSlots:
    sizes = {"depth": DEPTH, "rows": ROWS, "environments": ENVIRONMENTS, "state_size": STATE}
    return UnrollSlots("unrolls", make_spec(stack=2), writers=WRITERS, **sizes)


class Groups:
    """Groups of made-up environments that write unrolls on one machine; everything that they handed over."""

    def __init__(self, machine: Machine[UnrollSlots], rng: np.random.Generator) -> None:
        self.machine, self.rng = machine, rng
        self.handed: dict[tuple[int, int], dict[str, NDArray[Any]]] = {}
        self.to, self.dropped, self.tick = [0] * WRITERS, 0, 0
        self.writers = [self.start(writer) for writer in range(WRITERS)]

    def drop(self) -> None:
        self.dropped += 1

    def start(self, writer: int) -> UnrollWriter:
        """On what an earlier one has left."""
        port = self.machine.channel.writer()
        states = lambda: self.rng.normal(size=(ENVIRONMENTS, STATE)).astype(np.float32)  # noqa: E731
        made = UnrollWriter(
            port.storage,
            writer,
            begin_unroll=lambda: None,
            states=states,
            reader=lambda: self.to[writer],
            ring=port.ring,
            dropped=self.drop,
        )
        every = np.arange(ENVIRONMENTS)
        made.begin(every, self.look(ENVIRONMENTS), self.masks(ENVIRONMENTS))
        return made

    def look(self, count: int) -> NDArray[np.float32]:
        return self.rng.normal(size=(count, 2, 2, 2)).astype(np.float32)

    def masks(self, count: int) -> NDArray[np.bool_]:
        return self.rng.random((count, 4)) < 0.5

    def play(self, writer: int) -> None:
        if not self.writers[writer].open():
            return
        self.tick += 1
        lanes = np.flatnonzero(self.rng.random(ENVIRONMENTS) < 0.8)
        none = np.zeros(len(lanes), bool)
        reward, chances = self.rng.normal(size=(2, len(lanes))).astype(np.float32)
        told = self.look(len(lanes)), self.masks(len(lanes)), self.tick, chances[None]
        self.writers[writer].append(lanes, self.rng.integers(0, 4, len(lanes)), reward, none, none, *told)
        if len(reset := np.setdiff1d(np.arange(ENVIRONMENTS), lanes)):
            self.writers[writer].begin(reset, self.look(len(reset)), self.masks(len(reset)))

    def take_down(self) -> None:
        """What was handed over by now."""
        plain = self.machine.plain
        for slot, filled in enumerate(plain["filled"].tolist()):
            if filled and (slot, filled) not in self.handed:
                self.handed[slot, filled] = unroll(self.machine, slot)


def unroll(machine: Machine[UnrollSlots], slot: int) -> dict[str, NDArray[Any]]:
    names = [name for name in machine.plain if name not in ("filled", "freed", "progress")]
    return {name: machine.plain[name][slot].copy() for name in names}


UNROLL_MOVES = ["play", "play", "play", "new writer", "free", "forth", "back"]


@settings(max_examples=60)
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(UNROLL_MOVES), st.integers(0, WRITERS - 1), st.one_of(st.none(), st.integers(0, 40))),
        max_size=80,
    ),
    seed=st.integers(0, 999),
)
def test_unrolls_arrive_once_bit_for_bit_and_their_slots_come_back(
    moves: list[tuple[str, int, int | None]], seed: int
) -> None:
    rng, pair = np.random.default_rng(seed), Pair(make_unrolls)
    groups, storage = Groups(pair.near, rng), pair.far.channel.reader().storage
    learned: list[tuple[int, int]] = []

    def learn(reader: int) -> None:
        slots = storage.ready(reader)
        for writer in range(WRITERS):
            own = storage.arrays["sequence"][slots[slots // DEPTH == writer]].tolist()
            assert own == sorted(own), "in the order in which a writer finished them"
        for slot in slots.tolist():
            key = slot, int(storage.filled[slot])
            for name, array in unroll(pair.far, slot).items():
                assert_same(array, groups.handed[key][name])
            assert groups.handed[key]["reader"] == reader
            storage.free(np.array([slot]))
            learned.append(key)

    for move, number, cut in moves:
        if move in ("forth", "back"):
            pair.forth(cut) if move == "forth" else pair.back(cut)
        elif move == "free":
            pair.read(lambda: learn(number), cut)  # noqa: B023
        else:
            groups.to[number] = int(rng.integers(2))
            if move == "new writer" or not pair.write(lambda: groups.play(number), cut)[0]:  # noqa: B023
                pair.write(lambda: groups.writers.__setitem__(number, groups.start(number)))  # noqa: B023
        groups.take_down()
        assert sum(storage.census()) == WRITERS * DEPTH
        assert len(set(learned)) == len(learned), "each once"
    for _ in range(6):
        pair.settle()
        assert storage.census() == pair.near.channel.storage().census()
        for reader in range(2):
            learn(reader)
        pair.settle()
        for writer in range(WRITERS):
            [groups.play(writer) for _ in range(ROWS)]
        groups.take_down()
    done = [len([key for key in learned if key[0] == slot]) for slot in range(WRITERS * DEPTH)]
    assert sorted(learned) == sorted((slot, n + 1) for slot, count in enumerate(done) for n in range(count))
    assert sum(done) > WRITERS * DEPTH, "slots are used again"
    waiting = {(slot, int(filled)) for slot, filled in enumerate(pair.near.plain["filled"]) if filled > done[slot]}
    assert set(groups.handed) == set(learned) | waiting


def test_mirror_of_unrolls_returns_the_bytes_of_those_that_were_handed_over() -> None:
    pair = Pair(make_unrolls)
    groups = Groups(pair.near, np.random.default_rng(0))
    each = sum(field.nbytes // (WRITERS * DEPTH) for field in pair.near.fields.values() if field.commit == "filled")
    for writer in range(WRITERS):
        [groups.play(writer) for _ in range(ROWS + 1)]
    assert pair.forth(rows=[1]) == each + 8 + 8, "the slot, its count, and the progress of its writer"
    assert pair.far.plain["filled"].tolist() == [0, 0, 1, 0]
    assert pair.forth() == each + 8 + 8
    assert pair.forth() == 0
    assert pair.far.channel.metrics() == {"unrolls_free": 0, "unrolls_ready": 2, "unrolls_in_use": 2}
    storage = pair.far.channel.reader().storage
    storage.free(storage.ready())
    assert (pair.back(), pair.back()) == (16, 0)
    assert pair.near.channel.storage().census() == Census(2, 0, 2)


def test_machine_that_knows_less_of_what_was_freed_takes_nothing_back() -> None:
    """Two machines learn from the slots of a third one."""
    pair = Pair(make_unrolls)
    pair.near.plain["freed"][:] = [3, 0, 1, 0]
    pair.far.plain["freed"][:] = [0, 2, 1, 0]
    assert pair.back() == 8
    assert pair.near.plain["freed"].tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("restart", [False, True])
def test_checkpoint_keeps_the_unrolls_that_wait(restart: bool) -> None:
    machine = Machine(make_unrolls())
    groups = Groups(machine, np.random.default_rng(0))
    for _ in range(3 * ROWS):
        for writer in range(WRITERS):
            groups.play(writer)
    storage = machine.channel.storage()
    storage.free(storage.ready()[:1])
    ready = storage.ready().tolist()
    kept = {slot: unroll(machine, slot) for slot in ready}
    assert len(ready) == 1 + (WRITERS - 1) * DEPTH
    other = machine
    if restart:
        machine.channel.restart()
    else:
        other = Machine(make_unrolls())
        other.channel.load_state(machine.channel.state())
    assert other.channel.storage().ready().tolist() == ready
    assert other.channel.storage().census().in_use == 0
    for slot, arrays in kept.items():
        for name, array in unroll(other, slot).items():
            assert_same(array, arrays[name])
