"""A policy that has no network: it asks a server and polls for the answer; sees only ports."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from repertory.roles.ledger import Page


class Desk(Protocol):
    """Where questions are put and answers are found."""

    def ask(
        self,
        asker: int,
        server: int,
        observation: NDArray[Any],
        mask: NDArray[np.bool_] | None,
        first: NDArray[np.bool_],
    ) -> None:
        """Put a question to a server."""

    def answer(self, asker: int) -> tuple[NDArray[Any], NDArray[np.float32], int] | None:
        """Actions, what is kept beside them, and the version of the weights; None while there is no answer."""

    def version(self, asker: int) -> int:
        """Of the weights behind the last answer."""


class RemotePolicy:
    """One asker's questions; `server` says who is to answer the next one."""

    valued = False

    def __init__(self, desk: Desk, asker: int, environments: int, page: Page, server: Callable[[], int]) -> None:
        self.desk, self.asker, self.page, self.server = desk, asker, page, server
        self.version = 0
        self._first = np.ones(environments, bool)
        self._kept: NDArray[np.float32] | None = None
        self._asked_at = 0.0

    def pull(self) -> None:
        """The server has the weights; random actions name the version of its last answer."""
        self.version = self.desk.version(self.asker)

    def warm_up(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """The server compiles."""

    def submit(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Ask for actions."""
        self._asked_at = time.perf_counter()
        self.desk.ask(self.asker, self.server(), observation, mask, self._first)
        self._first[:] = False

    def poll(self) -> NDArray[np.integer[Any]] | None:
        """The actions, or None if they are not there yet."""
        found = self.desk.answer(self.asker)
        if found is None:
            return None
        actions, self._kept, self.version = found
        self.page.answered(time.perf_counter() - self._asked_at)
        return actions

    def keep(self, actions: NDArray[np.integer[Any]]) -> NDArray[np.float32] | None:  # noqa: ARG002
        """What the server gave with them."""
        return self._kept

    def forget(self, environments: Any) -> None:
        """Episodes begin there."""
        self._first[environments] = True

    def state(self) -> dict[str, Any]:
        """Nothing: the server draws."""
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing to continue."""
