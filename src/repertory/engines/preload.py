"""Imported by the process that forks the workers, and by nobody else: imports everything, starts nothing.

A signal meant to end the run may reach the whole process group; this process must outlive it, as the workers do, until
the driver has ended them in order. With the driver gone it leaves by itself, and takes along whatever workers and
their environments have left.
"""

import atexit
import os
import signal

import psutil

import repertory.engines.worker_process  # noqa: F401
from repertory.engines.endings import end_offspring

OWN = os.getpid()


def _end_everybody() -> None:
    if os.getpid() == OWN:  # else it is a worker that leaves
        end_offspring({child.pid for child in psutil.Process().children()})


signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
atexit.register(_end_everybody)
