"""Unrolls: what was played is what is read, no slot is ever lost; and environments that take a step to begin anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from naive import make_spec
from repertory.channels.channel import allocate
from repertory.channels.counters import Counters, WorkerStats
from repertory.environments.factory import make
from repertory.environments.stepping import Step
from repertory.environments.vectors import OneByOne, Vectorised
from repertory.errors import EnvironmentFailure
from repertory.experience.unrolls import Census, UnrollBatch, UnrollStorage, UnrollWriter
from repertory.roles.batches import UnrollBatches
from repertory.specs import EnvironmentSpec

GAMMA, ENTROPY, STATE_SIZE = 0.9, 0.25, 3


class Seen(NamedTuple):
    """What an environment shows before a tick, and whether an episode begins there."""

    observation: NDArray[Any]
    mask: NDArray[np.bool_]
    first: bool


class Done(NamedTuple):
    """What came of it: a step, or None while it was being reset."""

    action: int
    reward: float
    terminated: bool
    truncated: bool
    log_prob: float


@dataclass
class Tick:
    """All environments of a group at one time."""

    seen: list[Seen]
    state: NDArray[np.float32]
    done: list[Done | None] = field(default_factory=list)
    version: int = 0


def poisoned(
    spec: EnvironmentSpec, writers: int, depth: int, rows: int, environments: int, state: int = STATE_SIZE
) -> UnrollStorage:
    """Slots in which what was never written would show."""
    arrays = {}
    for name, item in UnrollStorage.fields(spec, writers, depth, rows, environments, state).items():
        counts = name in ("filled", "freed", "sequence", "reader", "progress")
        poison: Any = 0 if counts else np.nan if item.dtype == "float32" else 80  # no flag that there is
        arrays[name] = np.full(item.shape, poison, item.dtype)
    return UnrollStorage(spec, depth, arrays)


class Killed(Exception):
    """The writer's process ends here."""


class Group:
    """Made-up environments with next-step autoreset, their writer, and a plain list of everything that happened."""

    def __init__(self, unrolls: UnrollStorage, number: int, rng: np.random.Generator, ends: float = 0.15) -> None:
        self.unrolls, self.number, self.rng, self.ends = unrolls, number, rng, ends
        self.ticks: list[Tick] = []
        self.finished: list[list[Tick]] = []
        self.dropped = self.begun_unrolls = 0
        self.kill_in = ""
        self.writing = False
        self.start()

    def start(self) -> None:
        """A new writer, and new episodes everywhere."""
        self.writer = UnrollWriter(
            self.unrolls,
            self.number,
            begin_unroll=self._begin_unroll,
            states=self._states,
            reader=lambda: self._alive("reader", self.number % 2),
            ring=lambda: self._alive("ring", None),
            dropped=self._drop,
        )
        self.restart()

    def restart(self) -> None:
        """New episodes everywhere; what was half done counts no more."""
        count = self.unrolls.environments
        self.ticks, self.writing = [], False
        self.frames = [[self._frame()] for _ in range(count)]
        self.over = [False] * count
        self.masks = self._some_masks(count)
        self.state = self.rng.normal(size=(count, STATE_SIZE)).astype(np.float32)
        self.writer.begin(np.arange(count), self._stacks(range(count)), self.masks)

    def _begin_unroll(self) -> None:
        self.begun_unrolls += 1
        self._alive("begin_unroll", None)

    def _states(self) -> NDArray[np.float32]:
        return self._alive("states", self.state)

    def _drop(self) -> None:
        self.dropped += 1

    def _alive(self, where: str, value: Any) -> Any:
        if self.kill_in == where:
            raise Killed(where)
        return value

    def play(self) -> bool:
        """One tick, if there is a row to write; a full unroll is handed over at once."""
        if not self.writer.open():
            return False
        self.writing = True
        tick = self._look()
        self.ticks.append(tick)
        try:
            self._act(tick)
        finally:
            if len(self.ticks) == self.unrolls.rows:
                self.finished.append([*self.ticks, self._look()])
                self.ticks, self.writing = [], False
        return True

    def _look(self) -> Tick:
        environments = range(self.unrolls.environments)
        first = [len(self.frames[e]) == 1 for e in environments]
        seen = map(Seen, self._stacks(environments), self.masks.copy(), first)
        return Tick(list(seen), self.state.copy())

    def _act(self, tick: Tick) -> None:
        """Environments that are over begin anew, the others make a step."""
        rng, count = self.rng, self.unrolls.environments
        tick.version = int(rng.integers(1000))
        stepped = np.flatnonzero(~np.array(self.over))
        begun = np.flatnonzero(self.over)
        ends = [rng.random(2) < self.ends for _ in range(count)]
        tick.done = [
            None
            if self.over[e]
            else Done(
                int(rng.integers(4)),
                float(np.float32(rng.normal())),
                *map(bool, ends[e]),
                float(np.float32(rng.normal())),
            )
            for e in range(count)
        ]
        done = [tick.done[e] for e in stepped]
        for e in range(count):
            self.frames[e] = [self._frame()] if self.over[e] else [*self.frames[e], self._frame()]
        self.masks = self._some_masks(count)
        action, reward, terminated, truncated, log_prob = (
            np.array([getattr(x, name) for x in done], dtype)
            for name, dtype in zip(Done._fields, ("int64", "float32", "bool", "bool", "float32"), strict=True)
        )
        observation = (
            self._stacks(stepped) if len(stepped) else np.zeros((0, *self.unrolls.spec.observation.seen_shape))
        )
        self.writer.append(
            stepped,
            action,
            reward,
            terminated,
            truncated,
            observation,
            self.masks[stepped],
            tick.version,
            log_prob[None],
        )
        if len(begun):
            self.writer.begin(begun, self._stacks(begun), self.masks[begun])
        self.over = [x is not None and (x.terminated or x.truncated) for x in tick.done]
        self.state = rng.normal(size=self.state.shape).astype(np.float32)

    def _frame(self) -> NDArray[Any]:
        spec = self.unrolls.spec.observation
        return self.rng.integers(0, 256, spec.shape).astype(spec.dtype)

    def _some_masks(self, count: int) -> NDArray[np.bool_]:
        return self.rng.random((count, self.unrolls.spec.actions)) < 0.5

    def _stacks(self, environments: Any) -> NDArray[Any]:
        """As a frame-stacking environment shows them."""
        spec, shown = self.unrolls.spec.observation, []
        for e in environments:
            frames = self.frames[e][-spec.stack :]
            padding = np.zeros_like(frames[0]) if spec.padding == "zero" else frames[0]
            stack = [padding] * (spec.stack - len(frames)) + frames
            shown.append(np.stack(stack) if spec.stack > 1 else stack[-1])
        return np.stack(shown)


