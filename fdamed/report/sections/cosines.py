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

    def recorded(run: str, target: str, seed: int) -> bool:
        path = study.folder / "runs" / run / target / str(seed) / "layers.jsonl"
        return path.is_file() and path.stat().st_size > 0

    return [
        (run, target)
        for run in study.runs
        for target in study.config.split.targets
        if any(recorded(run, target, seed) for seed in study.config.seeds)
    ]


def plots(study: Study) -> dict[str, Markup]:
    out = {}
    for run, target in known(study)[:SHOWN]:
        folder = study.folder / "runs" / run / target
        rows = [row for seed in study.config.seeds for row in layers(folder / str(seed))]
        frame = pd.DataFrame(rows, columns=["round", "source", "layer", "cos"]).astype({"cos": "float64"})
        if not frame.empty:
            out[f"cosines_{run}_{target}"] = plot_of(frame, f"{run}, target {target}")
    return out


def plot_of(frame: pd.DataFrame, title: str) -> Markup:
    """One panel for each source: layers downward, rounds to the right."""
    sources, order = list(dict.fromkeys(frame["source"])), list(dict.fromkeys(frame["layer"]))
    rounds = sorted(frame["round"].unique())
    size, width = -(-len(order) // LAYERS), -(-len(rounds) // ROUNDS)
    row = {layer: i // size for i, layer in enumerate(order)}
    column = {r: i // width for i, r in enumerate(rounds)}
    placed = frame.assign(row=frame["layer"].map(row), column=frame["round"].map(column))
    means = placed.groupby(["source", "row", "column"])["cos"].mean().to_dict()
    height, across = -(-len(order) // size), -(-len(rounds) // width)
    panels = [
        Panel(
            str(source),
            [[_cell(means.get((source, i, j))) for j in range(across)] for i in range(height)],
            [str(rounds[0]), str(rounds[-1])] if across > 1 else [str(rounds[0])],
        )
        for source in sources
    ]
    names = [_name(order[i * size : (i + 1) * size]) for i in range(height)]
    overall = frame.groupby("source", sort=False)["cos"].mean()
    told = "Mean cosine: " + "; ".join(f"{source} {value:.2f}" for source, value in overall.items()) + "."
    wide = max(90.0, min(150.0, 560.0 / len(sources) - 14)) / across
    return heat(panels, names, f"Cosine similarity by layer and round: {title}", (wide, 13), told, "round")


def _cell(value: float | None) -> Cell | None:
    if value is None or value != value:
        return None
    return Cell(0 if value >= 0 else 1, min(1.0, abs(value)), f"{value:.2f}")


def _name(members: list[str]) -> str:
    """Layers that share a row, by the first."""
    first = members[0].removeprefix("trunk.").removesuffix(".weight")
    return first if len(members) == 1 else f"{first} … +{len(members) - 1}"


def context(study: Study) -> dict[str, Any]:
    pairs = known(study)
    titles = {f"cosines_{run}_{target}": f"{run}, target {target}" for run, target in pairs[:SHOWN]}
    return {"titles": titles, "more": max(0, len(pairs) - SHOWN)}


SECTION = Section(56, "Gradient alignment", known, plots, context=context)
