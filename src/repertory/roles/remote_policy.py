"""A policy that has no network: it sends requests to a server and polls for replies; sees only ports."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from repertory.channels.counters import WorkerStats


class Mailbox(Protocol):
    """Where requests are put and replies are found, one place for each client."""

    def ask(
        self,
        asker: int,
        server: int,
        observation: NDArray[Any],
        mask: NDArray[np.bool_] | None,
        first: NDArray[np.bool_],
    ) -> None:
        """Put a request to a server."""

    def reply(self, asker: int) -> tuple[NDArray[Any], NDArray[np.float32], int] | None:
        """Actions, what is stored beside them, and the version of the weights; None while there is no reply."""

    def version(self, asker: int) -> int:
        """Of the weights behind the last reply."""


class RemotePolicy:
    """One client's requests; `server` says who is to reply to the next one."""

    stores_values = False

    def __init__(
        self, mailbox: Mailbox, client: int, environments: int, page: WorkerStats, server: Callable[[], int]
    ) -> None:
        self.mailbox, self.client, self.page, self.server = mailbox, client, page, server
        self.version = 0
        self._first = np.ones(environments, bool)
        self._extras: NDArray[np.float32] | None = None
        self._requested_at = 0.0

    def pull(self) -> None:
        """The server has the weights; random actions name the version of its last reply."""
        self.version = self.mailbox.version(self.client)

    def warm_up(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """The server compiles."""

    def submit(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
        """Request actions."""
        self._requested_at = time.perf_counter()
        self.mailbox.ask(self.client, self.server(), observation, mask, self._first)
        self._first[:] = False

    def poll(self) -> NDArray[np.integer[Any]] | None:
        """The actions, or None if they are not there yet."""
        found = self.mailbox.reply(self.client)
        if found is None:
            return None
        actions, self._extras, self.version = found
        self.page.answered(time.perf_counter() - self._requested_at)
        return actions

    def extras(self, actions: NDArray[np.integer[Any]]) -> NDArray[np.float32] | None:  # noqa: ARG002
        """What the server gave with them."""
        return self._extras

    def reset(self, environments: Any) -> None:
        """Episodes begin there."""
        self._first[environments] = True

    def state(self) -> dict[str, Any]:
        """Nothing: the server samples."""
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing to continue."""
