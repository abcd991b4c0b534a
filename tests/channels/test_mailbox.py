"""Mailboxes: every reply goes to its asker and is to its last request; a side that is killed changes no state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from machines import CUTS, Killed, Machine, Me, Pair, assert_same
from repertory.channels.channel import READER, WRITER, Bells
from repertory.channels.mailbox import (
    Episodes,
    EvaluationMailbox,
    InferenceAsker,
    InferenceMailbox,
    InferenceReply,
    InferenceRequest,
    InferenceServerPort,
)
from repertory.specs import EnvironmentSpec, ObservationSpec, Part

SPEC = EnvironmentSpec(ObservationSpec((3,), "float32", (Part("number", 3),)), actions=4, masked=True)
ENVIRONMENTS, STATE = 2, 2


def make(askers: int = 2) -> InferenceMailbox:
    return InferenceMailbox("inference", SPEC, askers=askers, environments=ENVIRONMENTS, state_size=STATE)


def echo(request: InferenceRequest) -> InferenceReply:
    """Replies with the contents of the request; observations add up from the episode's first step on."""
    first = request.observation[:, 0]
    state = np.where(request.first[:, None], 0.0, request.state) + first[:, None]
    assert request.mask is not None
    assert_same(request.mask.sum(axis=1), first.astype(int) % 4)
    return InferenceReply(first.astype(int), request.observation[None, :, 1], state.astype(np.float32))


def serve(port: InferenceServerPort, version: int = 7) -> list[int]:
    """Reply to all requests that wait."""
    if waiting := port.waiting():
        request, numbers = port.read(waiting)
        port.reply(waiting, numbers, echo(request), version)
    return waiting


def ask(port: InferenceAsker, asker: int, number: float, server: int = 0, *, first: bool = False) -> None:
    seen = np.full((ENVIRONMENTS, 3), number, np.float32)
    mask = np.arange(4)[None].repeat(ENVIRONMENTS, 0) < int(number) % 4
    port.ask(asker, server, seen, mask, np.full(ENVIRONMENTS, first))


class Asker:
    """Asks again when it has its reply; a new one begins its episodes anew."""

    def __init__(self, machine: Machine[InferenceMailbox], asker: int) -> None:
        self.machine, self.asker = machine, asker
        self.number, self.total, self.waits = 0, 0.0, False
        self.start()

    def start(self) -> None:
        """The request of the one before is forgotten."""
        self.port, self.fresh, self.waits = self.machine.channel.asker(), True, False

    def ask(self, number: int, server: int) -> None:
        ask(self.port, self.asker, number, server, first=self.fresh)
        self.total = number if self.fresh else self.total + number
        self.number, self.fresh, self.waits = number, False, True

    def poll(self) -> bool:
        if not self.waits or (found := self.port.reply(self.asker)) is None:
            return False
        action, extras, version = found
        assert action.tolist() == [self.number] * ENVIRONMENTS
        assert extras.tolist() == [[self.number] * ENVIRONMENTS]
        assert version == self.port.version(self.asker) == 7
        assert_same(self.port.states(self.asker), np.full((ENVIRONMENTS, STATE), self.total))
        self.waits = False
        return True


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "serve", "forth", "back", "new asker"]),
        st.integers(0, 8),
        st.integers(0, 1),
        CUTS,
    ),
    max_size=80,
)


@settings(max_examples=150)
@given(askers=st.integers(1, 4), moves=MOVES)
def test_every_reply_goes_to_its_asker_and_carries_its_states_on(
    askers: int, moves: list[tuple[str, int, int, int | None]]
) -> None:
    """Askers and servers are replaced by new ones, at any moment."""
    pair = Pair(lambda: make(askers))
    clients, number = [Asker(pair.near, asker) for asker in range(askers)], 0
    for move, which, server, cut in moves:
        asker = clients[which % askers]
        if move in ("forth", "back"):
            pair.forth(cut) if move == "forth" else pair.back(cut)
        elif move == "serve":
            pair.read(lambda: serve(pair.far.channel.server(Me(server))), cut)  # noqa: B023
        elif move == "new asker":
            asker.start()
        elif not asker.waits:
            number += 1
            if not pair.write(lambda: asker.ask(number, server), cut)[0]:  # noqa: B023
                asker.start()
        for one in clients:
            one.poll()
    for _ in range(2):
        pair.settle()
        for server in range(2):
            pair.read(lambda: serve(pair.far.channel.server(Me(server))))  # noqa: B023
        pair.settle()
        assert not any(asker.waits for asker in clients if not asker.poll())
        for asker in clients:
            number += 1
            pair.write(lambda: asker.ask(number, number % 2))  # noqa: B023


def test_mirror_of_requests_and_replies_returns_their_bytes() -> None:
    pair = Pair(lambda: make(3))
    port = pair.near.channel.asker()
    asked, replied = ENVIRONMENTS * (12 + 4 + 1) + 8 + 8, ENVIRONMENTS * (4 + 4 + 4 * STATE) + 8 + 8
    for asker in (0, 2):
        ask(port, asker, 5, first=True)
    assert (pair.forth(rows=[0, 1]), pair.forth(), pair.forth()) == (asked, asked, 0)
    serve(pair.far.channel.server(Me()))
    assert (pair.back(rows=[2]), pair.back(), pair.back()) == (replied, replied, 0)