def check(batch: UnrollBatch, wanted: list[list[Tick]], spec: EnvironmentSpec) -> None:
    """The batch holds these unrolls, one group's environments beside the other's, and nothing else."""
    environments = len(wanted[0][0].seen)
    for index, ticks in enumerate(wanted):
        rows = len(ticks) - 1
        np.testing.assert_array_equal(batch.version[index], [tick.version for tick in ticks[:-1]])
        for e in range(environments):
            n = index * environments + e
            np.testing.assert_array_equal(batch.state[n], ticks[0].state[e])
            for t, tick in enumerate(ticks):
                seen = tick.seen[e]
                np.testing.assert_array_equal(batch.observation[t, n], seen.observation)
                assert batch.first[t, n] == seen.first
                if spec.masked:
                    assert batch.mask is not None
                    np.testing.assert_array_equal(batch.mask[t, n], seen.mask)
                done = tick.done[e] if t < rows else None
                assert batch.weight[t, n] == (done is not None)
                if done is not None:
                    got = (batch.action[t, n], batch.reward[t, n], batch.log_prob[t, n])
                    assert got == (done.action, done.reward, done.log_prob)
                    assert batch.discount[t, n] == np.float32(0.0 if done.terminated else GAMMA)
                elif t < rows:  # plain numbers, which spoil no sum
                    assert (batch.action[t, n], batch.reward[t, n], batch.log_prob[t, n]) == (0, 0, 0)
                    assert batch.discount[t, n] == 0.0
    assert batch.action.shape == (len(wanted[0]), len(wanted) * environments)
    assert batch.observation.dtype == spec.observation.dtype
    assert (batch.mask is not None) == spec.masked
    assert batch.entropy == np.float32(ENTROPY)


