"""Messages between machines: what one side of a channel has written arrives whole and once, whatever is lost or cut."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machines import CUTS, Machine, Me, Pair, assert_same
from repertory.channels.channel import READER, WRITER, Channel, allocate
from repertory.channels.latest import Latest
from repertory.experience.lanes import SPARE_SLOTS
from test_lanes_channel import Actor, check
from test_lanes_channel import make as make_lanes
from test_mirror import BY_MIRRORS, CASES

CROSSING = sorted({*CASES} - {"shared", "batches", "evaluation", "lanes"})
"""Batches and evaluations stay on the driver's machine; lanes have tests of their own."""


class Wire:
    """One side of a channel on its way to another machine. A message may be lost, or its receiver killed."""

    def __init__(self, source: Machine[Any], target: Machine[Any], side: str) -> None:
        self.source, self.target, self.side = source, target, side
        self.marks: dict[Any, Any] = {}
        self.image = allocate(target.channel.image_fields())

    def send(self, *, lost: bool = False, cut: int | None = None) -> int:
        """The bytes that were sent."""
        sent = copy.copy(self.marks)
        items = self.source.channel.pack(sent, self.side)
        if lost:
            return 0
        channel = self.target.channel
        done, _ = self.target.act(self.side, lambda: channel.receive(items, self.image, self.side), cut)
        if done:
            self.marks = sent
            self.source.channel.confirm(sent)
        return sum(item.nbytes for item in items)


def wires(pair: Pair[Any]) -> dict[str, Wire]:
    return {WRITER: Wire(pair.near, pair.far, WRITER), READER: Wire(pair.far, pair.near, READER)}


@pytest.mark.parametrize("name", CROSSING)
@settings(max_examples=25)
@given(moves=st.lists(st.tuples(st.integers(0, 2), st.booleans(), CUTS), max_size=12))
def test_messages_bring_what_a_mirror_brings(name: str, moves: list[tuple[int, bool, int | None]]) -> None:
    make, ports = CASES[name]
    mirrored, sent = Pair(make), Pair(make)
    wire = wires(sent)
    for number, lost, cut in moves:
        side, use = ports[number % len(ports)]
        for pair in (mirrored, sent):
            try:
                use(pair.near if side == WRITER else pair.far)
            except (AttributeError, TypeError, ValueError, IndexError):
                return  # nothing to read, free or release: not a case of this kind
        for _ in range(2):
            mirrored.forth()
            mirrored.back()
            wire[WRITER].send(lost=lost, cut=cut)
            wire[READER].send(lost=lost, cut=cut)
        for each in wire.values():
            each.send()
    for each in wire.values():
        each.send()
        assert each.send() == 0, "what has arrived is not sent again"
    mirrored.settle()
    for machine, twin in ((mirrored.near, sent.near), (mirrored.far, sent.far)):
        skipped = {*BY_MIRRORS, *machine.channel.not_sent}
        for field in {*machine.plain} - skipped:
            if name in ("latest", "snapshot") and machine is mirrored.far:
                continue  # by which of the two copies depends on how many arrived
            assert_same(twin.plain[field], machine.plain[field])


def test_newest_weights_travel_once_and_older_ones_never() -> None:
    pair: Pair[Any] = Pair(lambda: Latest("weights", lambda: 1000))
    wire, writer = wires(pair)[WRITER], pair.near.channel.writer(Me())
    for version in range(1, 4):
        writer.publish(version, np.full(1000, version))
    assert 4000 <= wire.send() < 4100
    assert wire.send() == 0
    assert pair.far.channel.latest()[0] == 3
    writer.publish(4, np.full(1000, 4))
    wire.send(lost=True)
    assert wire.send() >= 4000
    assert (pair.far.channel.latest()[1] == 4).all()


MOVES = ["play", "play", "play", "play long", "send", "send", "lose", "interrupt"]


def relayed(channel: Channel, length: int) -> Channel:
    channel.relayed, channel.length = True, length  # type: ignore[attr-defined]
    return channel


@settings(max_examples=120)
@given(
    count=st.integers(1, 3),
    length=st.integers(14, 20),
    stack=st.sampled_from([1, 3]),
    moves=st.lists(st.tuples(st.sampled_from(MOVES), CUTS), max_size=40),
    seed=st.integers(0, 999),
)
def test_every_step_of_relayed_lanes_arrives_once_and_writers_wait_for_it(
    count: int, length: int, stack: int, moves: list[tuple[str, int | None]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    near = Machine(relayed(make_lanes(count, 400, stack), length))
    far = Machine(make_lanes(count, 400, stack))
    wire, actor = Wire(near, far, WRITER), Actor(near, rng)  # type: ignore[arg-type]
    killed = False
    for move, cut in moves:
        if move in ("send", "lose"):
            wire.send(lost=move == "lose", cut=cut)
            killed |= cut is not None
        elif move == "interrupt":
            near.act(WRITER, actor.start)
        else:
            for _ in range(1 if move == "play" else 2 * length):
                if actor.port.storage.open():
                    near.act(WRITER, actor.play)
                actor.take_down()
        unsent = near.plain["head"] - near.plain["sent"]
        assert unsent.max() <= length - SPARE_SLOTS + 2, "a writer waits"
        actor.take_down()
        for lane in range(count):
            check(far, actor, lane)  # type: ignore[arg-type]
    wire.send()
    assert wire.send() == 0
    for lane in range(count):
        found = check(far, actor, lane)  # type: ignore[arg-type]
        assert killed or found == list(actor.steps[lane]), "none is missing"
        assert set(found) <= set(actor.steps[lane])


def test_lost_machine_ends_its_episodes_and_the_next_one_goes_on_behind_them() -> None:
    far = Machine(make_lanes(2, 400))
    told: list[list[int]] = [[], []]
    first = 0
    for life in range(3):
        near = Machine(relayed(make_lanes(2, 400), 20))
        for name, index, values in far.channel.seed([0, 1]):
            near.plain[name][index] = values
        wire, actor = Wire(near, far, WRITER), Actor(near, np.random.default_rng(life))  # type: ignore[arg-type]
        near.channel.pack(wire.marks)
        actor.version = first
        for _ in range(9):
            actor.play()
            actor.take_down()
        wire.send()
        actor.play()  # is lost with the machine
        for lane in range(2):
            told[lane] += [version for version in actor.steps[lane] if version > first]
        first = actor.version
        far.channel.lose([0, 1])
    lanes = far.channel.storage()
    assert (lanes.start == lanes.head).all(), "no episode runs"
    for lane in range(2):
        slots = range(int(lanes.head[lane]))
        found = [int(lanes.version[lane, slot]) for slot in slots if not lanes.flags[lane, slot] & 4]
        assert found == told[lane]
        ends = [bool(lanes.flags[lane, slot] & 3) for slot in slots]
        finals = [bool(lanes.flags[lane, slot] & 4) for slot in slots]
        assert all(ends[slot - 1] or finals[slot - 1] for slot in slots if slot and finals[slot])
