"""Starting and ending the processes of a company, through the fork server."""

from __future__ import annotations

import contextlib
from typing import Any

from repertory.engines.host import Kit, perform
from repertory.engines.plan import Plan
from repertory.engines.stage import crews_of, members_of
from repertory.errors import UserError
from repertory.runtime import allow_open_files, fork_server, usable_cores

BEYOND = 200
"""More members than this, and the descriptors of their bells do not fit into one message to a new process."""
OWN_FILES = 40
START_ATTEMPTS = 3
SERVER_GONE = 255
"""What `multiprocessing` says of a process whose fork server can't tell any more how it ended."""


class CompanyFailed(RuntimeError):
    """A member failed more often than it may."""


def check_limits(plan: Plan) -> None:
    """Refuse more members than can be started.

    A bell for each member; two reports and two pipes for each process; and what the run itself needs.
    """
    members, processes = len(members_of(plan)), len(crews_of(plan, usable_cores()))
    if members > BEYOND:
        raise UserError(f"{members} members were asked for; {BEYOND} are possible: lower --actors")
    needed, limit = members + 4 * processes + OWN_FILES, allow_open_files()
    if needed > limit:
        raise UserError(
            f"{members} workers need about {needed} open files, but this user may open {limit}: raise the limit "
            "(ulimit -n), or lower --actors"
        )


def start_worker(kit: Kit, crew: tuple[int, ...], name: str) -> Any:
    """A new process; the fork server may be gone, or go meanwhile: then there is a new one the next time."""
    for attempt in range(1, START_ATTEMPTS + 1):
        process = fork_server().Process(target=perform, args=(kit, crew), name=name)
        try:
            process.start()
        except (OSError, EOFError) as error:
            if attempt < START_ATTEMPTS:
                continue
            raise CompanyFailed(
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