class Reader:
    """Reads slots in the order in which they were finished, and knows by itself which those are."""

    def __init__(self, unrolls: UnrollStorage, groups: list[Group]) -> None:
        self.unrolls, self.groups = unrolls, groups
        self.waiting: list[tuple[int, list[Tick]]] = []
        self.read = 0

    def look(self) -> None:
        """What was finished since the last look; and the accounts."""
        for group in self.groups:
            self.waiting += [(group.number, ticks) for ticks in group.finished]
            group.finished = []
        ready, writing = len(self.waiting), sum(group.writing for group in self.groups)
        assert self.unrolls.census() == Census(self.unrolls.count - ready - writing, ready, writing)
        assert len(self.unrolls.ready()) == ready
        for reader in (0, 1):
            own = [number for number, _ in self.waiting if number % 2 == reader]
            assert [slot // self.unrolls.depth for slot in self.unrolls.ready(reader)] == own

    def take(self, count: int) -> None:
        """The oldest few, compared and freed."""
        self.look()
        slots = self.unrolls.ready()[:count]
        if len(slots):
            batch = self.unrolls.gather(slots, GAMMA, ENTROPY, STATE_SIZE, 1)
            check(batch, [ticks for _, ticks in self.waiting[: len(slots)]], self.unrolls.spec)
            np.testing.assert_array_equal(batch.slots, slots)
            self.unrolls.free(slots)
            self.waiting = self.waiting[len(slots) :]
            self.read += len(slots)
        self.look()


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    stack=st.sampled_from([1, 4]),
    padding=st.sampled_from(["zero", "repeat"]),
    masked=st.booleans(),
    dtype=st.sampled_from(["float32", "uint8"]),
    groups=st.integers(1, 3),
    environments=st.integers(1, 3),
    depth=st.integers(1, 3),
    rows=st.integers(1, 7),
    ends=st.sampled_from([0.0, 0.1, 0.4]),
    lazy=st.sampled_from([0.5, 0.9]),
    faults=st.sampled_from([0.0, 0.15]),
)
def test_unrolls_hold_exactly_what_was_played(
    seed: int,
    stack: int,
    padding: Any,
    masked: bool,
    dtype: Any,
    groups: int,
    environments: int,
    depth: int,
    rows: int,
    ends: float,
    lazy: float,
    faults: float,
) -> None:
    rng = np.random.default_rng(seed)
    unrolls = poisoned(make_spec(stack, padding, masked, dtype), groups, depth, rows, environments)
    all_groups = [Group(unrolls, number, rng, ends) for number in range(groups)]
    reader, dropped, refused = Reader(unrolls, all_groups), 0, 0
    for _ in range(60):
        group = all_groups[int(rng.integers(groups))]
        full = sum(number == group.number for number, _ in reader.waiting) == depth
        refused += full
        assert group.play() != full  # it waits if, and only if, none of its slots is free
        reader.look()
        if rng.random() < faults:
            dropped += bool(group.ticks)
            if rng.random() < 0.5:
                group.start()
            else:
                group.writer.interrupt()
                group.restart()
            reader.look()
        if rng.random() > lazy:
            reader.take(int(rng.integers(1, 4)))
    reader.take(unrolls.count)
    assert sum(group.dropped for group in all_groups) == dropped
    assert reader.read >= (60 - refused - dropped * rows) // rows - groups


def one_group(rows: int = 3, depth: int = 2, environments: int = 2, ends: float = 0.15) -> tuple[Group, Reader]:
    """A group that has not played yet, and the reader of its unrolls."""
    group = Group(poisoned(make_spec(), 1, depth, rows, environments), 0, np.random.default_rng(0), ends)
    return group, Reader(group.unrolls, [group])


@pytest.mark.parametrize(
    ("where", "lost", "kept"), [("begin_unroll", 0, 0), ("states", 0, 0), ("reader", 1, 0), ("ring", 0, 1)]
)
def test_a_writer_that_is_killed_between_two_unrolls_loses_no_slot(where: str, lost: int, kept: int) -> None:
    group, reader = one_group()
    while len(group.ticks) < 2 and where in ("reader", "ring"):
        group.play()
    group.kill_in = where
    with pytest.raises(Killed):
        group.play()
    group.kill_in = ""
    if lost:
        group.finished = []
    group.start()
    reader.look()
    assert (group.dropped, len(reader.waiting)) == (lost, kept)
    for _ in range(20):
        group.play()
        reader.take(1)
    assert reader.read == kept + 6


