"""Writes results/{cohort}/ as a finished study leaves it, without training: for tests of what reads those files."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from fdamed.config.loader import catalog, parse
from fdamed.core.counts import write_counts
from fdamed.core.disclosure import only_scores, without_scores
from fdamed.core.files import digest
from fdamed.core.rng import stream

CLIENTS = {"LO": "Lung Opacity", "CO": "Consolidation", "ED": "Edema", "AT": "Atelectasis", "NC": "Lung Lesion"}
LEVEL = {
    "fedavg": 0.61,
    "finetune": 0.70,
    "finetune_offline": 0.68,
    "target_only": 0.66,
    "oracle": 0.87,
    "gp": 0.81,
    "fedda": 0.74,
    "fedgp": 0.83,
}
"""AUC that each run ends near."""
WIRE = {
    "fedavg": {"weights": 2_800_000, "count": 8},
    "gp": {"update": 2_800_000, "count": 8},
    "fedgp": {"update": 2_800_000, "scalar": 64},
    "target_only": {},
    "oracle": {},
}
LAYERS = [f"layer{i}.{j}.conv{k}" for i in range(1, 5) for j in range(2) for k in (1, 2)]


def configuration(folder: Path, **changes: object) -> dict[str, object]:
    """A configuration that `fdamed.config.study` accepts; `changes` replace its keys."""
    known = catalog()
    runs = {name: {"method": name if name in known else "fedavg"} for name in LEVEL}
    base: dict[str, object] = {
        "study": "demo",
        "results": str(folder / "results"),
        "data": {"layout": "chexpert", "root": "/secret/place/of/data", "salt": "a-secret-salt"},
        "phantom": {"patients": 3000},
        "split": {"by": "condition", "clients": CLIENTS, "target": "NC"},
        "privacy": {"smallest_images": 1, "smallest_steps": 1},
        "train": {"rounds": 12},
        "runs": runs,
        "seeds": [0, 1, 2],
    }
    return base | changes


def write_study(folder: Path, missing: tuple[tuple[str, str, int], ...] = (), **changes: object) -> Path:
    """Write configuration and a whole study below `folder`; give back the configuration's path."""
    config = configuration(folder, **changes)
    root = Path(str(config["results"])) / str(config["study"])
    path = root / "config.json"
    write_json(path, config)
    cut = config["split"]
    assert isinstance(cut, dict)
    clients = list(cut["clients"])
    write_ingest_and_cohort(root, clients, str(cut.get("rule", "disjoint")))
    targets = clients if cut["target"] == "each" else [cut["target"]]
    for run, options in parse(config, "test").expanded_runs().items():
        for target in targets:
            for seed in seeds_of(config):
                if (run, target, seed) not in missing:
                    folder = write_run(root, run, options.method, target, seed, clients, rounds_of(config))
                    if options.labeled or options.auxiliary:
                        auxiliary = options.auxiliary.model_dump(mode="json") if options.auxiliary else None
                        edit(folder / "run.json", labeled=options.labeled or 100, auxiliary=auxiliary)
    return path


def seeds_of(config: dict[str, object]) -> list[int]:
    seeds = config["seeds"]
    assert isinstance(seeds, list)
    return seeds


def rounds_of(config: dict[str, object]) -> int:
    train = config["train"]
    assert isinstance(train, dict)
    return int(train["rounds"])


def write_absences(folder: Path, *absences: tuple[int, str, str]) -> None:
    """Round, hospital and reason of answers that were left out."""
    rows: list[dict[str, object]] = [
        {"round": r, "client": client, "step": "train_locally", "why": why} for r, client, why in absences
    ]
    write_lines(folder / "absences.jsonl", rows)


def score_file(root: Path, client: str, run: str, target: str, seed: int) -> Path:
    """Where a client keeps its scores of a run."""
    return root / "clients" / client / "scores" / run / target / f"{seed}.json"


def write_rounds(folder: Path, rows: list[dict[str, Any]]) -> None:
    """The rounds of a run: their scores in the target's folder, the rest in the run's."""
    run, target, seed = folder.parts[-3:]
    kept = folder.parents[3] / "clients" / target / "rounds" / run / target / f"{seed}.jsonl"
    write_lines(kept, only_scores(rows))
    write_lines(folder / "metrics.jsonl", [without_scores(row) for row in rows])


