"""The page of a study: whole, escaped, the same every time; and in a real browser, from disk, with the network off."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

import chromium
from browsing import cells, look, overlapping
from repertory.errors import UserError
from repertory.studies import page, statistics
from repertory.studies.drawing import NARROW, beside
from repertory.studies.drawing import look as look_of
from repertory.studies.figures import SKETCHES
from repertory.studies.results import Results
from studies_made_up import contestant, failed, final, grand, scaled, study, trial

NASTY = "<script>alert('x')</script> & $x_1$"
MOST_BYTES = 3_000_000
DRAWN = {sketch.name for sketch in SKETCHES} - {"scaling", "curves_each"}
"""The figures of a comparison of more than six."""
LONG = [f"collectors, 2 actors, agent.learning_rate=0.00{digit}5, agent.discount=0.99" for digit in range(1, 9)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        found = chromium.find()
    except chromium.NoChromium as reason:
        pytest.skip(str(reason))
    variables = {**os.environ, **found.variables}
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=found.path, env=variables, args=["--host-resolver-rules=MAP * ~NOTFOUND"]
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page.write(grand(), tmp_path_factory.mktemp("study"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_page_opens_without_errors_with_every_figure_visible(
    browser: Browser, report: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    seen = look(browser, report, width, scheme)
    (tmp_path / f"report-{width}-{scheme}.png").write_bytes(seen.picture)
    assert seen.errors == []
    assert seen.requests == [report.as_uri()]
    assert len(seen.figures) == len(DRAWN)
    assert seen.blank() == []
    assert seen.overflow == 0
    paper = seen.grey[5, 5]
    assert paper > 240 if scheme == "light" else paper < 50


def test_page_of_a_scaling_study_shows_it_against_the_ideal(browser: Browser, tmp_path: Path) -> None:
    path = page.write(scaled(), tmp_path)
    assert 'id="scaling"' in path.read_text()
    for width in (1280, 400):
        seen = look(browser, path, width, "light")
        assert (seen.errors, seen.blank(), seen.overflow) == ([], [], 0)


@pytest.mark.parametrize(
    ("results", "head"),
    [
        (grand(6, 3, 5), "Time to target"),
        (final({name: [1.0, 2.0, 3.0] for name in LONG}, "report"), "Final score"),
        (replace(grand(6, 3, 5, "ablate"), target=None), "Final score"),
        (scaled(), "Env steps/s"),
    ],
    ids=["compare", "long names", "ablate", "scale"],
)
def test_on_a_telephone_the_column_that_matters_stands_beside_the_name(
    browser: Browser, tmp_path: Path, results: Results, head: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text(page.render(results, []))
    for column, boxes in cells(browser, path, 400, "All contestants")[:2]:
        assert column in ("Contestant", head)
        assert all(0 <= left < right <= 400 for left, right in boxes)
    assert cells(browser, path, 400, "All contestants")[1][0] == head
    if results.kind != "scale":
        assert all(right <= 400 for _, right in cells(browser, path, 400, "The best by each criterion")[1][1])


def test_the_answer_stands_under_the_title_with_names_as_code() -> None:
    text = page.render(final({"a<b": [1.0, 2, 3, 4], "c": [5.0, 6, 7, 8]}), [])
    below = text.partition("</h1>")[2].lstrip()
    assert below.startswith('<p class="answer"><code>c</code> scored highest after 60&nbsp;s, 6.5 (')
    assert "ahead of <code>a&lt;b</code> (2.5).</p>" in below


@pytest.mark.parametrize("width", [1280, 400])
def test_no_two_labels_of_a_figure_overlap_in_the_browser(browser: Browser, report: Path, width: int) -> None:
    assert overlapping(browser, report, width) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("<script>console.error('broken lamp')</script>", "broken lamp"),
        ("<script>throw new Error('fallen curtain')</script>", "fallen curtain"),
        ("<img src='no-such-file.png'>", "ERR_FILE_NOT_FOUND"),
        ("<script src='https://example.org/a.js'></script>", "ERR_"),
    ],
)
def test_the_browser_tells_of_errors(browser: Browser, tmp_path: Path, body: str, said: str) -> None:
    path = tmp_path / "bad.html"
    path.write_text(f"<!doctype html><title>bad</title><link rel=icon href='data:,'>{body}")
    assert any(said in error for error in look(browser, path, 400, "light").errors)


@pytest.mark.parametrize(
    ("drawing", "blank"),
    [
        ("<svg width=300 height=200></svg>", [0]),
        ("<svg width=300 height=200><rect width=300 height=200 fill='#999'/></svg>", [0]),
        ("<svg width=300 height=200 style='display: none'><circle r=80 cx=100 cy=100 /></svg>", [0]),
        ("<svg width=300 height=200 style='color: white'><circle r=80 cx=100 cy=100 fill='currentColor'/></svg>", [0]),
        ("<svg width=300 height=200><circle r=80 cx=100 cy=100 /></svg>", []),
    ],
)
def test_blank_figures_are_told_from_drawn_ones(
    browser: Browser, tmp_path: Path, drawing: str, blank: list[int]
) -> None:
    path = tmp_path / "drawing.html"
    path.write_text(f"<!doctype html><body style='background: white'><figure>{drawing}</figure>")
    assert look(browser, path, 400, "light").blank() == blank


def test_a_page_wider_than_the_window_is_noticed(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "wide.html"
    path.write_text("<!doctype html><body style='margin: 0'><div style='width: 900px'>wide</div>")
    assert look(browser, path, 400, "light").overflow == 500


def test_what_comes_from_data_is_escaped(browser: Browser, tmp_path: Path) -> None:
    runs = [trial(NASTY, seed, [1.0, 2.0 + seed]) for seed in range(3)] + [
        trial("b", seed, [1, 3.0]) for seed in range(3)
    ]
    runs += [failed("c", 0, NASTY)]
    results = study(runs)
    contestants = (replace(contestant(NASTY), settings={NASTY: NASTY}), *results.contestants[1:])
    results = replace(results, contestants=contestants, environment=NASTY, command=NASTY, budget=NASTY, machine=NASTY)
    path = page.write(results, tmp_path)
    text = path.read_text()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") > 8
    assert "$x_1$" in text
    seen = look(browser, path, 400, "dark")
    assert (seen.errors, seen.overflow) == ([], 0)


def test_page_is_small_and_asks_for_nothing(report: Path) -> None:
    text = report.read_text()
    assert len(text.encode()) < MOST_BYTES
    assert not re.search(r"(src|href)=[\"']?(https?:|//|file:)", text)
    assert "@import" not in text
    assert "url(http" not in text


def test_what_figures_say_is_not_rounded(tmp_path: Path) -> None:
    names = ["single, agent.discount=0.995", "single, agent.discount=0.999"]
    text = page.write(final({name: [0.925, 0.975, 0.95] for name in names}), tmp_path).read_text()
    drawn = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert all(name in drawn for name in names)
    assert len({*beside(names, NARROW)}) == 2


def test_ids_are_unique_and_every_reference_has_its_target(report: Path) -> None:
    text = report.read_text()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(ids)


def test_every_figure_is_written_as_png_and_svg_with_text_as_text(report: Path) -> None:
    written = {path.name for path in (report.parent / "figures").iterdir()}
    assert written == {f"{name}.{ending}" for name in DRAWN for ending in ("png", "svg")}
    assert ">env steps, logarithmic<" in (report.parent / "figures" / "score_env_steps.svg").read_text()


def test_the_page_says_what_was_typed_what_failed_and_where(report: Path) -> None:
    text = re.sub("<[^>]*>", "", report.read_text())
    for said in ("repertory compare CartPole-v1 --seeds 5 --seconds 60", "&lt;no lever&gt;", "2 cores, 8 GB", "475"):
        assert said in text


def test_the_same_results_make_the_same_page(tmp_path: Path) -> None:
    results = final({"a": [1.0, 2, 3], "b": [2.0, 3, 4]})
    first, second = page.write(results, tmp_path / "1"), page.write(results, tmp_path / "2")
    assert first.read_text() == second.read_text()


@pytest.mark.parametrize("kind", ["compare", "ablate", "scale", "report"])
def test_figures_without_data_are_left_out(tmp_path: Path, kind: str) -> None:
    empty = replace(trial("a", 0, []), env_steps_per_s=None, updates_per_s=None)
    path = page.write(study([empty, failed("b", 0, "boom")], kind), tmp_path)
    assert "<figure" not in path.read_text()
    assert list((tmp_path / "figures").iterdir()) == []


def test_figures_of_an_earlier_report_do_not_stay_behind(tmp_path: Path) -> None:
    page.write(final({"a": [1.0, 2, 3], "b": [2.0, 3, 4]}), tmp_path)
    assert (tmp_path / "figures" / "profiles.png").exists()
    page.write(final({"a": [1.0], "b": [2.0]}), tmp_path)
    assert not (tmp_path / "figures" / "profiles.png").exists()


def test_sixteen_contestants_differ_without_and_with_colour() -> None:
    looks = [look_of(index) for index in range(16)]
    assert len({one.marker for one in looks}) == 16
    assert len({(one.colour, str(one.line)) for one in looks}) == 16


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(statistics, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install 'repertory\[studies\]'"):
        page.write(final({"a": [1.0]}), tmp_path)