@pytest.mark.parametrize("ticks", [0, 1, 2, 3, 4, 5])
def test_a_writer_replaced_half_way_drops_the_half_unroll_and_counts_it(ticks: int) -> None:
    """Of an unroll without a step nothing is lost; a full one is handed over already."""
    group, reader = one_group(rows=3, depth=3)
    assert group.writer.open()
    for _ in range(ticks):
        assert group.play()
    began = len(group.ticks)
    assert began == ticks % 3
    group.start()
    assert group.dropped == (began > 0)
    reader.look()
    for _ in range(9):
        assert group.play()
        reader.take(1)
    assert reader.read == ticks // 3 + 3


def test_a_single_slot_waits_until_it_is_freed() -> None:
    group, reader = one_group(depth=1)
    for _ in range(3):
        assert group.play()
    for _ in range(3):
        assert not group.play()
        reader.look()
    assert group.unrolls.census() == Census(free=0, ready=1, in_use=0)
    assert group.begun_unrolls == 1  # no weights are fetched for an unroll that can't begin
    reader.take(1)
    assert group.unrolls.census() == Census(free=1, ready=0, in_use=0)
    assert group.play()
    assert group.begun_unrolls == 2
    assert group.unrolls.census() == Census(free=0, ready=0, in_use=1)


def test_an_unroll_is_ready_only_when_it_is_whole() -> None:
    group, _ = one_group(environments=1, ends=0.0)
    arrays = dict(group.unrolls.arrays)

    class Watched(np.ndarray[Any, Any]):
        """Notes what a reader could see at the moment the count moves."""

        def __setitem__(self, key: Any, value: Any) -> None:
            seen.append((arrays["sequence"][0] == 1, np.isfinite(arrays["reward"][0, :3]).all(), arrays["progress"][0]))
            super().__setitem__(key, value)

    seen: list[Any] = []
    group.unrolls.filled = group.unrolls.filled.view(Watched)
    for _ in range(3):
        assert not seen
        group.play()
    assert seen == [(True, True, 0)]


def test_readers_order_unrolls_by_when_they_saw_them_then_by_sequence_then_by_slot() -> None:
    """No clock is read: writers and readers may be on different machines."""
    unrolls = poisoned(make_spec(), 3, 3, 1, 1)
    groups = [Group(unrolls, number, np.random.default_rng(0)) for number in range(3)]
    for number in (2, 2, 1):  # writer 2 owns slots 6 to 8, writer 1 slots 3 to 5
        assert groups[number].play()
    assert unrolls.ready().tolist() == [3, 6, 7]
    for number in (0, 1, 0):
        assert groups[number].play()
    assert unrolls.ready().tolist() == [3, 6, 7, 0, 1, 4], "seen later, so taken later"
    anew = UnrollStorage(unrolls.spec, 3, unrolls.arrays)
    assert anew.ready().tolist() == [0, 3, 6, 1, 4, 7], "a reader that starts anew"
    unrolls.free(np.array([3, 0]))
    assert groups[0].play()
    assert groups[0].play()
    assert unrolls.ready().tolist() == [6, 7, 1, 4, 2, 0], "filled again, it is a new one"


def test_a_full_unroll_with_an_environment_that_was_only_reset_waits_for_its_first_observation() -> None:
    unrolls = poisoned(make_spec(stack=1), 1, 1, 2, 2)
    group = Group(unrolls, 0, np.random.default_rng(0), ends=0.0)
    seen, row = np.arange(2), (np.zeros(2, bool), np.zeros(2, bool))
    frames, masks = np.zeros((2, *unrolls.spec.observation.shape)), np.ones((2, 4), bool)
    assert group.writer.open()
    group.writer.append(seen, seen, seen.astype("float32"), np.array([True, False]), row[1], frames, masks, 0)
    group.writer.append(seen[1:], seen[1:], np.ones(1, "float32"), *(x[1:] for x in row), frames[1:], masks[1:], 0)
    assert len(unrolls.ready()) == 0
    group.writer.begin(seen[:1], frames[:1] + 7, masks[:1])
    batch = unrolls.gather(unrolls.ready(), GAMMA, ENTROPY, STATE_SIZE, 1)
    assert (batch.observation[-1, 0] == 7).all()
    assert batch.first[-1].tolist() == [True, False]


