"""Which models a study offers for its targets: chosen on validation labels, written as ONNX for MLflow's registry."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import mean

from fdamed.config.loader import catalog
from fdamed.config.study import Config
from fdamed.core.run_record import Record
from fdamed.tracking.models import Candidate

SCORES = ("val/auc", "val/acc")
"""What a choice goes by: the first that every seed has."""


def offered(config: Config, records: list[Record]) -> list[Candidate]:
    """One model a target: of the run whose seeds have the best mean on the validation split, its best seed there.

    Never by a test score. Rows that no real target could have (the oracle), that have no model of their own (classical
    rows) or whose model stays in the hospital do not stand for election.
    """
    known = catalog()
    out = []
    for target in config.split.targets:
        standing = defaultdict(list)
        for record in records:
            facts = [known[phase["method"]] for phase in record.phases]
            seen = any(each["every_target_label"] for each in facts)  # also by an earlier phase: its model goes on
            barred = seen or facts[-1]["own_models"] or facts[-1].get("classical")
            if record.target == target and not barred:
                standing[record.run].append(record)
        best = chosen(standing)
        if best:
            record, score, value = best
            out.append(_candidate(config, record, f"best mean {score} over the seeds, {value:.3f} in this one"))
    return out


def chosen(standing: dict[str, list[Record]]) -> tuple[Record, str, float] | None:
    """The record, the score that it was chosen by and its value; None: nobody was judged on validation images."""
    for score in SCORES:
        values = {run: [_last(r, score) for r in seeds] for run, seeds in standing.items()}
        judged = {run: [v for v in found if v is not None] for run, found in values.items() if None not in found}
        if judged:
            run = max(judged, key=lambda name: mean(judged[name]))
            value, record = max(zip(judged[run], standing[run], strict=True), key=lambda pair: pair[0])
            return record, score, value
    return None


def _last(record: Record, score: str) -> float | None:
    value = record.rounds[-1].get(score) if record.rounds else None
    return None if value is None else float(value)


def _candidate(config: Config, record: Record, why: str) -> Candidate:
    return Candidate(
        name=f"{config.study}-{record.target}",
        key=record.key,
        digest=record.weights,
        why=f"{record.run}, seed {record.seed}: {why}, chosen on the validation split.",
        params={"run": record.run, "method": record.method, "target": record.target, "seed": str(record.seed)},
        save=lambda folder, identity: save(config, record, folder, identity),
    )


def save(config: Config, record: Record, folder: Path, identity: str) -> None:
    """MLflow's model folder: ONNX with signature, an input example that is no image of anybody, the card beside it."""
    import mlflow.onnx
    import numpy as np
    import onnx
    from mlflow.models import Model, infer_signature

    from fdamed.cli.commands.export import input_shape, write
    from fdamed.export.bundle import ABOUT, ONNX
    from fdamed.pipeline.finished_runs import of_study

    with tempfile.TemporaryDirectory(prefix="fdamed-export-") as scratch:
        out = Path(scratch) / "model"
        write(of_study(config, record.run, record.target, record.seed), out, onnx=True)
        example = np.zeros((1, *input_shape(config)), dtype=np.float32)
        answer = np.full((1, config.model.classes), 1 / config.model.classes, dtype=np.float32)
        mlflow.onnx.save_model(
            onnx.load(str(out / ONNX)),
            folder,
            mlflow_model=Model(model_id=identity),
            signature=infer_signature(example, answer),
            input_example=example,
            pip_requirements=["onnxruntime", "numpy"],
            save_as_external_data=False,
        )
        for name in (ABOUT, "model_card.md", "model_card.html"):
            (folder / name).write_bytes((out / name).read_bytes())
