"""The page as one file: templates, style and script put together, and the policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report.formatting import count, interval, megabytes, millions, points, seconds
from fdamed.report.sections import shown
from fdamed.report.svg import key, spot

HERE = Path(__file__).parent
LATER = "policy-follows"
"""Stands for the policy until the rest of the page is known."""
PAINT = re.compile(r' style="((?:(?:--)?[a-z-]+:[-\w#.,%() ]+;?)+)"')
"""Style attributes of drawings: colors and widths, nothing that could fetch."""


def render(content: Mapping[str, Any]) -> str:
    """The page as one file: style, script and drawings inside, nothing fetched, nothing else allowed to run."""
    environment = Environment(
        loader=FileSystemLoader([HERE, HERE / "sections"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"interval": interval, "count": count, "megabytes": megabytes, "seconds": seconds}
    environment.filters |= {"millions": millions, "points": points}
    environment.filters["capitalise"] = lambda text: text[:1].upper() + text[1:]
    environment.globals |= {"key": key, "spot": spot, "all_targets": ALL_TARGETS}
    script = (HERE / "script.js").read_text(encoding="utf-8")
    style = (HERE / "style.css").read_text(encoding="utf-8")
    own = {"script": Markup(script), "style": Markup(style), "policy": LATER, "sections": shown(content)}  # noqa: S704
    page = environment.get_template("page.html").render(dict(content), **own)
    return page.replace(LATER, policy(script, style, page), 1)


def policy(script: str, style: str, page: str) -> str:
    """What the browser may do: run this script, use this style and the paint of drawings; fetch nothing, go nowhere."""
    paints = sorted(set(PAINT.findall(page)))
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src-elem {_hash(style)}",
            " ".join(["style-src-attr 'unsafe-hashes'", *(_hash(paint) for paint in paints)]),
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
