"""`python -m benchmarks.phantom_pictures`: what demographics and each knob do to a phantom, for docs/assets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fdamed.config.datasets import Phantom
from fdamed.core.rng import stream
from fdamed.data.phantom import LAYOUTS, findings
from fdamed.data.phantom.anatomy import Chest, draw_chests
from fdamed.data.phantom.population import Cohort, Shift, draw_cohort
from fdamed.data.phantom.projection import frontal
from fdamed.data.phantom.render import render
from fdamed.data.phantom.scanner import expose

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
SIDE, TITLE = 144, 16
Picture = NDArray[np.uint8]
Row = list[tuple[str, Picture]]


def cohort_of(**knobs: Any) -> Cohort:
    return draw_cohort(Phantom.model_validate({"patients": 200, "size": SIDE, "seed": 7} | knobs), LAYOUTS["chexpert"])


def shot(cohort: Cohort, row: int) -> Picture:
    ((_, pixels),) = render(cohort, np.array([row]))
    return (pixels >> 4).astype(np.uint8)


def square(cohort: Cohort, **wanted: Any) -> NDArray[np.int64]:
    """Uncropped frontal first images with these values."""
    images = cohort.images
    fits = ~images["lateral"] & (images["crop"] == 0) & (images["study"] == 1) & (images["view"] == 1)
    for name, value in wanted.items():
        fits &= images[name] == value
    return np.flatnonzero(fits)


def save(name: str, rows: list[Row]) -> None:
    """Rows of pictures with a title above each."""
    side, width = len(rows[0][0][1]), max(map(len, rows))
    sheet = Image.new("L", (width * (side + 4) - 4, len(rows) * (side + TITLE)), 255)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=12)
    for r, row in enumerate(rows):
        for c, (title, picture) in enumerate(row):
            corner = (c * (side + 4), r * (side + TITLE))
            draw.text(corner, title, fill=0, font=font)
            sheet.paste(Image.fromarray(picture), (corner[0], corner[1] + TITLE))
    sheet.quantize(64).save(ASSETS / f"phantom_{name}.png", optimize=True)


def body(male: bool, age: int, race: str) -> Picture:
    """One body, the same but for its demographics, on the reference scanner."""
    one, nothing = np.array([0]), np.zeros((1, len(findings.KINDS)), dtype=np.float32)
    lying, still = np.array([False]), np.zeros(1)
    rng, names = stream(3, "body").numpy, np.array([race], dtype=object)
    chest = draw_chests(rng, 0, one, np.array([male]), np.array([age]), names, lying, nothing, still)
    scene = frontal(Chest(**{name: values[0] for name, values in chest.items()}), SIDE)
    return (expose(scene.density, SIDE, Shift(), 0.0, stream(0, "x").numpy, 0) >> 4).astype(np.uint8)


def demographics() -> None:
    people = {
        "female, 50": (False, 50, "White"),
        "male, 50": (True, 50, "White"),
        "male, 25": (True, 25, "White"),
        "male, 85": (True, 85, "White"),
        "marker of Black": (True, 50, "Black"),
        "marker of Asian": (True, 50, "Asian"),
    }
    shown = [(title, body(*person)) for title, person in people.items()]
    save("demographics", [shown])


def knob(name: str, values: tuple[float, ...], domains: tuple[str, ...]) -> None:
    """The first ill patient of each domain, one row a domain, one column a value."""
    rows: list[Row] = []
    for domain in domains:
        cohorts = [cohort_of(**{"subtlety": 0.2} | {name: value}) for value in values]
        row = int(square(cohorts[0], domain=domain, positive=True)[0])
        rows.append([(f"{domain}: {v:g}", shot(c, row)) for v, c in zip(values, cohorts, strict=True)])
    save(name, rows)


def label_noise() -> None:
    """Patients labeled positive, with three of ten labels wrong."""
    cohort = cohort_of(label_noise=0.3, subtlety=0.0, concept=0.0, scanner=0.0)
    own = findings.KINDS.index(findings.EDEMA)
    rows = square(cohort, domain=findings.EDEMA, positive=True)[:6]
    titles = ["label 1" if cohort.drawn[row, own] else "label 1, wrong" for row in rows]
    save("label_noise", [[(t, shot(cohort, int(row))) for t, row in zip(titles, rows, strict=True)]])


def correlation() -> None:
    """Ill patients at three correlations of illness with male sex."""
    rows: list[Row] = []
    for value in (-0.5, 0.0, 0.5):
        cohort = cohort_of(correlation={findings.EDEMA: {"sex": value}}, size=72, patients=300)
        ill = square(cohort, domain=findings.EDEMA, positive=True)[:10]
        rows.append(
            [(f"{value:+.1f} {'male' if cohort.images['male'][r] else 'female'}", shot(cohort, int(r))) for r in ill]
        )
    save("correlation", rows)


def main() -> None:
    demographics()
    knob("subtlety", (0.0, 0.5, 1.0), (findings.CONSOLIDATION, findings.EDEMA))
    knob("concept", (0.0, 0.5, 1.0), (findings.LESION, findings.CONSOLIDATION, findings.EDEMA))
    knob("scanner", (0.0, 1.0, 3.0), (findings.ATELECTASIS, findings.EDEMA))
    knob("noise", (0.0, 1.0, 3.0), (findings.CONSOLIDATION,))
    label_noise()
    correlation()


if __name__ == "__main__":
    main()
