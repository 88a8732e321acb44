"""Check the configuration, the data and the machine before any job runs.

Nothing is written.

Examples:
    fdamed doctor --config config/chexpert.yaml
    fdamed doctor --config config/mimic.yaml --cluster --json
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table
from rich.text import Text

from fdamed.cli.commands.split import asked, constant_heads
from fdamed.cli.commands.split import counted as counts_in
from fdamed.cli.options import left_out, print_json, read_config
from fdamed.config.datasets import Benchmark
from fdamed.config.loader import catalog
from fdamed.config.policy_checks import check_minimum
from fdamed.config.runs import candidates
from fdamed.config.study import Config
from fdamed.core.disclosure import hides, hides_classes, released_counts, vague
from fdamed.core.environment import cores
from fdamed.core.errors import FdamedError
from fdamed.core.files import free, megabytes
from fdamed.core.gpus import gpus, takes_gpu
from fdamed.core.progress import console
from fdamed.core.rng import stream
from fdamed.data.ingestion import check_files, read_rows
from fdamed.data.manifest import PARTS
from fdamed.data.row_reader import Rejects
from fdamed.data.splitting.assignment import Keys
from fdamed.data.splitting.cohort import build, truths, truths_per_patient
from fdamed.evaluation.comparison import power
from fdamed.evaluation.intervals import counted, listed
from fdamed.evaluation.protocol import TOTAL, sizes
from fdamed.models import backbone
from fdamed.pipeline.environment_checks import check_environment
from fdamed.pipeline.paths import clinical
from fdamed.pipeline.speed import gpu_memory
from fdamed.pipeline.tuning.validation_parts import choosers

GROUP = "prepare", 3
PRIVATE = True
OPTIONS = {
    "--config": "",
    "--cluster": {"action": "store_true", "help": "the study will run on SLURM: check sbatch, too"},
    "--json": "",
}
SAMPLE = 200
"""Files to open."""
LARGE = 0.1
"""A study that can show only larger differences of AUC will hardly tell two methods apart."""
SALT = "doctor"
"""These pseudonyms never leave the process."""


@dataclass
class Report:
    """The findings; `ok` is False if the study would fail."""

    checks: list[dict[str, str]] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    """The sizes of the parts that the configuration asks for."""

    def add(self, status: str, check: str, detail: str) -> None:
        self.checks.append({"status": status, "check": check, "detail": detail})

    @property
    def ok(self) -> bool:
        return all(c["status"] != "fail" for c in self.checks)


def run(arguments: argparse.Namespace) -> None:
    report = examine(read_config(arguments), arguments.cluster)
    if arguments.json:
        print_json({"ok": report.ok, **asdict(report)})
    else:
        show(report)
    if not report.ok:
        faults = "; ".join(f"{c['check']}: {c['detail']}" for c in report.checks if c["status"] == "fail")
        raise FdamedError(f"the run could not succeed: {faults}", ", ".join(arguments.config), "Fix them.")


def examine(config: Config, cluster: bool) -> Report:
    """All checks, in the order in which the steps would fail; the data of a public set is not checked."""
    report = Report(machine=machine(config))
    check_environment(config, report.add, report.machine["gpu"], cluster)
    _check_gpu_memory(config, report)
    _check_space(config, report)
    _check_weights(config, report)
    if isinstance(config.data, Benchmark):
        report.add("ok", "tables", "a public set: `fdamed partition` reads and checks it")
        return report
    index = _check_tables(config, report)
    if index is not None:
        _check_files(config, index, report)
        _check_clients(config, index, report)
    return report


def machine(config: Config) -> dict[str, Any]:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": cores(),
        "memory_gb": round(memory / 2**30, 1),
        "gpu": Path("/proc/driver/nvidia/gpus").is_dir() or shutil.which("rocm-smi") is not None,
        "free_gb": round(free(Path(config.results)) / 2**30, 1),
    }


def _check_gpu_memory(config: Config, report: Report) -> None:
    """Whether training fits into the smallest GPU here; images that do not fit beside it are sent batch by batch."""
    if not takes_gpu(config.train.device):
        return
    parts = gpu_memory(config)
    needed = config.train.jobs_per_gpu * sum(parts.values())
    detail = f"training takes about {megabytes(needed)} of a GPU: " + ", ".join(
        f"{what} {megabytes(n)}" for what, n in parts.items()
    )
    if config.train.jobs_per_gpu > 1:
        detail += f"; times {config.train.jobs_per_gpu} jobs"
    smallest = min((gpu.memory_mb * 2**20 for gpu in gpus()), default=None)
    if smallest is None:
        report.add("ok", "gpu memory", detail)
    elif needed < smallest:
        report.add("ok", "gpu memory", f"{detail}; the smallest GPU here has {megabytes(smallest)}")
    else:
        cure = "choose a smaller batch or image.size, train.precision: bfloat16, or another GPU"
        report.add("fail", "gpu memory", f"{detail}; the smallest GPU here has only {megabytes(smallest)}: {cure}")


def _check_space(config: Config, report: Report) -> None:
    """Space for the final weights of all runs, and for the checkpoints of one training per core."""
    model = 4 * sum(p.numel() for p in backbone.build(config.model).parameters())
    each, names = len(config.split.targets) * len(config.seeds), config.trained_runs()
    runs, kept = each * len(names), each * len(config.expanded_runs() | names)
    needed, left = model * (kept + 3 * min(runs, report.machine["cores"])), free(Path(config.results))
    detail = f"{runs} trainings need about {megabytes(needed)} for weights and checkpoints, {megabytes(left)} are free"
    report.add("ok" if left > needed else "fail", "checkpoints", detail)


def _check_weights(config: Config, report: Report) -> None:
    """Whether the pretrained weights fit, and whether a paper's cohort has any."""
    if config.model.weights:
        net = backbone.build(config.model)
        try:
            backbone.load_pretrained(net, Path(config.model.weights))  # type: ignore[arg-type]  # only ResNets have them
        except FdamedError as error:
            report.add("fail", "weights", f"{error.what} ({error.where}). {error.fix}")
        else:
            report.add("ok", "weights", f"pretrained weights of the whole {config.model.backbone}")
    elif getattr(config.data, "paper_split", "") and config.phantom is None:
        detail = (
            "NO PRETRAINED WEIGHTS: the healthcare paper starts from ImageNet's. From random weights its rounds are "
            "too few, gradient projection is hardly more than the target alone, and its results cannot be reproduced. "
            "Name the file in model.weights (docs/how_to/faq.md)"
        )
        report.add("warn", "weights", detail)


