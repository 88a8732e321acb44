"""An attacker who has everything outside the clients' folders, and tries to rebuild what is held back.

He knows the rules of suppression, and reasons with sums, differences, bounds and denominators: an accuracy is a
multiple of 1/n, an AUC of 1/(2 m n), and the accuracy is the mean of sensitivity and specificity, weighted by the
classes. He also knows how data are split: in a stratified study all parts have the same share of positives.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fdamed.config.privacy import FOLDS, NO_MINIMUM
from fdamed.core.counts import counts_of, flows, released_cohort, write_counts
from fdamed.core.disclosure import (
    auc_decimals,
    hides,
    hides_classes,
    only_scores,
    released_reasons,
    released_total,
    small,
    without_scores,
)
from fdamed.core.rng import stream
from fdamed.core.run_record import study as read_runs
from fdamed.evaluation.protocol import HIDDEN, sizes
from fdamed.evaluation.run_tables import tidy
from fdamed.pipeline.trial_labels import too_small
from fdamed.theory.advice import recommend
from fdamed.tracking.payload import points
from tests.support.run_folders import write_json, write_lines

PARTS, CLIENTS, TARGET, RUNS = ("train", "adapt", "val", "test"), ("A", "B"), "A", ("fedavg", "gp")
MOST = 40
STUDIES = 1000
REASONS = ("unlabeled", "beyond")
"""Why rows of a client are left out."""
METRICS = ("acc", "auc", "sensitivity", "specificity")
CLASSES = {"positives": "sensitivity", "negatives": "specificity"}
Known = tuple[tuple[tuple[str, float], ...], float]
"""Scores of one run, and the error of rounding."""
Name = tuple[str, str, str]
"""Client, part, and what is counted: positives, negatives, images (both), patients."""


def drawn(seed: int) -> dict[str, Any]:
    """The truth of a random study: images of each class and patients, many of them few, and scores that they allow."""
    rng = np.random.default_rng(seed)

    def few() -> int:
        return int(rng.integers(0, MOST) if rng.random() < 0.5 else rng.integers(0, 13))

    cells: dict[Name, int] = {}
    for client in CLIENTS:
        for part in PARTS:
            positives, negatives = few(), few()
            cells |= {(client, part, "positives"): positives, (client, part, "negatives"): negatives}
            cells[client, part, "patients"] = int(
                rng.integers(math.ceil((positives + negatives) / 3), positives + negatives + 1)
            )
    return truth_of(rng, cells, int(rng.choice([5, 11])))


def stratified(seed: int) -> dict[str, Any]:
    """A study whose parts have the same share of positives, so that those of one part follow from those of another.

    The validation part, and often another, has few of them.
    """
    rng = np.random.default_rng(seed)
    cells: dict[Name, int] = {}
    for client in CLIENTS:
        share = rng.uniform(0.15, 0.85)
        for part, most in zip(PARTS, (100, 80, 25, 80), strict=True):
            images = int(rng.integers(most // 2, most))
            positives = int(images * share + 0.5)
            cells |= {(client, part, "positives"): positives, (client, part, "negatives"): images - positives}
            cells[client, part, "patients"] = images
    return truth_of(rng, cells, 11) | {"stratified": True}


def truth_of(rng: np.random.Generator, cells: dict[Name, int], smallest: int) -> dict[str, Any]:
    scores = {
        (run, client, part): score(rng, cells[client, part, "positives"], cells[client, part, "negatives"])
        for run in RUNS
        for client in CLIENTS
        for part in ("val", "test")
    }
    return with_flow({"smallest": smallest, "cells": cells, "scores": scores, "stratified": False}, rng)


def with_flow(truth: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Split by condition: all clients have the same rows, and leave others of them out, often few for a reason."""
    images = {client: sum(counts(truth, client)["images"].values()) for client in CLIENTS}
    truth["rows"] = max(images.values()) + int(rng.integers(0, MOST))
    for client in CLIENTS:
        rest = truth["rows"] - images[client]
        few = min(rest, int(rng.integers(0, 30)))
        truth["cells"] |= {(client, "beyond", "left"): few, (client, "unlabeled", "left"): rest - few}
    return truth


