"""Runs, topologies and presets as tables for people; imports our topologies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from repertory.topologies.graph import TopologyKind

DASH = "–"
HEAD = ("name", "started", "topology", "agent", "status", "env steps", "score", "best")
NUMBERS = 3
"""The last columns, which are aligned at their ends."""


def runs_table(runs: Iterable[Mapping[str, Any]]) -> str:
    """A line for each run under a head."""
    rows = [
        (
            run["name"],
            _local(run["started"]),
            run["topology"] or DASH,
            run["agent"] or DASH,
            run["status"],
            DASH if run["env_steps"] is None else f"{run['env_steps']:,}",
            *(DASH if score is None else f"{score:,.1f}" for score in (run["score"], run["best"])),
        )
        for run in runs
    ]
    return _aligned([HEAD, *rows], len(HEAD) - NUMBERS)


def topologies_table(kinds: Iterable[TopologyKind]) -> str:
    """A line for each topology."""
    return _aligned([(kind.name, kind.summary) for kind in kinds], 2)


def presets_table(presets: Iterable[Mapping[str, Any]]) -> str:
    """A few lines for each preset: its name, how the ids of its environments begin, and what is known of it."""
    return "\n".join(
        line
        for preset in presets
        for line in (
            f"{preset['name']}: {', '.join(f'{prefix}…' for prefix in preset['environments'])}",
            f"  score       {preset['seen']}",
            f"  seeds       {preset['seeds']}",
            f"  topologies  {', '.join(preset['topologies']) or DASH}",
        )
    )


def _aligned(rows: Sequence[Sequence[str]], texts: int) -> str:
    """Columns as wide as their widest cell, the first `texts` of them aligned at their beginning."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _local(started: str | None) -> str:
    """The time here, to the minute."""
    try:
        return f"{datetime.fromisoformat(started or '').astimezone():%Y-%m-%d %H:%M}"
    except ValueError:
        return DASH
