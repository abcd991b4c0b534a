"""A page as a browser shows it: errors, requests, boxes and pixels, with the network off."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from playwright.sync_api import Browser, Page

BOXES = """() => [...document.querySelectorAll("figure")].map(figure => {
  const shown = [...figure.querySelectorAll("svg")].filter(svg => getComputedStyle(svg).display !== "none");
  return shown.map(svg => { const box = svg.getBoundingClientRect();
    return [box.left + scrollX, box.top + scrollY, box.width, box.height]; });
})"""
CELLS = """label => { const table = document.querySelector(`[aria-label="${label}"] table`);
  return [...table.tHead.rows[0].cells].map((head, column) => [head.textContent, [...table.rows].map(row => {
    const box = row.cells[column].getBoundingClientRect(); return [box.left, box.right]; })]); }"""
OVERLAPPING = """() => [...document.querySelectorAll("figure svg")].flatMap(svg => {
  const texts = [...svg.querySelectorAll("text")].filter(text => text.textContent.trim());
  const boxes = texts.map(text => text.getBoundingClientRect()).map(box => [box.left, box.top, box.right, box.bottom]);
  const shared = (a, b, low, high) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]);
  const meet = (a, b) => shared(a, b, 0, 2) > 1 && shared(a, b, 1, 3) > 4;
  return boxes.flatMap((box, i) => boxes.slice(i + 1).map((other, j) => [box, other, texts[i], texts[i + 1 + j]])
    .filter(([a, b]) => a[2] > a[0] && meet(a, b)).map(([a, b, one, two]) => [one.textContent, two.textContent])); })"""
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
PLAIN = 4.0
"""A region whose grey values differ by less (standard deviation, of 255) shows nothing."""


@dataclass(frozen=True)
class Seen:
    """What came of opening a page."""

    errors: list[str]
    requests: list[str]
    overflow: int
    """Pixels that the page is wider than the window."""
    figures: list[list[list[float]]]
    """For each figure, the boxes of the drawings that are shown: left, top, width, height."""
    picture: bytes
    """The whole page, as PNG."""

    @property
    def grey(self) -> npt.NDArray[np.float64]:
        return np.asarray(Image.open(io.BytesIO(self.picture)).convert("L"), np.float64)

    def blank(self) -> list[int]:
        """The figures in whose place there is nothing to see."""
        return [index for index, boxes in enumerate(self.figures) if not _visible(self.grey, boxes)]


def _visible(grey: npt.NDArray[np.float64], boxes: list[list[float]]) -> bool:
    if len(boxes) != 1 or min(boxes[0][2:]) < 50:
        return False
    left, top, width, height = map(round, boxes[0])
    return float(grey[top : top + height, left : left + width].std()) > PLAIN


def look(browser: Browser, path: Path, width: int, scheme: Any) -> Seen:
    """Open a page from disk, in a window of this width, in light or dark."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    errors, requests = _listen(page)
    page.goto(path.as_uri())
    seen = Seen(errors, requests, page.evaluate(OVERFLOW), page.evaluate(BOXES), page.screenshot(full_page=True))
    context.close()
    return seen


def _listen(page: Page) -> tuple[list[str], list[str]]:
    """Lists that fill up: with errors of the console and of scripts, and with what is asked for."""
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: None if request.url.startswith("data:") else requests.append(request.url))
    return errors, requests


def cells(browser: Browser, path: Path, width: int, table: str) -> list[tuple[str, list[tuple[float, float]]]]:
    """The columns of a table that was not scrolled: each head, and from where to where its cells reach."""
    return [
        (head, [(left, right) for left, right in boxes]) for head, boxes in _asked(browser, path, width, CELLS, table)
    ]


def overlapping(browser: Browser, path: Path, width: int) -> list[list[str]]:
    """Pairs of labels of one drawing that lie on each other; a few pixels of air above letters don't count."""
    found: list[list[str]] = _asked(browser, path, width, OVERLAPPING, None)
    return found


def _asked(browser: Browser, path: Path, width: int, script: str, argument: Any) -> Any:
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    page = context.new_page()
    page.goto(path.as_uri())
    found = page.evaluate(script, argument)
    context.close()
    return found
