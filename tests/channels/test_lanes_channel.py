"""`Lanes`: those that follow hold each step once, in order and whole, and no episode is stitched together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from machines import CUTS, Machine, Me, Pair, assert_same
from naive import make_spec
from repertory.channels.channel import SILENT, Bells
from repertory.channels.lanes import NEVER, Lanes, LaneWriter
from repertory.experience.lanes import FINAL, TERMINATED, TRUNCATED, LaneStorage
from repertory.experience.replay import Prioritization, Replay

STEP_BYTES = {"observation": 16, "mask": 4, "action": 1, "reward": 4, "flags": 1, "version": 4, "value": 8}
BEGIN_BYTES = {"observation": 16, "mask": 4, "age": 4}


class Stored(NamedTuple):
    """A step as it lies in a lane, with everything that a reader makes of it."""

    version: int
    observation: NDArray[Any]
    after: NDArray[Any]
    after_mask: NDArray[Any]
    numbers: list[float]
    ends: int


def stored(lanes: LaneStorage, lane: int, slot: int) -> Stored | None:
    """None if no step was taken there."""
    at, after = (np.array([lane]), np.array([slot])), (np.array([lane]), np.array([slot + 1]))
    index, after_index = lanes.index(*at)[0], lanes.index(*after)[0]
    flags = int(lanes.flags.take(index))
    if flags & FINAL:
        return None
    values = lanes.arrays["value"].reshape(2, -1)[:, index].tolist()
    return Stored(
        int(lanes.version.take(index)),
        lanes.stacks(*at, lanes.index(*at))[0].copy(),
        lanes.stacks(*after, lanes.index(*after))[0].copy(),
        lanes.arrays["mask"].reshape(-1, lanes.spec.actions)[after_index].copy(),
        [float(lanes.action.take(index)), float(lanes.reward.take(index)), *values],
        flags,
    )


def make(count: int = 2, length: int = 9, stack: int = 1, **options: Any) -> Lanes:
    return Lanes("experience", make_spec(stack, "zero"), count, count * (length - 2), values=True, **options)


class Actor:
    """Plays made-up episodes in all lanes of a machine, and keeps every step that was committed."""

    def __init__(self, machine: Machine[Lanes], rng: np.random.Generator) -> None:
        self.machine, self.rng, self.count = machine, rng, machine.channel.count
        self.seen = self.version = 0
        self.steps: list[dict[int, Stored]] = [{} for _ in range(self.count)]
        self.read = [0] * self.count
        self.start()

    def start(self) -> None:
        """A new writer, on what an earlier one has left."""
        self.port: LaneWriter = self.machine.channel.writer(Me())
        self.playing = np.zeros(self.count, bool)
        self.port.storage.interrupt()

    def frames(self, count: int) -> NDArray[Any]:
        """All different; only the newest frame of a stack is stored."""
        self.seen += count
        stack, shape = self.machine.channel.spec.observation.stack, (count, 2, 2)
        frames = np.broadcast_to(np.arange(self.seen - count, self.seen).reshape(-1, 1, 1), shape).astype(np.float32)
        return np.repeat(frames[:, None], stack, axis=1) if stack > 1 else frames

    def masks(self, count: int) -> NDArray[np.bool_]:
        return self.rng.random((count, 4)) < 0.5

    def play(self) -> None:
        """In each lane an episode begins or goes on, or nothing happens."""
        busy = self.rng.random(self.count) < 0.8
        begin, go = np.flatnonzero(busy & ~self.playing), np.flatnonzero(busy & self.playing)
        if len(begin):
            self.port.storage.begin(begin, self.frames(len(begin)), self.masks(len(begin)))
            self.playing[begin] = True
        if len(go):
            self.version += 1
            over, cut = self.rng.random((2, len(go))) < 0.12
            reward, values = self.rng.normal(size=len(go)).astype(np.float32), self.rng.normal(size=(2, len(go)))
            told = self.frames(len(go)), self.masks(len(go)), self.version, values.astype(np.float32)
            self.port.storage.append(go, self.rng.integers(0, 4, len(go)), reward, over, cut, *told)
            self.playing[go[over | cut]] = False

    def take_down(self) -> None:
        """What is committed by now; the last step may have been truncated since."""
        lanes = LaneStorage(self.machine.channel.spec, self.count, self.machine.channel.length, plain(self.machine))
        for lane, head in enumerate(lanes.head.tolist()):
            for slot in range(max(self.read[lane] - 2, 0, head - lanes.length + 2), head):
                if (step := stored(lanes, lane, slot)) is not None:
                    self.steps[lane].setdefault(step.version, step)
                    self.steps[lane][step.version] = self.steps[lane][step.version]._replace(ends=step.ends)
            self.read[lane] = head


def plain(machine: Machine[Lanes]) -> dict[str, NDArray[Any]]:
    return {name: array for name, array in machine.plain.items() if name not in ("shift", "wake_at", "priorities")}


def check(machine: Machine[Lanes], actor: Actor, lane: int) -> list[int]:
    """Every step that a reader may take is one that was written, and is followed by what followed it; returns them."""
    lanes: LaneStorage = machine.channel.reader().storage
    head, order = int(lanes.head[lane]), list(actor.steps[lane])
    first = max(head + 2 - lanes.length, 0)
    first += lanes.spec.observation.stack - 1 if first else 0
    assert int(lanes.start[lane]) <= head
    found: list[int] = []
    before: Stored | None = None
    for slot in range(first, head):
        step = stored(lanes, lane, slot)
        if step is None:
            assert before is None or before.ends, "a step that did not end is followed by none"
            before = None
            continue
        wanted = actor.steps[lane][step.version]
        for one, other in zip(step[1:5], wanted[1:5], strict=True):
            assert_same(one, other)
        assert step.ends & TERMINATED == wanted.ends & TERMINATED
        assert step.ends & TRUNCATED or not wanted.ends & TRUNCATED or slot == head - 1
        if before is not None:
            assert not before.ends, "after an end there is a final observation"
            assert order.index(step.version) == order.index(before.version) + 1, "stitched"
        assert not found or step.version > found[-1], "twice, or out of order"
        found.append(step.version)
        before = step
    return found


MOVES = ["play", "play", "play", "play long", "mirror", "mirror", "interrupt"]


@settings(max_examples=120)
@given(
    count=st.integers(1, 3),
    length=st.integers(7, 14),
    stack=st.sampled_from([1, 3]),
    moves=st.lists(st.tuples(st.sampled_from(MOVES), CUTS), max_size=40),
    seed=st.integers(0, 999),
)
def test_lanes_that_follow_hold_each_step_once_in_order_and_unstitched(
    count: int, length: int, stack: int, moves: list[tuple[str, int | None]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pair = Pair(lambda: make(count, length, stack))
    actor, gone, killed = Actor(pair.near, rng), False, False
    for move, cut in moves:
        if move == "mirror":
            killed |= pair.forth(cut) is None
        elif move == "interrupt":
            pair.write(actor.start, cut)
            for _ in range(int(rng.integers(3))):  # no other writer has taken its place yet
                pair.forth()
                actor.take_down()
            pair.write(actor.start)
        else:
            for _ in range(1 if move == "play" else int(rng.integers(1, 3 * length))):
                if not pair.write(actor.play, cut)[0]:
                    pair.write(actor.start)
                actor.take_down()
        actor.take_down()
        heads = pair.near.plain["head"] - pair.far.plain["head"] + pair.far.plain["shift"]
        gone |= bool((heads > length - 2).any())
        for lane in range(count):
            check(pair.far, actor, lane)
    pair.settle()
    for lane in range(count):
        check(pair.far, actor, lane)
        if not gone or not killed:  # a mirror that is killed while it leaves steps out may leave out another
            assert_newest(pair, actor, lane)
    if not gone:
        assert_equal_slots(pair)


def assert_newest(pair: Pair[Lanes], actor: Actor, lane: int) -> None:
    """The newest steps are the same; ends that one side has more take up room of the oldest."""
    copied, written = check(pair.far, actor, lane), check(pair.near, actor, lane)
    newest = min(len(copied), len(written))
    assert copied[len(copied) - newest :] == written[len(written) - newest :]


def assert_equal_slots(pair: Pair[Lanes]) -> None:
    """Every slot in the ring, bit for bit."""
    near, far = pair.near.plain, pair.far.plain
    for name in ("head", "start"):
        assert_same(far[name], near[name])
    for lane, head in enumerate(near["head"].tolist()):
        at = np.arange(max(head + 2 - pair.near.channel.length, 0), head) % pair.near.channel.length
        steps = (near["flags"][lane, at] & FINAL) == 0
        for name in ("observation", "flags", "age", "mask"):
            assert_same(far[name][lane, at], near[name][lane, at])
        for name in ("action", "reward", "version"):
            assert_same(far[name][lane, at[steps]], near[name][lane, at[steps]])
        assert_same(far["value"][:, lane, at[steps]], near["value"][:, lane, at[steps]])


@settings(max_examples=30)
@given(
    stack=st.sampled_from([1, 3]),
    moves=st.lists(st.tuples(st.integers(1, 120), st.integers(1, 20), st.integers(0, 8)), max_size=15),
    seed=st.integers(0, 999),
)
def test_actor_may_go_round_while_its_lanes_are_copied(
    stack: int, moves: list[tuple[int, int, int]], seed: int
) -> None:
    pair = Pair(lambda: make(2, 9, stack))
    actor = Actor(pair.near, np.random.default_rng(seed))

    def play(steps: int) -> None:
        for _ in range(steps):
            actor.play()
            actor.take_down()

    for looks, meanwhile, before in moves:
        play(before)
        pair.forth_while(looks, lambda: play(meanwhile))  # noqa: B023
        for lane in range(2):
            check(pair.far, actor, lane)
    pair.settle()
    for lane in range(2):
        assert_newest(pair, actor, lane)


def test_lane_that_went_round_goes_on_with_what_is_still_there() -> None:
    """The episode that ran before ends as truncated; the steps whose frames are gone are left out."""
    pair = Pair(lambda: make(1, 9, stack=3))
    storage, actor = pair.near.channel.writer(Me()).storage, Actor(pair.near, np.random.default_rng(0))
    lane, none = np.array([0]), np.array([False])
    storage.begin(lane, actor.frames(1), actor.masks(1))

    def play(steps: int) -> None:
        for _ in range(steps):
            actor.version += 1
            one = np.ones(1, np.float32)
            storage.append(lane, np.array([1]), one, none, none, actor.frames(1), actor.masks(1), actor.version, None)
            actor.take_down()

    play(4)
    pair.forth()
    play(10)
    pair.forth()
    assert check(pair.far, actor, 0) == [10, 11, 12, 13, 14]
    assert (pair.far.plain["flags"][0, 4:7] == FINAL).all(), "the end, and two frames"


@pytest.mark.parametrize("cut", range(4))
def test_lanes_may_be_copied_while_their_episodes_are_being_interrupted(cut: int) -> None:
    pair = Pair(lambda: make(1, 20))
    actor = Actor(pair.near, np.random.default_rng(1))
    while pair.near.plain["head"][0] < 3 or not actor.playing[0]:
        actor.play()
    pair.write(actor.start, cut)  # the writer that interrupts them is killed
    for _ in range(2):
        pair.forth()
        actor.take_down()
        check(pair.far, actor, 0)
    pair.write(actor.start)
    actor.take_down()
    pair.settle()
    assert check(pair.far, actor, 0) == list(actor.steps[0])
    assert_equal_slots(pair)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("cut", [*range(14), None])
def test_restart_of_lanes_that_follow_ends_their_episodes_and_doubles_no_step(cut: int | None, both: bool) -> None:
    pair = Pair(lambda: make(2, 40, stack=3))
    actor = Actor(pair.near, np.random.default_rng(4))

    def play(steps: int) -> None:
        for _ in range(steps):
            actor.play()
            actor.take_down()

    play(8)
    pair.forth()
    play(2)
    pair.far.channel.restart()
    if both:
        pair.near.channel.restart()
        actor.start()
    play(6)
    pair.forth(cut)
    assert all(check(pair.far, actor, lane) for lane in range(2))
    pair.settle()
    for lane in range(2):
        found, written = check(pair.far, actor, lane), list(actor.steps[lane])
        assert set(found) <= set(written)
        assert len(found) >= len(written) - (0 if cut is None else 2), "only a mirror that is cut off leaves a step out"


def test_lanes_of_a_machine_that_begins_anew_go_on_behind_those_that_are_there() -> None:
    rng, pair = np.random.default_rng(0), Pair(lambda: make(2, 20))
    actor = Actor(pair.near, rng)
    for _ in range(10):
        actor.play()
    pair.forth()
    before = pair.far.plain["head"].copy()
    for array in pair.near.plain.values():
        array[...] = 0
    anew = Actor(pair.near, rng)
    anew.version = anew.seen = 1000
    for _ in range(6):
        anew.play()
        pair.forth()
    assert (pair.far.plain["head"] > before + 2).all()
    for lane in range(2):
        steps = [stored(pair.far.channel.storage(), lane, slot) for slot in range(int(pair.far.plain["head"][lane]))]
        versions = [step.version for step in steps if step is not None]
        assert versions == sorted(versions)
        last = next(index for index, step in enumerate(steps) if step is not None and step.version > 1000)
        assert steps[last - 1] is None, "what ran before has ended"


def test_mirror_returns_the_bytes_of_what_began_and_of_each_step() -> None:
    pair = Pair(lambda: make(2, 20))
    storage, actor = pair.near.channel.writer(Me()).storage, Actor(pair.near, np.random.default_rng(0))
    every, none = np.arange(2), np.zeros(2, bool)
    assert pair.forth() == 0
    storage.begin(every, actor.frames(2), actor.masks(2))
    assert pair.forth() == 0, "no step yet"
    for _ in range(3):
        seen, one = (actor.frames(2), actor.masks(2)), np.ones(2, np.float32)
        storage.append(every, every, one, none, none, *seen, 1, np.ones((2, 2)))
    assert pair.forth(rows=[1]) == 3 * sum(STEP_BYTES.values()) + sum(BEGIN_BYTES.values())
    assert pair.far.plain["head"].tolist() == [0, 3]
    assert pair.forth() == 3 * sum(STEP_BYTES.values()) + sum(BEGIN_BYTES.values())
    assert pair.forth() == 0
    assert_equal_slots(pair)


def test_readers_arrays_travel_back() -> None:
    pair, rung = Pair(lambda: make(2, 10, prioritized=True)), []
    pair.near.channel.bells = Bells(lambda: rung.append(1), SILENT.writers)
    writer, reader = pair.near.channel.writer(Me()), pair.far.channel.reader()
    for wake_at, rings in ((None, 0), (100, 0), (99, 1)):
        pair.read(lambda: reader.wake_at(wake_at))  # noqa: B023
        assert pair.back() == 8
        assert pair.back() == 0
        writer.wake_reader(99)
        assert len(rung) == rings
    assert pair.near.plain["wake_at"][0] == 99 < NEVER
    leaves = reader.priorities()
    assert leaves is not None
    leaves[3] = 0.5
    assert pair.back() == leaves.nbytes
    assert pair.near.plain["priorities"][0, 3] == 0.5


@pytest.mark.parametrize("prioritized", [False, True])
def test_replay_of_lanes_that_follow_samples_only_whole_steps(prioritized: bool) -> None:
    """A mirror is cut off after any number of writes, and the replay samples meanwhile."""
    rng, pair = np.random.default_rng(0), Pair(lambda: make(2, 24))
    actor = Actor(pair.near, rng)
    lanes = pair.far.channel.reader().storage
    replay = Replay(lanes, guard=1, prioritization=Prioritization() if prioritized else None)
    drawn = 0
    for cut in range(200):
        for _ in range(int(rng.integers(1, 9)) if cut % 10 else 60):
            actor.play()
            actor.take_down()
        pair.forth(cut % 60)
        replay.refresh()
        if len(replay) < 4:
            continue
        sample = replay.sample(4, rng)
        for row in range(4):
            step = actor.steps[int(sample.lane[row])][int(sample.version[row])]
            assert_same(sample.observation[row], step.observation)
            assert_same(sample.next_observation[row], step.after)
            assert [float(sample.action[row]), float(sample.reward[row])] == step.numbers[:2]
        drawn += 1
    assert drawn > 130


def test_checkpoint_and_restart_keep_the_steps_and_end_the_episodes() -> None:
    rng, machine = np.random.default_rng(0), Machine(make(2, 30, prioritized=True))
    actor = Actor(machine, rng)
    for _ in range(20):
        actor.play()
    actor.take_down()
    other = Machine(make(2, 30, prioritized=True))
    other.channel.load_state(machine.channel.state())
    machine.channel.restart()
    for lane in range(2):
        assert check(other, actor, lane) == check(machine, actor, lane) == list(actor.steps[lane])
    assert machine.channel.metrics() == {"replay_size": int(machine.plain["head"].sum())}
    assert_same(machine.plain["start"], machine.plain["head"])
