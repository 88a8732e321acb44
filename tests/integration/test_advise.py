"""fdamed advise on a small cohort whose hospitals are made to agree and to disagree with the target."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import fedgp_figure2
from fdamed.cli.main import main
from fdamed.config.loader import parse
from fdamed.core.files import read_lines
from fdamed.core.rng import stream
from fdamed.pipeline.trial_labels import too_small

SIDE = 32
CLIENTS = {"twin": "a", "opposite": "b", "target": "c"}


def write_client(folder: Path, seed: int, flipped: bool) -> None:
    """Positives have a bright left half; in a flipped hospital they are called negatives."""
    rng = np.random.default_rng(seed)
    splits = ["adapt"] * 48 + ["test"] * 8 + ["train"] * 80 + ["val"] * 8
    bright = np.arange(len(splits)) % 2
    images = rng.integers(0, 60, (len(splits), SIDE, SIDE))
    images[:, :, : SIDE // 2] += 150 * bright[:, None, None]
    folder.mkdir(parents=True)
    np.save(folder / "images.npy", images.astype(np.uint8))
    order = {"split": splits, "y": (1 - bright if flipped else bright).astype(np.int8), "sex": ["F"] * len(splits)}
    pd.DataFrame(order).to_parquet(folder / "order.parquet")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advise")
    config = {
        "study": "small",
        "results": str(folder / "results"),
        "data": {"layout": "chexpert", "root": str(folder)},
        "split": {"by": "race", "label": "Edema", "clients": CLIENTS, "target": "target", "labeled": 48},
        "image": {"size": SIDE},
        "privacy": {"smallest_images": 1, "smallest_steps": 1, "smallest_cell": 1},
        "model": {"width": 0.0625, "heads": ["sex"]},
        "train": {
            "rounds": 12,
            "source": {"lr": 0.001, "batch": 8},
            "target": {"lr": 0.001, "batch": 8},
            "device": "cpu",
        },
        "seeds": [0],
        "runs": {
            "fedavg": {},
            "finetune": {},
            "target_only": {"sweep": {"labeled": [20, 48]}},
            "gp": {"warmup": 3},
            "fedgp": {"train": {"target": {"lr": 0.0005}}},
            "oracle": {},
            "gp_auxinfo": {"method": "gp", "auxiliary": {"heads": ["sex"]}},
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    root = folder / "results" / "small"
    for seed, client in enumerate(CLIENTS):
        write_client(root / "clients" / client, seed, client == "opposite")
    images = {"train": 80, "adapt": 48, "val": 8, "test": 8}
    counts = {"images": images, "positives": {part: n // 2 for part, n in images.items()}}
    (root / "cohort.json").write_text(json.dumps({"clients": dict.fromkeys(CLIENTS, counts)}))
    assert main(["init", "--config", str(folder / "config.json"), "--seed", "0"]) == 0
    return folder


@pytest.fixture(scope="module")
def advised(study: Path) -> Path:
    """The folder of the study's advice."""
    with redirect_stderr(io.StringIO()) as messages:
        assert main(["advise", "--config", str(study / "config.json")]) == 0
    assert "At target, of 2 cells" in messages.getvalue() and "of one training run" in messages.getvalue()
    return study / "results" / "small" / "advice"


def test_the_twin_of_the_target_is_nearer_than_the_hospital_that_contradicts_it(advised: Path) -> None:
    advice = json.loads((advised / "target.json").read_text())
    sources = {s["source"]: s for s in advice["sources"]}
    assert sources["twin"]["cosine"]["value"] > sources["opposite"]["cosine"]["value"]
    assert sources["twin"]["d2"]["value"] < sources["opposite"]["d2"]["value"]
    assert sources["twin"]["gain"]["value"] > sources["opposite"]["gain"]["value"]
    svg = (advised / "target.svg").read_text()
    assert svg.startswith("<svg") and "twin" in svg and "opposite" in svg


