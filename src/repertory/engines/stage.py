"""The stage: every array that a company stands on, and the ports that lie on them.

One table of fields says what there is; an engine allocates it (plain memory inline, one shared block for processes),
and every member finds its ports on it by name. What must survive a member lies here and nowhere else.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from repertory.agents.agent import Agent, LearnerState
from repertory.agents.compression import Compression, make_compression
from repertory.engines.boards import BatchSlots, Board, GradientSlots, Requests
from repertory.engines.collective import SharedCollective
from repertory.engines.plan import ANSWERING, Plan
from repertory.experience.lanes import Field, Lanes
from repertory.experience.priorities import PriorityTree
from repertory.experience.replay import Prioritization, Replay
from repertory.experience.unrolls import Unrolls
from repertory.roles.adjuster import Adjuster
from repertory.roles.evaluator import EvaluationDesk
from repertory.roles.ledger import KEPT, Page, ledger_fields
from repertory.roles.rank import payload_fields
from repertory.roles.safe import Safe

RUN, PAUSE, LEAVE, LEARN, BUILD = 0, 1, 2, 3, 4
BATCHES_AHEAD = 3
NOTE_BYTES = 8192
CHECKSUMS = 1024
COUNTED = ("shards", "learners", "predictors", "trainers", "policy_workers")
"""Options that say how many of a role there are."""
PLAYING = ("collector", "worker", "thread", "rank", "actor", "agent", "rollout_worker")
SHARING = ("collector",)
A_LITTLE, MUCH, MORE = 5, 10, 15
GUARD = 8
"""Slots that readers keep from a lane's oldest, which its actor may be about to overwrite; fewer in short lanes."""


@dataclass(frozen=True)
class Member:
    """One of the company: what it does and which of them it is; `index` is its page in the ledger."""

    index: int
    role: str
    rank: int

    def __str__(self) -> str:
        return f"{self.role} {self.rank}"


def members_of(plan: Plan) -> list[Member]:
    """Everybody."""
    company = plan.company
    counts = {"actors": plan.actors} | {f"company.{name}": getattr(company, name) for name in COUNTED}
    return [Member(index, *who) for index, who in enumerate(plan.topology.member_roles(counts))]


