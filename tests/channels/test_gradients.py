"""Gradients: servers take each once, as it was pushed; replicas all get the same in every round."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from machines import CUTS, Machine, Me, Pair, assert_same
from repertory.agents.compression import make_compression
from repertory.channels.channel import WRITER, Bells
from repertory.channels.gradients import AllGather, Gathering, GradientSlots

WORKERS, SERVERS = 3, 2


def make() -> GradientSlots:
    payloads = [make_compression("int8", 6).fields, make_compression("none", 4).fields]
    return GradientSlots("gradients", lambda: payloads, WORKERS)


def payloads(number: int) -> list[dict[str, Any]]:
    scale = np.full(1, number, np.float32)
    return [{"code": np.full(6, number % 100, np.int8), "scale": scale}, {"value": np.full(4, number, np.float32)}]


MOVES = st.lists(
    st.tuples(st.sampled_from(["push", "push", "take", "forth", "back"]), st.integers(0, 5), CUTS), max_size=80
)


@settings(max_examples=120)
@given(moves=MOVES)
def test_each_server_takes_each_gradient_once_as_it_was_pushed(moves: list[tuple[str, int, int | None]]) -> None:
    pair, number = Pair(make), 0
    pushed: list[list[int]] = [[] for _ in range(WORKERS)]
    taken: list[list[list[int]]] = [[[] for _ in range(WORKERS)] for _ in range(SERVERS)]

    def take(server: int) -> None:
        reader = pair.far.channel.reader(Me(server))
        workers = reader.arrived()
        found = {}
        for worker in workers.tolist():
            version, arrays = reader.payload(worker)
            found[worker] = version - 1000 * server
            for name, array in payloads(found[worker])[server].items():
                assert_same(arrays[name], array)
        reader.take(workers)
        for worker, gradient in found.items():
            taken[server][worker].append(gradient)

    def check() -> None:
        for server, worker in itertools.product(range(SERVERS), range(WORKERS)):
            got = taken[server][worker]
            assert got == pushed[worker][: len(got)], "each once, in order"
            assert len(got) >= len(pushed[worker]) - 1, "no worker pushes before all have taken"

    for move, which, cut in moves:
        if move in ("forth", "back"):
            pair.forth(cut) if move == "forth" else pair.back(cut)
        elif move == "take":
            pair.read(lambda: take(which % SERVERS), cut)  # noqa: B023
        else:
            worker, number = which % WORKERS, number + 1
            writer, versions = pair.near.channel.writer(Me(worker)), [number, 1000 + number]
            ahead = len(pushed[worker]) - min(map(len, pushed))
            assert writer.ahead_of_slowest == ahead
            if not writer.free:
                continue
            given = payloads(number)
            if pair.write(lambda: writer.push(versions, given, wake_workers=True), cut)[0]:  # noqa: B023
                pushed[worker].append(number)
        check()
    pair.settle()
    for server in range(SERVERS):
        take(server)
    check()
    assert all(taken[server] == pushed for server in range(SERVERS))
    pair.settle()
    assert all(pair.near.channel.writer(Me(worker)).free for worker in range(WORKERS))


def test_mirror_of_gradients_returns_the_bytes_of_those_that_were_pushed() -> None:
    pair, rung = Pair(make), []
    pair.near.channel.bells = Bells(lambda: rung.append("servers"), lambda: rung.append("workers"))
    each = 6 + 4 + 16 + 2 * 8 + 8
    for worker in (0, 2):
        pair.near.channel.writer(Me(worker)).push([1, 1], payloads(1), wake_workers=worker == 2)
    assert rung == ["servers", "servers", "workers"]
    assert (pair.forth(rows=[0, 1]), pair.forth(), pair.forth()) == (each, each, 0)
    reader = pair.far.channel.reader(Me(1))
    reader.take(reader.arrived())
    assert (pair.back(), pair.back()) == (16, 0)


def test_servers_on_several_machines_take_nothing_of_each_other_back() -> None:
    pair = Pair(make)
    pair.near.plain["taken"][0] = 5
    pair.far.plain["taken"][1] = 3
    assert pair.back() == 3 * 8
    assert pair.near.plain["taken"].tolist() == [[5] * WORKERS, [3] * WORKERS]


REPLICAS, PAUSE = 3, -1


def make_gather(replicas: int = REPLICAS) -> AllGather:
    return AllGather("gradients", lambda: make_compression("none", 4).fields, replicas)


class Replica:
    """Submits what no other replica submits, and keeps what it got in each round."""

    def __init__(self, machine: Machine[AllGather], rank: int, epoch: int = 1) -> None:
        self.machine, self.rank, self.epoch = machine, rank, epoch
        self.waiting, self.submissions = False, 0
        self.got: list[list[int]] = []
        self.port: Gathering = machine.channel.replica(Me(rank, epoch))

    def step(self) -> None:
        """Submit, or take what all have submitted."""
        if not self.waiting:
            self.submissions += 1
            value = 10_000 * self.epoch + 1000 * self.rank + self.submissions
            self.port.submit({"value": np.full(4, value, np.float32)})
            self.waiting = True
        self.take()

    def take(self) -> bool:
        """Whether all were there."""
        parts = self.port.poll()
        if parts is None:
            return False
        assert all(len(set(part["value"].tolist())) == 1 for part in parts), "no replica sees half a write"
        self.got.append([int(part["value"][0]) for part in parts])
        assert all(value // 10_000 == self.epoch for value in self.got[-1]), "of an earlier start"
        self.waiting = False
        return True

    def settle(self) -> None:
        """As before a pause, after all have halted."""
        if self.waiting and not self.take():
            self.port.withdraw()
            self.waiting = False


def assert_all_got_the_same(replicas: list[Replica]) -> None:
    shortest = min(len(replica.got) for replica in replicas)
    for replica in replicas:
        assert replica.got[:shortest] == replicas[0].got[:shortest]
        assert len(replica.got) <= shortest + 1
        own = [parts[replica.rank] for parts in replica.got]
        assert len(set(own)) == len(own), "nothing counts twice"


@given(st.lists(st.integers(PAUSE, REPLICAS - 1), max_size=120))
def test_all_replicas_get_the_same_in_every_round(order: list[int]) -> None:
    machine = Machine(make_gather())
    replicas = [Replica(machine, rank) for rank in range(REPLICAS)]
    for turn in order:
        if turn != PAUSE:
            replicas[turn].step()
            continue
        for replica in replicas:
            replica.port.halt()
        for replica in replicas:
            replica.settle()
        assert len({len(replica.got) for replica in replicas}) == 1, "a pause finds all at the same round"
    assert_all_got_the_same(replicas)


class Machines:
    """One for each replica; each mirrors its own row to the others."""

    def __init__(self) -> None:
        self.all = [Machine(make_gather()) for _ in range(REPLICAS)]

    def mirror(self, row: int, to: int, cut: int | None = None) -> int | None:
        source, target = self.all[row], self.all[to]
        work = lambda: source.channel.mirror(source.plain, target.arrays, WRITER, rows=[row])  # noqa: E731
        return None if row == to else target.act(WRITER, work, cut)[1]  # type: ignore[no-any-return]

    def mirror_all(self) -> None:
        for row, to in itertools.permutations(range(REPLICAS), 2):
            self.mirror(row, to)
            assert self.mirror(row, to) == 0


GATHER_MOVES = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "mirror", "mirror", "mirror", "pause", "restart"]),
        st.integers(0, REPLICAS - 1),
        st.integers(0, REPLICAS - 1),
        CUTS,
    ),
    max_size=100,
)


@settings(max_examples=200)
@given(moves=GATHER_MOVES, seed=st.integers(0, 999))
def test_replicas_on_several_machines_get_the_same_in_every_round(
    moves: list[tuple[str, int, int, int | None]], seed: int
) -> None:
    """A replica that is killed is started again with all others, which enter in any order."""
    machines, rng, epoch = Machines(), np.random.default_rng(seed), 1
    replicas = [Replica(machines.all[rank], rank) for rank in range(REPLICAS)]
    for move, one, other, cut in moves:
        killed = False
        if move == "mirror":
            machines.mirror(one, other, cut)
        elif move == "step":
            killed = not machines.all[one].act(WRITER, replicas[one].step, cut)[0]
        elif move == "pause":
            pause(machines, replicas, rng)
        if move == "restart" or killed:
            epoch += 1
            assert_all_got_the_same(replicas)
            for rank in rng.permutation(REPLICAS).tolist():
                replicas[rank] = Replica(machines.all[rank], rank, epoch)
                for ready in replicas:
                    if ready.epoch == epoch and rng.random() < 0.5:
                        ready.step()
                machines.mirror(*rng.integers(REPLICAS, size=2).tolist(), int(rng.integers(12)))
    assert_all_got_the_same(replicas)
    before = len(replicas[0].got)
    for _ in range(4):
        for replica in replicas:
            replica.step()
        machines.mirror_all()
    assert len(replicas[0].got) > before, "it goes on"
    assert_all_got_the_same(replicas)


def pause(machines: Machines, replicas: list[Replica], rng: np.random.Generator) -> None:
    """All halt, and know of it before they go on; a withdrawn round may be submitted to again before that is told."""
    for replica in replicas:
        replica.port.halt()
    machines.mirror_all()
    for replica in replicas:
        replica.settle()
    assert len({len(replica.got) for replica in replicas}) == 1
    if rng.random() < 0.5:
        machines.mirror_all()


def test_halted_replica_waits_for_the_others_of_its_own_start() -> None:
    machine, waits = Machine(make_gather(2)), []

    def wait() -> bool:
        waits.append(len(waits))
        if len(waits) == 3:
            machine.channel.replica(Me(1, 2)).halt()
        return len(waits) < 50

    machine.channel.replica(Me(1, 1)).halt()
    machine.channel.replica(Me(0, 2, wait)).halt()
    assert len(waits) == 3


@pytest.mark.parametrize("order", list(itertools.permutations(range(REPLICAS))))
def test_rows_of_an_earlier_start_never_count(order: tuple[int, ...]) -> None:
    machine = Machine(make_gather())
    replicas = [Replica(machine, rank) for rank in range(REPLICAS)]
    for _ in range(3):
        for replica in replicas:
            replica.step()
    assert replicas[0].got
    entered: list[Replica] = []
    for rank in order:
        entered.append(Replica(machine, rank, 2))
        for replica in entered:
            replica.step()
        assert len(entered) == REPLICAS or not any(replica.got for replica in entered)
    for replica in entered:
        replica.take()
    assert [replica.got for replica in entered] == [[[20_001, 21_001, 22_001]]] * REPLICAS


@pytest.mark.parametrize("cut", range(8))
def test_replica_of_an_earlier_start_takes_nothing_of_a_later_one(cut: int) -> None:
    """It still waits on another machine when the others have begun anew."""
    pair = Pair(lambda: make_gather(2))
    old = Replica(pair.far, 0)
    Replica(pair.near, 1)
    pair.forth(rows=[1])
    old.step()
    Replica(pair.near, 1, epoch=2).step()
    pair.forth(cut, rows=[1])
    assert not old.take()
    pair.forth(rows=[1])
    assert not old.take()
    new = Replica(pair.far, 0, epoch=2)
    new.step()
    assert new.got == [[20_001, 21_001]]


def test_mirror_of_replicas_returns_the_bytes_of_the_rounds_that_are_new() -> None:
    pair = Pair(make_gather)
    replica = Replica(pair.near, 1, epoch=0)
    counts, payload = 4 * 8, 16
    assert pair.forth() == 0
    replica.step()
    assert (pair.forth(rows=[0, 2]), pair.forth(), pair.forth()) == (0, payload + counts, 0)
    replica.port.halt()
    replica.port.withdraw()
    replica.waiting = False
    replica.step()
    assert (pair.forth(), pair.forth(), pair.back()) == (2 * payload + counts, 0, 0)
    assert_same(pair.far.plain["value"][1, 0], np.full(4, 1002.0))
    Replica(pair.near, 1, epoch=1)
    assert (pair.forth(), pair.forth()) == (2 * payload + counts, 0)
