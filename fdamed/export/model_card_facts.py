"""What a model card is filled from: the files of the study that may be shared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fdamed.config.loader import catalog
from fdamed.config.study import Config
from fdamed.core.files import read_json
from fdamed.core.run_record import Record, study

if TYPE_CHECKING:
    from fdamed.export.model_card import Facts


def facts_of(config: Config, record: Record, about: dict[str, Any], kept: bool) -> Facts:
    """Sizes, scores, audit and ledger of the exported run, small cells left out."""
    from fdamed.evaluation import protocol as cohorts
    from fdamed.evaluation.costs import sent
    from fdamed.evaluation.intervals import over_seeds
    from fdamed.evaluation.run_tables import tidy
    from fdamed.export.model_card import Facts

    root, smallest = Path(config.results) / config.study, config.privacy.smallest_cell
    records, _ = study(root / "runs", [(record.run, record.target, seed) for seed in config.seeds])
    scores = tidy(records, smallest)
    here = scores[scores["client"] == record.target]
    mine = scores[scores["seed"] == record.seed]
    by_client = {
        str(client): {str(row["metric"]): str(row["why"]) or float(row["value"]) for row in part.to_dict("records")}
        for client, part in mine.groupby("client", sort=False)
    }
    ingest = _optional(root / "ingest.json") or {"rejected": {}}
    entry = catalog()[str(record.phases[-1]["method"])]
    first = catalog()[record.method]
    return Facts(
        config=config,
        about=about,
        paper=str(first["paper"]),
        labeled=record.facts["labeled"],
        target_labels=bool(first["target_labels"] or entry["target_labels"]),
        every_label=bool(first["every_target_label"] or entry["every_target_label"]),
        parameters=int(record.facts["parameters"]),
        sizes=cohorts.sizes(read_json(root / "cohort.json"), smallest),
        rejected=cohorts.rejects(ingest["rejected"], smallest),
        leakage=_optional(root / "leakage.json"),
        own=by_client.get(record.target, {}),
        over_seeds={
            str(metric): over_seeds(float(v) if v == v else None for v in part["value"])
            for metric, part in here.groupby("metric", sort=False)
        },
        seeds=[r.seed for r in records],
        elsewhere={client: found for client, found in by_client.items() if client != record.target},
        audit=_optional(root / "audit" / f"{record.target}.json"),
        sent=sent([record]),
        noise=float(record.facts.get("noise") or 0.0),
        private=record.facts.get("privacy"),
        kept=kept,
    )


def _optional(path: Path) -> Any | None:
    return read_json(path) if path.is_file() else None
