"""Mailboxes: requests and replies, one place for each asker. There is no queue and no lock that a dead worker could
hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from repertory.channels.channel import (
    READER,
    WRITER,
    Arrays,
    Bells,
    Channel,
    Place,
    copy_rows,
    mirror_changed,
    mirror_counted,
    own_rows,
    port,
)
from repertory.specs import EnvironmentSpec, Field

NO_SERVER = -1
"""While a request is being written."""


class InferenceRequest(NamedTuple):
    """Observations, legal actions, recurrent states, and where an episode begins; all [N, ...]."""

    observation: NDArray[Any]
    mask: NDArray[np.bool_] | None
    state: NDArray[np.float32]
    first: NDArray[np.bool_]


class InferenceReply(NamedTuple):
    """Actions [N], what is stored beside them [k, N], and the next recurrent states [N, C]."""

    action: NDArray[np.integer[Any]]
    extras: NDArray[np.float32] | None
    state: NDArray[np.float32]


class InferenceMailbox(Channel):
    """Observations of actors without a network, and the actions that servers reply with.

    `requests` counts an asker's requests, `replies` the replies to them; `to` is the server that is to reply. Recurrent
    states are here, so they outlive the servers: the old one stays valid until the reply counts.
    """

    def __init__(
        self, name: str, spec: EnvironmentSpec, *, askers: int, environments: int, state_size: int, **labels: str
    ) -> None:
        super().__init__(name, **labels)
        self.spec, self.askers, self.environments, self.state_size = spec, askers, environments, state_size

    @property
    def row_count(self) -> int:
        return self.askers

    def fields(self) -> dict[str, Field]:
        each, seen = (self.askers, self.environments), self.spec.observation
        size = max(1, self.state_size)
        fields = {
            "observation": Field((*each, *seen.seen_shape), seen.dtype, commit="requests"),
            "first": Field(each, "bool", commit="requests"),
            "to": Field((self.askers,), "int64", commit="requests"),
            "requests": Field((self.askers,), "int64"),
            "action": Field(each, "int32", READER, "replies"),
            "extras": Field((self.askers, 1, self.environments), "float32", READER, "replies"),
            "state": Field((self.askers, 2, self.environments, size), "float32", READER, "replies"),
            "version": Field((self.askers,), "int64", READER, "replies"),
            "replies": Field((self.askers,), "int64", READER),
        }
        if self.spec.masked:
            fields["mask"] = Field((*each, self.spec.actions), "bool", commit="requests")
        return fields

    @port("out")
    def asker(self, me: Place | None = None) -> InferenceAsker:  # noqa: ARG002
        return InferenceAsker(self.arrays, self.bells)

    @port("in")
    def server(self, me: Place) -> InferenceServerPort:
        return InferenceServerPort(self.arrays, self.bells.writers, me.rank, self.state_size)

    def state(self) -> dict[str, Any]:
        """The versions behind the last replies, which random actions name; the rest belongs to running episodes."""
        return {"version": self.arrays["version"].copy()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.arrays["version"][:] = np.asarray(state["version"])

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:
        """`rows` are numbers of askers."""
        askers = own_rows(self.askers, rows)
        if side == READER:
            return self._mirror_replies(source, target, askers)
        askers = askers[source["requests"][askers] > target["requests"][askers]]
        if not len(askers):
            return 0
        target["to"][askers] = NO_SERVER
        names = sorted(_committed(self, "requests"), key="to".__eq__)
        return mirror_counted(source, target, "requests", names, askers)

    def _mirror_replies(self, source: Arrays, target: Arrays, askers: NDArray[np.int64]) -> int:
        """Only the valid one of the two states: the other may be half written."""
        replies = source["replies"][askers]
        new = replies > target["replies"][askers]
        askers, replies = askers[new], replies[new]
        if not len(askers):
            return 0
        moved = copy_rows(source, target, ("action", "extras", "version"), askers)
        moved += copy_rows(source, target, ("state",), (askers, replies % 2))
        target["replies"][askers] = replies
        return moved + int(replies.nbytes)


def _committed(channel: Channel, count: str) -> list[str]:
    return [name for name, field in channel.fields().items() if field.commit == count]


class InferenceAsker:
    """The actors' port."""

    def __init__(self, arrays: Arrays, bells: Bells) -> None:
        self._arrays, self._ring = arrays, bells.readers

    def ask(
        self,
        asker: int,
        server: int,
        observation: NDArray[Any],
        mask: NDArray[np.bool_] | None,
        first: NDArray[np.bool_],
    ) -> None:
        """Write a request for a server; a restarted asker may do so while its earlier request still waits."""
        arrays = self._arrays
        arrays["to"][asker] = NO_SERVER
        arrays["observation"][asker] = observation
        arrays["first"][asker] = first
        if mask is not None:
            arrays["mask"][asker] = mask
        arrays["to"][asker] = server
        arrays["requests"][asker] += 1
        self._ring(server)

    def reply(self, asker: int) -> tuple[NDArray[Any], NDArray[np.float32], int] | None:
        """Actions, what is stored beside them, and the version of the weights; None while there is no reply."""
        arrays = self._arrays
        if arrays["replies"][asker] < arrays["requests"][asker]:
            return None
        return arrays["action"][asker].copy(), arrays["extras"][asker].copy(), int(arrays["version"][asker])

    def version(self, asker: int) -> int:
        """Of the weights behind the last reply; 0 before the first."""
        return int(self._arrays["version"][asker])

    def states(self, asker: int) -> NDArray[np.float32]:
        """The recurrent states behind the last reply."""
        return _states(self._arrays, asker)


