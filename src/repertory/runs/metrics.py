"""The metrics of a run: one set of keys, to `metrics.jsonl` and TensorBoard; `docs/metrics.md` explains the keys.

A resumed run goes on from its checkpoint: lines beyond it move to `metrics.before-resume-1.jsonl` (2, 3, ...), and
TensorBoard is told to drop the points beyond it.

TensorBoard's event file is written in this thread, one record for each line of `metrics.jsonl`. tensorboardX's
`SummaryWriter` uses a thread with a short queue: on a full disk that thread dies, the queue fills, and the run waits
for ever; and a line of 25 keys costs 2 ms instead of 0.15. Once the run has begun, a full disk neither blocks nor
raises an error: `lost` counts the lines that could not be written.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from repertory.errors import UserError

Values: TypeAlias = Mapping[str, float | int | str | None]

FLUSH_SECONDS = 10.0


def number(values: Values, key: str) -> float | None:
    """A finite number, or None."""
    value = values.get(key)
    return None if value is None or isinstance(value, str) or not math.isfinite(value) else float(value)


class MetricsWriter:
    def __init__(self, jsonl: Path, tensorboard: Path | None, *, resume_at: int | None = None) -> None:
        self.lost = 0
        try:
            jsonl.parent.mkdir(parents=True, exist_ok=True)
            _cut(jsonl, resume_at)
            self._file = jsonl.open("ab", buffering=0)
            self._events = None if tensorboard is None else _EventFile(tensorboard, resume_at)
        except OSError as error:
            raise UserError(
                f"{jsonl} cannot be written: {error.strerror or error}; make room, then try again"
            ) from None

    def write(self, values: Values) -> None:
        """Append one line; `values` has `env_steps`, the step of TensorBoard's curves."""
        plain = {key: _plain(value) for key, value in values.items()}
        env_steps = int(values["env_steps"] or 0)
        line = json.dumps(plain, allow_nan=False).encode() + b"\n"
        end = self._file.tell()
        try:
            if self._file.write(line) != len(line):
                raise OSError("short write")
            if self._events is not None:
                self._events.write(env_steps, plain)
        except OSError:
            self.lost += 1
            self._heal(end, len(line))

    def flush(self) -> None:
        try:
            os.fsync(self._file.fileno())
            if self._events is not None:
                self._events.flush()
        except OSError:
            self.lost += 1

    def close(self) -> None:
        if not self._file.closed:
            self.flush()
            self._file.close()
            with suppress(OSError):
                if self._events is not None:
                    self._events.close()

    def _heal(self, start: int, length: int) -> None:
        """Remove half a line, so that the next one is not appended to it."""
        if self._file.tell() != start + length:
            self._file.truncate(start)
            self._file.seek(start)


def read(jsonl: Path) -> list[dict[str, Any]]:
    """All lines of a `metrics.jsonl`, oldest first; a last line torn by a kill is left out."""
    if not jsonl.exists():
        return []
    with jsonl.open("rb") as file:
        return [_parse(line, f"{jsonl}, line {count}") for count, line in enumerate(_lines(file), 1)]


def _lines(file: Any) -> Iterator[bytes]:
    return (line for line in file if line.endswith(b"\n"))  # only a torn last line has no end


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        return dict(json.loads(line))
    except (ValueError, TypeError):
        raise UserError(f"{where} is not a JSON object; remove that line to read the others") from None


def _cut(jsonl: Path, resume_at: int | None) -> None:
    """Drop a torn last line and, for a resume, move the lines beyond `resume_at` aside; whole or not at all."""
    if not jsonl.exists():
        return
    temporary, beyond = jsonl.with_name(f".{jsonl.name}.tmp"), []
    with jsonl.open("rb") as source, temporary.open("wb") as target:
        for count, line in enumerate(_lines(source), 1):
            if resume_at is None or _parse(line, f"{jsonl}, line {count}")["env_steps"] <= resume_at:
                target.write(line)
            else:
                beyond.append(line)
        target.flush()
        os.fsync(target.fileno())
    if beyond:
        names = (jsonl.with_name(f"{jsonl.stem}.before-resume-{at}{jsonl.suffix}") for at in itertools.count(1))
        next(name for name in names if not name.exists()).write_bytes(b"".join(beyond))
    temporary.replace(jsonl)


def _plain(value: Any) -> float | int | str | None:
    """A JSON value: numpy's numbers become Python's; what is not finite becomes None."""
    if value is None or isinstance(value, str):
        return value
    found: float | int = value.item() if hasattr(value, "item") else value
    return found if math.isfinite(found) else None


class _EventFile:
    """A TensorBoard event file: buffered, and flushed every `FLUSH_SECONDS`."""

    def __init__(self, directory: Path, resume_at: int | None) -> None:
        self._directory = directory
        self._purge_step = None if resume_at is None else resume_at + 1
        self._writer: Any = None
        self._flushed = time.monotonic()

    def write(self, env_steps: int, values: Values) -> None:
        writer = self._writer or self._open()
        from tensorboardX.proto import event_pb2, summary_pb2

        numbers = {key: value for key, value in values.items() if isinstance(value, float | int)}
        numbers.pop("env_steps", None)
        points = [summary_pb2.Summary.Value(tag=key, simple_value=value) for key, value in numbers.items()]
        summary = summary_pb2.Summary(value=points)
        self._add(writer, event_pb2.Event(wall_time=time.time(), step=env_steps, summary=summary))
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        self._flushed = time.monotonic()
        if self._writer is not None:
            self._add(self._writer, None)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _open(self) -> Any:
        """Not before the first write, as importing tensorboardX takes 0.2 s."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        self._directory.mkdir(parents=True, exist_ok=True)
        # Without the count, a second file of the same second would replace the first.
        count = len(list(self._directory.iterdir()))
        self._writer = EventsWriter(str(self._directory / "events"), f".{count}")
        if self._purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._add(self._writer, event_pb2.Event(step=self._purge_step, session_log=start))
            self._purge_step = None
        return self._writer

    def _add(self, writer: Any, event: Any) -> None:
        """Write an event, or flush; after an error the next write opens another file, as this one may end torn."""
        try:
            writer.flush() if event is None else writer.write_event(event)
        except OSError:
            self._writer = None
            raise
