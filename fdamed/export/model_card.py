"""The model card of an exported model (Mitchell et al., 2019): `model_card.md.jinja`, filled from the study's files.

Everything that the study did not measure is marked as such; small counts, and scores of small groups, are hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fdamed.config.loader import catalog
from fdamed.config.split import Split
from fdamed.config.study import Config
from fdamed.core.counts import released_cohort, study_counts
from fdamed.core.disclosure import STEP, vague
from fdamed.core.files import read_json
from fdamed.core.run_record import Record, study
from fdamed.data.manifest import PARTS
from fdamed.evaluation import protocol
from fdamed.evaluation.costs import sent
from fdamed.evaluation.intervals import count, interval, megabytes, over_seeds
from fdamed.evaluation.metrics import NAMES
from fdamed.evaluation.run_tables import tidy
from fdamed.export.cautions import Attacks, attacked, cautions, revealing

NOT_MEASURED = "not measured"
ATTRIBUTES = ("sex", "age", "race", "view", "scanner")
MANY = 20
"""Hospitals that a table or a sentence shows at most."""
Rows = list[list[str]]


def render(config: Config, record: Record, about: Mapping[str, Any], kept: bool) -> tuple[str, str]:
    """The card as Markdown and as an HTML page; `about`: model.json, `kept`: the model never left its hospital."""
    from markdown_it import MarkdownIt

    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - Markdown; the page is escaped below
    environment.filters |= {
        "count": count,
        "figure": figure,
        "vague": partial(vague, smallest=config.smallest_cell),
    }
    facts = _facts(config, record, about)
    card = environment.get_template("model_card.md.jinja").render(config=config, about=about, kept=kept, **facts)
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "image", "autolink"])
    body = markdown.render(card)
    page = environment.overlay(autoescape=True).get_template("model_card.html")
    return card, page.render(title=f"Model card: {record.key}", body=Markup(body))  # noqa: S704 - escaped by MarkdownIt


def _facts(config: Config, record: Record, about: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the template, from the files of the study that may be shared."""
    root, smallest, run = Path(config.results) / config.study, config.smallest_cell, record.run
    records, _ = study(root / "runs", [(run, record.target, seed) for seed in config.seeds], smallest)
    audit = _optional(root / "audit" / f"{record.target}.json")
    methods = [catalog()[method] for method in (record.method, str(record.phases[-1]["method"]))]
    groups = group_rows(audit, run)
    calibration = audit.get("calibration", {}).get(run)
    views = about["preprocessing"]["steps"][0]["views"] if about["preprocessing"] else []
    return {
        "paper": methods[0]["paper"],
        "parameters": record.facts["parameters"],
        "images": f"{' or '.join(views)} chest radiographs" if views else "images like those of the study",
        "is_radiographs": isinstance(config.split, Split),
        "cohort": _cohort(protocol.sizes(released_cohort(root, smallest), smallest), record.target),
        "labeled": record.facts["labeled"],
        "few_labels": any(method["target_labels"] for method in methods),
        "all_labels": any(method["every_target_label"] for method in methods),
        "leakage": study_counts(root, "leakage.json"),
        "rejected": protocol.rejects(study_counts(root, "ingest.json").get("rejected", {}), smallest),
        "sent": _sent(sent([record]), record.target),
        "seeds": [r.seed for r in records],
        "headline": _optional(root / "report" / "headline.json").get(record.target, {}).get("sentences", [])[:1],
        **_scores(tidy(records), record, audit),
        "audit": audit,
        "groups": groups,
        "without_groups": [a for a in ATTRIBUTES if not any(cells[0].startswith(f"{a}: ") for cells in groups)],
        "calibration": calibration,
        "private": record.facts.get("privacy"),
        "cautions": cautions(config, record),
        "attacked": attack_rows(attacked(config, record)),
        "noise_modes": protocol.NOISE_MODES,
        "many": MANY,
        "smallest": smallest,
        "noise": record.facts.get("noise"),
        "provenance": _provenance(about, [r.seed for r in records]),
    }


def attack_rows(found: Attacks) -> Rows:
    """The AUC of each hospital's membership inference, over patients and seeds."""
    kinds = ("loss", "calibrated", "untrained")
    return [
        [client, *(estimate((attacks[kind] or {}).get("auc")) for kind in kinds), "yes" if revealing(attacks) else "no"]
        for client, attacks in found.items()
    ]


def _optional(path: Path) -> dict[str, Any]:
    return dict(read_json(path)) if path.is_file() else {}


def _cohort(sizes: pd.DataFrame, target: str) -> dict[str, Any]:
    """Images and share of positives of each hospital, by part."""
    rows = {}
    for client, part in sizes[sizes["part"] != protocol.TOTAL].groupby("hospital", sort=False):
        shares = [f"{rate:.0%}" if isinstance(rate, float) else rate for rate in part["rate"]]
        cells = [count(n) + (f" ({share})" if share else "") for n, share in zip(part["images"], shares, strict=True)]
        rows[str(client)] = [str(client), "target" if client == target else "source", *cells]
    return _shortened(rows, target) | {"head": [f"{part}: images (positive)" for part in PARTS]}