def test_bells_are_rung_for_the_server_that_is_asked_and_for_the_askers() -> None:
    machine, rung = Machine(make()), []
    machine.channel.bells = Bells(rung.append, lambda: rung.append("askers"))
    ask(machine.channel.asker(), 1, 0, server=2)
    assert rung == [2]
    assert serve(machine.channel.server(Me(0))) == []
    assert serve(machine.channel.server(Me(2))) == [1]
    assert rung == [2, "askers"]


def test_a_restarted_asker_gets_only_the_reply_to_its_own_request() -> None:
    channel = Machine(make()).channel
    server, port = channel.server(Me()), channel.asker()
    ask(port, 1, 5, first=True)
    request, numbers = server.read([1])  # the server has read it when the asker dies
    ask(port, 1, 8, first=True)
    assert port.reply(1) is None
    server.reply([1], numbers, echo(request), 0)
    assert port.reply(1) is None
    assert serve(server) == [1]
    found = port.reply(1)
    assert found is not None
    assert found[0].tolist() == [8] * ENVIRONMENTS
    assert_same(port.states(1), np.full((ENVIRONMENTS, STATE), 8))
    assert serve(server) == []


def test_an_asker_that_asks_anew_in_the_middle_of_a_reply_waits_for_its_own() -> None:
    machine = Machine(make(1))
    channel, port = machine.channel, machine.channel.asker()
    ask(port, 0, 5, first=True)

    class Meanwhile(np.ndarray[Any, Any]):
        """The last that is written of a reply before it counts."""

        def __setitem__(self, key: Any, value: Any) -> None:
            ask(port, 0, 8, first=True)
            super().__setitem__(key, value)

    disturbed = {**machine.plain, "version": machine.plain["version"].view(Meanwhile)}
    serve(InferenceServerPort(disturbed, lambda: None, 0, STATE))
    assert port.reply(0) is None
    assert serve(channel.server(Me())) == [0]
    found = port.reply(0)
    assert found is not None
    assert found[0].tolist() == [8] * ENVIRONMENTS
    assert_same(port.states(0), np.full((ENVIRONMENTS, STATE), 8))


@pytest.mark.parametrize("killed", ["asker", "mirror"])
@pytest.mark.parametrize("cut", range(7))
def test_no_server_replies_to_half_a_request(cut: int, killed: str) -> None:
    """A new asker asks while the request of the one before still waits; `echo` looks whether masks fit observations."""
    pair = Pair(make)
    port = pair.near.channel.asker()
    ask(port, 1, 5, first=True)
    pair.forth()
    pair.write(lambda: ask(port, 1, 6, first=True), cut if killed == "asker" else None)
    pair.forth(cut if killed == "mirror" else None)
    for machine in (pair.near, pair.far):
        serve(machine.channel.server(Me()))
    ask(port, 1, 7, first=True)
    pair.settle()
    assert serve(pair.far.channel.server(Me())) == [1]


def test_a_reply_that_comes_too_late_displaces_no_newer_one() -> None:
    """The asker died, and asked another server since; the first one only now comes to its end."""
    channel = Machine(make(1)).channel
    slow, quick, port = channel.server(Me(0)), channel.server(Me(1)), channel.asker()
    ask(port, 0, 5, first=True)
    request, numbers = slow.read([0])
    ask(port, 0, 8, server=1, first=True)
    assert serve(quick) == [0]
    slow.reply([0], numbers, echo(request), 0)
    found = port.reply(0)
    assert found is not None
    assert (found[0].tolist(), found[2]) == ([8] * ENVIRONMENTS, 7)
    ask(port, 0, 2, server=1)
    assert serve(quick) == [0]
    assert_same(port.states(0), np.full((ENVIRONMENTS, STATE), 10))


@pytest.mark.parametrize("cut", range(10))
def test_a_server_killed_in_the_middle_of_a_reply_changes_no_state(cut: int) -> None:
    machine = Machine(make(2))
    port = machine.channel.asker()

    def ask_both(number: float, first: bool) -> None:
        for asker in range(2):
            ask(port, asker, number + asker, first=first)

    ask_both(1, True)
    serve(machine.channel.server(Me()))
    ask_both(10, False)
    with pytest.raises(Killed), machine.writing(READER, cut):
        serve(machine.channel.server(Me()))
    done = cut // 5  # replies that were whole before
    assert [port.reply(asker) is not None for asker in range(2)] == [done > 0, done > 1]
    assert_same(port.states(1), np.full((ENVIRONMENTS, STATE), 2))
    serve(machine.channel.server(Me()))
    for asker, total in enumerate((11, 13)):
        found = port.reply(asker)
        assert found is not None
        assert found[0].tolist() == [10 + asker] * ENVIRONMENTS
        assert_same(port.states(asker), np.full((ENVIRONMENTS, STATE), total))


