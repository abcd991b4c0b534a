"""Ports on arrays that may be shared: weights, batches, gradients, questions; numpy only.

Each has one writer. It fills what nobody reads, then moves a number that readers look at first; so any of them may be
killed at any moment, and nobody ever sees half a write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from repertory.experience.lanes import Field
from repertory.experience.replay import Sample
from repertory.roles.answers import Answer, Question
from repertory.specs import EnvironmentSpec

Arrays = Mapping[str, NDArray[Any]]
Ring = Callable[[], None]
DEADLINE_S = 10.0


class Board:
    """The newest vector: two copies, of which a number says which one counts. Slice `at` is this writer's."""

    def __init__(self, arrays: Arrays, part: int = 0, at: slice = slice(None), ring: Ring = lambda: None) -> None:
        self._copies, self._versions = arrays["copies"][:, at], arrays["versions"][part]
        self._flip = arrays["flips"][part : part + 1]
        self._ring = ring
        self._seen = -1
        self._latest: tuple[int, NDArray[np.float32]] = (-1, np.zeros(0, np.float32))

    @staticmethod
    def fields(size: int, parts: int = 1) -> dict[str, Field]:
        """What has to be allocated."""
        return {
            "copies": Field((2, size), "float32"),
            "versions": Field((parts, 2), "int64"),
            "flips": Field((parts,), "int64"),
        }

    def publish(self, version: int, weights: Any) -> None:
        """Write the spare copy, then let it count."""
        spare = (int(self._flip[0]) + 1) % 2
        self._copies[spare] = np.asarray(weights)
        self._versions[spare] = version
        self._flip[0] += 1
        self._ring()

    @property
    def changed(self) -> bool:
        """Whether there is a newer one than `latest` returned last."""
        return int(self._flip[0]) != self._seen

    def latest(self) -> tuple[int, NDArray[np.float32]]:
        """The newest version and its weights: a copy that stays as it is, the same one until there is a newer."""
        end = time.monotonic() + DEADLINE_S
        while self.changed:
            flip = int(self._flip[0])
            version, copy = int(self._versions[flip % 2]), self._copies[flip % 2].copy()
            if int(self._flip[0]) == flip:  # else the writer may have come round to this copy
                self._seen, self._latest = flip, (version, copy)
            elif time.monotonic() > end:
                raise TimeoutError("the weights changed faster than they could be read")
        return self._latest


