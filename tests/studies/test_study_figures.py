"""Figures of studies as matplotlib lays them out: few curves a panel, axes that hold them, labels that stay apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from repertory.studies import statistics
from repertory.studies.drawing import MOST, NARROW, SETTINGS, WIDE, short
from repertory.studies.figures import SKETCHES
from repertory.studies.results import Results
from repertory.studies.statistics import profiles
from studies_made_up import final, grand, scaled, study, trial

LONG = [
    f"collectors, {actors} actors, agent.learning_rate=0.000{digit}, agent.discount=0.99"
    for actors in (2, 4)
    for digit in (1, 2, 5, 7)
]
STUDIES = {
    "thirteen": grand(13, 3, 8),
    "six": grand(6, 3, 8),
    "eight variants": replace(grand(8, 3, 8, "ablate"), target=None),
    "long names": final({name: [1.0 + place, 2.0, 3.0] for place, name in enumerate(LONG)}, "report"),
    "three long names": final({name: [1.0 + place, 2.0, 3.0] for place, name in enumerate(LONG[:3])}, "report"),
    "actors": scaled(seeds=3),
    "many actors": scaled((1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 31, 32, 128)),
    "far apart": study([trial("slow", 0, [1, 2.0], pace=40), trial("fast", 0, [1, 2.0], pace=900_000)]),
}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the style of the page, with intervals that no test reads, and that are not kept for other tests."""
    monkeypatch.setattr(statistics, "REPETITIONS", 10)
    with rc_context(SETTINGS):
        yield
    for kept in (statistics.estimate, statistics.improvement, statistics._band):
        kept.cache_clear()


def made(results: Results, kind: str, width: float = WIDE) -> Figure:
    figure = next(sketch for sketch in SKETCHES if sketch.name == kind).draw(results, width)
    assert figure is not None
    FigureCanvasAgg(figure).draw()
    return figure


def shown(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_visible()]


def curves(axes: Axes) -> int:
    """Lines that are more than a stroke."""
    return sum(len(line.get_xdata()) > 2 for line in axes.lines)  # type: ignore[arg-type]


def labels(figure: Figure) -> list[Text]:
    """Texts that are there to see: not those of ticks beyond an axis."""
    beyond = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        outside = [tick for tick in axis.get_major_ticks() if not low - 1e-9 <= tick.get_loc() <= high + 1e-9]
        beyond |= {id(text) for tick in outside for text in (tick.label1, tick.label2)}
    hidden = {id(text) for axes in figure.axes if not axes.get_visible() for text in axes.findobj(Text)}
    every: list[Text] = figure.findobj(Text)  # type: ignore[assignment]
    return [one for one in every if one.get_visible() and one.get_text().strip() and id(one) not in beyond | hidden]


ROWS, CURVES = ("final_score", "improvement"), ("score_seconds", "score_env_steps", "profiles")
LABELLED = {
    "thirteen": ("time_to_target", *ROWS, "score_env_steps", "throughput", "utilisation", "lag"),
    "six": (*CURVES, "curves_each"),
    "long names": (*ROWS, *CURVES),
    "three long names": (*ROWS, *CURVES),
    "actors": ("scaling", "throughput", "utilisation"),
    "many actors": ("scaling",),
    "far apart": ("score_env_steps", "throughput"),
}


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", LABELLED)
def test_no_label_overlaps_another_or_leaves_the_figure(name: str, width: float) -> None:
    for kind in LABELLED[name]:
        figure = made(STUDIES[name], kind, width)
        boxes = [(one.get_text(), one.get_window_extent()) for one in labels(figure)]
        for (one, box), (other, against) in itertools.combinations(boxes, 2):
            across = min(box.x1, against.x1) - max(box.x0, against.x0)
            down = min(box.y1, against.y1) - max(box.y0, against.y0)
            assert across <= 0.5 or down <= 2.0, f"{kind}: {one!r} lies on {other!r}"
        for one, box in boxes:
            assert box.x0 >= -1, f"{kind}: {one!r} begins outside"
            assert box.x1 <= figure.bbox.width + 1, f"{kind}: {one!r} ends outside"


