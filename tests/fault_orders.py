"""A member of a company that raises where it stands, whatever it is doing, when a signal says so."""

from __future__ import annotations

import signal
from typing import Any, NoReturn

from repertory.engines.host import Kit, perform

ORDER = signal.SIGRTMIN + 5


def obey(signum: int, frame: Any) -> NoReturn:  # noqa: ARG001
    """Between two instructions of the main thread."""
    raise RuntimeError("out of wits")


def perform_on_order(kit: Kit, crew: tuple[int, ...]) -> None:
    """In place of the child's main function."""
    signal.signal(ORDER, obey)
    perform(kit, crew)
