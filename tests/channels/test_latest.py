"""`Latest`: what is read was published as a whole, and is never older than what was read before."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channel_writers import SIZE, child, publish_for_ever
from commands import until
from machines import CUTS, Me, Pair
from repertory.channels.channel import SILENT, Bells, allocate
from repertory.channels.latest import Latest
from repertory.engines.shared_memory import Block

WIDTH = 5
MOVES = st.lists(st.tuples(st.sampled_from(["publish", "publish", "mirror", "read", "new reader"]), CUTS), max_size=60)


def make(parts: int) -> Latest:
    return Latest("weights", lambda: WIDTH, parts=parts)


@settings(max_examples=150)
@given(parts=st.integers(1, 3), moves=MOVES, seed=st.integers(0, 2**16))
def test_mirrored_reader_sees_whole_vectors_in_the_order_of_their_publication(
    parts: int, moves: list[tuple[str, int | None]], seed: int
) -> None:
    rng, pair = np.random.default_rng(seed), Pair(lambda: make(parts))
    reader, count, last = pair.far.channel.reader(), 0, [0] * parts
    published = [[0] for _ in range(parts)]  # numbers; vectors are full of them, versions are 100 more
    for move, cut in moves:
        if move == "publish":
            part, count = int(rng.integers(parts)), count + 1
            number, size = count, WIDTH * (part + 1) // parts - WIDTH * part // parts
            writer: Any = pair.near.channel.writer(Me(part))
            if pair.write(lambda: writer.publish(100 + number, np.full(size, number)), cut)[0]:  # noqa: B023
                published[part].append(number)
        elif move == "mirror":
            pair.forth(cut)
        elif move == "new reader":
            reader = pair.far.channel.reader()
        for part, (version, vector) in enumerate(reader.by_part()):  # type: ignore[union-attr]
            number = int(vector[0])
            assert (vector == number).all(), "torn"
            assert number in published[part]
            assert number >= last[part]
            assert version == (100 + number if number else 0)
            last[part] = number
    pair.settle()
    wanted = [full[-1] for full in published]
    assert [int(vector[0]) for _, vector in reader.by_part()] == wanted  # type: ignore[union-attr]
    assert pair.far.channel.published == all(wanted)


def test_mirror_returns_the_bytes_of_each_part_that_is_new() -> None:
    pair = Pair(lambda: make(2))
    assert pair.forth() == 0
    assert not pair.far.channel.published
    for part, size in ((0, 2), (1, 3)):
        for _ in range(3):
            pair.near.channel.writer(Me(part)).publish(7, np.ones(size))
        assert pair.forth() == 4 * size + 16
        assert pair.forth() == 0
    assert pair.back() == 0
    assert pair.far.channel.published


def test_machine_mirrors_only_the_parts_that_it_publishes() -> None:
    pair = Pair(lambda: make(2))
    for part, size in ((0, 2), (1, 3)):
        pair.near.channel.writer(Me(part)).publish(7, np.ones(size))
    assert pair.forth(rows=[1]) == 4 * 3 + 16
    assert pair.far.arrays["count"].tolist() == [0, 1]


@pytest.mark.parametrize("cut", [2, 3])
def test_mirror_that_was_cut_off_before_its_end_is_made_up_for_without_a_new_publication(cut: int) -> None:
    pair = Pair(lambda: make(1))
    pair.near.channel.writer(Me()).publish(7, np.ones(WIDTH))
    assert pair.forth(cut) is None
    pair.forth()
    assert pair.far.channel.latest()[0] == 7


def test_reader_keeps_what_it_gave_out_and_gives_the_same_until_there_is_a_newer() -> None:
    channel, rung = Latest("weights", lambda: 4, parts=2), []
    channel.bind(allocate(channel.fields()), Bells(lambda: rung.append(1), SILENT.writers))
    low, high, reader = channel.writer(Me(0)), channel.writer(Me(1)), channel.reader()
    low.publish(5, np.ones(2))
    first = reader.by_part()[0][1]  # type: ignore[union-attr]
    assert reader.by_part()[0][1] is first  # type: ignore[union-attr]
    assert not reader.changed  # type: ignore[union-attr]
    for version in (6, 7, 8):
        low.publish(version, np.full(2, version))
        high.publish(version, np.full(2, version))
    np.testing.assert_array_equal(first, 1.0)
    assert reader.changed  # type: ignore[union-attr]
    version, vector = reader.latest()
    assert version == 8
    np.testing.assert_array_equal(vector, np.full(4, 8.0))
    assert len(rung) == 7


def test_reader_is_never_torn_and_never_goes_back_while_another_process_publishes() -> None:
    channel = Latest("weights", lambda: SIZE)
    block, last, seen = Block(channel.fields()), 0, set[int]()
    channel.bind(block.arrays())
    reader: Any = channel.reader()
    with child(publish_for_ever, block):
        until(lambda: channel.published, what="a publication")
        began = time.monotonic()
        while time.monotonic() < began + 1.0 or len(seen) <= 100:
            version, vector = reader.latest()
            assert (vector == version).all(), "torn"
            assert version >= last
            seen.add(last := version)
            assert time.monotonic() < began + 60, f"{len(seen)} versions in a minute"
    block.file.close()


def test_lent_vector_is_the_published_one_itself() -> None:
    channel = Latest("weights", lambda: 3, lend=True)
    channel.bind(allocate(channel.fields()), in_thread=True)
    vector = np.ones(3)
    channel.writer(Me()).publish(4, vector)
    assert channel.latest() == (4, vector)
    assert channel.latest()[1] is vector
    assert channel.published
