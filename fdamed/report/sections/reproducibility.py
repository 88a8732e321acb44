"""Reproducibility: commands, digests, versions and the configuration."""

from __future__ import annotations

import json
from typing import Any

from fdamed.core.disclosure import shareable
from fdamed.core.files import digest
from fdamed.evaluation.intervals import listed
from fdamed.report.section import Section
from fdamed.report.sections.communication import MANY
from fdamed.report.study import Study


def manifests(clients: dict[str, Any]) -> list[tuple[str, str]]:
    """One digest for each hospital, or one for all of many."""
    hashes = {client: str(c.get("hash", "–")) for client, c in clients.items()}
    if len(hashes) > MANY:
        return [(f"manifests of {len(hashes)} hospitals", digest(hashes))]
    return [(f"manifest {client}", known) for client, known in hashes.items()]


def versions(study: Study) -> dict[str, Any]:
    """The programs that made the runs: names as heads, and rows of versions with the runs that have them."""
    found: dict[tuple[tuple[str, str], ...], dict[str, None]] = {}
    for record in study.records:
        given = record.facts.get("versions") or {}
        known = tuple((k, str(shareable(v))) for k, v in given.items() if v != "unknown")
        found.setdefault(known, {})[record.run] = None
    heads = list(dict.fromkeys(name for known in found for name, _ in known))
    rows = [(listed(list(runs), 8), [dict(known).get(name, "–") for name in heads]) for known, runs in found.items()]
    return {"heads": heads, "rows": rows if heads else []}


def context(study: Study) -> dict[str, Any]:
    config = shareable(study.config.model_dump(mode="json"))
    provenance = [
        ("seeds", ", ".join(str(s) for s in study.config.seeds)),
        ("configuration", digest(config)),
        ("index", str(study.ingest.get("hash", "–"))),
        ("cohort", str(study.cohort.get("hash", "–"))),
        *manifests(study.cohort["clients"]),
        ("all final weights", digest(sorted((r.key, r.weights) for r in study.records))),
    ]
    return {
        "provenance": provenance,
        "versions": versions(study),
        "configuration": json.dumps(config, indent=2, ensure_ascii=False),
    }


SECTION = Section(99, "Reproducibility", context=context)
