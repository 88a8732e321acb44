"""Split the index into one manifest per client, disjoint by patient.

Examples:
    fdamed split --config config/config.yaml
"""

from __future__ import annotations

import argparse
import dataclasses
import logging

from fdamed.cli.options import BEFORE, print_left_out, read_config
from fdamed.config.split import Split
from fdamed.config.study import Config
from fdamed.core.counts import write_counts
from fdamed.core.disclosure import hides_flow
from fdamed.core.files import digest
from fdamed.core.parts import TRAINED
from fdamed.data.splitting.cohort import build
from fdamed.data.splitting.leakage import check_manifests
from fdamed.pipeline.checks.cohort import constant_heads, describe
from fdamed.pipeline.checks.plan import check_plan
from fdamed.pipeline.checks.power import power_findings
from fdamed.pipeline.paths import Places, clinical, rows_in, write_rows

log = logging.getLogger(__name__)
GROUP = "prepare", 6
PRIVATE = True
OPTIONS = {"--config": ""}


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    write(config, clinical(config)[1], Places.of(config))


def write(config: Config, split: Split, places: Places) -> None:
    """Split the index; nothing is written unless every client is complete."""
    cohort = build(rows_in(places.clients / "index.parquet", "ingest"), split, config.smallest_cell)
    leakage = check_manifests(cohort.manifests, split.rule, config.smallest_cell)
    clients = {client: describe(frame) for client, frame in cohort.manifests.items()}
    summary = {
        "by": split.by,
        "rule": split.rule,
        "seed": split.seed,
        "asked": split.asked,
        "clients": clients,
        "leakage": dataclasses.asdict(leakage),
        "patients_by_hospitals_they_fit": cohort.shared,
        "rows": cohort.rows,
        "left_out": cohort.left_out,
        "notes": cohort.notes,
        # Without the pseudonyms, which depend on the salt.
        "hash": digest({client: entry["content"] for client, entry in clients.items()}),
    }
    if set(clients) == set(config.split.clients):  # else this is one hospital, which does not know the others' sizes
        check_plan(config, clients)
    for client, frame in cohort.manifests.items():
        write_rows(places.client(client) / "manifest.parquet", frame)
    write_counts(places.root, "cohort.json", summary)
    for note in cohort.notes:
        log.log(logging.WARNING if "LEAKS" in note else logging.INFO, note)
    for head in constant_heads(config, cohort.manifests):
        log.warning(f"the auxiliary head `{head}` can learn nothing at some hospitals: `fdamed doctor` names them")
    hidden = hides_flow(cohort.left_out, clients, split.by, config.smallest_cell)
    for client, frame in cohort.manifests.items():
        log.info(f"{client}: {int(frame['split'].isin(TRAINED).sum())} images to train on")
        print_left_out(client, cohort.left_out.get(client, {}), config.smallest_cell, client in hidden)
    for status, _, found in power_findings(config, cohort.manifests):
        if status == "warn":
            print(f"{BEFORE}{found}", flush=True)
