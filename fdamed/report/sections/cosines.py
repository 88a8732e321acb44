"""Gradient alignment: cosine similarity of each source's update with the target's, by layer and round."""

from __future__ import annotations

from typing import Any

import pandas as pd
from markupsafe import Markup

from fdamed.core.run_record import layers
from fdamed.report.plots.heat import Cell, Panel, heat
from fdamed.report.section import Section
from fdamed.report.study import Study

SHOWN = 6
"""Heat maps on the page at most."""
ROUNDS, LAYERS = 20, 24
"""Cells of a heat map at most; more rounds or layers are averaged."""


def known(study: Study) -> list[tuple[str, str]]:
    """Run and target of the runs that recorded cosines by layer."""
    found = [p for p in study.folder.glob("runs/*/*/*/layers.jsonl") if p.stat().st_size > 0]
    recorded = {tuple(p.parts[-4:-2]) for p in found if p.parts[-2] in map(str, study.config.seeds)}
    pairs = [(run, target) for run in study.runs for target in study.config.split.targets]
    return [pair for pair in pairs if pair in recorded]


def plots(study: Study) -> dict[str, Markup]:
    out = {}
    for run, target in known(study)[:SHOWN]:
        folder = study.folder / "runs" / run / target
        rows = [row for seed in study.config.seeds for row in layers(folder / str(seed))]
        frame = pd.DataFrame(rows, columns=["round", "source", "layer", "cos"]).astype({"cos": "float64"})
        out[f"cosines_{run}_{target}"] = plot_of(frame, f"{run}, target {target}")
    return out


def plot_of(frame: pd.DataFrame, title: str) -> Markup:
    """One panel for each source: layers downward, rounds to the right, each cell a mean over its layers and rounds."""
    order, rounds = list(dict.fromkeys(frame["layer"])), sorted(frame["round"].unique())
    tall, wide = -(-len(order) // LAYERS), -(-len(rounds) // ROUNDS)
    row = frame["layer"].map({layer: i // tall for i, layer in enumerate(order)})
    column = frame["round"].map({r: i // wide for i, r in enumerate(rounds)})
    names = [_name(order[i : i + tall]) for i in range(0, len(order), tall)]
    across, ends = column.max() + 1, [str(r) for r in dict.fromkeys((rounds[0], rounds[-1]))]
    panels = []
    for source, part in frame.groupby("source", sort=False):
        cells = part.groupby([row, column])["cos"].mean().unstack()
        cells = cells.reindex(index=range(len(names)), columns=range(across))
        panels.append(Panel(str(source), [[_cell(v) for v in line] for line in cells.to_numpy()], ends))
    overall = frame.groupby("source", sort=False)["cos"].mean()
    words = "Mean cosine: " + "; ".join(f"{source} {value:.2f}" for source, value in overall.items()) + "."
    width = max(90.0, min(150.0, 560.0 / len(panels) - 14)) / across
    return heat(panels, names, f"Cosine similarity by layer and round: {title}", (width, 13), words, "round")


def _cell(value: float) -> Cell | None:
    return None if value != value else Cell(0 if value >= 0 else 1, min(1.0, abs(value)), f"{value:.2f}")


def _name(members: list[str]) -> str:
    """Layers that share a row, by the first."""
    first = members[0].removeprefix("trunk.").removesuffix(".weight")
    return first if len(members) == 1 else f"{first} … +{len(members) - 1}"


def context(study: Study) -> dict[str, Any]:
    pairs = known(study)
    titles = {f"cosines_{run}_{target}": f"{run}, target {target}" for run, target in pairs[:SHOWN]}
    return {"titles": titles, "more": max(0, len(pairs) - SHOWN)}


SECTION = Section(56, "Gradient alignment", known, plots, context=context)