def test_every_cell_tries_the_runs_that_can_be_tried_on_its_labels(advised: Path) -> None:
    """FedAvg uses no labels and is in both; a run on other labels, with heads, or with all labels is not."""
    advice = json.loads((advised / "target.json").read_text())
    cells = {cell["labeled"]: {row["run"] for row in cell["ranking"]} for cell in advice["cells"]}
    assert cells == {
        48: {"fedavg", "finetune", "target_only-labeled-48", "gp", "fedgp"},
        20: {"fedavg", "target_only-labeled-20"},
    }
    drops = {r["run"]: r["drop"]["value"] for c in advice["cells"] if c["labeled"] == 48 for r in c["ranking"]}
    assert drops["finetune"] > 0 and drops["finetune"] > drops["fedavg"], "contradicting sources teach less"
    assert advice["warmup"] == 3
    # Warm-up and two kinds of rounds at the sources; gradients of at most 128 images; 0.8 of the labels are trained on
    # for an update of target_only and gp, one of fedgp, a model of finetune; all are held out once for each model.
    sources, labels = 2 * 128, 48
    assert advice["cost"]["images"] <= 5 * sources + 3 * 128 + 3 * (4 * labels) + 7 * labels + (4 + 3) * 20
    assert advice["cost"]["images_of_one_run"] == 12 * (sources + labels)


def test_what_leaves_the_hospitals_is_in_the_ledger_and_nothing_of_a_kind_that_runs_do_not_send(advised: Path) -> None:
    lines = [json.loads(line) for line in (advised / "target.ledger.jsonl").read_text().splitlines()]
    out = {(line["from"], line["step"], line["kind"]) for line in lines if line["from"] != "server"}
    assert {kind for _, step, kind in out if step == "survey.held_out"} == {"scalar", "count"}
    assert {client for client, step, _ in out if step == "survey.held_out"} == {"target"}
    assert {kind for client, step, kind in out if client == "target" and step == "survey.geometry"} == {
        "count",
        "statistic",
    }
    assert {kind for _, _, kind in out} <= {"weights", "update", "statistic", "scalar", "count"}
    trained = [line["messages"] for line in lines if (line["from"], line["step"]) == ("twin", "train_locally")]
    assert set(trained) == {1}, "a source is asked once a round for all cells and folds"
    assert {line["round"] for line in lines if line["from"] == "twin"} == {1, 2, 3, 4}


def test_a_cell_whose_folds_are_small_is_skipped_with_the_reason(study: Path, tmp_path: Path) -> None:
    """48 labels, 24 of a class: at least 4 of a class in a fold; 20 labels: 2."""
    root = study / "results" / "small"
    config = json.loads((study / "config.json").read_text()) | {"study": "cells"}
    config["privacy"]["smallest_cell"] = 4
    config["runs"] = {"fedavg": {}, "target_only": {"sweep": {"labeled": [20, 48]}}}
    (study / "results" / "cells").mkdir()
    for name in ("clients", "init", "cohort.json"):
        (study / "results" / "cells" / name).symlink_to(root / name)
    (tmp_path / "cells.json").write_text(json.dumps(config))
    assert main(["advise", "--config", str(tmp_path / "cells.json")]) == 0
    advice = json.loads((study / "results" / "cells" / "advice" / "target.json").read_text())
    assert [cell["labeled"] for cell in advice["cells"]] == [48]
    why = "a fold has fewer than 4 patients, or images of a class (privacy.smallest_cell)"
    assert advice["skipped"] == [{"labeled": 20, "noise": 0.0, "why": why}]


def test_folds_that_are_all_too_small_are_an_error_before_any_training(study: Path, tmp_path: Path, capfd) -> None:
    content = json.loads((study / "config.json").read_text())
    content["privacy"]["smallest_images"] = 12
    (tmp_path / "config.json").write_text(json.dumps(content))
    advice = study / "results" / "small" / "advice"
    before = sorted((p, p.stat().st_mtime_ns) for p in advice.glob("*"))
    assert main(["advise", "--config", str(tmp_path / "config.json")]) == 2
    said = capfd.readouterr().err
    assert "a fold has fewer than 12 images (privacy.smallest_images)" in said
    assert "At least 60 labeled images are needed (split.labeled, now 48)" in said
    assert sorted((p, p.stat().st_mtime_ns) for p in advice.glob("*")) == before


