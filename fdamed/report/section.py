"""A section of the report: `sections/NAME.py` with a `SECTION` in it and, beside it, the template `NAME.html`.

To add one, add these two files: it is found in the folder, gets its place on the page, its entry in the contents, and
its tables and figures become files. `plots` are made once: the page shows them, and `figures/` holds them as files.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.report import sections
from fdamed.report.study import Study


def always(_: Study) -> bool:
    return True


def _nothing(_: Study) -> dict[str, Any]:
    return {}


def _enough(_: Study) -> str:
    return ""


@dataclass(frozen=True)
class Section:
    """What a section shows; every function is given the study."""

    order: int
    title: str
    """Its heading and its entry in the contents."""
    needs: Callable[[Study], Any] = always
    """Whether the study has what the section shows; without it, the section is left out."""
    plots: Callable[[Study], Mapping[str, Markup]] = _nothing
    """File name -> plot; empty plots are left out."""
    tables: Callable[[Study], Mapping[str, pd.DataFrame]] = _nothing
    """File name -> table, with or without an entry on the page."""
    context: Callable[[Study], Mapping[str, Any]] = _nothing
    """Further variables of the template, beside `study` and `plots`."""
    too_small: Callable[[Study], str] = _enough
    """Why the study is too small for the section, which is then this one line; empty: it is large enough."""


def found() -> dict[str, Section]:
    """Name -> section, in the order of the page."""
    names = [module.name for module in pkgutil.iter_modules(sections.__path__)]
    known = {name: importlib.import_module(f"{sections.__name__}.{name}").SECTION for name in names}
    return dict(sorted(known.items(), key=lambda item: (item[1].order, item[0])))
