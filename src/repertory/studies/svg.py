"""A matplotlib figure as SVG for the inside of a page: its colours and fonts are the page's, so that they follow it."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING

from repertory.studies.drawing import COLOURS, INK, MUTED, PAPER, RULE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", PAPER: "var(--paper)", "#ffffff": "none"}
VARIABLES |= {colour: f"var(--c{index})" for index, colour in enumerate(COLOURS)}

_HEAD = re.compile(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>')
_DROPPED = re.compile(r"<metadata>.*?</metadata>|<!--.*?-->| transform=\"rotate\(-0 [^)]*\)\"", re.DOTALL)
_REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')
_COLOUR = re.compile("|".join(VARIABLES))
_LONG = re.compile(r"-?\d+\.\d{3,}")
_TAG = re.compile(r"<[^>]*>")
_SPACE = re.compile(r"\s*\n\s*")


def plain(figure: Figure) -> str:
    """As matplotlib writes it, with text as text; the same figure is the same text."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": "repertory"}):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def inline(text: str, identity: str, label: str, css_class: str) -> str:
    """To be put into HTML: ids that no other figure has, short numbers, colours as CSS variables, no background."""
    text = _DROPPED.sub("", text[text.index("<svg") :])
    text = _TAG.sub(lambda tag: _adapted(tag[0], identity), text)
    opening = f'<svg class="{css_class}" role="img" aria-label="{html.escape(label)}"'
    text = _HEAD.sub(lambda found: f'{opening} viewBox="{found[1]}">', text, count=1)
    return _SPACE.sub("\n", text).replace("\nL ", "L").replace("\nz\n", "z")


def _adapted(tag: str, identity: str) -> str:
    """One tag; what stands between tags is said to readers, and is left as it is."""
    tag = _REFERENCE.sub(lambda found: f"{found[1]}{identity}-", tag)
    tag = _COLOUR.sub(lambda found: VARIABLES[found[0]], tag).replace("'DejaVu Sans'", "var(--sans)")
    return _LONG.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), tag)
