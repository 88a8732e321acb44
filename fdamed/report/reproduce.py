"""How to get the page again: commands, digests, versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fdamed.config.study import Config
from fdamed.core.disclosure import shareable
from fdamed.core.files import digest
from fdamed.core.run_record import Record
from fdamed.report.hospitals import SHOWN

COMMANDS = (
    "# save the configuration below as study.json, name your own data root in it, then",
    "snakemake --cores all --configfile study.json",
    "fdamed report --config study.json    # this page again, without training",
)


def _manifests(clients: dict[str, Any]) -> list[tuple[str, str]]:
    """A line a hospital; one for all where they are many."""
    hashes = {client: str(c.get("hash", "–")) for client, c in clients.items()}
    if len(hashes) > SHOWN:
        return [(f"manifests of {len(hashes)} hospitals", digest(hashes))]
    return [(f"manifest {client}", known) for client, known in hashes.items()]


def provenance(
    config: Config, records: Sequence[Record], cohort: dict[str, Any], ingest: dict[str, Any], configured: str
) -> list[tuple[str, str]]:
    """Name and value of all that the figures depend on; `configured` is the digest of the configuration."""
    versions = dict.fromkeys(
        ", ".join(f"{k} {shareable(v)}" for k, v in (r.facts.get("versions") or {}).items()) for r in records
    )
    weights = digest(sorted((r.key, r.weights) for r in records))
    return [
        ("seeds", ", ".join(str(s) for s in config.seeds)),
        ("configuration", configured),
        ("index", str(ingest.get("hash", "–"))),
        ("cohort", str(cohort.get("hash", "–"))),
        *_manifests(cohort["clients"]),
        ("all final weights", weights),
        ("versions", "; ".join(versions) or "–"),
    ]
