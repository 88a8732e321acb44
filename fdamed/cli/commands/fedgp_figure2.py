"""Repeat the synthetic study of the FedGP paper's Figure 2: theory compared with training.

Examples:
    fdamed fedgp-figure2 --small --out figure2/
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace

import torch

from fdamed.core.files import write_json, write_text
from fdamed.report.plots.decision_map import panels
from fdamed.theory.bounds import winner
from fdamed.theory.figure2 import SMALL, Setting, study, summary

GROUP = "reproduce published studies", 2
OPTIONS = {
    "--out": {"type": "path", "required": True, "metavar": "DIR", "help": "where figure2.json and .svg go"},
    "--seed": {"required": False, "default": 0},
    "--small": {"action": "store_true", "help": "3 x 3 pairs of small data sets: seconds, a first look"},
    "--whole": {"action": "store_true", "help": "project the whole model at once, not tensor by tensor"},
}
PANELS = {
    "theory, measured at the first weights": "errors",
    "theory, τ² = 0.5, δ = 1, m = 10": "errors_paper",
    "training: smallest test loss": "losses",
}
"""Title -> field of a cell whose smallest value wins."""


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)  # the matrices are small
    setting = replace(SMALL if arguments.small else Setting(), seed=arguments.seed, per_layer=not arguments.whole)
    cells = study(setting)
    found = summary(cells)
    by = {(c.shift, c.size): c for c in cells}
    drawn = {
        name: [[winner(getattr(by[shift, size], errors)) for size in setting.sizes] for shift in setting.shifts]
        for name, errors in PANELS.items()
    }
    columns = [f"{by[setting.shifts[0], size].sigma2 ** 0.5:.1f}" for size in setting.sizes]
    rows = [f"{by[shift, setting.sizes[0]].d2 ** 0.5:.1f}" for shift in setting.shifts]
    title = "Which rule wins, by theory and by training"
    write_text(arguments.out / "figure2.svg", panels(drawn, columns, rows, title))
    content = {"setting": asdict(setting), "summary": found, "cells": [asdict(c) for c in cells]}
    write_json(arguments.out / "figure2.json", content)
    for kind in ("measured", "paper"):
        print(f"{kind}: {found[kind]}")
