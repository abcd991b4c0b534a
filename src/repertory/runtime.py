"""Settings of the array library that must be made before it is imported; imports nothing of ours.

One XLA thread a process: for the small networks of this field a second thread gives nothing, and processes that each
take all cores slow each other down. What the user has set stays.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import resource
import signal
import sys
import time
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
PR_SET_NAME = 15
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8
MALLOC = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**26, M_ARENA_MAX: 1}
UNGUARDED = 3
"""Exit code of a member whose import of the user's script came to a call of train(); counts only before it began."""
FAMILY = "REPERTORY_FAMILY"
"""Environment variable: a random name of the run, which the driver, the members and what they start have in common."""
MOST_FILES = 4096
"""Open files that the largest company needs, and more."""
ONE_THREAD = ("xla_cpu_multi_thread_eigen", "xla_cpu_enable_concurrency_optimized_scheduler")
"""XLA's switches that are off: matrix products on several threads, and an order of operations that is made for several.

With that order, a learner that keeps to one core handed a part of each update to a second thread on the same core.
"""


def cap_threads() -> None:
    """Before JAX is imported: one compute thread, on the CPU unless told otherwise."""
    given = os.environ.get("XLA_FLAGS", "")
    off = [f"--{name}=false" for name in ONE_THREAD if name not in given]
    os.environ["XLA_FLAGS"] = " ".join([given, *off]).strip()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def look_for_no_display() -> None:
    """Before pygame is imported: where there is no display, SDL complains on stderr if it looks for one."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")


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


def die_with_fork_server(server: int) -> None:
    """In a member: be killed when the process that forked it is gone, even while stopped or stuck in native code.

    If it is gone already, another member may have been started in this one's place: leave at once. The server leaves as
    soon as nobody holds its pipe; members would, so that it must be closed here.
    """
    end_with(server)
    with contextlib.suppress(OSError, AttributeError, TypeError):
        held: Any = forkserver._forkserver
        os.close(held._forkserver_alive_fd)
        held._forkserver_alive_fd = None


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
    os.environ.setdefault(FAMILY, os.urandom(8).hex())  # before it is started, so that it has the same
    _forget_stdin()
    allow_open_files()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["repertory.engines.preload"])
    return context


def _forget_stdin() -> None:
    """A program that is read from stdin has no file, but Python gives it one, which every process fails to import."""
    main = sys.modules["__main__"]
    if getattr(main, "__file__", None) == "<stdin>":
        del main.__file__


def ending_signals() -> list[int]:
    """Those that ask a run to end; that of a lost connection only if nobody wants it ignored, as `nohup` does."""
    asked: list[int] = [signal.SIGINT, signal.SIGTERM]
    return asked if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [*asked, signal.SIGHUP]


def allow_open_files() -> int:
    """Raise the limit of open files as far as this user may, for all that is started later; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_FILES if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def fork_server_pid() -> int:
    """The number of that process; 0 if there is none."""
    server: Any = forkserver._forkserver
    return int(server._forkserver_pid or 0)


def end_of_child(pid: int, seconds: float = 1.0) -> str:
    """How a child of this process ended, without forgetting it; empty if it has not, after waiting so long for it."""
    until = time.monotonic() + seconds
    while True:
        try:
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return "is gone"
        if found is not None:
            killed = found.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
            name = signal.Signals(found.si_status).name if killed else ""
            return f"was killed by {name}" if killed else f"ended with exit code {found.si_status}"
        if time.monotonic() > until:
            return ""
        time.sleep(0.01)


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


def state_directory() -> Path:
    """Where things are kept that belong to this user and this machine, not to a run."""
    root = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(root) / "repertory"


def _keep_compiled_programs(directory: Path) -> None:
    """Compile each program once and for all runs; a place that can't be written is no reason to stop."""
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        if not _can_be_written(directory):
            return  # JAX would warn of each program that it can't keep
        jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_raise_persistent_cache_errors", False)


def _can_be_written(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK)