def test_a_batch_stays_as_it_is_when_its_slots_are_written_again() -> None:
    group, _ = one_group(depth=1)
    for _ in range(4):
        group.play()
    slots = group.unrolls.ready()
    batch = group.unrolls.gather(slots, GAMMA, ENTROPY, STATE_SIZE, 1)
    wanted = group.finished[0]
    group.unrolls.free(slots)
    for _ in range(4):
        group.play()
    check(batch, [wanted], group.unrolls.spec)


def test_fields_say_what_is_allocated() -> None:
    fields = UnrollStorage.fields(make_spec(stack=4), 3, 2, 5, 7, 0)
    assert fields["observation"].shape == (6, 9, 7, 2, 2)
    assert fields["action"].shape == (6, 6, 7)
    assert fields["mask"].shape == (6, 6, 7, 4)
    assert "mask" not in UnrollStorage.fields(make_spec(masked=False), 3, 2, 5, 7, 0)


# Batches of unrolls.


def batches_of(group: Group, size: int, rings: list[int], reader: int = 0, most_lag: int = 0) -> UnrollBatches:
    return UnrollBatches(
        group.unrolls,
        size,
        WorkerStats(allocate(Counters("counters", 1).fields())),
        reader=reader,
        discount=GAMMA,
        state_size=STATE_SIZE,
        updates=4,
        entropy=lambda env_steps: env_steps / 100,
        ring=lambda: rings.append(1),
        most_lag=most_lag,
    )


def test_a_batch_is_the_oldest_unrolls_of_its_reader_once_there_are_enough() -> None:
    group, _ = one_group(depth=4)
    rings: list[int] = []
    batches, other = batches_of(group, 2, rings), batches_of(group, 1, rings, reader=1)
    batches.stats.played(25)
    for _ in range(4):
        group.play()
    assert batches.take() is None
    assert batches.stats.row["queue"] == 1 + 1, "stored plus one"
    while len(group.finished) < 4:
        group.play()
    assert other.take() is None
    wanted = group.finished[:2]
    batch = batches.take()
    assert batch is not None
    check(batch, wanted, group.unrolls.spec)
    assert (float(batch.entropy), batch.updates) == (0.25, 4)
    assert (batches.stats.row["queue"], len(group.unrolls.ready()), rings) == (4 + 1, 4, [])
    batches.give_back(batch)
    again = batches.take()
    assert again is not None
    np.testing.assert_array_equal(again.slots, batch.slots)
    batches.release(batch, None)
    assert (len(group.unrolls.ready()), rings) == (2, [1])


def test_unrolls_of_too_old_weights_are_dropped_and_counted() -> None:
    group, _ = one_group(depth=4)
    rings: list[int] = []
    batches = batches_of(group, 2, rings, most_lag=10)
    while len(group.finished) < 4:
        group.play()
    version, slots = group.unrolls.arrays["version"], group.unrolls.ready()
    version[slots, :3] = 100
    version[slots, 3] = 0  # of the last row nothing but the observation counts
    version[slots[1], 1] = 89  # one old step is enough
    version[slots[2], 1] = 90
    batches.stats.learned(100)
    batch = batches.take()
    assert batch is not None
    np.testing.assert_array_equal(batch.slots, [slots[0], slots[2]])
    assert (int(batches.stats.row["dropped_stale"]), rings) == (1, [1])
    np.testing.assert_array_equal(np.sort(group.unrolls.ready()), np.sort(slots[[0, 2, 3]]))


# Environments that take a step to begin anew.


