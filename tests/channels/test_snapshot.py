"""`Snapshot`: what is loaded was saved as a whole. `Shared`: one live copy, which stays on its machine."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channel_writers import ADDITIONS, LEARNED, SIZE, add_ones, child, save_for_ever, shared_on
from commands import SERVER, until
from machines import CUTS, Machine, Me, Pair
from repertory.agents.agent import LearnerState
from repertory.channels.channel import allocate, slices
from repertory.channels.snapshot import Shared, Snapshot, cut_state
from repertory.engines.shared_memory import Block
from repertory.errors import UserError

WIDTH = 7


def shape(*sizes: int, dtype: str = "float32") -> Any:
    return jax.ShapeDtypeStruct(sizes, dtype)  # type: ignore[no-untyped-call]


STRUCTURE: Any = LearnerState(
    shape(WIDTH), shape(0), (shape(WIDTH), shape(dtype="int32")), *[shape(dtype="int32")] * 2, shape(2, dtype="uint32")
)


def make(parts: int = 1) -> Snapshot:
    return Snapshot("learner", lambda: STRUCTURE, parts=parts)


def state_of(number: int) -> Any:
    return jax.tree_util.tree_map(lambda leaf: np.full(leaf.shape, number, leaf.dtype), STRUCTURE)


def numbers_in(state: Any) -> set[float]:
    return {float(number) for leaf in jax.tree_util.tree_leaves(state) for number in np.ravel(np.asarray(leaf))}


MOVES = st.lists(
    st.tuples(st.sampled_from(["save", "save", "mirror", "load state"]), st.integers(0, 2), CUTS), max_size=40
)


@settings(max_examples=60)
@given(parts=st.integers(1, 3), moves=MOVES)
def test_state_that_is_loaded_elsewhere_was_saved_as_a_whole(
    parts: int, moves: list[tuple[str, int, int | None]]
) -> None:
    pair, number = Pair(lambda: make(parts)), 0
    saved = [[0.0] for _ in range(parts)]
    last = [0.0] * parts
    for move, which, cut in moves:
        part, number = which % parts, number + 1
        if move == "mirror":
            pair.forth(cut)
        elif move == "save":
            owner = pair.near.channel.owner(Me(part))
            state = cut_state(state_of(number), WIDTH, slices(WIDTH, parts)[part]) if parts > 1 else state_of(number)
            if pair.write(lambda: owner.save(state), cut)[0]:  # noqa: B023
                saved[part].append(float(number))
        else:
            whole = {f"{i:02d}": leaf for i, leaf in enumerate(jax.tree_util.tree_leaves(state_of(number)))}
            pair.write(lambda: pair.near.channel.load_state(whole))  # noqa: B023
            [numbers.append(float(number)) for numbers in saved]
        for part in range(parts):
            (found,) = numbers_in(list(pair.far.channel.owner(Me(part)).state().values()))
            assert found in saved[part]
            assert found >= last[part]
            last[part] = found
    pair.settle()
    for part in range(parts):
        assert numbers_in(pair.far.channel.owner(Me(part)).load()) == {saved[part][-1]}


def test_mirror_returns_the_bytes_of_each_part_that_is_new() -> None:
    pair = Pair(lambda: make(2))
    assert pair.forth() == 0
    for part in range(2):
        owner = pair.near.channel.owner(Me(part))
        for number in (1, 2):
            owner.save(cut_state(state_of(number), WIDTH, slices(WIDTH, 2)[part]))
    each = [2 * 4 * size + 3 * 4 + 8 + 8 for size in (3, 4)]
    assert (pair.forth(rows=[1]), pair.forth(), pair.forth(), pair.back()) == (each[1], each[0], 0, 0)


def test_state_of_several_owners_is_one_and_is_cut_again_for_as_many_as_there_are() -> None:
    three, two = Machine(make(3)).channel, Machine(make(2)).channel
    vector = np.arange(WIDTH, dtype=np.float32)
    whole = state_of(4)._replace(weights=vector)
    for part, at in enumerate(slices(WIDTH, 3)):
        three.owner(Me(part)).save(cut_state(whole, WIDTH, at))
    two.load_state(three.state())
    np.testing.assert_array_equal(two.state()["00"], vector)
    np.testing.assert_array_equal(two.owner(Me(1)).load().weights, vector[3:])
    assert numbers_in(two.owner(Me(0)).load()._replace(weights=4)) == {4.0}


def test_state_survives_a_restart_and_is_mirrored_after_it() -> None:
    pair = Pair(make)
    pair.near.channel.owner(Me()).save(state_of(3))
    pair.near.channel.restart()
    pair.forth()
    assert numbers_in(pair.far.channel.owner(Me()).load()) == {3.0}


@pytest.mark.parametrize("make_channel", [make, lambda: Shared("weights", lambda: STRUCTURE)])
def test_checkpoint_of_another_network_is_refused(make_channel: Any) -> None:
    channel = Machine(make_channel()).channel
    state = dict(channel.state())
    state["00"] = np.zeros(WIDTH + 1, np.float32)
    with pytest.raises(UserError, match="network differs"):
        channel.load_state(state)


def test_state_is_whole_whenever_its_owner_is_killed() -> None:
    channel, rng = Snapshot("learner", lambda: LEARNED), np.random.default_rng(0)
    block, last = Block(channel.fields()), 0
    channel.bind(block.arrays())
    for _ in range(12):
        count = int(channel.arrays["0/count"][0])
        with child(save_for_ever, block, last) as process:
            until(lambda: channel.arrays["0/count"][0] > count + 2, what="a save")  # noqa: B023
            time.sleep(rng.uniform(0, 0.01))
            os.kill(process.pid, signal.SIGKILL)
            process.join(30)
        (found,) = numbers_in(channel.owner(Me()).load())
        assert found > last
        last = int(found)
    block.file.close()


def test_shared_state_is_not_mirrored() -> None:
    channel = Shared("weights", lambda: STRUCTURE)
    assert channel.one_machine
    arrays = allocate(channel.fields())
    with pytest.raises(NotImplementedError, match="weights is one live memory: it can't be copied to another machine"):
        channel.mirror(arrays, arrays)


def test_shared_state_is_what_all_have_made_of_it() -> None:
    structure = STRUCTURE._replace(target=shape(WIDTH))
    channel = Shared("weights", lambda: structure)
    channel.bind(allocate(channel.fields()), total_updates=lambda: 5)
    one, other = channel.sharer(), channel.sharer()
    statistics = (np.full(WIDTH, 2.0), np.int32(1))
    one.add(np.ones(WIDTH), statistics, 0)
    other.add(np.ones(WIDTH), statistics, 3)
    live = one.live()
    assert live.weights.tolist() == [2.0] * WIDTH
    assert (int(live.updates), int(live.skipped)) == (2, 3)
    version, weights = channel.latest()
    live.weights[0] = 9  # type: ignore[index]
    assert (version, weights.tolist(), channel.published) == (5, [2.0] * WIDTH, True)
    for env_steps, copied in ((99, 0.0), (100, 9.0), (150, 9.0), (200, 4.0)):
        if env_steps == 150:
            live.weights[0] = 4  # type: ignore[index]
        other.move_target(env_steps, 100)
        assert float(live.target[0]) == copied
    saved = {name: array.copy() for name, array in channel.state().items()}
    again = Shared("weights", lambda: structure)
    again.bind(allocate(again.fields()))
    again.load_state(saved)
    again.restart()
    again.sharer().move_target(250, 100)
    assert again.latest()[1].tolist() == channel.latest()[1].tolist()


def run_adders(block: Block, together: bool) -> None:
    barrier = SERVER.Barrier(2 if together else 1)
    adders = [SERVER.Process(target=add_ones, args=(block, barrier), daemon=True) for _ in range(2)]
    for adder in adders:
        adder.start()
        if not together:
            adder.join(60)
    for adder in adders:
        adder.join(60)
        assert adder.exitcode == 0


def test_two_processes_may_lose_additions_that_meet_but_never_make_numbers_up() -> None:
    block = Block(Shared("weights", lambda: LEARNED).fields())
    run_adders(block, together=True)
    weights = shared_on(block).latest()[1]
    assert weights.shape == (SIZE,)
    assert np.isfinite(weights).all()
    np.testing.assert_array_equal(weights, np.round(weights))
    assert weights.max() <= 2 * ADDITIONS
    assert weights.min() >= ADDITIONS / 2
    assert weights.mean() >= 1.5 * ADDITIONS, "few meet"
    block.file.close()


def test_one_process_after_the_other_loses_nothing() -> None:
    block = Block(Shared("weights", lambda: LEARNED).fields())
    run_adders(block, together=False)
    np.testing.assert_array_equal(shared_on(block).latest()[1], 2.0 * ADDITIONS)
    assert int(shared_on(block).sharer().live().updates) == 2 * ADDITIONS
    block.file.close()