def left_out(truth: dict[str, Any], client: str) -> dict[str, int]:
    return {reason: truth["cells"][client, reason, "left"] for reason in REASONS}


def score(rng: np.random.Generator, m: int, n: int) -> dict[str, float | None]:
    hits, passes = int(rng.integers(0, m + 1)), int(rng.integers(0, n + 1))
    return {
        "acc": (hits + passes) / (m + n) if m + n else None,
        "auc": float(rng.integers(0, 2 * m * n + 1) / (2 * m * n)) if m * n else None,
        "sensitivity": hits / m if m else None,
        "specificity": passes / n if n else None,
    }


def counts(truth: dict[str, Any], client: str) -> dict[str, Any]:
    cells = truth["cells"]
    one = {what: {p: cells[client, p, what] for p in PARTS} for what in ("positives", "negatives", "patients")}
    images = {p: one["positives"][p] + one["negatives"][p] for p in PARTS}
    return {
        "hash": client,
        "content": client,
        "images": images,
        "patients": one["patients"],
        "positives": one["positives"],
    }


def summaries(truth: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What ingest, split and leakage know: every row of the data is at a client, as in a table of sites."""
    clients = {client: counts(truth, client) for client in CLIENTS}
    rows, patients = (sum(sum(c[key].values()) for c in clients.values()) for key in ("images", "patients"))
    return {
        "ingest.json": {"layout": "table", "rows": rows, "patients": patients, "rejected": {}, "hash": "h"},
        "cohort.json": {
            "by": "condition",
            "hash": "h",
            "clients": clients,
            "patients_by_hospitals_they_fit": {"1": patients},
            "rows": dict.fromkeys(CLIENTS, truth["rows"]),
            "left_out": {client: left_out(truth, client) for client in CLIENTS},
        },
        "leakage.json": {"rule": "disjoint", "images": rows, "near_duplicates": 0},
    }


def judged(truth: dict[str, Any], run: str) -> list[dict[str, Any]]:
    """The line of the last round, with the scores of the target's parts."""
    both = {part: truth["scores"][run, TARGET, part] for part in ("val", "test")}
    found = {f"{part}/{k}": scores[k] for part, scores in both.items() for k in ("acc", "auc")}
    return [{"round": 1, "train/loss": 0.5} | found]


def final(truth: dict[str, Any], run: str, client: str) -> dict[str, Any]:
    cells = truth["cells"]
    m, n, patients = (cells[client, "test", what] for what in ("positives", "negatives", "patients"))
    head = {"run": run, "method": run, "target": TARGET, "seed": 0, "client": client, "split": "test", "why": {}}
    return head | {"n": m + n, "positives": m, "patients": patients} | truth["scores"][run, client, "test"]


def finished(folder: Path, run: str) -> None:
    write_json(folder / "run.json", {"study": "s", "run": run, "method": run, "target": TARGET, "seed": 0, "rounds": 1})
    started = {"round": 1, "seconds": 1.0, "started": "2026-01-01T00:00:00"}
    write_lines(folder / "timing.jsonl", [started])
    write_lines(folder / "ledger.jsonl", [])
    (folder / "done").write_text("x")


def advice(truth: dict[str, Any]) -> dict[str, Any]:
    """The advice on all labeled images of the target: losses that their folds allow, or why there are none."""
    positives, negatives, patients = (
        truth["cells"][TARGET, "adapt", w] for w in ("positives", "negatives", "patients")
    )
    y = np.repeat([1, 0], [positives, negatives])
    owner = np.arange(len(y)) % max(patients, 1)
    config: Any = SimpleNamespace(minimum=NO_MINIMUM, smallest_cell=truth["smallest"])
    folds = stream(0, TARGET, "folds")
    why = too_small(config, {}, y, owner, folds) if len(y) else "there are no labels"
    place = {"labeled": None, "noise": 0.0}
    drops = {run: np.random.default_rng(len(y)).random(FOLDS).tolist() for run in RUNS}
    tried = {"cells": [], "skipped": [place | {"why": why}]} if why else {"cells": [place | recommend(drops)]}
    return {"skipped": [], "target": {"labeled": len(y)}} | tried


def write(root: Path, truth: dict[str, Any]) -> None:
    """The study as fdamed writes it."""
    for name, content in summaries(truth).items():
        write_counts(root, name, content)
    write_json(root / "advice" / f"{TARGET}.json", advice(truth))
    for run in RUNS:
        folder, rows = root / "runs" / run / TARGET / "0", judged(truth, run)
        write_lines(root / "clients" / TARGET / "rounds" / run / TARGET / "0.jsonl", only_scores(rows))
        write_lines(folder / "metrics.jsonl", [without_scores(row) for row in rows])
        for client in CLIENTS:
            write_json(root / "clients" / client / "scores" / run / TARGET / "0.json", final(truth, run, client))
        finished(folder, run)


def write_as_before(root: Path, truth: dict[str, Any], leaks: Iterable[str]) -> None:
    """Some of what fdamed wrote outside the clients' folders before there was one owner of what leaves them."""
    write(root, truth)
    for name, content in summaries(truth).items():
        if name in leaks:
            write_json(root / name, content)
    if "flow" in leaks:
        write_json(root / "flow.json", {"flow": {client: flow_as_before(truth, client) for client in CLIENTS}})
    for run in RUNS:
        if "metrics.jsonl" in leaks:
            write_lines(root / "runs" / run / TARGET / "0" / "metrics.jsonl", judged(truth, run))
        if "scores" in leaks:
            content = {k: v for k, v in final(truth, run, TARGET).items() if k not in ("n", "positives", "patients")}
            write_json(root / "runs" / run / TARGET / "0" / "scores" / f"{TARGET}.json", content)


def flow_as_before(truth: dict[str, Any], client: str) -> dict[str, Any]:
    """Each client was looked at alone."""
    few, reasons = truth["smallest"], released_reasons(left_out(truth, client), truth["smallest"])
    hidden = released_total(counts(truth, client), "images", few) is None or None in reasons.values()
    shown = {reason: f"<{few}" if n is None else n for reason, n in reasons.items()}
    return {"rows": None if hidden else truth["rows"], "left_out": shown}


class Attacker:
    """Candidates of every number, narrowed down by everything that was published."""

    def __init__(self, smallest: int, stratified: bool = False) -> None:
        self.smallest = smallest
        self.candidates: dict[Name, set[int]] = {}
        for client in CLIENTS:
            for part in PARTS:
                for what in ("positives", "negatives", "images", "patients"):
                    self.candidates[client, part, what] = set(range(4 * MOST))
            for reason in REASONS:
                self.candidates[client, reason, "left"] = set(range(16 * MOST))
        self.sums: list[tuple[tuple[Name, ...], set[int]]] = []
        self.scores: dict[tuple[str, str], set[Known]] = {}
        self.stratified = stratified

    def learn_sum(self, names: Iterable[Name], total: int | Iterable[int]) -> None:
        known, totals = tuple(names), {total} if isinstance(total, int) else set(total)
        self.sums.append((known, totals))
        if len(known) == 1:
            self.candidates[known[0]] &= totals

    def learn_counts(self, client: str, part: str, what: str, value: object) -> None:
        """A count of a client's part, of all its parts (`total`), or that it is held back because it is small."""
        parts = PARTS if part == "total" else (part,)
        names = [(client, p, what) for p in parts]
        if isinstance(value, int):
            self.learn_sum(names, value)
        elif isinstance(value, str) and value.startswith("<"):
            self.learn_sum(names, range(1, self.smallest))

    def read(self, root: Path) -> None:
        """Every file outside `clients/`."""
        every = [(client, part) for client in CLIENTS for part in PARTS]
        images, patients = ([(*place, what) for place in every] for what in ("images", "patients"))
        for path in root.rglob("*.json*"):
            if "clients" in path.relative_to(root).parts:
                continue
            lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
            for content in map(json.loads, lines):
                if path.parent.name == "advice":
                    self.learn_advice(content)
                self.learn_flow(content.get("flow", {}))
                for key, names in (("rows", images), ("images", images), ("patients", patients)):
                    if isinstance(content.get(key), int):
                        self.learn_sum(names, content[key])
                for total in content.get("patients_by_hospitals_they_fit", {}).values():
                    self.learn_sum(patients, total)
                for client, found in content.get("clients", {}).items():
                    for what in ("images", "patients", "positives"):
                        for part, value in found.get(what, {}).items():
                            self.learn_counts(client, part, what, value)
                if "client" in content:
                    self.learn_scores(content["client"], "test", {k: content.get(k) for k in METRICS})
                for part in ("val", "test"):
                    self.learn_scores(TARGET, part, {k: content.get(f"{part}/{k}") for k in ("acc", "auc")})

    def learn_advice(self, content: dict[str, Any]) -> None:
        """The number of labels; where the folds were tried, none of them has a small cell."""
        self.learn_sum([(TARGET, "adapt", "images")], content["target"]["labeled"])
        if content["cells"]:
            for what, least in (("positives", 1), ("negatives", 1), ("patients", FOLDS)):
                self.learn_sum([(TARGET, "adapt", what)], {0, *range(least * self.smallest, 8 * MOST)})

    def learn_flow(self, found: dict[str, dict[str, Any]]) -> None:
        """From rows to images: what is left of the rows, which all clients have, are images."""
        for client, one in found.items():
            for reason, value in one["left_out"].items():
                few = set(range(1, self.smallest)) if isinstance(value, str) else None
                if value is not None:
                    self.learn_sum([(client, reason, "left")], few or value)
        for rows in {one["rows"] for one in found.values()} - {None}:
            for client in found:
                images = [(client, part, "images") for part in PARTS]
                self.learn_sum([*images, *((client, reason, "left") for reason in REASONS)], rows)

    def look_at_views(self, root: Path) -> None:
        """The tables of the report (also the doctor's), and MLflow."""
        table = sizes(released_cohort(root, self.smallest), self.smallest)
        for row in table.to_dict("records"):
            for what in ("images", "patients", "positives"):
                self.learn_counts(row["hospital"], row["part"], what, row[what])
        self.learn_flow(flows(root, self.smallest))
        for client in CLIENTS:  # the number of images in attributes/{target}.json
            self.learn_counts(
                client, "total", "images", released_total(counts_of(root, client), "images", self.smallest)
            )
        records, _ = read_runs(root / "runs", [(run, TARGET, 0) for run in RUNS], self.smallest)
        rows = {(row["hospital"], row["part"]): row for row in table.to_dict("records")}

        def error(client: str, part: str) -> float:
            """He knows how scores are rounded where the positives are hidden."""
            row = rows[client, part]
            hidden = row["positives"] == HIDDEN and isinstance(row["images"], int)
            return 0.5 * 10.0 ** -auc_decimals(row["images"], self.smallest) if hidden else 0.0

        shown = tidy(records).dropna(subset="value")
        for (client, part, _), of_run in shown.groupby(["client", "split", "run"]):
            self.learn_scores(
                client, part, dict(zip(of_run["metric"], of_run["value"], strict=True)), error(client, part)
            )
        for record in records:
            for key, value, *_ in points(record):
                part, *where, metric = key.split("/")
                if part in ("val", "test"):
                    client = where[0] if where else TARGET
                    self.learn_scores(client, part, {metric: value}, error(client, part))

    def learn_scores(self, client: str, part: str, found: dict[str, float | None], error: float = 0.0) -> None:
        """The scores of one run, as far as they are known, and how far they may be rounded."""
        known = tuple(sorted((metric, value) for metric, value in found.items() if value is not None))
        if known:
            self.scores.setdefault((client, part), set()).add((known, error))

    def think(self) -> None:
        """Narrow all candidates down until nothing follows any more."""
        before = -1
        while before != (now := sum(map(len, self.candidates.values()))):
            before = now
            for names, totals in self.sums:
                low, high = (sum(f(self.candidates[n]) for n in names) for f in (min, max))
                for name in names:
                    own = self.candidates[name]
                    least, most = min(totals) - (high - max(own)), max(totals) - (low - min(own))
                    kept = {v for v in own if least <= v <= most}
                    low, high = low + min(kept) - min(own), high + max(kept) - max(own)
                    self.candidates[name] = kept
            for client in CLIENTS:
                shares = [self.shares(client, part) for part in PARTS] if self.stratified else [(0.0, 1.0)]
                share = max(low for low, _ in shares), min(high for _, high in shares)
                for part in PARTS:
                    self.fit(client, part, self.scores.get((client, part), set()), share)

    def shares(self, client: str, part: str) -> tuple[float, float]:
        """The shares of positives from which this part can have been made."""
        ms, images = (self.candidates[client, part, what] for what in ("positives", "images"))
        least, most = max(1, min(images)), max(1, max(images))
        return (min(ms) - 0.5) / most, (max(ms) + 0.5) / least

    def fit(self, client: str, part: str, known: set[Known], share: tuple[float, float]) -> None:
        """Keep the sizes of both classes that add up, and that allow all published scores."""
        names = [(client, part, what) for what in ("positives", "negatives", "images")]
        ms, ns, images = (self.candidates[name] for name in names)
        low, high = share
        pairs = [
            (m, n, m + n)
            for m in ms
            for n in ns
            if m + n in images
            and (not self.stratified or (low * (m + n) - 0.5 <= m + 1e-9 and m - 1e-9 <= high * (m + n) + 0.5))
            and all(possible(m, n, dict(scores), error) for scores, error in known)
        ]
        for name, kept in zip(names, zip(*pairs, strict=True), strict=True):
            self.candidates[name] = set(kept)

    def rebuilt(self, truth: dict[str, Any]) -> list[Name]:
        """The numbers that are small, and that the attacker knows nevertheless."""
        known = {name: found for name, found in self.candidates.items() if len(found) == 1}
        cells = truth["cells"] | {(c, p, "images"): counts(truth, c)["images"][p] for c in CLIENTS for p in PARTS}
        assert all(found == {cells[name]} for name, found in known.items()), "the attacker is wrong"
        held_back = {client for client in CLIENTS if hides_classes(counts(truth, client), self.smallest)}
        return [
            name
            for name in known
            if not is_public(name)
            and (small(cells[name], self.smallest) or (name[0] in held_back and name[2] in CLASSES and cells[name]))
        ]


def is_public(name: Name) -> bool:
    """A client sends the number of its training images with every update."""
    _, part, what = name
    return part in ("train", "adapt") and what == "images"


def possible(m: int, n: int, found: dict[str, float], error: float) -> bool:
    """Whether a model can have these scores on `m` positives and `n` negatives, rounded by at most `error`."""
    parts = {"acc": m + n, "auc": 2 * m * n, "sensitivity": m, "specificity": n}
    if not all(multiple(value, parts[metric], error) for metric, value in found.items() if metric in parts):
        return False
    acc, rates = found.get("acc"), [found.get(name) for name in CLASSES.values()]
    if acc is None or None in rates or not m + n:
        return True
    return abs(acc - (m * rates[0] + n * rates[1]) / (m + n)) < 1e-6 + 2 * error


def multiple(value: float, parts: int, error: float) -> bool:
    """Whether some whole number of so many parts is this value, but for rounding."""
    return bool(parts) and abs(round(value * parts) / parts - value) < 1e-6 / parts + error * (1 + 1e-9)


def attack(root: Path, truth: dict[str, Any]) -> list[Name]:
    attacker = Attacker(truth["smallest"], truth["stratified"])
    attacker.read(root)
    attacker.look_at_views(root)
    attacker.think()
    return attacker.rebuilt(truth)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of synced writes would make the test wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def test_no_hidden_number_of_a_thousand_studies_can_be_rebuilt(tmp_path: Path, quick: None) -> None:
    hidden = 0
    for seed in range(STUDIES):
        truth, root = drawn(seed), tmp_path / str(seed)
        write(root, truth)
        assert attack(root, truth) == [], seed
        hidden += sum(small(n, truth["smallest"]) for n in truth["cells"].values())
    assert hidden > 5 * STUDIES, "there is something to rebuild"


def test_no_hidden_number_of_a_stratified_study_follows_from_its_larger_parts(tmp_path: Path, quick: None) -> None:
    """The test part is large, and its positives are hidden only because those of the validation part are few."""
    scored = 0
    for seed in range(200):
        truth, root = stratified(seed), tmp_path / str(seed)
        write(root, truth)
        assert attack(root, truth) == [], seed
        records, _ = read_runs(root / "runs", [("gp", TARGET, 0)], truth["smallest"])
        hidden = hides_classes(counts(truth, TARGET), truth["smallest"])
        scored += hidden and records[0].scores[TARGET]["auc"] is not None
    assert scored > 50, "and what may be shown is shown"


def test_three_scores_of_a_large_test_part_were_enough_for_the_attacker(tmp_path: Path, quick: None) -> None:
    """Accuracy, sensitivity and specificity in scores.csv: images * (acc - spec) / (sens - spec) are the positives."""
    found = small_ones = 0
    for seed in range(60):
        truth, root = stratified(seed), tmp_path / str(seed)
        write_as_before(root, truth, ("scores",))
        rebuilt = attack(root, truth)
        found += (TARGET, "test", "positives") in rebuilt
        small_ones += any(part == "val" and small(truth["cells"].get((c, part, w), 0), 11) for c, part, w in rebuilt)
    assert found > 30 and small_ones > 5


LEAKS = {
    "exact counts": ("cohort.json",),
    "the whole and all but one part": ("ingest.json",),
    "the number of checked images": ("leakage.json",),
    "scores of every round": ("metrics.jsonl",),
    "final scores": ("scores",),
    "the rows that all hospitals have": ("flow",),
}


@pytest.mark.parametrize("leaks", LEAKS.values(), ids=LEAKS)
def test_each_of_the_old_leaks_is_enough_for_the_attacker(tmp_path: Path, quick: None, leaks: tuple[str, ...]) -> None:
    """The attack would find what earlier versions let out: it does not succeed above for want of wit."""
    found = 0
    for seed in range(60):
        truth, root = one_small(seed), tmp_path / str(seed)
        write_as_before(root, truth, leaks)
        found += bool(attack(root, truth))
        write(root / "now", truth)
        assert attack(root / "now", truth) == []
    assert found > 5


def one_small(seed: int) -> dict[str, Any]:
    """A large study with one small part: the case in which a total gives it away."""
    truth, rng = drawn(seed), np.random.default_rng(seed)
    for client in CLIENTS:
        for part in PARTS:
            few = (client, part) == (TARGET, ("test", "val", "adapt")[seed % 3])
            for what in ("positives", "negatives"):
                truth["cells"][client, part, what] = int(rng.integers(1, 5) if few else rng.integers(11, MOST))
            m, n = (truth["cells"][client, part, what] for what in ("positives", "negatives"))
            truth["cells"][client, part, "patients"] = m + n
            for run in RUNS:
                truth["scores"][run, client, part] = score(rng, m, n)
    return with_flow(truth, rng)


def test_the_rules_hide_what_the_attack_is_after() -> None:
    truth = one_small(0)
    m, n = (truth["cells"][TARGET, "test", what] for what in ("positives", "negatives"))
    assert hides(m + n, m, truth["smallest"])


@pytest.mark.parametrize(("images", "folds"), [(60, 1), (120, 5), (300, 5), (2000, 5)])
def test_every_size_of_the_classes_fits_an_auc_that_is_shown(images: int, folds: int) -> None:
    """An AUC is a number of pairs, within folds a number of fewer; four decimals leave few sizes of the classes."""
    smallest, rng = 11, np.random.default_rng(images)
    sizes_of_classes = np.arange(smallest, images - smallest + 1)
    pairs = sizes_of_classes * (images - sizes_of_classes) // folds

    def fit(decimals: int) -> float:
        """The share of the sizes from which the AUCs of three models can come, of which the attacker knows so much."""
        possible = np.ones(len(pairs), dtype=bool)
        for auc in rng.integers(0, pairs[0], 3) / pairs[0]:
            error = 0.5 * 10.0**-decimals + 1e-12
            possible &= np.abs(np.rint(round(auc, decimals) * pairs) / pairs - round(auc, decimals)) <= error
        return float(possible.mean())

    assert fit(auc_decimals(images, smallest, folds)) == 1
    assert fit(4) < 1 or pairs[0] > 10**3
