"""A contact sheet: one row a domain; positives, negatives and laterals side by side, each with what it shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fdamed.config.datasets import Phantom
from fdamed.core.files import atomic
from fdamed.data.phantom import findings as f
from fdamed.data.phantom.population import Cohort
from fdamed.data.phantom.render import render

POSITIVE, NEGATIVE, LATERAL = 4, 4, 1
CAPTION = 16
LARGEST = 256


def draw_sheet(phantom: Phantom, cohort: Cohort, path: Path) -> None:
    """Write the sheet as PNG; it tells on one page whether the phantoms look like radiographs."""
    cell = min(phantom.size, LARGEST)
    columns = POSITIVE + NEGATIVE + LATERAL
    step_x, step_y = cell + 2, cell + CAPTION + 2
    sheet = Image.new("L", (columns * step_x, len(cohort.names) * step_y), 32)
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=11)
    for line, name in enumerate(cohort.names):
        here = cohort.domain == line
        groups = (
            (here & ~cohort.lateral & cohort.positive, POSITIVE, 0),
            (here & ~cohort.lateral & ~cohort.positive, NEGATIVE, POSITIVE),
            (here & cohort.lateral, LATERAL, POSITIVE + NEGATIVE),
        )
        for wanted, count, start in groups:
            # One image a patient, so that the sheet shows people and not follow-ups.
            rows = np.flatnonzero(wanted)
            rows = rows[np.unique(cohort.patient[rows], return_index=True)[1]][:count]
            for column, (row, pixels) in enumerate(render(cohort, rows), start=start):
                picture = Image.fromarray((pixels >> 4).astype(np.uint8))
                picture.thumbnail((cell, cell))
                left, top = column * step_x, line * step_y
                sheet.paste(picture, (left + (cell - picture.width) // 2, top + CAPTION))
                pen.text((left + 3, top + 2), _caption(cohort, row, name)[: cell // 6], fill=230, font=font)
    with atomic(path) as draft:
        sheet.save(draft, "PNG")


def _caption(cohort: Cohort, row: int, name: str) -> str:
    sign = "+" if cohort.positive[row] else "-"
    shown = [k for k, there in zip(f.KINDS, cohort.shows[row], strict=True) if there and k not in (name, f.COVID)]
    who = f"{'M' if cohort.male[row] else 'F'}{cohort.age[row]}"
    return f"{name} {sign} {who} {', '.join(shown)}"
