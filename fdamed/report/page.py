"""The report: one HTML page, its tables and its figures, written from the sections."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fdamed import __version__
from fdamed.core.disclosure import to_csv, vague
from fdamed.core.files import write_json, write_text
from fdamed.evaluation.intervals import FILTERS
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report import headline, sections
from fdamed.report.headline_cards import cards
from fdamed.report.headline_facts import facts_of
from fdamed.report.plots.figure import key, spot, standalone, stylesheet
from fdamed.report.section import always, found
from fdamed.report.study import METRICS, Study

HERE = Path(__file__).parent


def write(study: Study, folder: Path) -> None:
    """Write index.html, headline.json, tables/ and figures/ below `folder`, and delete tables and figures of before."""
    environment = _environment()
    kept: set[Path] = set()

    def file_of(kind: str, name: str) -> Path:
        kept.add(path := folder / kind / name)
        return path

    shown: list[dict[str, Any]] = []
    for name, section in found().items():
        lines = study.withheld.get(name, ())
        if not section.needs(study):
            if lines:
                shown.append({"name": name, "title": section.title, "body": "", "reason": "; ".join(lines)})
            continue
        for file, table in section.tables(study).items():
            if not table.empty or section.needs is always:
                write_text(file_of("tables", f"{file}.csv"), to_csv(table))
        reason = section.too_small(study)
        if reason:
            shown.append({"name": name, "title": section.title, "body": "", "reason": reason})
            continue
        plots = {file: plot for file, plot in section.plots(study).items() if plot}
        for file, plot in plots.items():
            write_text(file_of("figures", f"{file}.svg"), standalone(plot))
        html = environment.get_template(f"{name}.html").render(study=study, plots=plots, **section.context(study))
        shown.append({"name": name, "title": section.title, "body": Markup(html), "reason": "", "lines": lines})  # noqa: S704 - rendered with autoescape
    script = (HERE / "script.js").read_text(encoding="utf-8")
    style = stylesheet() + (HERE / "style.css").read_text(encoding="utf-8")
    first = facts_of(study, study.views[0])
    page = environment.get_template("page.html").render(
        study=study,
        sections=shown,
        sentences=headline.sentences(first),
        cards=cards(first),
        version=__version__,
        script=Markup(script),  # noqa: S704 - our own file
        style=Markup(style),  # noqa: S704 - our own file
        policy=Markup(policy(script, style)),  # noqa: S704 - hashes and our own words
    )
    write_json(folder / "headline.json", headline.as_file(study))
    write_text(folder / "index.html", page)
    # A study that was shown as public before must not leave what is hidden now.
    for path in {*folder.glob("tables/*"), *folder.glob("figures/*")} - kept:
        path.unlink()


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader([HERE, *sections.__path__]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS | {"vague": vague}
    environment.globals |= {"key": key, "spot": spot, "all_targets": ALL_TARGETS, "metric_names": METRICS}
    return environment


def policy(script: str, style: str) -> str:
    """Content security policy: this script and this style, nothing else; nothing is fetched or sent."""
    rules = [f"script-src {_hash(script)}", f"style-src {_hash(style)}", "base-uri 'none'", "form-action 'none'"]
    return "; ".join(["default-src 'none'", *rules])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