def _states(arrays: Arrays, asker: int) -> NDArray[np.float32]:
    found: NDArray[np.float32] = arrays["state"][asker, int(arrays["replies"][asker]) % 2]
    return found


class InferenceServerPort:
    """One server's port."""

    def __init__(self, arrays: Arrays, ring: Callable[[], None], rank: int, state_size: int) -> None:
        self._arrays, self._ring, self._rank, self._state_size = arrays, ring, rank, state_size

    def waiting(self) -> list[int]:
        """Askers that wait for this server."""
        arrays = self._arrays
        found = (arrays["requests"] > arrays["replies"]) & (arrays["to"] == self._rank)
        indices: list[int] = np.flatnonzero(found).tolist()
        return indices

    def read(self, askers: Sequence[int]) -> tuple[InferenceRequest, list[int]]:
        """The requests of these askers in one batch, and their numbers."""
        arrays, rows = self._arrays, list(askers)
        numbers: list[int] = arrays["requests"][rows].tolist()

        def joined(name: str) -> NDArray[Any]:
            found = arrays[name][rows]
            return found.reshape(-1, *found.shape[2:])

        states = np.concatenate([_states(arrays, asker) for asker in rows])[:, : self._state_size]
        mask = joined("mask") if "mask" in arrays else None
        return InferenceRequest(joined("observation"), mask, states, joined("first")), numbers

    def reply(self, askers: Sequence[int], numbers: Sequence[int], reply: InferenceReply, version: int) -> None:
        arrays, count = self._arrays, self._arrays["action"].shape[1]
        for index, (asker, number) in enumerate(zip(askers, numbers, strict=True)):
            if number < arrays["requests"][asker]:  # a new asker has sent another request
                continue
            rows = slice(index * count, (index + 1) * count)
            arrays["action"][asker] = reply.action[rows]
            if reply.extras is not None:
                arrays["extras"][asker] = reply.extras[:, rows]
            if reply.state.shape[1]:
                arrays["state"][asker, number % 2, :, : reply.state.shape[1]] = reply.state[rows]
            arrays["version"][asker] = version
            arrays["replies"][asker] = number
        self._ring()


class Episodes(NamedTuple):
    """Returns and lengths of episodes; `unfinished` of them were cut off by the time limit, and count as they stood."""

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    unfinished: int = 0

    def summary(self) -> dict[str, Any]:
        return {
            "mean": float(self.returns.mean()),
            "std": float(self.returns.std()),
            "episodes": len(self.returns),
            "unfinished": self.unfinished,
            "returns": self.returns.tolist(),
            "lengths": self.lengths.tolist(),
        }


