"""Settings of the array library that must be made before it is imported; imports nothing of ours.

One XLA thread a process: for the small networks of this field a second thread gives nothing, and processes that each
take all cores slow each other down. What the user has set stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
PR_SET_NAME = 15
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8
MALLOC = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**26, M_ARENA_MAX: 1}
UNGUARDED = 3
"""Exit code of a member whose import of the user's script came to a call of train()."""
SINGLE_THREAD = "--xla_cpu_multi_thread_eigen=false"


def cap_threads() -> None:
    """Before JAX is imported: one compute thread, on the CPU unless told otherwise."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {SINGLE_THREAD}".strip()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def start_jax(threads: int) -> None:
    """Before the first computation: how many threads run compiled programs, and where those are kept.

    With one thread a MinAtar update took 2 ms, with the default of one a core 55 ms; and programs compiled under the
    default stayed that slow when loaded from the cache with one thread. Why was not found out (the guess: XLA cuts
    programs into pieces for the threads it finds), so each number of threads has a cache of its own.
    """
    os.environ.setdefault("PJRT_NPROC", str(threads))
    _keep_compiled_programs(cache_directory() / f"threads-{os.environ['PJRT_NPROC']}")


def compute_at_once() -> None:
    """For those who have nothing else to do meanwhile: compute in the calling thread, not in another."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)


def wake_up_sharply() -> None:
    """Ask Linux to end this thread's sleeps on time, not up to 50 µs late; elsewhere nothing is asked."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def interrupt_nobody() -> None:
    """Ask Linux to let whoever runs go on when a thread of this process wakes up, and those that it starts later.

    For threads that share an interpreter: one that is woken while another has the interpreter's lock could only wait.
    Elsewhere nothing is asked.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def keep_freed_memory() -> None:
    """Ask glibc not to give freed memory back to the system: the large arrays of every update are page faults again.

    On an update of 128 pictures they took half of the time. Elsewhere nothing is asked.
    """
    with contextlib.suppress(OSError, AttributeError):
        for setting, value in MALLOC.items():
            ctypes.CDLL(None).mallopt(setting, value)


def name_process(name: str) -> None:
    """What `top` and `ps -o comm` show of this process; Linux keeps 15 letters."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def die_with_fork_server() -> None:
    """In a member: be killed when the process that forked it is gone, even while stopped or stuck in native code.

    That process leaves as soon as nobody holds its pipe; members would, so that it must be closed here.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(OSError, AttributeError, TypeError):
        server: Any = forkserver._forkserver
        os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None


def end_with(parent: int) -> None:
    """Be killed when the process that started this one is gone, however it went; elsewhere than on Linux, never."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it went before it could be asked for
        os._exit(1)


def fork_server() -> Any:
    """The process that forks a company's members: everything imported, nothing started."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)  # the user's script trains while a member imports it: one word to the driver, no storm
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["repertory.engines.nursery"])
    return context


def start_fork_server() -> None:
    """Start that process early, so that it imports while this one does."""
    fork_server()
    forkserver.ensure_running()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pinnable_cores() -> list[int]:
    """The numbers of those cores, where the system lets a process keep to one; else none."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def cache_directory() -> Path:
    """Where compiled programs are kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "repertory" / "jax"


def _keep_compiled_programs(directory: Path) -> None:
    """Compile each program once and for all runs; a place that can't be written is no reason to stop."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_raise_persistent_cache_errors", False)
