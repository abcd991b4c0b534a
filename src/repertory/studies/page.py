"""One self-contained page of a study: words, tables and figures in a single file that needs no network.

`write` is all that the rest of the library calls. Whatever comes from data is escaped.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from string import Template

from repertory.studies import figures, page_tables
from repertory.studies.figures import Drawn
from repertory.studies.findings import Findings
from repertory.studies.page_notes import notes
from repertory.studies.page_style import STYLE
from repertory.studies.words import paragraph

TITLES = {
    "compare": "Which topology suits {}?",
    "ablate": "What is each part worth on {}?",
    "scale": "What do more actors bring on {}?",
}
KINDS = {"compare": "Comparison", "ablate": "Ablation", "scale": "Scaling study"}

_UNIT = re.compile(r"(?<=\d) (?=%|s\b)")
"""No line ends between a number and so short a unit."""

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="repertory">
<title>$title</title>
<link rel="icon" href="data:,">
<style>$style</style>
</head>
<body>
<main>
<header>
<p class="kind">$kind</p>
<h1>$title</h1>
<dl class="facts">$facts</dl>
<pre><code>$command</code></pre>
</header>
$sections
</main>
</body>
</html>
""")


def write(findings: Findings, directory: Path) -> Path:
    """Write the figures and `report.html`; the page is replaced whole, never seen half written."""
    drawn = figures.draw(findings, directory / "figures")
    path, spare = directory / "report.html", directory / ".report.html.new"
    spare.write_text(render(findings, drawn), encoding="utf-8")
    os.replace(spare, path)
    return path


def render(findings: Findings, drawn: list[Drawn]) -> str:
    """The page as text."""
    title = TITLES.get(findings.kind, "Runs on {}, side by side").format(findings.environment)
    return PAGE.substitute(
        title=html.escape(title),
        kind=KINDS.get(findings.kind, "Report"),
        style=STYLE,
        facts=_facts(findings),
        command=" ".join(f"<span>{html.escape(word)}</span>" for word in findings.command.split(" ")),
        sections="\n".join(_sections(findings, drawn)),
    )


def _facts(findings: Findings) -> str:
    target = "" if findings.target is None else f"{findings.target:g}"
    told = {"Environment": findings.environment, "Budget of a run": findings.budget, "Target score": target}
    told["Machine"] = findings.machine
    return "".join(f"<dt>{key}</dt><dd>{html.escape(value)}</dd>" for key, value in told.items() if value)


def _sections(findings: Findings, drawn: list[Drawn]) -> list[str]:
    """Those that have something to say."""
    words = _UNIT.sub("&nbsp;", html.escape(paragraph(findings)))
    bodies = {
        "In words": f'<p class="words">{words}</p>',
        "The best by each criterion": page_tables.winners(findings),
        "Figures": "\n".join(map(_figure, drawn)),
        "All contestants": page_tables.contestants(findings),
        "Failed runs": page_tables.failures(findings),
        "How to read this": _notes(findings),
    }
    return [f"<section>\n<h2>{head}</h2>\n{body}\n</section>" for head, body in bodies.items() if body]


def _notes(findings: Findings) -> str:
    items = "".join(f"<li>{html.escape(note)}</li>" for note in notes(findings))
    return f'<ul class="notes">{items}</ul>'


def _figure(drawn: Drawn) -> str:
    return (
        f'<figure id="{drawn.name}">\n<h3>{html.escape(drawn.title)}</h3>\n{drawn.wide}\n{drawn.narrow}\n'
        f"<figcaption>{html.escape(drawn.caption)}</figcaption>\n</figure>"
    )
