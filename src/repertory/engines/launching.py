"""Starting and ending the processes of a run, through the fork server."""

from __future__ import annotations

import contextlib
from typing import Any

from repertory.engines.placement import processes_of
from repertory.engines.worker_process import WorkerArguments, run_worker
from repertory.errors import UserError
from repertory.runtime import allow_open_files, fork_server, usable_cores
from repertory.topologies.graph import Topology

BEYOND = 200
"""More workers than this, and the descriptors of their bells do not fit into one message to a new process."""
OWN_FILES = 40
START_ATTEMPTS = 3
SERVER_GONE = 255
"""What `multiprocessing` says of a process whose fork server can't tell any more how it ended."""


class WorkerFailed(RuntimeError):
    """A worker failed more often than it may."""


def check_limits(topology: Topology) -> None:
    """Refuse more workers than can be started.

    A bell for each worker; two reports and two pipes for each process; and what the run itself needs.
    """
    workers, processes = len(topology.roster()), len(processes_of(topology, usable_cores()))
    if workers > BEYOND:
        raise UserError(f"{workers} workers were asked for; {BEYOND} are possible: lower --actors")
    needed, limit = workers + 4 * processes + OWN_FILES, allow_open_files()
    if needed > limit:
        raise UserError(
            f"{workers} workers need about {needed} open files, but this user may open {limit}: raise the limit "
            "(ulimit -n), or lower --actors"
        )


def start_worker(given: WorkerArguments, workers: tuple[int, ...], name: str) -> Any:
    """A new process; the fork server may be gone, or go meanwhile: then there is a new one the next time."""
    for attempt in range(1, START_ATTEMPTS + 1):
        process = fork_server().Process(target=run_worker, args=(given, workers), name=name)
        try:
            process.start()
        except (OSError, EOFError) as error:
            if attempt < START_ATTEMPTS:
                continue
            raise WorkerFailed(
                f"{name} could not be started: the process that forks workers failed {attempt} times "
                f"({type(error).__name__}: {error}); look at this user's limits of processes and open files (ulimit -a)"
            ) from error
        break
    return process


def end_worker(process: Any) -> None:
    """Surely and at once: what it held is not its own."""
    if process.is_alive():
        process.kill()
    process.join(5.0)
    with contextlib.suppress(ValueError):
        process.close()
