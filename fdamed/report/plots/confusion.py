"""The confusion matrix of a finished run at its target, which MLflow shows beside the run."""

from __future__ import annotations

from fdamed.core.disclosure import hides, small
from fdamed.core.run_record import Record, Row
from fdamed.report.plots.figure import standalone
from fdamed.report.plots.heat import Cell, Panel, heat


def confusion(score: Row, smallest: int) -> list[list[tuple[float, int | None]]] | None:
    """Rows negative, positive; columns predicted negative, predicted positive: share of the row, and the count where
    it may be shown. None where there is no such matrix (several classes, a class that is absent, too few images)."""
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
    """The matrix as a file; None where there is none to show."""
    matrix = confusion(record.scores.get(record.target, {"n": 0}), smallest)
    if matrix is None:
        return None
    title = f"{record.run} at {record.target}, seed {record.seed}: confusion matrix of the test part"
    cells = [
        [
            Cell(0, 0.75 * share, title, [f"{share:.0%}", "few images" if count is None else f"n = {count:,}"])
            for share, count in row
        ]
        for row in matrix
    ]
    panel = Panel("", cells, ["predicted negative", "predicted positive"])
    return standalone(heat([panel], ["negative", "positive"], title, (130, 90), title))