def _check_tables(config: Config, report: Report) -> pd.DataFrame | None:
    data, _ = clinical(config)
    rejects = Rejects()
    try:
        index = read_rows(data, SALT, rejects)
    except FdamedError as error:
        hint = " The phantom is written by `fdamed phantom`." if config.phantom else ""
        report.add("fail", "tables", f"{error.what} ({error.where}). {error.fix}{hint}")
        return None
    share = rejects.faults() / max(1, len(index) + rejects.faults())
    report.refused = {reason: vague(n, config.smallest_cell) for reason, n in rejects.counts().items()}
    detail = "the tables can be read; refused rows" + (_listed(report.refused) or ": none")
    if config.smallest_cell == 1:  # else a small part would follow from the whole
        detail = (
            f"{len(index)} rows, {index['patient'].nunique()} patients; {share:.2%} refused{_listed(report.refused)}"
        )
    if not len(index) or share > data.reject_share:
        limit = f"(data.reject_share {data.reject_share:g})"
        report.add("fail", "tables", " ".join([detail, limit, *rejects.hints]))
        return None
    report.add("ok", "tables", detail)
    return index


def _check_files(config: Config, index: pd.DataFrame, report: Report) -> None:
    data, _ = clinical(config)
    size = min(SAMPLE, 2 ** (len(index).bit_length() - 1))  # from the number of all rows a small part could follow
    chosen = stream(0, "doctor").numpy.permutation(len(index))[:size]
    rejects = Rejects()
    check_files(index.iloc[sorted(chosen)].reset_index(drop=True), data, rejects)
    share = rejects.faults() / len(chosen)
    detail = f"{share:.0%} of a sample of {len(chosen)} files cannot be read"
    status = "fail" if share > data.reject_share else "warn" if share else "ok"
    report.add(status, "files", detail + (": " + ", ".join(rejects.counts()) if share else ""))


