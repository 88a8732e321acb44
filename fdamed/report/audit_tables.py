"""The audits of all targets as tables beside the page: pairs of runs, subgroups, gaps, calibration, the leak probe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

Audits = Mapping[str, Mapping[str, Any]]
"""Target -> its audit, with the leak probe in it."""
TOLD = ("value", "low", "high")
EFFECTS = ("p", "p_holm", "mcnemar", "cohens_h", "separation", "cliffs_delta")


def tables(audits: Audits) -> dict[str, pd.DataFrame]:
    """Name -> frame; empty where there is nothing to tell."""
    sheets = {
        "pairs": (["target", "metric", "first", "second", "seeds", *TOLD, *EFFECTS], _pairs(audits)),
        "subgroups": (["target", "run", "by", "group", "images", "metric", *TOLD], _groups(audits)),
        "gaps": (
            ["target", "run", "by", "metric", "best", "worst", *TOLD, "wider_by", "wider_low", "wider_high"],
            _gaps(audits),
        ),
        "calibration": (["target", "run", "error", "by_chance"], _calibration(audits)),
        "probe": (["target", "attribute", "run", *TOLD, "shuffled", "r2"], _probe(audits)),
        "probe_heads": (["target", "attribute", "run", "without_heads", "heads", *TOLD], _heads(audits)),
    }
    return {name: pd.DataFrame(list(rows), columns=columns) for name, (columns, rows) in sheets.items()}


def _pairs(audits: Audits) -> Iterator[tuple[Any, ...]]:
    for target, audit in audits.items():
        for p in audit["pairs"]:
            head = (target, p["metric"], p["first"], p["second"], p["seeds"])
            yield (*head, *(p[k] for k in TOLD), *(p.get(k) for k in EFFECTS))


def _groups(audits: Audits) -> Iterator[tuple[Any, ...]]:
    for target, audit in audits.items():
        for group in audit["groups"]:
            for run, found in group["runs"].items():
                head = (target, run, " x ".join(group["by"]), " x ".join(group["are"]), group["n"])
                for metric in ("auc", "sensitivity", "false_alarms", "bias"):
                    if found.get(metric):
                        yield (*head, metric, *(found[metric][k] for k in TOLD))
                yield (*head, "brier", *(found.get(k) for k in ("brier", "brier_low", "brier_high")))
                yield (*head, "calibration_error", found.get("calibration_error"), None, None)
                yield (*head, "calibration_error_by_chance", found.get("calibration_limit"), None, None)
                for metric, gain in (found.get("gains") or {}).items():
                    yield (*head, f"gain_in_{metric}", *(gain[k] for k in TOLD))


def _gaps(audits: Audits) -> Iterator[tuple[Any, ...]]:
    for target, audit in audits.items():
        for g in audit["gaps"]:
            change = g.get("change") or {}
            head = (target, g["run"], g["by"], g["metric"], g["best"], g["worst"])
            yield (*head, *(g[k] for k in TOLD), *(change.get(k) for k in TOLD))


def _calibration(audits: Audits) -> Iterator[tuple[Any, ...]]:
    for target, audit in audits.items():
        yield from ((target, run, c["error"], c.get("limit")) for run, c in audit["calibration"].items())


def _probe(audits: Audits) -> Iterator[tuple[Any, ...]]:
    for target, audit in audits.items():
        for attribute, told in ((audit.get("probe") or {}).get("attributes") or {}).items():
            for run, found in told["runs"].items():
                yield (target, attribute, run, *(found[k] for k in TOLD), found.get("shuffled"), found.get("r2"))


def _heads(audits: Audits) -> Iterator[tuple[Any, ...]]:
    for target, audit in audits.items():
        for attribute, told in ((audit.get("probe") or {}).get("attributes") or {}).items():
            for pair in told["heads"]:
                heads = " + ".join(pair["heads"])
                yield (target, attribute, pair["run"], pair["base"], heads, *(pair[k] for k in TOLD))