class Staircase(gym.Env[Any, Any]):
    """Observations name the environment, the episode and the step in it; episode e ends after 1 + e % 3 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, number: int) -> None:
        self.number, self.episode, self.at = number, -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        self.episode, self.at = (0 if seed is not None else self.episode + 1), 0
        return self._look()

    def step(self, action: int) -> Any:
        self.at += 1
        over = self.at == 1 + (self.episode + self.number) % 3
        observation, info = self._look()
        return (
            observation,
            10.0 * self.at + action,
            over and self.episode % 2 == 0,
            over and self.episode % 2 == 1,
            info,
        )

    def _look(self) -> Any:
        legal = np.array([self.at % 2 == 0, True])
        return np.array([self.number, self.episode, self.at], np.float32), {"action_mask": legal}


def test_an_ended_environment_spends_exactly_one_step_being_reset() -> None:
    envs = OneByOne("Staircase", Staircase, 3, 0, next_step_autoreset=True)
    for _ in range(2):  # the second time in the middle of everything
        seen, _ = envs.reset([0, 0, 0])
        np.testing.assert_array_equal(seen, [[e, 0, 0] for e in range(3)])
        expected = [(0, 0, False)] * 3  # episode, step, over
        for call in range(17):
            action = call % 2
            step = envs.step(np.full(3, action))
            for e, (episode, at, over) in enumerate(expected):
                number, ends = (at, False) if over else (at + 1, at + 1 == 1 + (episode + e) % 3)
                now = (episode + 1, 0, False) if over else (episode, number, ends)
                assert (step.stepped[e], step.begun[e]) == (not over, over)
                assert step.reward[e] == (0.0 if over else 10.0 * now[1] + action)
                assert step.terminated[e] == (ends and now[0] % 2 == 0)
                assert step.truncated[e] == (ends and now[0] % 2 == 1)
                np.testing.assert_array_equal(step.observation[e], [e, now[0], now[1]])
                np.testing.assert_array_equal(step.onward()[0][e], [e, now[0], now[1]])
                assert step.mask is not None
                np.testing.assert_array_equal(step.mask[e], [now[1] % 2 == 0, True])
                expected[e] = now
            if not step.begun.any() and not (step.terminated | step.truncated).any():
                assert step.no_boundary


def test_an_environment_is_not_blamed_for_the_steps_it_was_reset_in() -> None:
    class Fails(Staircase):
        def step(self, action: int) -> Any:
            if self.episode == 3:
                raise ValueError("x")
            return super().step(action)

    envs = OneByOne("Fails", Fails, 1, 0, next_step_autoreset=True)
    envs.reset([5])
    for _ in range(9):  # 1 + 2 + 3 steps, and three calls to begin anew
        envs.step(np.zeros(1, int))
    with pytest.raises(EnvironmentFailure, match=r"seed 5, step 7\) raised ValueError: x"):
        envs.step(np.zeros(1, int))


def assert_same_step(step: Step, other: Any, before: NDArray[np.bool_]) -> None:
    """Ours, and what Gymnasium returned; `before` says where an episode had ended."""
    observation, reward, terminated, truncated, _ = other
    np.testing.assert_array_equal(step.observation, observation)
    np.testing.assert_array_equal(step.first, observation)
    np.testing.assert_array_equal(step.reward, reward.astype(np.float32))
    np.testing.assert_array_equal(step.terminated, terminated)
    np.testing.assert_array_equal(step.truncated, truncated)
    np.testing.assert_array_equal(step.begun, before)
    np.testing.assert_array_equal(step.stepped, ~before)


def test_next_step_autoreset_is_gymnasiums_mode_on_cartpole() -> None:
    options, seeds, rng = {"max_episode_steps": 15}, [3, 1, 4], np.random.default_rng(0)
    build: Callable[[], Any] = lambda: gym.make("CartPole-v1", **options)  # noqa: E731
    theirs = SyncVectorEnv([build] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
    ours = make("CartPole-v1", 3, options=options, next_step_autoreset=True)
    assert isinstance(ours, OneByOne)
    np.testing.assert_array_equal(ours.reset(seeds)[0], theirs.reset(seed=seeds)[0])
    before, ends = np.zeros(3, bool), np.zeros(2, int)
    for _ in range(150):
        actions = rng.integers(0, 2, 3)
        step, other = ours.step(actions), theirs.step(actions)
        assert_same_step(step, other, before)
        before = step.terminated | step.truncated
        ends += step.terminated.sum(), step.truncated.sum()
    assert (ends > 0).all()


@pytest.mark.parametrize("count", [1, 3, 16])
def test_whatever_steps_them_environments_take_a_call_of_their_own_to_begin(
    count: int,
) -> None:
    envs = make("CartPole-v1", count, options={"max_episode_steps": 7}, next_step_autoreset=True)
    assert isinstance(envs, Vectorised) == (count == 16)
    envs.reset(range(count))
    over, rng, begun = np.zeros(count, bool), np.random.default_rng(0), 0
    for _ in range(40):
        step = envs.step(rng.integers(0, 2, count))
        np.testing.assert_array_equal(step.begun, over)
        np.testing.assert_array_equal(step.stepped, ~over)
        over, begun = step.terminated | step.truncated, begun + step.begun.sum()
    assert begun >= 4 * count
