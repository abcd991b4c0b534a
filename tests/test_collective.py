"""Ranks that exchange gradients on shared arrays: at any speed, and wherever a pause finds them, all get the same.

The arrays are plain ones here, and ranks are objects that take turns in any order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from companies import company, turns
from repertory.agents.compression import make_compression
from repertory.engines.collective import SharedCollective

RANKS, PAUSE = 3, -1
ORDERS = st.lists(st.integers(PAUSE, RANKS - 1), max_size=120)


class Player:
    """A rank that submits what nobody else submits, and keeps what it got in each round."""

    def __init__(self, arrays: Any, rank: int) -> None:
        self.collective, self.rank = SharedCollective(arrays, rank), rank
        self.waiting, self.submissions = False, 0
        self.got: list[list[int]] = []

    def step(self) -> None:
        """Submit, or take what all have submitted."""
        if not self.waiting:
            self.submissions += 1
            self.collective.submit({"value": np.full(4, 1000 * self.rank + self.submissions, np.float32)})
            self.waiting = True
        self.take()

    def take(self) -> bool:
        """Whether all were there."""
        parts = self.collective.poll()
        if parts is None:
            return False
        assert all(len(set(part["value"].tolist())) == 1 for part in parts), "nobody sees half a write"
        self.got.append([int(part["value"][0]) for part in parts])
        self.waiting = False
        return True

    def settle(self) -> None:
        """As a rank does before a pause."""
        self.collective.halt()
        if self.waiting and not self.take():
            self.collective.withdraw()
            self.waiting = False


@given(ORDERS)
def test_all_ranks_get_the_same_in_every_round(order: list[int]) -> None:
    fields = SharedCollective.fields(make_compression("none", 4).fields, RANKS)
    arrays = {name: np.zeros(field.shape, field.dtype) for name, field in fields.items()}
    players = [Player(arrays, rank) for rank in range(RANKS)]
    for turn in order:
        if turn != PAUSE:
            players[turn].step()
            continue
        for player in players:
            player.settle()
        assert len({len(player.got) for player in players}) == 1, "a pause finds all at the same round"
    shortest = min(len(player.got) for player in players)
    for player in players:
        assert player.got[:shortest] == players[0].got[:shortest]
        assert len(player.got) <= shortest + 1
        own = [parts[player.rank] for parts in player.got]
        assert len(set(own)) == len(own), "nothing counts twice"


def test_rank_plays_nothing_while_others_keep_its_gradient_waiting() -> None:
    """Else it would depend on their speed with which weights it plays."""
    rehearsal = company("all_reduce", actors=2)
    first, second = (turns(rehearsal)[f"rank {rank}"] for rank in range(2))
    played = []
    for _ in range(400):
        for role in first:
            role.step()
        played.append(rehearsal.counters.env_steps)
    assert first[1].waiting  # type: ignore[attr-defined]
    assert played[-1] == played[200] > 0
    for _ in range(400):
        for role in (*second, *first):
            role.step()
    assert rehearsal.counters.updates > 0
    assert rehearsal.counters.env_steps > played[-1]
    rehearsal.close()
