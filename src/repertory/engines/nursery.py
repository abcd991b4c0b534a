"""Imported by the process that forks a company's members, and by nobody else: imports everything, starts nothing.

A signal meant to end the run may reach the whole process group; this process must outlive it, as the members do, until
the driver has ended them in order. With the driver gone, it leaves by itself.
"""

import signal

import repertory.engines.host  # noqa: F401

signal.signal(signal.SIGTERM, signal.SIG_IGN)