def test_folds_of_whole_patients_can_be_below_the_minimum_where_the_labels_alone_are_enough(study: Path) -> None:
    """25 images, folds of 5 on average; one patient has 9 of them, the other 16 one each: a fold of 3."""
    config = json.loads((study / "config.json").read_text()) | {"runs": {"fedavg": {}}}
    config["privacy"]["smallest_images"] = 5
    y, alone = np.zeros(25, np.int64), np.arange(25)
    found = parse(config, "test")
    assert too_small(found, {}, y, alone, stream(0, "folds")) == ""
    why = too_small(found, {}, y, np.maximum(alone - 8, 0), stream(0, "folds"))
    assert why == "a fold has fewer than 5 images (privacy.smallest_images)"


@pytest.mark.slow
def test_the_advice_is_the_same_with_one_process_a_hospital(study: Path, tmp_path: Path) -> None:
    root = study / "results" / "small"
    config = json.loads((study / "config.json").read_text()) | {"runs": {"fedavg": {}, "gp": {}}, "study": "two"}
    (study / "results" / "two").mkdir()
    for name in ("clients", "init", "cohort.json"):
        (study / "results" / "two" / name).symlink_to(root / name)
    found = []
    for transport in ("in_process", "multiprocess"):
        config["train"]["transport"] = transport
        (tmp_path / "two.json").write_text(json.dumps(config))
        assert main(["advise", "--config", str(tmp_path / "two.json")]) == 0
        found.append((study / "results" / "two" / "advice" / "target.json").read_bytes())
    assert found[0] == found[1]
    assert [row["run"] for row in json.loads(found[0])["cells"][0]["ranking"]] != []


def test_what_advice_asks_of_sources_is_remembered_for_the_runs_and_changes_nothing(
    study: Path, tmp_path: Path
) -> None:
    raw = json.loads((study / "config.json").read_text())
    root, found = study / "results" / "small", []
    raw |= {"study": "remembering", "results": str(tmp_path), "runs": {"fedavg": {}, "gp": {"warmup": 1}}}
    raw["train"]["rounds"] = 3
    for name in ("clients", "init"):
        shutil.copytree(root / name, tmp_path / "remembering" / name, ignore=shutil.ignore_patterns("answers"))
    cohort = json.loads((root / "cohort.json").read_text()) | {"hash": ""}
    (tmp_path / "remembering" / "cohort.json").write_text(json.dumps(cohort))
    (tmp_path / "remembering" / "leakage.json").write_text("{}")
    for limit in (0, 100):
        (tmp_path / "config.json").write_text(json.dumps(raw | {"answers_mb": limit}))
        assert main(["advise", "--config", str(tmp_path / "config.json")]) == 0
        found.append([(tmp_path / "remembering/advice" / f"target.{e}").read_bytes() for e in ("json", "ledger.jsonl")])
    assert found[0] == found[1]
    folders = {p.parent.name for p in (tmp_path / "remembering").rglob("answers")}
    assert folders == {"twin", "opposite"}, "no run asks the target without a fold"
    words = ["--config", str(tmp_path / "config.json"), "--run", "fedavg", "--target", "target", "--seed", "0"]
    assert main(["federate", *words]) == 0
    timing = read_lines(tmp_path / "remembering/runs/fedavg/target/0/timing.jsonl")
    assert [line.get("remembered", 0) for line in timing] == [2, 2, 0], "the warm-up's round, and the trial's"


def test_an_unknown_target_is_refused_by_name(study: Path, capfd) -> None:
    assert main(["advise", "--config", str(study / "config.json"), "--target", "nobody"]) == 2
    assert "no client 'nobody'" in capfd.readouterr().err


def test_figure_2_small_writes_theory_beside_training(tmp_path: Path) -> None:
    fedgp_figure2.main(["--out", str(tmp_path), "--small"])
    content = json.loads((tmp_path / "figure2.json").read_text())
    assert content["summary"]["cells"] == 9 and len(content["cells"]) == 9
    same = [c for c in content["cells"] if c["shift"] == 0.0]
    assert all(c["d2"] < 1e-9 and c["errors"]["source_only"] < 1e-9 for c in same)
    variance = [c["sigma2"] for c in same]
    assert variance == sorted(variance)
    assert 0.0 <= content["summary"]["measured"]["agreement_percent"] <= 100.0
    assert (tmp_path / "figure2.svg").read_text().count("<rect") > 27
