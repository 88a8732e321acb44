"""Headings, paragraphs, lists and tables, written once and shown as Markdown or as one HTML page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem; color: #1b1f24;
       background: #fff }
h1 { font-size: 1.7rem } h2 { font-size: 1.25rem; margin-top: 2rem; border-bottom: 1px solid #c9ced6 }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #d9dde3; text-align: left; vertical-align: top }
code { font-size: .92em; background: #eef0f3; padding: .05em .3em; border-radius: 3px; overflow-wrap: anywhere }
.warning { border-left: 4px solid #b35900; padding: .4rem .9rem; background: #fff4e5 }
@media (prefers-color-scheme: dark) {
  body { color: #e6e8eb; background: #16191d } h2 { border-color: #3a4048 } th, td { border-color: #343a42 }
  code { background: #262b31 } .warning { background: #33270f; border-color: #e09a3e } }
"""


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    text: str
    warning: bool = False


@dataclass(frozen=True)
class Items:
    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


Block = Heading | Text | Items | Table


def to_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Text(text, warning):
            return f"> **{text}**" if warning else text
        case Items(lines):
            return "\n".join(f"- {line}" for line in lines)
        case Table(head, rows):
            cells = [list(head), ["---"] * len(head), *(list(row) for row in rows)]
            return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in cells)


def to_html(blocks: Sequence[Block], title: str) -> str:
    """One page that opens anywhere: no script, nothing to load."""
    body = "\n".join(_html(block) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_inline(text)}</h{level}>"
        case Text(text, warning):
            return f'<p class="warning"><strong>{_inline(text)}</strong></p>' if warning else f"<p>{_inline(text)}</p>"
        case Items(lines):
            return "<ul>" + "".join(f"<li>{_inline(line)}</li>" for line in lines) + "</ul>"
        case Table(head, rows):
            top = "".join(f'<th scope="col">{_inline(cell)}</th>' for cell in head)
            lines = "".join("<tr>" + "".join(f"<td>{_inline(c)}</td>" for c in row) + "</tr>" for row in rows)
            return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def _inline(text: str) -> str:
    """Escaped, with `code` and **bold** as Markdown has them."""
    out = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
    return re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", out)