class EvaluationMailbox(Channel):
    """The driver requests an evaluation of a snapshot of the weights, the evaluator replies with whole episodes.

    `request` is the number of the evaluation, and that of its seeds. The number is odd while a request is being written
    or was withdrawn.
    """

    def __init__(self, name: str, size: Callable[[], int], episodes: int, **labels: str) -> None:
        super().__init__(name, **labels)
        self.size, self.episodes = size, episodes

    def fields(self) -> dict[str, Field]:
        return {
            "weights": Field((self.size(),), "float32", commit="request"),
            "seconds": Field((1,), "float64", commit="request"),
            "request": Field((2,), "int64"),
            "returns": Field((self.episodes,), "float64", READER, "reply"),
            "lengths": Field((self.episodes,), "int64", READER, "reply"),
            "unfinished": Field((1,), "int64", READER, "reply"),
            "finished": Field((1,), "int64", READER),
            "reply": Field((1,), "int64", READER),
        }

    @property
    def request(self) -> int:
        return int(self.arrays["request"][0])

    @property
    def replied(self) -> bool:
        return int(self.arrays["reply"][0]) == self.request

    @property
    def finished(self) -> int:
        """Episodes of the evaluation under way that have ended."""
        return int(self.arrays["finished"][0])

    def ask(self, seeds: int, weights: NDArray[np.float32], seconds: float) -> None:
        self.withdraw()  # first: an evaluator that still reads or plays the last one sees that it is out of date
        self.arrays["weights"][:] = weights
        self.arrays["seconds"][0] = seconds
        self.arrays["request"][1] = seeds
        self.arrays["request"][0] += 1
        self.bells.readers()

    def withdraw(self) -> None:
        """The last request needs no reply any more."""
        self.arrays["request"][0] |= 1

    def episodes_played(self) -> Episodes:
        arrays = self.arrays
        return Episodes(arrays["returns"].copy(), arrays["lengths"].copy(), int(arrays["unfinished"][0]))

    @port("in")
    def evaluator(self, me: Place | None = None) -> EvaluationPort:  # noqa: ARG002
        return EvaluationPort(self.arrays)

    def mirror(self, source: Arrays, target: Arrays, side: str = WRITER, rows: Sequence[int] | None = None) -> int:  # noqa: ARG002
        if side == WRITER:
            return self._mirror_request(source, target)
        moved = mirror_changed(source, target, ("finished",), np.arange(1))
        if (reply := int(source["reply"][0])) == int(target["reply"][0]):
            return moved
        moved += copy_rows(source, target, _committed(self, "reply"), slice(None))
        target["reply"][0] = reply
        return moved + source["reply"].nbytes

    def _mirror_request(self, source: Arrays, target: Arrays) -> int:
        """An odd number is copied alone; the request in `target` is withdrawn before its data change."""
        number, seeds = (int(number) for number in source["request"])
        if number == int(target["request"][0]):
            return 0
        target["request"][0] = number | 1
        if number % 2:
            return 8
        moved = copy_rows(source, target, _committed(self, "request"), slice(None))
        target["request"][1] = seeds
        if int(source["request"][0]) == number:  # else it was withdrawn meanwhile
            target["request"][0] = number
        return moved + source["request"].nbytes


class EvaluationPort:
    """The evaluator's port."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def take(self) -> tuple[int, int, NDArray[np.float32], float] | None:
        """Number, seeds' number, weights and seconds of a request that waits; None if there is none."""
        number, seeds = (int(number) for number in self._arrays["request"])
        if number % 2 or number == int(self._arrays["reply"][0]):
            return None
        weights, seconds = self._arrays["weights"].copy(), float(self._arrays["seconds"][0])
        return (number, seeds, weights, seconds) if self.wanted(number) else None

    def wanted(self, number: int) -> bool:
        """Whether no later evaluation was requested."""
        return int(self._arrays["request"][0]) == number

    def progress(self, finished: int) -> None:
        self._arrays["finished"][0] = finished

    def reply(self, number: int, episodes: Episodes) -> None:
        arrays = self._arrays
        arrays["returns"][:], arrays["lengths"][:], arrays["unfinished"][0] = episodes
        arrays["reply"][0] = number
