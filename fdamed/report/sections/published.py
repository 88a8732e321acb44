"""Published results beside ours: the healthcare paper's Table 2, and a paper that the study names."""

from __future__ import annotations

from typing import Any

from fdamed.report.paper_tables import CLOSE, Cell, cell_table, paper_cohort, published_cells, table2, within
from fdamed.report.section import Section
from fdamed.report.study import Study


def cells(study: Study) -> list[Cell]:
    shown = study.records
    published = study.config.published
    return published_cells(published, study.config.split.targets, shown) if published else []


def context(study: Study) -> dict[str, Any]:
    found = cells(study)
    table = table2(study.config, study.plain, study.summary, study.views[0].name)
    return {"table": table, "cells": found, "close": CLOSE, "total": within(found)}


SECTION = Section(
    48,
    "Published results",
    lambda study: paper_cohort(study.config) or study.config.published,
    tables=lambda study: {"reproduction": cell_table(cells(study))},
    context=context,
)
