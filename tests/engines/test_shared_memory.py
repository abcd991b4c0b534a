"""Memory that processes share: no reader sees half a write, even of a writer that is killed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from commands import SERVER, until
from naive import make_spec
from repertory.channels.channel import Bells, allocate
from repertory.channels.counters import Counters
from repertory.channels.slots import BatchSlots
from repertory.engines.shared_memory import Bell, Block, Lifeline
from repertory.experience.lanes import LaneStorage
from repertory.experience.replay import Prioritization, Replay, Sample
from repertory.roles.batches import BatchSampler, MemoryServer, Pacing, SamplerOptions
from repertory.specs import Field
from repertory.topologies.parts import GUARD
from writers import COUNT, COUNTERS, LENGTH, episode_length, ring_back, watch_lifeline, write_for_ever

SECONDS, GAMMA = 2.0, 0.9


@contextmanager
def child(work: Callable[..., None], *arguments: Any) -> Iterator[Any]:
    """Another process, which does not outlive the test."""
    process = SERVER.Process(target=work, args=arguments, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join(30)


class Ticket:
    """Samples that are all different, and the errors that come back."""

    def __init__(self, size: int) -> None:
        self.size, self.count = size, 0
        self.returned: list[tuple[int, float]] = []

    def sample(self, size: int, rng: Any, importance: float = 0.0, batches: int = 1) -> Sample:  # noqa: ARG002
        assert size == self.size
        ids = self.count * size + np.arange(size)
        self.count += 1
        return ticket_sample(ids)

    def next(self, size: int) -> Sample | None:
        raise NotImplementedError

    def update_priorities(self, lane: Any, slot: Any, errors: Any) -> None:
        np.testing.assert_array_equal(lane, -slot)
        self.returned += zip(slot.tolist(), errors.tolist(), strict=True)


def ticket_sample(ids: NDArray[np.int64]) -> Sample:
    whole, real = ids.astype(np.int32), ids.astype(np.float32)
    seen = np.repeat(real[:, None], 3, axis=1)
    return Sample(seen, whole, real, real, seen, whole, None, np.ones_like(real), -ids, ids, whole)


@settings(deadline=None, max_examples=150)
@given(
    count=st.integers(1, 4),
    per_call=st.integers(1, 3),
    moves=st.lists(st.sampled_from(["memory", "take", "release", "restart memory", "restart learner"]), max_size=120),
)
def test_batches_are_neither_lost_nor_doubled_and_at_most_so_many_are_on_their_way(
    count: int, per_call: int, moves: list[str]
) -> None:
    tickets, rows = Ticket(2 * per_call), 2 * per_call
    slots, counters, rung = (
        BatchSlots("batches", lambda: ticket_sample(np.arange(rows)), count, per_call),
        Counters("c", 2),
        [],
    )
    slots.bind(allocate(slots.fields()), Bells(lambda: rung.append("learner"), lambda: rung.append("memory")))
    counters.bind(allocate(counters.fields()))
    sent = slots.writer()

    def memory() -> MemoryServer:
        options = SamplerOptions(2, per_call, replay=True, prioritized=True)
        sampler = BatchSampler(tickets, Pacing(1e9, 2, 0), options, lambda _: 0.4, lambda: 10**6, seed=0)
        return MemoryServer(sampler, slots.writer(), counters.stats(0), lambda _: None)

    remembers, learns, stats = memory(), slots.reader(), counters.stats(1)
    held: Sample | None = None
    learned: list[int] = []
    absorbed = 0
    for move in moves:
        if move == "memory":
            remembers.step()
            absorbed = sent.freed
        elif move == "restart memory":  # errors that it had not read are lost, as with a killed one
            remembers = memory()
            tickets.returned += [(slot, slot + 0.5) for slot in learned[absorbed * rows :]]
            absorbed = sent.freed
        elif move == "restart learner":
            held, learns = None, slots.reader()
        elif move == "take":
            held = learns.take()
            assert (held is None) == (sent.filled == sent.freed)
        elif held is not None:
            assert held.action.shape == (per_call, 2)
            ids = held.slot.ravel()
            np.testing.assert_array_equal(held.observation[..., 2].ravel(), ids)
            stats.learned(per_call)
            learned += ids.tolist()
            learns.release(held, held.reward + 0.5)
            held = None
        assert 0 <= sent.filled - sent.freed <= count
        assert sent.filled - absorbed <= count, "no slot is filled whose errors were not read"
    remembers.settle()
    assert learned == list(range(len(learned)))
    assert sent.filled == tickets.count
    assert sorted(tickets.returned) == [(slot, slot + 0.5) for slot in learned]
    assert [rung.count(one) for one in ("learner", "memory")] == [sent.filled, sent.freed]


def test_bell_rung_before_the_wait_is_not_lost() -> None:
    bell = Bell()
    for _ in range(3):
        for _ in range(5):
            bell.ring()
        began = time.monotonic()
        bell.wait(30)
        assert time.monotonic() - began < 5
        began = time.monotonic()
        bell.wait(0.05)
        assert 0.04 < time.monotonic() - began < 5, "all rings woke it once, and a wait ends"
    bell.close()


def test_bells_wake_across_processes_every_time() -> None:
    bells = [Bell(), Bell()]
    with child(ring_back, bells, 200) as process:
        for _ in range(200):
            bells[0].ring()
            began = time.monotonic()
            bells[1].wait(30)
            assert time.monotonic() - began < 20
        process.join(30)
        assert process.exitcode == 0
    for bell in bells:
        bell.close()


def test_process_that_holds_a_lifeline_leaves_when_the_driver_is_gone() -> None:
    lifeline, bell = Lifeline(), Bell()
    with child(watch_lifeline, lifeline, bell) as process:
        bell.wait(60)
        assert process.exitcode is None
        lifeline.close()
        process.join(30)
        assert process.exitcode == 7
    bell.close()


def test_pages_that_are_never_written_take_no_memory() -> None:
    block = Block({"small": Field((3,), "int64"), "large": Field((1 << 30,), "uint8"), "last": Field((5,), "float32")})
    arrays = block.arrays()

    def taken() -> int:
        return os.fstat(block.file.fd).st_blocks * 512

    arrays["last"][:] = 1.0
    assert taken() < 1 << 20
    arrays["large"][1 << 20 : 3 << 20] = 1
    assert 2 << 20 <= taken() < 4 << 20
    block.file.close()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["int8", "int64", "float32", "bool"]), st.integers(0, 9000)), max_size=8))
def test_arrays_of_a_block_do_not_overlap_and_begin_with_zeros(shapes: list[tuple[str, int]]) -> None:
    block = Block({str(index): Field((count,), dtype) for index, (dtype, count) in enumerate(shapes)})
    here, there = block.arrays(), block.arrays()
    assert all((array == 0).all() for array in here.values())
    for index, array in enumerate(here.values()):
        array[:] = index + 1
    for index, (dtype, count) in enumerate(shapes):
        np.testing.assert_array_equal(there[str(index)], np.full(count, index + 1).astype(dtype))
    block.file.close()


def assert_unstitched(sample: Sample, n: int, sarsa: bool) -> None:
    """Every row is what the counters say that it must be."""
    for row in range(len(sample.weight)):
        lane, episode, t, check = (int(x) for x in sample.observation[row])
        last = episode_length(lane, episode)
        assert (lane, check) == (sample.lane[row], episode + t)
        assert t < last, "a final observation is no step"
        cut_off = sarsa and episode % 2 == 1
        assert t < last - cut_off, "no action was taken next"
        k = min(n, last - cut_off - t)
        np.testing.assert_array_equal(sample.next_observation[row], [lane, episode, t + k, episode + t + k])
        assert sample.action[row] == (episode + t) % 5
        want = sum(GAMMA**i * (episode + 0.5 * (t + i)) for i in range(k))
        np.testing.assert_allclose(sample.reward[row], want, rtol=1e-5)
        over = t + k == last and episode % 2 == 0
        np.testing.assert_allclose(sample.discount[row], 0.0 if over else GAMMA**k, rtol=1e-6)
        if sarsa:
            assert sample.next_action[row] == (-1 if t + k == last else (episode + t + k) % 5)


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize(("n", "sarsa"), [(1, False), (4, True)])
@pytest.mark.parametrize("guard", [1, GUARD])
def test_no_sample_of_lanes_that_another_process_writes_is_stitched(
    prioritized: bool, n: int, sarsa: bool, guard: int
) -> None:
    block = Block(LaneStorage.fields(COUNTERS, COUNT, LENGTH))
    lanes, rng = LaneStorage(COUNTERS, COUNT, LENGTH, block.arrays()), np.random.default_rng(0)
    replay = Replay(
        lanes,
        n_step=n,
        discount=GAMMA,
        next_actions=sarsa,
        guard=guard,
        prioritization=Prioritization() if prioritized else None,
    )
    drawn = 0
    with child(write_for_ever, block):
        until(lambda: lanes.head.min() > 20, what="steps")
        first, began, turns = int(lanes.head.min()), time.monotonic(), 0
        while time.monotonic() < began + SECONDS or drawn <= 50 or turns <= 20:
            assert time.monotonic() < began + 60, f"{drawn} samples and {turns} turns of the writer in a minute"
            sample = replay.sample(16, rng, 0.4)
            assert_unstitched(sample, n, sarsa)
            replay.update_priorities(sample.lane, sample.slot, rng.exponential(size=16).astype(np.float32))
            drawn += 1
            turns = (int(lanes.head.min()) - first) // LENGTH
    block.file.close()


def test_guard_spares_the_slots_that_a_writer_is_about_to_fill() -> None:
    lanes = LaneStorage(make_spec(masked=False), 1, 32)
    blank = np.zeros((1, 2, 2), np.float32)
    lanes.begin(np.array([0]), blank, None)
    replay = Replay(lanes, guard=GUARD)
    for _ in range(100):
        none = np.array([False])
        lanes.append(np.array([0]), np.array([1]), np.ones(1, np.float32), none, none, blank, None, 0)
    replay.refresh()
    assert int(replay.low[0]) == 100 - 32 + 1 + GUARD
