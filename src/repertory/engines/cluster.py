"""Ray: joins a cluster or starts one of this machine alone, and places a `Machine` on each node that plays.

Ray is imported here only. It places, starts and watches machines, and carries calls between them; inside a machine
nothing goes through it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repertory.engines.machine import Machine
from repertory.errors import UserError, missing_extra
from repertory.runtime import usable_cores

CALLS_AT_ONCE = 4
"""Of one machine: `collect` waits there while `deliver` brings something."""
TOKEN_FILE = Path.home() / ".ray" / "auth_token"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At 0 Ray's node has the address 127.0.0.1, on every system, and all its ports listen there only."""
PROBE = (
    "import sys; from ray._raylet import GcsClient\n"
    "GcsClient(address=sys.argv[1]).internal_kv_keys(b'', None, timeout=5)"
)
INLINE = {"RAY_max_direct_call_object_size": str(32 << 20), "RAY_task_rpc_inlined_bytes_limit": str(256 << 20)}
"""Messages travel inside calls and replies. Past 100 kB Ray would put them into its object store, which takes 5 ms
more: 120 kB there and back took 5.4 ms instead of 0.9, 2 MB 18 ms instead of 7."""
OBJECT_STORE_BYTES = 512 << 20
PROBE_S = 20.0


@dataclass(frozen=True)
class Node:
    """A machine of the cluster."""

    key: str
    address: str
    cores: int
    gpus: int = 0
    driver: bool = False


class Cluster:
    """The connection to a cluster; `address` None starts one that ends with this object."""

    def __init__(self, address: str | None, *, insecure: bool = False) -> None:
        self._directory = ""
        for name, value in {**QUIET, **INLINE}.items():
            os.environ.setdefault(name, value)
        if not insecure:
            os.environ["RAY_AUTH_MODE"] = "token"
        if address is None:
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
            os.environ[LOOPBACK_ONLY] = "0"
        try:
            import ray  # after the variables: it reads them when it is imported
        except ImportError:
            raise missing_extra("--engine ray", "ray") from None
        self._ray = ray
        logging.getLogger("ray").setLevel(logging.ERROR)
        common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
        if address is None:
            self._start(common)
        else:
            self._join(address, insecure, common)

    def _start(self, common: dict[str, Any]) -> None:
        """With a token of its own, without a dashboard, on loopback only."""
        self._directory = tempfile.mkdtemp(prefix="repertory-ray-")
        self._ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=self._directory,
            **common,
        )

    def _join(self, address: str, insecure: bool, common: dict[str, Any]) -> None:
        from ray._private import services

        given = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
        if not (insecure or given or TOKEN_FILE.exists()):
            raise UserError(
                "joining a cluster needs its token: put it into RAY_AUTH_TOKEN, or into the file "
                f"{TOKEN_FILE} (`ray get-auth-token --generate` makes one); --insecure joins a cluster without one"
            )
        try:
            where = services.canonicalize_bootstrap_address(address) or address
            self._refuse_wrong_tokens(where, insecure)
            self._ray.init(address=where, **common)
        except UserError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise UserError(f"the cluster at {address} can't be joined: {reason}") from None

    def _refuse_wrong_tokens(self, address: str, insecure: bool) -> None:
        """Ray itself would try a wrong token for 20 seconds, and tells nobody that a cluster asks for none."""
        if not insecure and _takes(address, secrets.token_hex(32)):
            raise UserError(
                f"the cluster at {address} runs without a token: whoever reaches its ports can run code on it. Start "
                "Ray with RAY_AUTH_MODE=token on all its machines, or join it with --insecure"
            )
        if not _takes(address, None):
            raise UserError(
                f"the cluster at {address} refuses the token: put the one that it was started with into "
                f"RAY_AUTH_TOKEN, or into {TOKEN_FILE}"
            )

    def nodes(self) -> list[Node]:
        """Those that are alive, the driver's first."""
        here = self._ray.get_runtime_context().get_node_id()
        found = [
            Node(
                str(node["NodeID"]),
                str(node["NodeManagerAddress"]),
                int(node["Resources"].get("CPU", 0)),
                int(node["Resources"].get("GPU", 0)),
                node["NodeID"] == here,
            )
            for node in self._ray.nodes()  # type: ignore[no-untyped-call]
            if node["Alive"]
        ]
        return sorted(found, key=lambda node: (not node.driver, node.address))

    def place(self, node: Node) -> Any:
        """A machine on this node."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = self._ray.remote(Machine).options(
            num_cpus=0,
            max_concurrency=CALLS_AT_ONCE,
            runtime_env={"env_vars": INLINE},
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.key, soft=False),
        )
        return actor.remote(node.address)

    def call(self, method: Any, *given: Any, seconds: float) -> Any:
        """The reply of a machine; raises if there is none within these seconds."""
        return self._ray.get(method.remote(*given), timeout=seconds)

    def end(self, machine: Any) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(machine)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._ray.shutdown()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)


def _takes(address: str, token: str | None) -> bool:
    """Whether a cluster takes this token, None = the user's; a process reads its token once, so another one asks."""
    variables = {**os.environ, **({} if token is None else {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token})}
    words = [sys.executable, "-c", PROBE, address]
    with subprocess.Popen(words, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as asking:
        deadline = threading.Timer(PROBE_S, asking.kill)
        deadline.start()
        said = ""
        for line in asking.stderr or ():
            said += line
            if "InvalidAuthToken" in line:
                asking.kill()
        deadline.cancel()
    if asking.returncode == 0 or "InvalidAuthToken" in said:
        return asking.returncode == 0
    raise UserError(f"the cluster at {address} does not reply: is Ray running there?")


def choose(nodes: Sequence[Node], wanted: Sequence[str]) -> list[int]:
    """How many cores of each node play, by `--topology.nodes`: all, far (all but the driver's), or addresses."""
    driver_cores = max(0, usable_cores() - 1) if len(nodes) > 1 else usable_cores()
    cores = [driver_cores if node.driver else node.cores for node in nodes]
    if wanted == ["all"]:
        return cores
    if wanted == ["far"]:
        if len(nodes) == 1:
            raise UserError("--topology.nodes far needs a cluster with more machines than the driver's; take all")
        return [0 if node.driver else count for node, count in zip(nodes, cores, strict=True)]
    known = [node.address for node in nodes]
    for name in wanted:
        if name not in known:
            raise UserError(f"--topology.nodes names {name!r}, which is not in the cluster: {', '.join(known)}")
    return [max(1, count) if node.address in wanted else 0 for node, count in zip(nodes, cores, strict=True)]