def _listed(counts: Mapping[str, object]) -> str:
    return ": " + ", ".join(f"{reason} {n}" for reason, n in counts.items()) if counts else ""


def _check_clients(config: Config, index: pd.DataFrame, report: Report) -> None:
    _, split = clinical(config)
    smallest = config.smallest_cell
    try:
        fits = truths_per_patient(truths(index, split, smallest), Keys.of(index, split.seed))
        several, leaks = int((fits.sum(axis=1) > 1).sum()), split.rule == "reference"
        number = several if smallest == 1 else "some" if several else "no"
        detail = f"{number} patients fit several hospitals"
        leak = "; rule: reference lets them leak" if leaks else ""
        report.add("warn" if leaks else "ok", "patients", detail + leak)
        cohort = build(index, split, smallest)
    except FdamedError as error:
        report.add("fail", "hospitals", f"{error.what} ({error.where}). {error.fix}")
        return
    report.asked = asked(split)
    counts = {client: counts_in(frame) for client, frame in cohort.manifests.items()}
    report.clients = _shown(counts, smallest)
    for note in cohort.notes[1:]:
        report.add("warn", "hospitals", note)
    for client, reasons in cohort.left_out.items():
        if shown := left_out(reasons, smallest):
            report.add("ok", "left out", f"rows of {client} that are not used: {shown}")
    for note in constant_heads(config, cohort.manifests).values():
        report.add("warn", "heads", note)
    report.add("ok", "hospitals", f"the data can be split into {len(cohort.manifests)} hospitals by {split.by}")
    _check_minimum(config, {client: found["images"] for client, found in counts.items()}, report)
    _check_power(config, cohort.manifests, report)
    _check_tuning(config, counts, report)
    cache, left = sum(map(len, cohort.manifests.values())) * config.image.size**2, free(Path(config.results))
    detail = f"the cache needs at most {megabytes(2 ** math.ceil(math.log2(cache + 1)))}"
    report.add("ok" if left > 1.2 * cache else "fail", "disk", detail)


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


