"""One self-contained page of a study: answer, words, tables and figures in a single file that needs no network.

`write` is all that the rest of the library calls. Whatever comes from data is escaped.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from string import Template

from repertory.studies import figures, page_tables
from repertory.studies.curves import shared_span
from repertory.studies.drawing import COLOURS, INK, MUTED, PAPER, RULE
from repertory.studies.figures import Drawn
from repertory.studies.findings import Findings
from repertory.studies.numerals import number
from repertory.studies.statistics import CHANCE, FEWEST, REPETITIONS
from repertory.studies.words import answer, remarks

TITLES = {
    "compare": "Which topology suits {}?",
    "ablate": "What is each part worth on {}?",
    "scale": "What do more actors bring on {}?",
}
KINDS = {"compare": "Comparison", "ablate": "Ablation", "scale": "Scaling study"}

DARK = {"#111111": "#eceff1", "#a89a00": "#f0e442", "#0072b2": "#1f83c8", "#56b4e9": "#8fd0f7"}
"""Colours of contestants that dark paper would swallow."""


def _colours(dark: bool) -> str:
    return " ".join(f"--c{i}: {DARK.get(colour, colour) if dark else colour};" for i, colour in enumerate(COLOURS))


STYLE = f"""
:root {{
  color-scheme: light dark;
  --ink: {INK}; --muted: {MUTED}; --rule: {RULE}; --paper: {PAPER}; --shade: #f3f5f6; --shadow: #1d232930;
  --accent: #005f94;
  {_colours(dark=False)}
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Open Sans", "DejaVu Sans", sans-serif;
  --serif: Charter, "Bitstream Charter", "Iowan Old Style", "Palatino Linotype", Georgia, "Noto Serif", serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}}
@media (prefers-color-scheme: dark) {{
  :root {{
    --ink: #e4e7ea; --muted: #98a2ac; --rule: #30373e; --paper: #14181c; --shade: #1c2127; --shadow: #000c;
    --accent: #6fb9ea;
    {_colours(dark=True)}
  }}
}}
"""

STYLE += """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1.0625rem/1.62 var(--serif); }
main { max-width: 56rem; margin: 0 auto; padding: clamp(1.5rem, 5vw, 4.5rem) clamp(1rem, 4vw, 2rem) 4rem; }
p, li { max-width: 42rem; overflow-wrap: anywhere; }
h1, h2, h3 { font-family: var(--sans); line-height: 1.2; letter-spacing: -0.012em; text-wrap: balance; }
h1 { font-size: clamp(1.6rem, 4.6vw, 2.3rem); font-weight: 650; margin: 0.2rem 0 1.4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; font-weight: 650; margin: 3.6rem 0 0.9rem; }
.kind { font: 600 0.78rem var(--sans); letter-spacing: 0.09em; text-transform: uppercase;
  color: var(--accent); margin: 0; }
.answer { font: 500 1.22rem/1.5 var(--sans); max-width: 46rem; margin: 0 0 1rem; text-wrap: pretty; }
.words { margin: 0 0 1.6rem; }
dl.facts { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.3rem 1.2rem; margin: 0 0 1.5rem;
  font: 0.9rem/1.5 var(--sans); }
dl.facts dt { color: var(--muted); }
dl.facts dd { margin: 0; overflow-wrap: anywhere; }
pre { margin: 0; padding: 0.85rem 1rem; background: var(--shade); border-radius: 6px; font: 0.86rem/1.55 var(--mono);
  white-space: pre-wrap; overflow-wrap: anywhere; }
pre span { display: inline-block; max-width: 100%; }
code { font-family: var(--mono); font-size: 0.9em; }
.scroll { overflow-x: auto; border-block: 1px solid var(--rule); background:
  linear-gradient(to right, var(--paper) 40%, transparent) left / 2rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 2rem 100% no-repeat local,
  linear-gradient(to right, var(--shadow), transparent) left / 0.7rem 100% no-repeat scroll,
  linear-gradient(to left, var(--shadow), transparent) right / 0.7rem 100% no-repeat scroll; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font: 0.88rem/1.4 var(--sans);
  font-variant-numeric: tabular-nums lining-nums; }