WEIGHTS, EPISODES = 4, 3


def make_evaluation() -> EvaluationMailbox:
    return EvaluationMailbox("evaluation", lambda: WEIGHTS, EPISODES)


def weights_of(seeds: int) -> NDArray[np.float32]:
    return np.full(WEIGHTS, seeds, np.float32)


def episodes_of(seeds: int) -> Episodes:
    return Episodes(np.full(EPISODES, seeds + 0.5), np.full(EPISODES, seeds), seeds)


EVALUATION_MOVES = ["ask", "ask", "withdraw", "take", "progress", "reply", "reply", "forth", "forth", "back", "back"]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(EVALUATION_MOVES), CUTS), max_size=80))
def test_evaluation_is_of_the_weights_that_were_asked_for_and_its_reply_is_to_the_last_request(
    moves: list[tuple[str, int | None]],
) -> None:
    """A driver that is killed while it asks has asked for nothing; one that is killed while it withdraws may have."""
    pair, seeds, asked = Pair(make_evaluation), 0, dict[int, int]()
    driver, port = pair.near.channel, pair.far.channel.evaluator()
    last = 0
    taken: tuple[int, int] | None = None

    def take() -> None:
        nonlocal taken, last
        if (found := port.take()) is None:
            return
        number, wanted, weights, seconds = found
        assert asked[number] == wanted == seconds
        assert_same(weights, weights_of(wanted))
        assert number >= last, "never an earlier one again"
        taken, last = (number, wanted), number

    for move, cut in moves:
        if move in ("forth", "back"):
            pair.forth(cut) if move == "forth" else pair.back(cut)
        elif move == "ask":
            seeds += 1
            if pair.write(lambda: driver.ask(seeds, weights_of(seeds), float(seeds)), cut)[0]:  # noqa: B023
                asked[driver.request] = seeds
        elif move == "withdraw":
            pair.write(driver.withdraw, cut)
        elif move == "take":
            take()
        elif move == "progress":
            pair.read(lambda: port.progress(seeds))  # noqa: B023
        elif taken is not None:
            number, wanted = taken
            if not pair.read(lambda: port.reply(number, episodes_of(wanted)), cut)[0]:  # noqa: B023
                port = pair.far.channel.evaluator()
        if driver.replied and driver.request:
            wanted = asked[driver.request]
            for found, array in zip(driver.episodes_played(), episodes_of(wanted), strict=True):
                assert_same(found, array)
    pair.settle()
    assert driver.finished == pair.far.channel.finished
    seeds += 1
    driver.ask(seeds, weights_of(seeds), float(seeds))
    asked[driver.request] = seeds
    pair.settle()
    take()
    assert taken is not None
    assert taken[1] == seeds
    assert port.wanted(taken[0])
    port.reply(taken[0], episodes_of(seeds))
    assert port.take() is None
    pair.settle()
    assert driver.replied
    assert driver.episodes_played().summary()["mean"] == seeds + 0.5


def test_mirror_of_an_evaluation_returns_its_bytes() -> None:
    pair = Pair(make_evaluation)
    driver, port = pair.near.channel, pair.far.channel.evaluator()
    driver.ask(1, weights_of(1), 1.0)
    assert (pair.forth(), pair.forth(), pair.back()) == (4 * WEIGHTS + 8 + 16, 0, 0)
    driver.withdraw()
    assert (pair.forth(), pair.forth()) == (8, 0)
    driver.ask(2, weights_of(2), 1.0)
    pair.forth()
    port.progress(2)
    assert (pair.back(), pair.back()) == (8, 0)
    port.reply(driver.request, episodes_of(2))
    assert (pair.back(), pair.back(), pair.forth()) == (16 * EPISODES + 8 + 8, 0, 0)


@pytest.mark.parametrize("cut", range(6))
def test_request_that_was_copied_in_part_is_not_played(cut: int) -> None:
    pair = Pair(make_evaluation)
    for seeds in (1, 2):
        pair.near.channel.ask(seeds, weights_of(seeds), 1.0)
        pair.forth(cut if seeds == 2 else None)
    found = pair.far.channel.evaluator().take()
    assert found is None or found[1] == found[2][0] == (1 if cut == 0 else 2)
    pair.settle()
    assert pair.far.channel.evaluator().take() is not None


def test_request_that_is_taken_back_while_it_is_copied_is_not_played() -> None:
    pair = Pair(make_evaluation)
    driver = pair.near.channel
    for looks in range(1, 30):
        driver.ask(looks, weights_of(looks), 1.0)
        pair.forth_while(looks, lambda: driver.ask(100 + looks, weights_of(100 + looks), 1.0))  # noqa: B023
        found = pair.far.channel.evaluator().take()
        if found is not None:
            assert_same(found[2], weights_of(found[1]))
        pair.near.act(WRITER, driver.withdraw)
        pair.forth()
        assert pair.far.channel.evaluator().take() is None
