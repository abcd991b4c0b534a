"""The live view of a run: on a terminal, in a notebook, or as plain lines.

All of it goes to stderr, so that stdout stays clean for results; what can't be written there is dropped. The keys are
those of `docs/metrics.md`. A key that a run has but does not know yet is shown as a dash; a key that it never has is
not shown. `update` may be called a thousand times a second: it stores the values, and draws at most four times a
second. Only while something blocks (`busy`) a thread draws what is going on and for how long, so that the screen never
looks frozen.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from importlib.util import find_spec
from typing import TextIO, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from repertory.output import forgiving
from repertory.runs.metrics import Values, number

Clock: TypeAlias = Callable[[], float]
What: TypeAlias = str | Callable[[], str]

DRAW_SECONDS, LINE_SECONDS = 0.25, 10.0
BLINK_SECONDS, PATIENCE_SECONDS = 0.1, 2.0
"""Shorter waits are not mentioned, on a terminal and in lines."""
DASH = "–"

COLUMNS = 3
CELLS = (  # label, key, how the number is written
    ("score", "score", ",.1f"),
    ("best", "score_best", ",.1f"),
    ("return", "episode_return", ",.1f"),
    ("env steps/s", "env_steps_per_s", ",.0f"),
    ("updates/s", "updates_per_s", ",.0f"),
    ("ε", "epsilon", ".3f"),
    ("loss", "loss", ".3g"),
    ("replay ratio", "replay_ratio", ".3g"),
)
BAR_WIDTH = 40
SHARES = {"act": "cyan", "environment": "green", "store": "white", "sample": "yellow", "learn": "magenta"}
SHARES |= {"evaluate": "blue", "checkpoint": "red", "other": "bright_black"}


class Progress:
    """What a run shows of its progress; by default nothing but notes."""

    def busy(self, what: What) -> AbstractContextManager[None]:  # noqa: ARG002
        """Show what a block is doing that takes its time: "compiling", "saving"."""
        return nullcontext()

    def update(self, values: Values) -> None:
        """Take new values; the others stay."""

    def note(self, text: str) -> None:
        """Show a text that stays: a restart, a warning."""
        raise NotImplementedError

    def close(self) -> None:
        """Show the last values and leave the terminal as it was."""


def make_progress(
    *, quiet: bool, json: bool, title: str, total_env_steps: int | None, total_seconds: float | None
) -> Progress:
    """The view that suits stderr; with `quiet` or `json`, only the notes."""
    if quiet or json:
        return NotesOnly(sys.stderr)
    budget = Budget(total_env_steps, total_seconds)
    stream = forgiving(sys.stderr)
    console = Console(file=stream)
    notebook = console.is_jupyter and find_spec("ipywidgets") is not None  # rich draws nothing without it
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return LiveView(console, title, budget) if notebook or terminal else Lines(stream, title, budget)


class Budget:
    """The share of a run that is done, and the time left at the pace since the first update."""

    def __init__(self, env_steps: int | None, seconds: float | None, clock: Clock = time.monotonic) -> None:
        self.env_steps, self.seconds, self._clock = env_steps, seconds, clock
        self._first: tuple[float, float] | None = None

    def seen(self, values: Values) -> None:
        """Remember where this session started: a resumed run does not start at zero."""
        if self._first is None and (steps := number(values, "env_steps")) is not None:
            self._first = self._clock(), steps

    def done(self, values: Values) -> float | None:
        """The share of the budget that ends first."""
        pairs = ((self.env_steps, "env_steps"), (self.seconds, "seconds"))
        shares = [(number(values, key) or 0.0) / total for total, key in pairs if total]
        return min(1.0, max(shares)) if shares else None

    def left(self, values: Values) -> float | None:
        """Seconds until a budget is used up, if that is known."""
        ends = [] if self.seconds is None else [self.seconds - (number(values, "seconds") or 0.0)]
        steps = number(values, "env_steps")
        if self.env_steps is not None and self._first is not None and steps is not None and steps > self._first[1]:
            pace = (steps - self._first[1]) / max(self._clock() - self._first[0], 1e-9)
            ends.append((self.env_steps - steps) / pace)
        return max(0.0, min(ends)) if ends else None


@contextmanager
def _every(seconds: float, tell: Callable[[float], None], first: float = 0.0) -> Iterator[None]:
    """From a thread, tell how long the block has taken: after `first` seconds, and then at this period."""
    began, over = time.monotonic(), threading.Event()

    def work() -> None:
        wait = first
        while not over.wait(wait):
            tell(time.monotonic() - began)
            wait = seconds

    thread = threading.Thread(target=work, name="repertory-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _said(what: What) -> str:
    return what if isinstance(what, str) else what()


class NotesOnly(Progress):
    def __init__(self, stream: TextIO) -> None:
        self._stream = forgiving(stream)

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Lines(Progress):
    """One line every ten seconds, and one at every new score, for logs."""

    def __init__(self, stream: TextIO, title: str, budget: Budget, clock: Clock = time.monotonic) -> None:
        self._stream, self._budget, self._clock = forgiving(stream), budget, clock
        self._values: dict[str, float | int | str | None] = {}
        self._due, self._shown, self._title = -math.inf, True, title

    def busy(self, what: What) -> AbstractContextManager[None]:
        return _every(LINE_SECONDS, lambda passed: self.note(f"{_said(what)} ({passed:.0f} s)"), PATIENCE_SECONDS)

    def update(self, values: Values) -> None:
        scored = "score" in values and values["score"] != self._values.get("score")
        self._values.update(values)
        self._budget.seen(values)
        self._shown = False
        if scored or self._clock() >= self._due:
            self._print()

    def note(self, text: str) -> None:
        """The title is printed before the first line, so a run that is refused has none."""
        title, self._title = self._title, ""
        print(*filter(None, (title, text)), sep="\n", file=self._stream, flush=True)

    def close(self) -> None:
        if not self._shown:
            self._print()

    def _print(self) -> None:
        self._due, self._shown = self._clock() + LINE_SECONDS, True
        cells = [f"{label} {_shown(self._values, key, form)}" for label, key, form in CELLS]
        known = [cell for cell in cells if not cell.endswith(DASH)]
        if (lag := number(self._values, "policy_lag_mean")) is not None:
            known.append(f"{_lag_label(self._values)} {_updates(lag)} updates")
        self.note(" · ".join([*_position(self._values, self._budget), *known]))


class LiveView(Progress):
    """A few lines of the terminal, drawn in place."""

    def __init__(self, console: Console, title: str, budget: Budget, clock: Clock = time.monotonic) -> None:
        self._title, self._budget, self._clock = title, budget, clock
        self._values: dict[str, float | int | str | None] = {}
        self._due, self._status = -math.inf, ""
        # Other prints go above the view; but stdout stays stdout if it is a file or a pipe.
        redirect = console.is_jupyter or sys.stdout.isatty()
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=redirect, transient=False)
        self._live.start()

    def _refresh(self) -> None:
        self._live.update(self._draw(), refresh=True)

    @contextmanager
    def busy(self, what: What) -> Iterator[None]:
        def tell(passed: float) -> None:
            self._status = f"{_said(what)}{f' ({passed:.0f} s)' if passed >= 1 else ''}"
            self._refresh()

        with _every(DRAW_SECONDS, tell, BLINK_SECONDS):
            yield
        self._status = ""

    def update(self, values: Values) -> None:
        self._values.update(values)
        now = self._clock()
        if now >= self._due:
            self._due = now + DRAW_SECONDS
            self._budget.seen(values)
            self._refresh()

    def note(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        if self._live.is_started:
            self._live.transient = not self._values  # of a run that was refused, only the reason stays
            self._refresh()
            self._live.stop()

    def _draw(self) -> RenderableType:
        share = self._budget.done(self._values)
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True, justify="right")
        position = Text(" · ".join(_position(self._values, self._budget)))
        bar.add_row(Text("") if share is None else ProgressBar(total=1.0, completed=share), position)
        below = (*_staleness(self._values), *_time_spent(self._values), *_workers(self._values))
        title = Text.assemble((self._title, "bold"), (f"   {self._status}" if self._status else "", "yellow"))
        return Group(title, bar, _cells(self._values), *below)


def _cells(values: Values) -> RenderableType:
    table = Table.grid(padding=(0, 2), expand=True)
    for _ in range(COLUMNS):
        table.add_column(style="dim", no_wrap=True)
        table.add_column(ratio=1, no_wrap=True)
    cells = [cell for cell in CELLS if cell[1] in values]
    for start in range(0, len(cells), COLUMNS):
        row = cells[start : start + COLUMNS]
        table.add_row(*(text for label, key, form in row for text in (label, _shown(values, key, form))))
    return table


def _staleness(values: Values) -> list[RenderableType]:
    """The age in updates of samples and of gradients: mean, 95th percentile and maximum."""
    table = Table.grid(padding=(0, 2))
    for label, prefix in ((_lag_label(values), "policy_lag"), ("gradient age", "gradient_age")):
        if number(values, f"{prefix}_mean") is not None:
            found = ((part, number(values, f"{prefix}_{part}")) for part in ("mean", "p95", "max"))
            parts = (f"{part} {DASH if age is None else _updates(age)}" for part, age in found)
            table.add_row(Text(label, "dim"), *parts, "updates")
    return [table] if table.row_count else []


def _lag_label(values: Values) -> str:
    """With a replay, the lag is the age of its samples, and no sign of a problem."""
    return "sample age" if "replay_ratio" in values else "policy lag"


def _updates(age: float) -> str:
    return f"{age:,.0f}" if age >= 100 else f"{age:.3g}"


def _time_spent(values: Values) -> list[RenderableType]:
    """A bar of where the time goes, and its legend in the same order, without shares that round to 0."""
    shares = {name: number(values, f"time/{name}") or 0.0 for name in SHARES}
    shares = {name: share for name, share in shares.items() if share >= 0.005}
    if not shares:
        return []
    blocks = (("█" * round(BAR_WIDTH * share), SHARES[name]) for name, share in shares.items())
    bar = Text.assemble(("time         ", "dim"), *blocks)
    legend = Text("  ").join(Text(f"{name} {share:.0%}", SHARES[name]) for name, share in shares.items())
    return [bar, legend]


def _workers(values: Values) -> list[RenderableType]:
    """A line for each kind of worker: how busy, how fast, memory, queue; and the restarts."""
    table = Table.grid(padding=(0, 2))
    for kind in (key.partition("/")[2] for key in values if key.startswith("busy/")):
        busy, waiting = number(values, f"busy/{kind}") or 0.0, number(values, f"queue/{kind}")
        table.add_row(
            Text(kind, "dim"),
            Text("█" * round(10 * busy) + "░" * (10 - round(10 * busy)), "cyan"),
            f"{busy:.0%} busy",
            f"{_shown(values, f'steps_per_s/{kind}', ',.0f')}/s",
            f"{_shown(values, f'rss_mb/{kind}', ',.0f')} MB",
            "" if waiting is None else f"{waiting:.0f} waiting",
        )
    if not table.row_count:
        return []
    restarts = number(values, "restarts") or 0.0
    return [table, Text(f"{restarts:.0f} restarts", "yellow")] if restarts else [table]


def _position(values: Values, budget: Budget) -> list[str]:
    """Share done, env steps, time so far and time left, as far as they are known."""
    share, left, seconds = budget.done(values), budget.left(values), number(values, "seconds")
    total = f"/{budget.env_steps:,}" if budget.env_steps else ""
    found = [] if share is None else [f"{100 * share:.0f}%"]
    found.append(f"{_shown(values, 'env_steps', ',.0f')}{total} env steps")
    found += [] if seconds is None else [str(timedelta(seconds=round(seconds)))]
    return found if left is None else [*found, f"{timedelta(seconds=round(left))} left"]


def _shown(values: Values, key: str, form: str) -> str:
    found = number(values, key)
    return DASH if found is None else format(found, form)