def _check_power(config: Config, manifests: Mapping[str, pd.DataFrame], report: Report) -> None:
    """What each target's test part can show, what will be suppressed, and what its validation part can choose."""
    smallest, seeds, runs = config.smallest_cell, len(config.seeds), len(config.expanded_runs())
    pairs = max(1, runs * (runs - 1) // 2)
    for target in config.split.targets:
        test, val = (manifests[target][manifests[target]["split"] == part] for part in ("test", "val"))
        if hides(len(test), int(test["y"].sum()), smallest, int(test["patient"].nunique())):
            few = f"fewer than {smallest} patients, or images of a class"
            detail = f"the test part of {target} has {few}: no score will be shown"
            cure = "give it more test images (split.test), or write `privacy: public` if the images are public"
            report.add("warn", "suppressed", f"{detail}; {cure}")
            continue
        ill, well = (int(test[test["y"] == y]["patient"].nunique()) for y in (1, 0))
        points = 100 * power.expected(ill, well, seeds).smallest_difference(pairs)
        sick = f"{vague(ill, smallest)} positive and {vague(well, smallest)} negative test patients"
        if hides_classes(counts_in(manifests[target]), smallest):
            sick = f"the {vague(test['patient'].nunique(), smallest)} test patients"
        detail = (
            f"{sick} of {target} and "
            f"{counted(seeds, 'seed')} can show a difference of {points:.0f} points of AUC between two of "
            f"{counted(runs, 'run')} (80% power, {counted(pairs, 'pair')}; assumed: AUC {power.AUC}, correlation "
            f"{power.CORRELATION}, standard deviation over seeds {power.SEEDS})"
        )
        report.add("ok" if points <= 100 * LARGE else "warn", "power", detail)
        if seeds == 1:
            report.add(
                "warn", "seeds", "one seed: a difference between methods cannot be distinguished from random variation"
            )
        if not power.can_choose(len(val), int(val["patient"].nunique()), int(val["y"].sum())):
            detail = f"the validation part of {target} ({vague(len(val), smallest)} images) is too small to choose by"
            report.add("warn", "validation", f"{detail}: no round will be chosen and no model registered (split.val)")
    hidden = [
        f"{client} ({part})"
        for client, frame in manifests.items()
        for part, rows in frame.groupby("split")
        if hides(len(rows), int(rows["y"].sum()), smallest, int(rows["patient"].nunique()))
    ]
    if hidden:
        few = f"fewer than {smallest} patients, or images of a class"
        detail = f"{few}, so that counts and scores are not shown: {listed(hidden, 6)}"
        report.add("warn", "small counts", detail)


def _check_tuning(config: Config, counts: Mapping[str, Any], report: Report) -> None:
    """Who chooses among the candidates of tuned runs, and what that costs."""
    for name, run in config.expanded_runs().items():
        for target in config.split.targets if run.tune else ():
            try:
                clients = choosers(config, name, target, counts)
            except FdamedError as error:
                report.add("fail", "tuning", f"`runs.{name}`: {error.what}. {error.fix}")
                continue
            number = len(candidates(name, run))
            images = released_counts(counts[target], config.smallest_cell)["images"].get("val")
            labels = f"{'some' if images is None else images} labeled validation images of it"
            cost = labels if clients == [target] else f"no label of it, those of {listed(clients, 6)}"
            detail = f"{name} at {target}: {number} trainings for each seed; the choice costs {cost}"
            report.add("ok", "tuning", detail)


def _check_minimum(config: Config, sizes: dict[str, dict[str, int]], report: Report) -> None:
    """Whether every client has the minimum of images and steps for sharing anything."""
    faults = []
    for name, spec in config.trained_runs().items():
        try:
            check_minimum(name, spec, config, catalog(), sizes, "privacy")
        except FdamedError as error:
            faults.append(f"{error.what}. {error.fix}")
    if faults:
        more = f" The same holds for {len(faults) - 1} more runs." if len(faults) > 1 else ""
        report.add("fail", "minimum", faults[0] + more)
    else:
        images, steps = config.minimum.images, config.minimum.steps
        least = f"{counted(images, 'image')} and {counted(steps, 'step')} a round"
        report.add("ok", "minimum", f"every hospital has at least {least}")


def show(report: Report) -> None:
    out = console()
    table = Table("", "check", "result", title="fdamed doctor")
    marks = {"ok": Text("ok", "green"), "warn": Text("warn", "yellow"), "fail": Text("FAIL", "red")}
    for check in report.checks:
        table.add_row(marks[check["status"]], check["check"], Text(check["detail"]))
    table.add_row(marks["ok"], "machine", ", ".join(f"{k} {v}" for k, v in report.machine.items()))
    out.print(table)
    if report.clients:
        wanted = {"train": f"per_class {report.asked['per_class']}", "adapt": f"labeled {report.asked['labeled']}"}
        wanted |= {part: str(report.asked[part]) for part in ("val", "test")}
        heads = (f"{part} (positive)\nasked: {wanted[part]}" for part in PARTS)
        table = Table("hospital", "images", "patients", "positive", *heads)
        for client, entry in report.clients.items():
            cells = [f"{n} ({entry['positives'][p]})" for p, n in entry["parts"].items()]
            rate = entry["positive"]
            share = f"{rate:.0%}" if isinstance(rate, float) else str(rate)
            table.add_row(client, str(entry["images"]), str(entry["patients"]), share, *cells)
        out.print(table)