def crews_of(plan: Plan, cores: int) -> list[tuple[Member, ...]]:
    """Who shares a process, and in it a policy: collectors, where they are more than cores, for they mostly wait.

    Each process has caches to warm and pages to map whenever it wakes up; on two cores the step of a collector took 95
    µs among few processes, and 300 to 450 among 64. While each still had a policy of its own, 64 made 7,400 steps a
    second in 2 processes that kept to their cores, 6,700 in 4, and 5,700 in 4 that moved.
    """
    members, share = members_of(plan), plan.company.actors_per_process
    processes = -(-plan.actors // share) if share else min(plan.actors, max(2, cores))
    players = [member for member in members if member.role in SHARING]
    crews = [tuple(players[cut]) for cut in slices(len(players), processes)] if players else []
    return crews + [(member,) for member in members if member.role not in SHARING]


def cores_of(plan: Plan, crew: tuple[Member, ...], cores: Sequence[int]) -> Sequence[int]:
    """The cores that a process keeps to; none = it goes where the system sends it.

    Processes that are as many as cores, or a multiple, keep to one each: workers that play and learn lost up to a third
    of their speed by moving from core to core, and threads that share an interpreter wake each other, which is dearer
    across cores. Where fewer play than there are cores, a learner that computes on one thread has one to itself, but
    for an evaluator, which goes wherever nobody computes.
    """
    if spare := spare_cores(plan, cores):
        return {"learner": cores[-1:], "evaluator": ()}.get(crew[0].role, spare)
    alike = [crew for crew in crews_of(plan, len(cores)) if crew[0].role in (*SHARING, "thread")]
    if crew not in alike or not cores or len(alike) % len(cores) or (len(crew) == 1 and crew[0].role in SHARING):
        return ()
    return (cores[alike.index(crew) % len(cores)],)


def spare_cores(plan: Plan, cores: Sequence[int]) -> Sequence[int]:
    """Those beside the learner's own, if it has one and they are not all taken by those who play."""
    playing = [crew for crew in crews_of(plan, len(cores)) if crew[0].role in SHARING]
    alone = plan.topology.has("memory") and not plan.strategy().slice_rows
    return cores[:-1] if alone and len(playing) < len(cores) else ()


def niceness_of(plan: Plan, crew: tuple[Member, ...], cores: int) -> int:
    """By how much a process yields to the others.

    Few collectors yield to the learner: what it waits for, everybody waits for in the end. Those that share processes
    mostly wait for their environments, and the learner yields to them: what comes back is to be answered at once, and
    who plays ahead of the learner has to wait anyway. An evaluator yields to the learner in any case.
    """
    crowded = any(len(each) > 1 for each in crews_of(plan, cores))
    few = {"collector": MORE, "evaluator": A_LITTLE}
    many = {"learner": MUCH, "evaluator": MORE}
    return (many if crowded else few).get(crew[0].role, 0)


class Stage:
    """Ports on the arrays; `ring` wakes members that wait, by their indices."""

    def __init__(
        self, plan: Plan, agent: Agent, arrays: Mapping[str, NDArray[Any]], ring: Callable[[Sequence[int]], None]
    ) -> None:
        self.plan, self.agent, self.arrays, self.ring = plan, agent, arrays, ring
        self.members = members_of(plan)
        self.ledger = self.named("ledger")
        self.phase: NDArray[np.int64] = arrays["phase"]

    @cached_property
    def structure(self) -> Any:
        """Shapes of the learner state."""
        return jax.eval_shape(self.agent.init, 0)

    @staticmethod
    def fields(plan: Plan, agent: Agent) -> dict[str, Field]:
        """What has to be allocated for this company."""
        structure = jax.eval_shape(agent.init, 0)
        size, members, topology = agent.layout.size, members_of(plan), plan.topology
        fields: dict[str, Field] = {
            **_named("ledger", ledger_fields(len(members))),
            "phase": Field((2,), "int64"),
            "due_at": Field((1,), "int64"),
            "notes": Field((len(members), NOTE_BYTES), "uint8"),
            **_named("evaluation", EvaluationDesk.fields(size, plan.eval_episodes)),
        }
        if plan.unrolled:
            fields |= _named("unrolls", _unroll_fields(plan, agent))
        else:
            lanes = Lanes.fields(plan.spec, plan.environments, plan.lane_length, plan.valued)
            fields |= _named("lanes", lanes)
        if plan.central:
            requests = Requests.fields(plan.spec, plan.writers, plan.envs_per_group, agent.state_size)
            fields |= _named("requests", requests)
        if topology.has("adjuster"):
            fields |= _named("adjust", Adjuster.fields())
        if not plan.unrolled and plan.q.prioritized:
            replays = plan.actors if _local(plan) else 1
            leaves = PriorityTree.padded(plan.environments // replays * plan.lane_length)
            fields["priorities"] = Field((replays, leaves), "float64")
        if topology.has("server"):
            fields |= _server_fields(plan, structure, size)
        elif plan.lock_free:
            leaves_ = jax.tree_util.tree_leaves(structure)
            fields |= {f"store/{i:02d}": Field(leaf.shape, np.dtype(leaf.dtype).name) for i, leaf in enumerate(leaves_)}
            fields["store/target_copies"] = Field((1,), "int64")
        else:
            fields |= _named("weights", Board.fields(size)) | _named("safe", Safe.fields(structure))
        if topology.has("memory"):
            example = _example(plan)
            fields |= _named("batches", BatchSlots.fields(example, BATCHES_AHEAD))
        if topology.together:
            fields["checksums"] = Field((plan.ranks, CHECKSUMS, 2), "int64")
        if topology.together and (topology.has("rank") or plan.ranks > 1):
            fields |= _named(
                "collective", SharedCollective.fields(payload_fields(_compression(plan, size)), plan.ranks)
            )
        return fields

    def named(self, prefix: str) -> dict[str, NDArray[Any]]:
        """The arrays under a name."""
        return {name.partition("/")[2]: array for name, array in self.arrays.items() if name.startswith(f"{prefix}/")}

    def page(self, member: Member) -> Page:
        """A member's page."""
        return Page(self.ledger, member.index)

    def indices(self, *roles: str) -> list[int]:
        """Members with these roles."""
        return [member.index for member in self.members if member.role in roles]

    def bell(self, *roles: str) -> Callable[[], None]:
        """A function that wakes those with these roles who wait."""
        indices = self.indices(*roles)
        return lambda: self.ring(indices)

    @cached_property
    def lanes(self) -> Lanes:
        """Everybody's lanes."""
        return Lanes(self.plan.spec, self.plan.environments, self.plan.lane_length, self.named("lanes"))

    @cached_property
    def unrolls(self) -> Unrolls:
        """Everybody's unrolls."""
        return Unrolls(self.plan.spec, self.plan.slots_per_writer, self.named("unrolls"))

    def requests(self) -> Requests:
        """Questions of actors without networks."""
        servers = self.indices(*ANSWERING)
        return Requests(
            self.named("requests"), lambda server: self.ring(servers[server : server + 1]), self.bell(*PLAYING)
        )

    @cached_property
    def at_work(self) -> NDArray[np.int64]:
        """How many predictors, trainers and agents are at work; changes while it runs."""
        if "adjust/active" in self.arrays:
            return self.arrays["adjust/active"]
        return np.array([self.plan.servers, self.plan.readers, self.plan.actors])

    def trainers_at_work(self) -> int:
        """Those among whom agents divide their unrolls: no more than all slots of those at work can give a batch."""
        _, trainers, agents = self.at_work.tolist()
        return max(1, min(trainers, agents * self.plan.slots_per_writer // self.plan.batch_slots))

    def replay(self, rank: int | None = None, n_step: int | None = None) -> Replay:
        """A reader of all lanes, or of one actor's."""
        plan = self.plan
        lanes = self.lanes if rank is None else self.lanes.part(rank * plan.envs_per_actor, plan.envs_per_actor)
        options, prioritized = plan.q, plan.q.prioritized
        spare = lanes.length - options.n_step - plan.spec.observation.stack
        return Replay(
            lanes,
            n_step=n_step or options.n_step,
            discount=options.discount,
            next_actions=options.sarsa,
            prioritization=Prioritization(options.priority_exponent) if prioritized else None,
            guard=min(GUARD, max(1, spare // 2)) if rank is None else 0,
            buffers=3,
            leaves=self.arrays["priorities"][rank or 0] if prioritized else None,
        )

    def board(self) -> Board:
        """The weights of a company with one learner."""
        return Board(self.named("weights"), ring=self.bell(*PLAYING))

    def server_boards(self, name: str) -> list[Board]:
        """Weights or target, one board for each server's slice."""
        arrays = self.named(name)
        return [Board(arrays, part, cut) for part, cut in enumerate(self.slices)]

    @cached_property
    def slices(self) -> list[slice]:
        """Which numbers of the vector each server owns."""
        return slices(self.agent.layout.size, self.plan.company.shards)

    def compression(self, size: int) -> Compression:
        """How gradients of this size are sent."""
        return _compression(self.plan, size)

    def collective(
        self, rank: int, ring: Callable[[], None] = lambda: None, wait: Callable[[], bool] | None = None
    ) -> SharedCollective:
        """Where a rank submits gradients and gets everybody's."""
        return SharedCollective(self.named("collective"), rank, ring, wait)

    def forget_rounds(self) -> None:
        """All ranks begin anew, from the same safe; called while none of them is there."""
        for name, array in self.named("collective").items():
            if name in ("submitted", "halted"):
                array[:] = 0

    def gradient_slots(self) -> GradientSlots:
        """Where workers put gradients for servers."""
        payloads = [self.named(f"payload{server}") for server in range(self.plan.company.shards)]
        return GradientSlots(self.named("gradients"), payloads)

    def safe(self, server: int | None = None) -> Safe:
        """Where the learner state survives, or one server's slice of it."""
        if server is None:
            return Safe(self.structure, self.named("safe"))
        cut = cut_state(self.structure, self.agent.layout.size, self.slices[server])
        return Safe(cut, self.named(f"safe{server}"))

    def store(self) -> SharedStore:
        """The live copy that hogwild workers share."""
        return SharedStore(self.structure, self.named("store"), lambda: int(self.ledger["updates"].sum()))

    # What a checkpoint keeps, the same for every topology.

    def fill(self, learned: LearnerState) -> None:
        """Put a fresh learner state where the roles will look for it."""
        if "adjust/active" in self.arrays:
            company = self.plan.company
            everybody = (company.predictors, company.trainers, self.plan.actors)
            self._put_to_work(company.adjust_from or everybody)
        leaves = jax.tree_util.tree_leaves(learned)
        self.load_learned({f"{index:02d}": np.asarray(leaf) for index, leaf in enumerate(leaves)})

    def learned(self) -> dict[str, NDArray[Any]]:
        """The whole learner state as named arrays."""
        if self.plan.lock_free:
            return self.store().state()
        if not self.plan.topology.has("server"):
            return self.safe().state()
        parts = [self.safe(server).state() for server in range(self.plan.company.shards)]
        shapes = [leaf.shape for leaf in jax.tree_util.tree_leaves(self.structure)]
        whole = (self.agent.layout.size,)
        return {
            name: np.concatenate([part[name] for part in parts]) if shape == whole else parts[0][name]
            for name, shape in zip(sorted(parts[0]), shapes, strict=True)
        }

    def load_learned(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over a learner state."""
        if self.plan.lock_free:
            self.store().load_state(arrays)
        elif not self.plan.topology.has("server"):
            self.safe().load_state(arrays)
        else:
            whole = (self.agent.layout.size,)
            for server, cut in enumerate(self.slices):  # a checkpoint holds arrays of one number as numbers
                parts = {name: array[cut] if np.shape(array) == whole else array for name, array in arrays.items()}
                self.safe(server).load_state(parts)

    def weights(self) -> tuple[int, NDArray[np.float32]]:
        """The newest weights: a copy."""
        if self.plan.lock_free:
            return int(self.ledger["updates"].sum()), self.store().vectors()[0]
        if not self.plan.topology.has("server"):
            return self.board().latest()
        found = [board.latest() for board in self.server_boards("weights")]
        return found[0][0], np.concatenate([vector for _, vector in found])

    def write_note(self, member: Member, state: Mapping[str, Any]) -> None:
        """A member's own state, as JSON, beside its page."""
        text = json.dumps(state).encode()
        if len(text) >= NOTE_BYTES:
            raise ValueError(f"the state of {member} has {len(text)} bytes, more than fit")
        note = self.arrays["notes"][member.index]
        note[: len(text)] = np.frombuffer(text, np.uint8)
        note[len(text)] = 0

    def read_note(self, member: Member) -> dict[str, Any]:
        """What `write_note` wrote; empty if it never did."""
        text = self.arrays["notes"][member.index].tobytes().partition(b"\0")[0]
        try:
            return dict(json.loads(text)) if text else {}
        except ValueError:  # whoever wrote it was killed before its end
            return {}

    def count_what_is_kept(self) -> None:
        """Where one learner counts updates, those that went with it before they were put away were never made."""
        if "safe/flip" in self.arrays:
            updates = self.ledger["updates"]
            updates[updates > 0] = int(self.safe().load().updates)

    def state(self) -> dict[str, Any]:
        """Everything a checkpoint needs, once all members have settled."""
        state: dict[str, Any] = {
            "env_steps": int(self.ledger["env_steps"].sum()),
            "updates": int(self.ledger["updates"].sum()),
            "learner": {"learned": self.learned(), "layout": self.agent.layout.fingerprint},
            "ledger": {name: self.ledger[name].copy() for name in KEPT},
            "members": {str(member): self.read_note(member) for member in self.members},
        }
        if not self.plan.unrolled:
            state["lanes"] = self.lanes.state()
        if "priorities" in self.arrays:
            state["priorities"] = {"leaves": self._priorities_by_lane()[:, :, : self.lanes.filled]}
        if "adjust/active" in self.arrays:
            state["at_work"] = self.arrays["adjust/kept"].copy()
        return state

    def _priorities_by_lane(self) -> NDArray[np.float64]:
        """[replay, lane, slot], live; a tree has leaves beyond those that only fill it up."""
        leaves, lanes = self.arrays["priorities"], self.plan.environments // len(self.arrays["priorities"])
        return leaves[:, : lanes * self.plan.lane_length].reshape(len(leaves), lanes, -1)

    def _put_to_work(self, numbers: Sequence[int]) -> None:
        """Of predictors, trainers and agents."""
        for name in ("active", "kept"):
            self.arrays[f"adjust/{name}"][:] = numbers

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a checkpoint, before any member is there; running episodes end as truncated."""
        self.agent.layout.check(state["learner"].get("layout"))
        self.load_learned(state["learner"]["learned"])
        if not self.plan.unrolled:
            self.lanes.load_state(state["lanes"])
            self.lanes.interrupt()
        for name in KEPT:
            self.ledger[name][:] = state["ledger"][name]
        for member in self.members:
            self.write_note(member, state["members"][str(member)])
        if "priorities" in self.arrays:
            saved = np.asarray(state["priorities"]["leaves"])
            self._priorities_by_lane()[:, :, : saved.shape[2]] = saved
        if "adjust/active" in self.arrays and "at_work" in state:  # checkpoints of before had none
            self._put_to_work(state["at_work"])
        if "store/target_copies" in self.arrays:
            self.arrays["store/target_copies"][0] = state["env_steps"] // self.plan.company.target_steps


class SharedStore:
    """One live copy of the learner state, read and written without a lock (Hogwild: Niu et al. 2011)."""

    def __init__(
        self, structure: Any, arrays: Mapping[str, NDArray[Any]], updates: Callable[[], int] | None = None
    ) -> None:
        """`updates` tells how many were made: the count in the state itself may lose some, as all of it may."""
        leaves, self._tree = jax.tree_util.tree_flatten(structure)
        self._arrays = [arrays[f"{index:02d}"] for index in range(len(leaves))]
        self._names: Any = jax.tree_util.tree_unflatten(self._tree, self._arrays)
        self._copies = arrays["target_copies"]
        self._count = updates or (lambda: int(self._names.updates))

    def live(self) -> LearnerState:
        """What is there now; others write it meanwhile."""
        learned: LearnerState = self._names
        return learned

    def vectors(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A copy of the weights and of the target."""
        return self._names.weights.copy(), self._names.target.copy()

    def latest(self) -> tuple[int, Any]:
        """For a policy: the weights as they are now, whose version is the count of updates."""
        return self._count(), self._names.weights.copy()

    def publish(self, version: int, weights: Any) -> None:
        """Nobody publishes: the weights are there."""

    def add(self, change: Any, statistics: Any, skipped: Any) -> None:
        """Add the change, number by number; statistics are replaced by their new values."""
        np.add(self._names.weights, np.asarray(change), out=self._names.weights)
        moments = jax.tree_util.tree_leaves(self._names.optimizer)
        for array, leaf in zip(moments, jax.tree_util.tree_leaves(statistics), strict=True):
            array[...] = np.asarray(leaf)
        np.add(self._names.updates, 1, out=self._names.updates)
        self._names.skipped[...] = np.asarray(skipped)

    def move_target(self, env_steps: int, period: int) -> None:
        """Copy the weights into the target at every multiple of `period`, if there is one."""
        due = env_steps // period
        if self._names.target.shape == self._names.weights.shape and due > int(self._copies[0]):
            self._copies[0] = due
            self._names.target[...] = self._names.weights

    def state(self) -> dict[str, NDArray[Any]]:
        """The arrays themselves."""
        return {f"{index:02d}": array for index, array in enumerate(self._arrays)}

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over arrays."""
        for index, array in enumerate(self._arrays):
            array[...] = np.asarray(state[f"{index:02d}"])


def slices(size: int, parts: int) -> list[slice]:
    """`parts` pieces of nearly equal length."""
    edges = [size * part // parts for part in range(parts + 1)]
    return [slice(low, high) for low, high in itertools.pairwise(edges)]


def cut_state(state: Any, size: int, at: slice) -> Any:
    """A learner state of which every vector keeps a slice only; also of shapes."""

    def cut(leaf: Any) -> Any:
        if leaf.shape != (size,):
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct((at.stop - at.start,), leaf.dtype)
        return leaf[at]

    return jax.tree_util.tree_map(cut, state)


def _named(prefix: str, fields: Mapping[str, Field]) -> dict[str, Field]:
    return {f"{prefix}/{name}": field for name, field in fields.items()}


def _compression(plan: Plan, size: int) -> Compression:
    return make_compression(plan.company.compression, size, share=plan.company.topk_share)


def _local(plan: Plan) -> bool:
    """Whether each actor's steps are a memory by themselves."""
    return not plan.topology.has("learner") and plan.company.memory == "local"


def _unroll_fields(plan: Plan, agent: Agent) -> dict[str, Field]:
    each = (plan.slots_per_writer, plan.critic.unroll, plan.envs_per_group)
    return Unrolls.fields(plan.spec, plan.writers, *each, agent.state_size)


def _server_fields(plan: Plan, structure: Any, size: int) -> dict[str, Field]:
    shards = plan.company.shards
    fields = _named("weights", Board.fields(size, shards)) | _named("target", Board.fields(size, shards))
    fields |= _named("gradients", GradientSlots.fields(plan.actors, shards))
    for server, cut in enumerate(slices(size, shards)):
        method = _compression(plan, cut.stop - cut.start)
        payload = {name: Field((plan.actors, *shape), dtype) for name, (shape, dtype) in method.fields.items()}
        fields |= _named(f"payload{server}", payload)
        fields |= _named(f"safe{server}", Safe.fields(cut_state(structure, size, cut)))
    return fields


def _example(plan: Plan) -> Any:
    """A sample of the right shapes, for the slots that batches travel in."""
    lanes = Lanes(plan.spec, 1, 4)
    rows = plan.q.batch_size * plan.q.updates_per_call
    at = np.zeros(rows, np.int64)
    return Replay(lanes).gather(at, at, np.ones(rows, np.float32))
