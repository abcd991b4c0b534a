"""How the page looks: one style sheet, light and dark, for a screen of any width and for paper."""

from __future__ import annotations

from repertory.studies.drawing import COLOURS, INK, MUTED, PAPER, RULE

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
.words { font-size: 1.16rem; line-height: 1.66; max-width: 44rem; }
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
table { border-collapse: collapse; width: 100%; font: 0.88rem/1.4 var(--sans);
  font-variant-numeric: tabular-nums lining-nums; }
caption { text-align: left; color: var(--muted); padding: 0.5rem 0; }
th, td { padding: 0.5rem 0.7rem; text-align: left; vertical-align: top; border-top: 1px solid var(--rule); }
thead th { border-top: 0; font-weight: 600; color: var(--muted); vertical-align: bottom; white-space: nowrap; }
tbody th { font-weight: 600; }
th:first-child, td:first-child { padding-left: 0.2rem; }
.n { text-align: right; white-space: nowrap; }
small { display: block; font-size: 0.86em; font-weight: 400; color: var(--muted); }
.name { min-width: 10.5rem; }
.wrap { min-width: 12rem; overflow-wrap: anywhere; }
.key { display: inline-block; width: 0.62em; height: 0.62em; border-radius: 50%; margin-right: 0.5em; }
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
  .words { font-size: 1.08rem; }
  .name, .wrap { min-width: 8.5rem; }
  th, td { padding-inline: 0.4rem; }
}
@media print {
  body { font-size: 10pt; background: none; }
  main { max-width: none; padding: 0; }
  figure .wide { display: block; }
  figure .narrow { display: none; }
  .scroll { overflow: visible; }
}
"""