@pytest.mark.parametrize("kind", ["score_seconds", "score_updates", "profiles"])
@pytest.mark.parametrize("name", ["thirteen", "six", "eight variants"])
def test_no_panel_has_more_than_six_curves(name: str, kind: str) -> None:
    found = STUDIES[name]
    figure = made(found, kind)
    assert max(curves(axes) + len(axes.collections) for axes in shown(figure)) <= 2 * MOST
    assert max(map(curves, shown(figure))) <= MOST
    names = [one.name for one in found.contestants if kind != "profiles" or len(found.of(one.name)) >= 3]
    assert len(shown(figure)) == (1 if len(names) <= MOST else len(names))


def test_panels_share_their_axes_and_hold_the_reference_behind_each_other() -> None:
    grid = shown(made(STUDIES["thirteen"], "score_seconds"))
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in grid}) == 1
    assert [curves(axes) for axes in grid] == [1, *[2] * 12]
    assert all(axes.get_xlim()[1] >= trial.seconds for axes in grid for trial in STUDIES["thirteen"].trials)


@pytest.mark.parametrize("kind", ["score_updates", "throughput"])
@pytest.mark.parametrize(("ratio", "scale"), [(9, "linear"), (11, "log")])
@pytest.mark.parametrize("count", [2, 8])
def test_axis_is_logarithmic_where_contestants_end_ten_times_apart(
    kind: str, ratio: float, scale: str, count: int
) -> None:
    paces = [1000.0 * ratio, *[1000.0] * (count - 1)]
    runs = [trial(f"c{place}", 0, [1.0, 2.0, 3.0], pace=pace) for place, pace in enumerate(paces)]
    for axes in shown(made(study(runs), kind)):
        assert axes.get_xscale() == scale
        low, high = axes.get_xlim()
        assert low <= (250.0 if kind == "score_updates" else 1000.0)
        assert high >= max(float(value) for line in axes.lines for value in line.get_xdata())  # type: ignore[union-attr]
    said = [one.get_text() for one in labels(made(study(runs), kind))]
    assert any("logarithmic" in text for text in said) == (scale == "log")


def test_names_keep_their_difference_wherever_it_stands() -> None:
    ends = [f"parameter_server, topology.staleness_bound={bound}" for bound in (1, 2, 3)]
    middles = [f"seed_rl, agent.learning_rate={rate}, agent.discount_of_rewards=0.99" for rate in (0.1, 0.2, 0.3)]
    starts = [f"{start}, agent.learning_rate=0.001, agent.discount=0.99" for start in ("apex", "impala", "gorila")]
    for names in (ends, middles, starts, [*ends, *middles, *starts]):
        for longest in (34, 18, 8):
            found = short(names, longest)
            assert len(set(found)) == len(names)
    assert max(map(len, short(ends, 18))) <= 18
    assert short(["single", "apex"], 18) == ["single", "apex"]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("ab, =", min_size=1, max_size=30), min_size=1, max_size=9, unique=True), st.integers(4, 20))
def test_shortened_names_never_become_equal(names: list[str], longest: int) -> None:
    found = short(names, longest)
    assert len(set(found)) == len(names)
    assert max(map(len, found)) <= max(longest, *map(len, names))


def test_rows_say_never_for_those_who_missed_the_target_and_how_many_reached_it_for_some() -> None:
    runs = [trial("all", seed, [1, 9.0]) for seed in range(3)]
    runs += [trial("some", seed, [1, 1, 1, 9.0 if seed == 0 else 2.0]) for seed in range(3)]
    runs += [trial("none", seed, [1, 2.0]) for seed in range(3)]
    said = [one.get_text() for one in labels(made(study(runs, target=5.0), "time_to_target"))]
    assert {"2", "1 of 3", "never"} <= set(said)


def test_profiles_of_more_than_six_show_each_with_its_own_share() -> None:
    results = STUDIES["thirteen"]
    scores = {one.name: [run.finite_score or 0.0 for run in results.of(one.name)] for one in results.contestants}
    assert len(profiles(scores)) == len(shown(made(results, "profiles"))) == 12  # gorila has one seed that finished
