"""The live view of a run: on a terminal, in a notebook, or as plain lines. Imports `output` only.

All of it goes to stderr, so that stdout stays clean for results; what can't be written there is dropped. The keys are
those of `docs/metrics.md`. A key that a run has but does not know yet is shown as a dash; a key that it never has is
not shown. `update` may be called a thousand times a second: it keeps the values, and draws at most four times a second.
There is no thread, but while something blocks (`busy`): then one draws what is going on, and for how long, so that the
screen never looks frozen.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any, Protocol, TextIO, TypeAlias

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from repertory.output import forgiving

Values: TypeAlias = Mapping[str, float | int | str | None]
Clock: TypeAlias = Callable[[], float]

DRAW_SECONDS = 0.25
LINE_SECONDS = 10.0
BLINK_SECONDS, PATIENCE_SECONDS = 0.1, 2.0
"""What takes less is not worth a word, on a terminal and in lines."""
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
LAG, AGE = "policy_lag", "gradient_age"
BAR_WIDTH = 40
SHARES = {"act": "cyan", "environment": "green", "store": "white", "sample": "yellow", "learn": "magenta"}
SHARES |= {"evaluate": "blue", "checkpoint": "red", "other": "bright_black"}


What: TypeAlias = str | Callable[[], str]


class Progress(Protocol):
    """What a run tells while it goes on."""

    def busy(self, what: What) -> AbstractContextManager[None]:
        """While something takes its time, say what it is: "compiling", "saving"."""

    def update(self, values: Values) -> None:
        """Take new values; keys that are left out keep theirs."""

    def note(self, text: str) -> None:
        """Say something that stays: a restart, a warning."""

    def close(self) -> None:
        """Show the last values and leave the terminal as it was."""


def make_progress(
    *, quiet: bool, json: bool, title: str, total_env_steps: int | None, total_seconds: float | None
) -> Progress:
    """The view that suits where stderr goes; with `quiet` or `json`, only the notes."""
    if quiet or json:
        return NotesOnly(sys.stderr)
    budget = Budget(total_env_steps, total_seconds)
    stream = forgiving(sys.stderr)
    console = Console(file=stream)
    notebook = console.is_jupyter and find_spec("ipywidgets") is not None  # rich draws nothing without it
    terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    if notebook or terminal:
        return LiveView(console, title, budget)
    return Lines(stream, title, budget)


class Budget:
    """How much of a run is done, and how long the rest takes at the pace since the first update."""

    def __init__(self, env_steps: int | None, seconds: float | None, clock: Clock = time.monotonic) -> None:
        self.env_steps = env_steps
        self.seconds = seconds
        self._clock = clock
        self._first: tuple[float, float] | None = None

    def seen(self, values: Values) -> None:
        """Remember where this session started: a resumed run does not start at zero."""
        if self._first is None and (steps := _number(values, "env_steps")) is not None:
            self._first = self._clock(), steps

    def done(self, values: Values) -> float | None:
        """The share that is done, of whichever budget ends first."""
        pairs = ((self.env_steps, "env_steps"), (self.seconds, "seconds"))
        shares = [(_number(values, key) or 0.0) / total for total, key in pairs if total]
        return min(1.0, max(shares)) if shares else None

    def left(self, values: Values) -> float | None:
        """Seconds until a budget is used up, if that can be told."""
        ends = [end for end in (self._steps_left(values), self._seconds_left(values)) if end is not None]
        return max(0.0, min(ends)) if ends else None

    def _seconds_left(self, values: Values) -> float | None:
        return None if self.seconds is None else self.seconds - (_number(values, "seconds") or 0.0)

    def _steps_left(self, values: Values) -> float | None:
        steps = _number(values, "env_steps")
        if self.env_steps is None or self._first is None or steps is None or steps <= self._first[1]:
            return None
        pace = (steps - self._first[1]) / max(self._clock() - self._first[0], 1e-9)
        return (self.env_steps - steps) / pace


@contextmanager
def _every(seconds: float, tell: Callable[[float], None], first: float = 0.0) -> Iterator[None]:
    """Tell how long the block has taken so far, after `first` seconds and then at this period, from a thread."""
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


class NotesOnly:
    """No progress; notes, such as warnings, are still printed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = forgiving(stream)

    def busy(self, what: What) -> AbstractContextManager[None]:  # noqa: ARG002  # the protocol's name for it
        return nullcontext()

    def update(self, values: Values) -> None:
        pass

    def note(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        pass


class Lines:
    """One line every ten seconds, and one at every new score, for logs."""

    def __init__(self, stream: TextIO, title: str, budget: Budget, clock: Clock = time.monotonic) -> None:
        self._stream, self._budget, self._clock = forgiving(stream), budget, clock
        self._values: dict[str, float | int | str | None] = {}
        self._due, self._shown = -math.inf, True
        self._title = title

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
        """The title comes before the first line: a run that is refused has none."""
        title, self._title = self._title, ""
        print(*filter(None, (title, text)), sep="\n", file=self._stream, flush=True)

    def close(self) -> None:
        if not self._shown:
            self._print()

    def _print(self) -> None:
        self._due, self._shown = self._clock() + LINE_SECONDS, True
        cells = [f"{label} {_shown(self._values, key, form)}" for label, key, form in CELLS]
        known = [cell for cell in cells if not cell.endswith(DASH)]
        if (lag := _number(self._values, f"{LAG}_mean")) is not None:
            known.append(f"{_lag_label(self._values)} {_updates(lag)} updates")
        self.note(" · ".join([*_position(self._values, self._budget), *known]))


class LiveView:
    """A few lines of the terminal, drawn in place."""

    def __init__(self, console: Console, title: str, budget: Budget, clock: Clock = time.monotonic) -> None:
        self._title, self._budget, self._clock = title, budget, clock
        self._values: dict[str, float | int | str | None] = {}
        self._due = -math.inf
        # Prints of others go above the view; but stdout stays stdout where it is a file or a pipe.
        redirect = console.is_jupyter or sys.stdout.isatty()
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=redirect, transient=False)
        self._live.start()
        self._status = ""

    @contextmanager
    def busy(self, what: What) -> Iterator[None]:
        def tell(passed: float) -> None:
            self._status = f"{_said(what)}{f' ({passed:.0f} s)' if passed >= 1 else ''}"
            self._live.update(self._draw(), refresh=True)

        with _every(DRAW_SECONDS, tell, BLINK_SECONDS):
            yield
        self._status = ""

    def update(self, values: Values) -> None:
        self._values.update(values)
        now = self._clock()
        if now >= self._due:
            self._due = now + DRAW_SECONDS
            self._budget.seen(values)
            self._live.update(self._draw(), refresh=True)

    def note(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        if self._live.is_started:
            self._live.transient = not self._values  # a run that was refused leaves nothing but the reason
            self._live.update(self._draw(), refresh=True)
            self._live.stop()

    def _draw(self) -> RenderableType:
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(ratio=1)
        share = self._budget.done(self._values)
        position = Text(" · ".join(_position(self._values, self._budget)))
        bar.add_column(no_wrap=True, justify="right")
        bar.add_row(Text("") if share is None else ProgressBar(total=1.0, completed=share), position)
        below = (*_staleness(self._values), *_time_spent(self._values), *_roles(self._values))
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
    """How many updates late samples and gradients come: mean, 95th percentile and maximum."""
    table = Table.grid(padding=(0, 2))
    for label, prefix in ((_lag_label(values), LAG), ("gradient age", AGE)):
        if _number(values, f"{prefix}_mean") is not None:
            found = ((part, _number(values, f"{prefix}_{part}")) for part in ("mean", "p95", "max"))
            parts = (f"{part} {DASH if number is None else _updates(number)}" for part, number in found)
            table.add_row(Text(label, "dim"), *parts, "updates")
    return [table] if table.row_count else []


def _lag_label(values: Values) -> str:
    """Of samples from a replay it is their age, and no sign of anything wrong."""
    return "sample age" if "replay_ratio" in values else "policy lag"


def _updates(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _time_spent(values: Values) -> list[RenderableType]:
    """One bar of what the time goes into, and its legend in the same order, without what rounds to nothing."""
    shares = {name: _number(values, f"time/{name}") or 0.0 for name in SHARES}
    shares = {name: share for name, share in shares.items() if share >= 0.005}
    if not shares:
        return []
    blocks = (("█" * round(BAR_WIDTH * share), SHARES[name]) for name, share in shares.items())
    bar = Text.assemble(("time         ", "dim"), *blocks)
    legend = Text("  ").join(Text(f"{name} {share:.0%}", SHARES[name]) for name, share in shares.items())
    return [bar, legend]


def _roles(values: Values) -> list[RenderableType]:
    """A company's roles, one line each: how busy, how fast, what waits, how large, how often started again."""
    roles = [key.partition("/")[2] for key in values if key.startswith("busy/")]
    if not roles:
        return []
    table = Table.grid(padding=(0, 2))
    for role in roles:
        busy = _number(values, f"busy/{role}") or 0.0
        cells = [Text(role, "dim"), Text("█" * round(10 * busy) + "░" * (10 - round(10 * busy)), "cyan")]
        cells.append(Text(f"{busy:.0%} busy"))
        cells.append(Text(f"{_shown(values, f'steps_per_s/{role}', ',.0f')}/s"))
        cells.append(Text(f"{_shown(values, f'rss_mb/{role}', ',.0f')} MB"))
        waits = _number(values, f"queue/{role}")
        cells.append(Text("" if waits is None else f"{waits:.0f} waiting"))
        table.add_row(*cells)
    restarts = _number(values, "restarts") or 0.0
    return [table, Text(f"{restarts:.0f} restarts", "yellow")] if restarts else [table]


def _position(values: Values, budget: Budget) -> list[str]:
    """Share done, env steps, time so far and time left, as far as they are known."""
    share, left, seconds = budget.done(values), budget.left(values), _number(values, "seconds")
    total = f"/{budget.env_steps:,}" if budget.env_steps else ""
    found = [] if share is None else [f"{100 * share:.0f}%"]
    found.append(f"{_shown(values, 'env_steps', ',.0f')}{total} env steps")
    found += [] if seconds is None else [_duration(seconds)]
    return found if left is None else [*found, f"{_duration(left)} left"]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _number(values: Values, key: str) -> float | None:
    value: Any = values.get(key)
    if value is None or isinstance(value, str) or not math.isfinite(value):
        return None
    return float(value)


def _shown(values: Values, key: str, form: str) -> str:
    value = values.get(key)
    if isinstance(value, str):
        return value
    number = _number(values, key)
    return DASH if number is None else format(number, form)
