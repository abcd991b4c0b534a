"""The figures of `docs/figures`, drawn from `benchmarks/results` by the code that draws those of studies.

python benchmarks/figures.py      # all of them anew; nothing is trained
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context

from repertory.studies.drawing import COLOURS, DASHED, INK, LINES, SETTINGS, WIDE, new_figure, plain, ticks
from repertory.studies.figures import rising
from repertory.studies.results import Contestant, Evaluation, Results, Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parent.parent / "docs/figures"


def save(name: str, draw: Callable[[], Figure]) -> None:
    """Draw in the style of studies, as SVG with text as text."""
    with rc_context(SETTINGS):
        text = plain(draw())
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / f"{name}.svg").write_text(text, encoding="utf-8")


def results_of(environment: str, runs: Iterable[Mapping[str, Any]]) -> Results:
    """Runs as records have them, each with its `system`, its `seed` and its `evaluations`."""
    trials = tuple(
        Trial(run["system"], run["seed"], run.get("status", "completed"), evaluations=_evaluations(run)) for run in runs
    )
    names = dict.fromkeys(trial.contestant for trial in trials)
    contestants = tuple(Contestant(name, name, "", 0) for name in names)
    return Results("report", environment, "", "each run's own", None, contestants, trials)


def _evaluations(run: Mapping[str, Any]) -> tuple[Evaluation, ...]:
    rows = run["evaluations"]
    return tuple(Evaluation(row["env_steps"], row["updates"], row["seconds"], row["mean"]) for row in rows)


def curves(name: str, environment: str, runs: Iterable[Mapping[str, Any]]) -> None:
    """Scores over env steps and over seconds, to `docs/figures/NAME.svg`."""
    results = results_of(environment, runs)
    save(name, lambda: _known(rising(results, WIDE, "env_steps", "seconds")))


def _known(figure: Figure | None) -> Figure:
    if figure is None:
        raise SystemExit("no run was evaluated: there is nothing to draw")
    return figure


def adjusting(record: Mapping[str, Any]) -> Figure:
    """GA3C's path: numbers at work above, trainings a second below."""
    seconds, *numbers, rates = zip(*record["path"], strict=True)
    figure = new_figure(WIDE, 4.2)
    above, below = figure.subplots(2, 1, sharex=True)
    looks = zip(("predictors", "trainers", "agents"), numbers, COLOURS, LINES, strict=False)
    for name, values, colour, line in looks:
        above.step(seconds, values, where="post", label=name, color=colour, linestyle=line)
    above.set_ylabel("at work")
    below.plot(seconds, rates, linewidth=0.7, color=COLOURS[0], label="adjusted")
    best = {**DASHED, "color": INK, "label": "best fixed, median"}
    below.axhline(record["medians"][record["best_fixed"]], **best)
    below.set(xlabel="seconds that it was played", ylabel="trainings/s")
    for axes in (above, below):
        axes.grid(axis="y")
        ticks(axes.yaxis)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure


def main() -> None:
    """All of them."""
    for path in sorted((RESULTS / "curves").glob("*.json")):
        runs = json.loads(path.read_text())
        curves(f"curves-{path.stem}", path.stem, runs)
    breakout = json.loads((RESULTS / "scores/minatar-breakout-v1.json").read_text())
    curves("minatar-breakout", breakout["environment"], [{**run, "system": "single"} for run in breakout["runs"]])
    pong = json.loads((RESULTS / "pong-learned.json").read_text())["runs"]
    curves("pong-learned", "PongNoFrameskip-v4", [{**run, "system": run["name"]} for run in pong])
    save("ga3c_adjust", lambda: adjusting(json.loads((RESULTS / "ga3c_adjust.json").read_text())))


if __name__ == "__main__":
    main()
