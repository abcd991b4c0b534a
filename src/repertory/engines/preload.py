"""Only the fork server imports this: it imports everything and starts nothing.

A signal that ends the run may reach the whole process group. The fork server and the workers must survive it until the
driver has ended them in order. If the driver is gone, the fork server exits, and ends the processes that workers and
their environments have left.
"""

import atexit
import os
import signal

import psutil

import repertory.engines.worker_process  # noqa: F401
from repertory.engines.endings import end_offspring

OWN = os.getpid()


def _end_workers() -> None:
    if os.getpid() == OWN:  # else this is a worker that leaves
        end_offspring({child.pid for child in psutil.Process().children()})


signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
atexit.register(_end_workers)