def _sent(frame: pd.DataFrame, target: str) -> dict[str, Any]:
    """Bytes of the whole run by hospital and kind."""
    sums = frame.pivot_table(index="hospital", columns="kind", values="bytes", aggfunc="sum", fill_value=0.0)
    rows = {
        str(name): [str(name), *(megabytes(float(v) / 1e6) if v else "-" for v in cells)]
        for name, cells in zip(sums.index, sums.to_numpy(), strict=True)
    }
    steps = sorted({str(step).rpartition(".")[2] for step in frame["step"]})
    return _shortened(rows, target) | {"kinds": [str(kind) for kind in sums.columns], "steps": steps}


def _shortened(rows: Mapping[str, list[str]], target: str) -> dict[str, Any]:
    """The rows of all hospitals; of many, of the target and of the first others."""
    names = list(rows) if len(rows) <= MANY else sorted(rows, key=lambda name: name != target)[:MANY]
    return {"rows": [rows[name] for name in names], "more": len(rows) - len(names)}


def _scores(scores: pd.DataFrame, record: Record, audit: Mapping[str, Any]) -> dict[str, Any]:
    """Scores of the exported seed, over seeds, and over patients; and those at the other hospitals."""
    here, mine = scores[scores["client"] == record.target], scores[scores["seed"] == record.seed]
    by_client = {
        str(client): {row["metric"]: row["why"] or row["value"] for row in part.to_dict("records")}
        for client, part in mine.groupby("client", sort=False)
    }
    own = by_client.pop(record.target, {})
    shown = {metric: name for metric, name in NAMES.items() if metric in own}
    repeated, patients = here["seed"].nunique() > 1, audit.get("scores", {})
    rows = []
    for metric, name in shown.items():
        seeds = here[here["metric"] == metric]
        over = interval(over_seeds(seeds["value"], seeds[STEP].max())) if repeated else NOT_MEASURED
        rows.append([name, figure(own[metric]), over, estimate(patients.get(metric, {}).get(record.run))])
    elsewhere = [[client, *(figure(found.get(m)) for m in shown)] for client, found in by_client.items()]
    return {"scores": rows, "names": list(shown.values()), "elsewhere": elsewhere}


def group_rows(audit: Mapping[str, Any], run: str) -> Rows:
    """Scores by group of one attribute; where a group's size is hidden, so are its rates, and its AUC is rounded."""
    rows = []
    for group in audit.get("groups", []):
        if run not in group["runs"] or len(group["by"]) > 1:
            continue
        found = group["runs"][run]
        cells = ["hidden", estimate(found.get("auc"), 2), *["hidden"] * 3]
        if group["n"] is not None:
            scored = [estimate(found.get(k)) for k in ("auc", "sensitivity", "false_alarms")]
            cells = [count(group["n"]), *scored, figure(found["calibration_error"])]
        rows.append([f"{group['by'][0]}: {group['are'][0]}", *cells])
    return rows


def _provenance(about: Mapping[str, Any], seeds: Sequence[int]) -> Rows:
    of, versions = about["study"], about["versions"]
    here = {k: v for k, v in versions.items() if k not in ("trained_with", "commit") and v is not None}
    return [
        ["study, run, target, seed", f"{of['study']}, {of['run']}, {of['target']}, {of['seed']}"],
        ["seeds of the study", ", ".join(map(str, seeds))],
        ["trained with", ", ".join(f"{k} {v}" for k, v in (versions["trained_with"] or {}).items()) or "not recorded"],
        ["exported with", ", ".join(f"{k} {v}" for k, v in here.items())],
        *([["git commit of the export", versions["commit"]]] if versions["commit"] else []),
        *([f"digest: {name}", f"`{value}`"] for name, value in (about["digests"] | about["files"]).items()),
        ["made by", f"`fdamed export --config CONFIG --run {of['run']} --target {of['target']} --seed {of['seed']}`"],
    ]


def estimate(found: Mapping[str, Any] | None, digits: int = 3) -> str:
    """A score with its interval, cut off at 0 and 1."""
    if not found or found.get("value") is None:
        return NOT_MEASURED
    value = f"{found['value']:.{digits}f}"
    if found.get("low") is None or found.get("high") is None:
        return value
    return f"{value} ({max(0.0, found['low']):.{digits}f} to {min(1.0, found['high']):.{digits}f})"


def figure(value: float | str | None) -> str:
    """A number, or the reason why there is none."""
    return f"{value:.3f}" if isinstance(value, float) else value or NOT_MEASURED