class BatchSlots:
    """Batches on their way from a memory server to a learner, and their priorities on the way back.

    `filled` counts what the memory has put in, `freed` what the learner is done with; slot i of `count` is used by
    the batches i, i + count, ... A freed slot holds the errors of its steps until the memory has read them.
    """

    def __init__(self, arrays: Arrays, updates: int, ring: Ring) -> None:
        self._arrays, self._updates, self._ring = arrays, updates, ring
        self.count = len(arrays["weight"])
        self._counts = arrays["counts"]
        self._names = [name for name in Sample._fields if name in arrays]

    @staticmethod
    def fields(example: Sample, count: int) -> dict[str, Field]:
        """What has to be allocated for batches like this one."""
        fields = {
            name: Field((count, *array.shape), array.dtype.name)
            for name, array in example._asdict().items()
            if array is not None
        }
        return {**fields, "priority": Field((count, len(example.weight)), "float32"), "counts": Field((2,), "int64")}

    @property
    def filled(self) -> int:
        """Batches put in."""
        return int(self._counts[0])

    @property
    def freed(self) -> int:
        """Batches that the learner is done with."""
        return int(self._counts[1])

    def put(self, sample: Sample) -> None:
        """The memory's: fill the next slot."""
        at = self.filled % self.count
        for name in self._names:
            self._arrays[name][at] = getattr(sample, name)
        self._counts[0] += 1
        self._ring()

    def errors(self, batch: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """The memory's: lanes, slots and errors of a freed batch."""
        at = batch % self.count
        return self._arrays["lane"][at], self._arrays["slot"][at], self._arrays["priority"][at]

    def take(self) -> Sample | None:
        """The learner's: the oldest batch, which stays as it is until it is released."""
        return self._at(self.freed)

    def next(self) -> Sample | None:
        """The learner's: the one behind that, if it is there already."""
        return self._at(self.freed + 1)

    def _at(self, batch: int) -> Sample | None:
        if self.filled <= batch:
            return None
        values = {name: self._arrays[name][batch % self.count] for name in self._names}
        return Sample(**{"next_mask": None, **values}).split(self._updates)

    def example(self) -> Sample:
        """The learner's: a sample of the right shapes, to compile with."""
        values = {name: self._arrays[name][0] for name in self._names}
        return Sample(**{"next_mask": None, **values, "weight": np.ones_like(values["weight"])}).split(self._updates)

    def ahead(self) -> None:
        """The memory draws by itself."""

    def release(self, sample: Sample, priority: Any) -> None:  # noqa: ARG002  # the port's name for it
        """The learner's: hand the slot back with the errors of its steps."""
        self._arrays["priority"][self.freed % self.count] = np.asarray(priority).reshape(-1)
        self._counts[1] += 1
        self._ring()

    def settle(self) -> None:
        """What is on its way stays on its way."""

    def state(self) -> dict[str, Any]:
        """Nothing: the memory keeps the stream of draws."""
        return {}

    def load_state(self, state: Any) -> None:
        """Nothing to continue."""


class GradientSlots:
    """Gradients on their way from workers to servers: one slot for each worker and server.

    `pushed` counts a worker's gradients; server s has taken `taken[s]` of them. A worker pushes again when all servers
    have taken its last one.
    """

    def __init__(self, arrays: Arrays, payloads: Sequence[Arrays]) -> None:
        self.pushed, self.taken = arrays["pushed"], arrays["taken"]
        self._version, self._payloads = arrays["version"], payloads

    @staticmethod
    def fields(workers: int, servers: int) -> dict[str, Field]:
        """What has to be allocated besides the payloads."""
        return {
            "pushed": Field((workers,), "int64"),
            "taken": Field((servers, workers), "int64"),
            "version": Field((servers, workers), "int64"),
        }

    def free(self, worker: int) -> bool:
        """Whether all servers have taken this worker's last gradient."""
        return bool((self.taken[:, worker] >= self.pushed[worker]).all())

    def ahead_of_slowest(self, worker: int) -> int:
        """Gradients that this worker has pushed more than the slowest."""
        return int(self.pushed[worker] - self.pushed.min())

    def push(self, worker: int, versions: list[int], payloads: Sequence[Mapping[str, Any]]) -> None:
        """Put one payload for each server in, computed with those versions of its slice."""
        for server, (version, payload) in enumerate(zip(versions, payloads, strict=True)):
            self._version[server, worker] = version
            for name, array in self._payloads[server].items():
                array[worker] = np.asarray(payload[name])
        self.pushed[worker] += 1

    def arrived(self, server: int) -> NDArray[np.int64]:
        """Workers whose gradient this server has not taken."""
        return np.flatnonzero(self.pushed > self.taken[server])

    def payload(self, server: int, worker: int) -> tuple[int, dict[str, Any]]:
        """The version of the weights behind it, and the payload."""
        arrays = {name: array[worker].copy() for name, array in self._payloads[server].items()}
        return int(self._version[server, worker]), arrays

    def take(self, server: int, workers: NDArray[np.int64]) -> None:
        """This server is done with these workers' gradients."""
        self.taken[server, workers] = self.pushed[workers]


class Requests:
    """Questions of actors without networks, and the answers: one place for each asker.

    `asked` counts an asker's questions, `answered` the answers to them; who is to answer is written with the question.
    Recurrent states lie here, so they outlive whoever answers; the old one stays until the answer counts.
    """

    def __init__(self, arrays: Arrays, ring_server: Callable[[int], None], ring_askers: Ring) -> None:
        self._arrays, self._ring_server, self._ring_askers = arrays, ring_server, ring_askers
        self.asked, self.answered, self._to = arrays["asked"], arrays["answered"], arrays["to"]
        self._states = arrays["core"]

    @staticmethod
    def fields(spec: EnvironmentSpec, askers: int, environments: int, core: int) -> dict[str, Field]:
        """What has to be allocated."""
        each = (askers, environments)
        fields = {
            "observation": Field((*each, *spec.observation.seen_shape), spec.observation.dtype),
            "first": Field(each, "bool"),
            "action": Field(each, "int32"),
            "kept": Field((askers, 1, environments), "float32"),
            "core": Field((askers, 2, environments, max(1, core)), "float32"),
            "asked": Field((askers,), "int64"),
            "answered": Field((askers,), "int64"),
            "version": Field((askers,), "int64"),
            "to": Field((askers,), "int64"),
        }
        if spec.masked:
            fields["mask"] = Field((*each, spec.actions), "bool")
        return fields

    def ask(
        self,
        asker: int,
        server: int,
        observation: NDArray[Any],
        mask: NDArray[np.bool_] | None,
        first: NDArray[np.bool_],
    ) -> None:
        """Put a question to a server."""
        arrays = self._arrays
        arrays["observation"][asker] = observation
        arrays["first"][asker] = first
        if mask is not None:
            arrays["mask"][asker] = mask
        self._to[asker] = server
        self.asked[asker] += 1
        self._ring_server(server)

    def answer(self, asker: int) -> tuple[NDArray[Any], NDArray[np.float32], int] | None:
        """Actions, what is kept beside them, and the version of the weights; None while there is no answer."""
        if self.answered[asker] < self.asked[asker]:
            return None
        arrays = self._arrays
        return arrays["action"][asker].copy(), arrays["kept"][asker].copy(), int(arrays["version"][asker])

    def version(self, asker: int) -> int:
        """Of the weights behind the last answer; 0 before the first."""
        return int(self._arrays["version"][asker])

    def states(self, asker: int) -> NDArray[np.float32]:
        """The recurrent states behind the last answer."""
        found: NDArray[np.float32] = self._states[asker, int(self.answered[asker]) % 2]
        return found

    def waiting(self, server: int) -> list[int]:
        """Who waits for this server."""
        found: list[int] = np.flatnonzero((self.asked > self.answered) & (self._to == server)).tolist()
        return found

    def read(self, askers: Sequence[int], core: int) -> tuple[Question, list[int]]:
        """The questions of these, one behind the other, and their numbers."""
        arrays, rows = self._arrays, list(askers)
        numbers: list[int] = self.asked[rows].tolist()

        def joined(name: str) -> NDArray[Any]:
            found = arrays[name][rows]
            return found.reshape(-1, *found.shape[2:])

        states = np.concatenate([self.states(asker) for asker in rows])[:, :core]
        mask = joined("mask") if "mask" in arrays else None
        return Question(joined("observation"), mask, states, joined("first")), numbers

    def reply(self, askers: Sequence[int], numbers: Sequence[int], answer: Answer, version: int) -> None:
        """Answer them."""
        arrays, count = self._arrays, self._arrays["action"].shape[1]
        for index, (asker, number) in enumerate(zip(askers, numbers, strict=True)):
            if number < self.asked[asker]:  # it has begun anew since: another may have answered its new question
                continue
            rows = slice(index * count, (index + 1) * count)
            arrays["action"][asker] = answer.action[rows]
            if answer.extras is not None:
                arrays["kept"][asker] = answer.extras[:, rows]
            if answer.core.shape[1]:
                self._states[asker, number % 2, :, : answer.core.shape[1]] = answer.core[rows]
            arrays["version"][asker] = version
            self.answered[asker] = number
        self._ring_askers()
