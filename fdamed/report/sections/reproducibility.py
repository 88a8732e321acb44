"""Reproducibility: commands, digests, versions and the configuration."""

from __future__ import annotations

import json
from typing import Any

from fdamed.core.disclosure import shareable
from fdamed.core.files import digest
from fdamed.report.section import Section
from fdamed.report.sections.communication import MANY
from fdamed.report.study import Study


def manifests(clients: dict[str, Any]) -> list[tuple[str, str]]:
    """One digest for each hospital, or one for all of many."""
    hashes = {client: str(c.get("hash", "–")) for client, c in clients.items()}
    if len(hashes) > MANY:
        return [(f"manifests of {len(hashes)} hospitals", digest(hashes))]
    return [(f"manifest {client}", known) for client, known in hashes.items()]


def context(study: Study) -> dict[str, Any]:
    config = shareable(study.config.model_dump(mode="json"))
    versions = dict.fromkeys(
        ", ".join(f"{k} {shareable(v)}" for k, v in (r.facts.get("versions") or {}).items()) for r in study.records
    )
    provenance = [
        ("seeds", ", ".join(str(s) for s in study.config.seeds)),
        ("configuration", digest(config)),
        ("index", str(study.ingest.get("hash", "–"))),
        ("cohort", str(study.cohort.get("hash", "–"))),
        *manifests(study.cohort["clients"]),
        ("all final weights", digest(sorted((r.key, r.weights) for r in study.records))),
        ("versions", "; ".join(versions) or "–"),
    ]
    return {"provenance": provenance, "configuration": json.dumps(config, indent=2, ensure_ascii=False)}


SECTION = Section(99, "Reproducibility", context=context)
