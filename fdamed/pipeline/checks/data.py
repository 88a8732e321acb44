"""Checks of the data, which write nothing: tables, files, the split into hospitals, and what it can show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from fdamed.config.datasets import Benchmark
from fdamed.config.loader import catalog
from fdamed.config.runs import candidates
from fdamed.config.study import Config
from fdamed.core.disclosure import hides_flow, released_counts, small, vague, vague_reasons
from fdamed.core.errors import FdamedError
from fdamed.core.files import free, megabytes
from fdamed.core.gpus import takes_gpu
from fdamed.core.rng import stream
from fdamed.data.image import REASONS
from fdamed.data.ingestion import check_files, read_rows
from fdamed.data.row_reader import Rejects
from fdamed.data.splitting.assignment import Keys
from fdamed.data.splitting.cohort import build, truths, truths_per_patient
from fdamed.evaluation.intervals import counted, listed
from fdamed.evaluation.protocol import TOTAL, sizes
from fdamed.pipeline.checks.cohort import constant_heads
from fdamed.pipeline.checks.cohort import counted as counted_parts
from fdamed.pipeline.checks.plan import below_minimum
from fdamed.pipeline.checks.power import power_findings
from fdamed.pipeline.paths import Places, clinical
from fdamed.pipeline.speed import images_to_train, seconds_per_image
from fdamed.pipeline.tuning.validation_parts import choosers

SAMPLE = 200
"""Files to open."""
MANY, SHORT = 10, 15.0
"""Several trainings should share a job if there are so many, and one takes fewer seconds: a job takes 6 s to start."""
SALT = "doctor"
"""These pseudonyms never leave the process."""


@dataclass
class Findings:
    """What the checks found; `ok` is False if the study would fail."""

    checks: list[dict[str, str]] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    """The sizes of the parts that the configuration asks for."""

    def add(self, status: str, check: str, detail: str, fix: str = "") -> None:
        """`fix` says how to get rid of a failure or a warning."""
        self.checks.append({"status": status, "check": check, "detail": detail, "fix": fix if status != "ok" else ""})

    def add_error(self, check: str, error: FdamedError, hint: str = "") -> None:
        self.add("fail", check, f"{error.what} ({error.where})", f"{error.fix}{hint}")

    @property
    def ok(self) -> bool:
        return all(c["status"] != "fail" for c in self.checks)


def check_data(config: Config, findings: Findings) -> None:
    """Check in the order in which the steps would fail; the data of a public set is not checked."""
    if isinstance(config.data, Benchmark):
        findings.add("ok", "tables", "a public set: `fdamed partition` reads and checks it")
        return
    index = _check_tables(config, findings)
    if index is not None:
        _check_files(config, index, findings)
        _check_clients(config, index, findings)


def _check_tables(config: Config, findings: Findings) -> pd.DataFrame | None:
    data, _ = clinical(config)
    rejects = Rejects()
    try:
        index = read_rows(data, SALT, rejects)
    except FdamedError as error:
        hint = " The phantom is written by `fdamed phantom`." if config.phantom else ""
        findings.add_error("tables", error, hint)
        return None
    share = rejects.faults() / max(1, len(index) + rejects.faults())
    findings.refused = {reason: vague(n, config.smallest_cell) for reason, n in rejects.counts().items()}
    detail = "the tables can be read; refused rows" + (_listed(findings.refused) or ": none")
    if config.smallest_cell == 1:  # else a small part would follow from the whole
        detail = (
            f"{len(index)} rows, {index['patient'].nunique()} patients; {share:.2%} refused{_listed(findings.refused)}"
        )
    if not len(index) or share > data.reject_share:
        limit = f"At most the share data.reject_share (now {data.reject_share:g}) of the rows may be refused."
        findings.add("fail", "tables", detail, " ".join([*rejects.hints, limit]))
        return None
    columns = getattr(data, "columns", {})
    if columns and columns["patient"] == columns["image"]:
        both = f"`{columns['image']}` is the column of image and patient: images of a patient may be in several parts"
        findings.add("warn", "patients", both, "Map the column that identifies patients (data.columns.patient).")
    where = Places.of(config).root / "clients" / "rejects.csv"
    findings.add("ok", "tables", f"{detail}; `fdamed ingest` lists them in {where}" if findings.refused else detail)
    return index


def _check_files(config: Config, index: pd.DataFrame, findings: Findings) -> None:
    data, _ = clinical(config)
    size = min(SAMPLE, 2 ** (len(index).bit_length() - 1))  # from the number of all rows a small part could follow
    chosen = stream(0, "doctor").numpy.permutation(len(index))[:size]
    rejects = Rejects()
    check_files(index.iloc[sorted(chosen)].reset_index(drop=True), data, rejects)
    faults = rejects.faults()
    share = faults / len(chosen)
    hidden = small(faults, config.smallest_cell)
    detail = f"{vague(faults, config.smallest_cell) if hidden else format(share, '.0%')} of a sample of {len(chosen)}"
    detail += " files cannot be read"
    status = "fail" if share > data.reject_share else "warn" if share else "ok"
    reasons = rejects.counts()
    meanings = [f"{reason} means: {REASONS[reason]}." for reason in reasons if reason in REASONS]
    fix = " ".join(rejects.hints or meanings) + " `fdamed ingest` lists every file in clients/rejects.csv."
    findings.add(status, "files", detail + (": " + ", ".join(reasons) if share else ""), fix if share else "")


def _listed(counts: Mapping[str, object]) -> str:
    return ": " + ", ".join(f"{reason} {n}" for reason, n in counts.items()) if counts else ""


def _check_clients(config: Config, index: pd.DataFrame, findings: Findings) -> None:
    _, split = clinical(config)
    smallest = config.smallest_cell
    try:
        fits = truths_per_patient(truths(index, split, smallest), Keys.of(index, split.seed))
        several, leaks = int((fits.sum(axis=1) > 1).sum()), split.rule == "reference"
        number = several if smallest == 1 else "some" if several else "no"
        detail = f"{number} patients fit several hospitals"
        leak = "; rule: reference lets them leak" if leaks else ""
        findings.add("warn" if leaks else "ok", "patients", detail + leak)
        cohort = build(index, split, smallest)
    except FdamedError as error:
        findings.add_error("hospitals", error)
        return
    findings.asked = split.asked
    counts = {client: counted_parts(frame) for client, frame in cohort.manifests.items()}
    findings.clients = _shown(counts, smallest)
    for note in cohort.notes[1:]:
        findings.add("warn", "hospitals", note)
    hidden = hides_flow(cohort.left_out, counts, split.by, smallest)
    for client, reasons in cohort.left_out.items():
        if shown := vague_reasons(reasons, smallest, client in hidden):
            findings.add("ok", "left out", f"rows of {client} that are not used: {shown}")
    for note in constant_heads(config, cohort.manifests).values():
        findings.add("warn", "heads", note)
    findings.add("ok", "hospitals", f"the data can be split into {len(cohort.manifests)} hospitals by {split.by}")
    _check_minimum(config, counts, findings)
    for found in power_findings(config, cohort.manifests):
        findings.add(*found)
    _check_tuning(config, counts, findings)
    _check_jobs(config, {client: found["images"] for client, found in counts.items()}, findings)
    cache, left = sum(map(len, cohort.manifests.values())) * config.image.size**2, free(Path(config.results))
    detail = f"the cache needs at most {megabytes(2 ** math.ceil(math.log2(cache + 1)))}"
    fix = f"Free space in {config.results}, name another folder in `results`, or choose a smaller image.size."
    findings.add("ok" if left > 1.2 * cache else "fail", "disk", detail, fix)


def _shown(counts: Mapping[str, Any], smallest: int) -> dict[str, dict[str, Any]]:
    """The counts of every client as the report will show them, in all and by part."""
    released = {client: released_counts(found, smallest) for client, found in counts.items()}
    out = {}
    for client, rows in sizes({"clients": released}, smallest).groupby("hospital", sort=False):
        by_part = {row["part"]: row for row in rows.to_dict("records")}
        total = by_part.pop(TOTAL)
        parts = {name: {p: row[name] for p, row in by_part.items()} for name in ("images", "positives")}
        whole = {"images": total["images"], "patients": total["patients"], "positive": total["rate"]}
        out[str(client)] = whole | {"parts": parts["images"], "positives": parts["positives"]}
    return out


def _check_minimum(config: Config, counts: Mapping[str, Any], findings: Findings) -> None:
    """Whether every client has the minimum of images and steps for sharing anything."""
    if faults := list(below_minimum(config, counts)):
        more = f"; the same holds for {counted(len(faults) - 1, 'more run')}" if len(faults) > 1 else ""
        findings.add("fail", "minimum", faults[0].what + more, faults[0].fix)
    else:
        images, steps = config.minimum.images, config.minimum.steps
        least = f"{counted(images, 'image')} and {counted(steps, 'step')} a round"
        findings.add("ok", "minimum", f"every hospital has at least {least}")


def _check_tuning(config: Config, counts: Mapping[str, Any], findings: Findings) -> None:
    """Who chooses among the candidates of tuned runs, and what that costs."""
    for name, run in config.expanded_runs().items():
        for target in config.split.targets if run.tune else ():
            try:
                sources = [client for client in config.split.clients if client != target]
                clients = sources if run.select == "reverse" else choosers(config, name, target, counts)
            except FdamedError as error:
                findings.add("fail", "tuning", f"`runs.{name}`: {error.what}", error.fix)
                continue
            number = len(candidates(name, run))
            images = released_counts(counts[target], config.smallest_cell)["images"].get("val")
            labels = f"{'some' if images is None else images} labeled validation images of it"
            cost = labels if clients == [target] else f"no label of it, those of {listed(clients, 6)}"
            detail = f"{name} at {target}: {number} trainings for each seed; the choice costs {cost}"
            findings.add("ok", "tuning", detail)
            asked = [client for client in config.split.clients if client != target]
            if clients != [target] and len(clients) < len(asked):
                small = listed([client for client in asked if client not in clients], 6)
                detail = f"{name}: {listed(clients, 6)} alone chooses" if len(clients) == 1 else f"{name}: some choose"
                findings.add("warn", "tuning", f"{detail}; too few validation images at {small} (split.val)")


def _check_jobs(config: Config, images: dict[str, dict[str, int]], findings: Findings) -> None:
    """Whether most of the time of many short trainings goes into starting them."""
    number = len(config.trained_runs()) * len(config.split.targets) * len(config.seeds)
    if config.batch_runs > 1 or number < MANY or takes_gpu(config.train.device):
        return
    seconds = images_to_train(config, catalog(), images) * seconds_per_image(config) / number
    if seconds < SHORT:
        size = min(len(config.trained_runs()), 8)
        detail = f"{number} trainings of about {max(1, round(seconds))} s of CPU each; starting a job takes about 6 s"
        fix = f"`batch_runs: {size}` trains several in one job; set it before the first run."
        findings.add("warn", "jobs", detail, fix)
