"""The confusion matrix of a finished run at its target, as a drawing that MLflow shows beside the run."""

from __future__ import annotations

from fdamed.core.disclosure import hides, small
from fdamed.core.run_record import Record, Row

WIDTH, HEIGHT, CELL = 420, 300, 120
SHADE = "#0072b2"
"""Blue of Okabe and Ito; the darker a cell, the larger its share of the row."""


def confusion(score: Row, smallest: int) -> list[list[tuple[float, int | None]]] | None:
    """Rows negative, positive; columns said negative, said positive: share of the row, and the count where it may be
    shown. None where there is no such matrix (several classes, a class that is absent, too few images)."""
    positives = score.get("positives")
    specificity, sensitivity = score.get("specificity"), score.get("sensitivity")
    if positives is None or specificity is None or sensitivity is None or hides(score["n"], positives, smallest):
        return None
    out = []
    for truth, (total, right) in enumerate(((score["n"] - positives, specificity), (positives, sensitivity))):
        hit = round(total * float(right))
        cells = [(hit / total, hit), ((total - hit) / total, total - hit)]
        shown = not any(small(count, smallest) for _, count in cells)
        row = [(share, count if shown else None) for share, count in cells]
        out.append(row if truth == 0 else row[::-1])
    return out


def confusion_svg(record: Record, smallest: int) -> str | None:
    """The drawing; None where there is no matrix to show."""
    matrix = confusion(record.scores.get(record.target, {"n": 0}), smallest)
    if matrix is None:
        return None
    title = f"{record.run} at {record.target}, seed {record.seed}: confusion matrix of the test split"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="13" role="img">',
        f"<title>{_text(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    left, top = 130, 44
    for column, name in enumerate(("said negative", "said positive")):
        parts.append(f'<text x="{left + (column + 0.5) * CELL}" y="{top - 12}" text-anchor="middle">{name}</text>')
    for line, (name, row) in enumerate(zip(("negative", "positive"), matrix, strict=True)):
        middle = top + (line + 0.5) * CELL
        parts.append(f'<text x="{left - 12}" y="{middle + 4}" text-anchor="end">is {name}</text>')
        for column, (share, count) in enumerate(row):
            x, y = left + column * CELL, top + line * CELL
            ink = "#ffffff" if share > 0.65 else "#111111"
            parts.append(
                f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{SHADE}" fill-opacity="{share:.2f}" '
                'stroke="#888888"/>'
            )
            center = f'x="{x + CELL / 2}" text-anchor="middle" fill="{ink}"'
            parts.append(f'<text {center} y="{middle}" font-size="20">{share:.0%}</text>')
            parts.append(
                f'<text {center} y="{middle + 22}">{"few images" if count is None else f"n = {count:,}"}</text>'
            )
    return "".join([*parts, "</svg>"])


def _text(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