th, td { padding: 0.5rem 0.7rem; text-align: left; vertical-align: top; border-top: 1px solid var(--rule); }
thead th { border-top: 0; font-weight: 600; color: var(--muted); vertical-align: bottom; white-space: nowrap; }
tbody th { font-weight: 600; }
tr > :first-child { position: sticky; left: 0; background: var(--paper); }
th:first-child, td:first-child { padding-left: 0.2rem; }
.n { text-align: right; white-space: nowrap; }
small { display: block; font-size: 0.86em; font-weight: 400; color: var(--muted); }
.name { min-width: 11.5rem; overflow-wrap: anywhere; }
.wrap { min-width: 9rem; overflow-wrap: anywhere; }
.keyed.keyed { padding-left: 1.3rem; }
.key { position: absolute; width: 0.62em; height: 0.62em; border-radius: 50%; margin: 0.4em 0 0 -1.15em; }
figure { margin: 2.8rem 0 0; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; overflow: visible; }
figure .narrow { display: none; }
figcaption { font: 0.88rem/1.5 var(--sans); color: var(--muted); margin-top: 0.7rem; max-width: 44rem; }
figure h3 { font-size: 0.98rem; font-weight: 650; margin: 0 0 0.6rem; }
.notes { font-size: 0.95rem; padding-left: 1.1rem; }
.notes li { margin-bottom: 0.55rem; }
@media (max-width: 640px) {
  figure .wide { display: none; }
  figure .narrow { display: block; }
  dl.facts { grid-template-columns: minmax(0, 1fr); gap: 0; }
  dl.facts dd { margin-bottom: 0.5rem; }
  .answer { font-size: 1.1rem; }
  .name { min-width: 9rem; max-width: 9.5rem; }
  th, td { padding-inline: 0.4rem; }
}
@media print {
  body { font-size: 10pt; background: none; }
  main { max-width: none; padding: 0; }
  figure .wide { display: block; }
  figure .narrow { display: none; }
  .scroll { overflow: visible; }
  tr > :first-child { background: none; }
}
"""

_UNIT = re.compile(r"(?<=\d) (?=%|s\b|seeds?\b)")
"""No line ends between a number and so short a unit."""
_NAME = re.compile("`([^`]*)`")

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
<p class="answer">$answer</p>
$remarks
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
        answer=_NAME.sub(r"<code>\1</code>", _said(answer(findings))),
        remarks=f'<p class="words">{_said(told)}</p>' if (told := remarks(findings)) else "",
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
    bodies = {
        "All contestants": page_tables.contestants(findings),
        "The best by each criterion": page_tables.winners(findings),
        "Figures": "\n".join(map(_figure, drawn)),
        "Failed runs": page_tables.failures(findings),
        "How to read this": _notes(findings),
    }
    return [f"<section>\n<h2>{head}</h2>\n{body}\n</section>" for head, body in bodies.items() if body]


def _said(words: str) -> str:
    return _UNIT.sub("&nbsp;", html.escape(words, quote=False))


def _notes(findings: Findings) -> str:
    items = "".join(f"<li>{html.escape(note)}</li>" for note in _told(findings))
    return f'<ul class="notes">{items}</ul>'


def _figure(drawn: Drawn) -> str:
    return (
        f'<figure id="{drawn.name}">\n<h3>{html.escape(drawn.title)}</h3>\n{drawn.wide}\n{drawn.narrow}\n'
        f"<figcaption>{_said(drawn.caption)}</figcaption>\n</figure>"
    )


def _told(findings: Findings) -> list[str]:
    """Those that apply."""
    return [*_statistics(findings), *_curves(), *_shared(findings), *_units(findings)]


def _statistics(findings: Findings) -> list[str]:
    said = [
        "Scores are interquartile means: the lowest and the highest quarter of the seeds are left out, the rest is "
        "averaged. With three seeds or fewer, nothing is left out, and it is the mean.",
        f"Intervals hold 95 % of {REPETITIONS:,} bootstrap draws of the seeds (rliable). They tell what other seeds "
        "might have given, on this environment and this machine; from few seeds they come out too narrow. Below "
        f"{FEWEST} seeds there are none.",
    ]
    if len(findings.contestants) < 2:
        return said
    return [
        *said,
        "Two contestants count as different where a permutation test of their ranks gives a chance of at most "
        f"{100 * CHANCE:.0f} %; of rates, which scatter evenly, Welch's t test. Each pair is judged alone: of twenty "
        "pairs that are equal, about one is called different.",
    ]


def _curves() -> list[str]:
    return [
        "Curves: between two evaluations a run's score is the straight line between them. The last score is carried "
        "forward only for runs that ended because they were solved. A curve begins where all seeds of the contestant "
        "have been evaluated and ends where the first of them that was not solved ends.",
        "Failed runs have no part in scores or curves. A run that ends with a score that is not a finite number has "
        "no final score.",
    ]


def _shared(findings: Findings) -> list[str]:
    """The ground on which mean scores are compared."""
    steps, seconds = shared_span(findings, "env_steps"), shared_span(findings, "seconds")
    if len(findings.contestants) < 2 or steps is None or seconds is None:
        return []
    return [
        "Mean scores over the same env steps, or the same time, are taken where every run has a score: from "
        f"{number(steps[0])} to {number(steps[1])} env steps, and from {number(seconds[0])} to {number(seconds[1])} s. "
        "The slowest run sets the end."
    ]


def _units(findings: Findings) -> list[str]:
    alone = "" if findings.kind == "report" else " Runs were made one after another, never two at once."
    said = [
        "Seconds are those of the wall clock from the first step on: start-up and compilation are not in them, "
        f"evaluations are.{alone}",
        "Env steps are decisions of the agent, those of all environments added up. Policy lag is the learner's number "
        "of updates minus that of the weights that acted.",
    ]
    if findings.target is not None:
        said.append(
            "Time to target is that of the first evaluation at or above the target, the median of the seeds; one that "
            "never gets there counts as infinitely late. Where there are such seeds, there is no interval."
        )
    return said