def note_by_round(folder: Path, **notes: float) -> None:
    """Add notes such as weight/LO (written weight__LO) to every round."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write_lines(path, [row | {k.replace("__", "/"): v for k, v in notes.items()} for row in rows])


def without_auc(folder: Path) -> None:
    """Make a run one of many classes: no AUC, no positives."""
    root, (run, target, seed) = folder.parents[3], folder.parts[-3:]
    path = root / "clients" / target / "rounds" / run / target / f"{seed}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write_lines(path, [row | {"val/auc": None, "test/auc": None} for row in rows])
    for score in root.glob(f"clients/*/scores/{run}/{target}/{seed}.json"):
        content = json.loads(score.read_text())
        del content["positives"]
        why = {"auc": "more than two classes"}
        score.write_text(json.dumps(content | {"auc": None, "balanced_acc": None, "why": why}))


def write_ingest_and_cohort(root: Path, clients: list[str], rule: str = "disjoint") -> None:
    rejected = {"UNREADABLE_IMAGE": 37, "LABEL_OUT_OF_RANGE": 4, "PATH_LEAVES_ROOT": 12}
    ingest = {"rows": 6120, "patients": 2980, "rejected": rejected, "hash": digest("index"), "layout": "chexpert"}
    write_counts(root, "ingest.json", ingest | {"seconds": 3.2})
    sizes = {}
    for i, client in enumerate(clients):
        images = {"train": 700 - 60 * i, "adapt": 100, "val": 110 - 9 * i, "test": 220 - 20 * i}
        sizes[client] = {
            "hash": digest(client),
            "images": images,
            "patients": {s: n * 7 // 10 for s, n in images.items()},
            "positives": {s: n // 2 for s, n in images.items()},
        }
    leakage = {"patients_in_two_splits": 0, "patients_in_two_clients": 0, "near_duplicates": 3}
    cohort = {"by": "condition", "rule": rule, "hash": digest(clients), "clients": sizes}
    write_counts(root, "cohort.json", cohort)
    write_counts(root, "leakage.json", leakage)


def write_run(
    root: Path, run: str, method: str, target: str, seed: int, clients: list[str], rounds: int, nudge: float = 0.0
) -> Path:
    """One finished run; `nudge` moves its scores."""
    folder = root / "runs" / run / target / str(seed)
    generator = stream(seed, run, target).numpy
    sources = [p for p in clients if p != target]
    end = (
        LEVEL.get(run, 0.55 + 0.3 * stream(0, run).numpy.random())
        + nudge
        - 0.015 * (len(clients) - 1 - clients.index(target))
    )
    end += 0.012 * generator.standard_normal()
    curve = end - (end - 0.5) * np.exp(-np.arange(1, rounds + 1) / 3.5) + 0.008 * generator.standard_normal(rounds)
    metrics, timing, ledger, layers = [], [], [], []
    start = datetime(2026, 3, 1, 8, tzinfo=UTC) + timedelta(hours=seed)
    for r in range(1, rounds + 1):
        auc = float(np.clip(curve[r - 1], 0, 1))
        row = {"round": r, "train/loss": 0.7 * 0.93**r, "val/acc": auc - 0.07, "val/auc": auc - 0.01}
        metrics.append(row | {"test/acc": auc - 0.06, "test/auc": auc})
        timing.append({"round": r, "seconds": 2.5, "started": (start + timedelta(seconds=2.5 * r)).isoformat()})
        for kind, size in WIRE.get(run, WIRE["fedavg"]).items():
            for source in sources:
                head = {"round": r, "step": "train", "kind": kind, "messages": 1}
                ledger.append(head | {"from": source, "to": "server", "bytes": size})
                ledger.append(head | {"from": "server", "to": source, "bytes": 2_800_000})
        if run in {"gp", "fedgp"}:
            for i, source in enumerate(sources):
                wobble = 0.1 * generator.standard_normal(len(LAYERS))
                cosines = 0.55 - 0.12 * i - 0.03 * np.arange(len(LAYERS)) - 0.01 * r + wobble
                layers += [
                    {"round": r, "source": source, "layer": name, "cos": float(c)}
                    for name, c in zip(LAYERS, cosines, strict=True)
                ]
    facts = {
        "study": root.name,
        "run": run,
        "method": method,
        "options": {"beta": 0.5} if method == "gp" else {},
        "auxiliary": None,
        "labeled": 100,
        "target": target,
        "sources": sources,
        "seed": seed,
        "rounds": rounds,
        "train": {"source": {"lr": 0.001, "batch": 32}, "target": {"lr": 0.0002, "batch": 16}},
        "parameters": 702_000,
        "versions": {"fdamed": "0.1.0", "torch": "2.13.0", "python": "3.11.2"},
        "digests": {"config": "c0ffee", "cohort": digest(clients)},
    }
    write_json(folder / "run.json", facts)
    write_rounds(folder, metrics)
    write_lines(folder / "timing.jsonl", timing)
    write_lines(folder / "ledger.jsonl", ledger)
    if layers:
        write_lines(folder / "layers.jsonl", layers)
    for client in clients:
        auc = float(np.clip(curve[-1] + (0 if client == target else 0.03), 0, 1))
        head = {"run": run, "method": method, "target": target, "seed": seed, "client": client, "split": "test"}
        numbers = {"acc": auc - 0.06, "auc": auc, "balanced_acc": auc - 0.06, "brier": 0.3 - auc / 5, "why": {}}
        write_json(score_file(root, client, run, target, seed), head | {"n": 180, "positives": 90} | numbers)
    write_text(folder / "done", digest([run, target, seed, nudge]) + "\n")
    return folder


def write_predictions(root: Path, run: str, target: str, seed: int, images: int = 180) -> None:
    """A score for each image of the target's test part: the same patients for every run."""
    import pandas as pd

    same, own = stream(0, target).numpy, stream(seed, run, target).numpy
    y = same.permutation(np.arange(images) % 2)
    level = LEVEL.get(run, 0.55 + 0.3 * stream(0, run).numpy.random())
    probability = 1 / (1 + np.exp(-(8 * (level - 0.5) * (y - 0.5) + own.standard_normal(images))))
    frame = pd.DataFrame(
        {
            "patient": [f"{target}{i // 2:04}" for i in range(images)],
            "y": y.astype("int8"),
            "score": probability.astype("float32"),
            "sex": same.choice(["Female", "Male"], images),
            "age": same.integers(20, 90, images).astype("float64"),
            "race": same.choice(["White", "Black", "Asian"], images),
            "view": same.choice(["frontal", "lateral"], images),
            "scanner": same.choice(["A", "B"], images),
        }
    )
    path = root / "clients" / target / "predictions" / run / target / f"{seed}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(path)


def write_text(path: Path, text: str) -> None:
    """Plain: thousands of synced writes would make the tests wait for the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_json(path: Path, content: object) -> None:
    write_text(path, json.dumps(content, indent=1))


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def edit(path: Path, **changes: object) -> None:
    """Change keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
