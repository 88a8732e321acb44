"""`fdamed doctor` reports before any job whether the study can run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.torch import save_file

from fdamed.cli.main import main
from fdamed.config.loader import load
from fdamed.config.study import Config, Model
from fdamed.core.files import megabytes
from fdamed.data.splitting.cohort import LEFT_OUT, Cohort, build
from fdamed.models.backbone import build as build_network
from fdamed.pipeline.checks import data as checks_of_data
from fdamed.pipeline.checks.machine import check_gpu, check_slurm
from tests.integration.test_ingest_split import CANARY, RELEASE, configure, rows_of
from tests.support.raw_trees import CHEXPERT_HEADER, write_image, write_table


def tree(folder: Path, header: list[str] = CHEXPERT_HEADER, patients: int = 90) -> Path:
    rows = rows_of(patients)
    write_table(folder / "raw" / RELEASE / "train.csv", header, rows)
    for row in rows:
        write_image(folder / "raw" / row[0])
    return configure(folder)


def doctor_report(path: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", "--config", str(path)])
    out = capfd.readouterr()
    assert CANARY not in out.out + out.err
    return code, json.loads(out.out)


def test_a_healthy_study_is_reported_with_balance_overlap_and_disk_space(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree(tmp_path)
    code, report = doctor_report(configure(tmp_path, privacy="public"), capfd)
    assert code == 0
    assert report["ok"]
    assert report["clients"]["Edema"]["positive"] == 0.5
    assert report["asked"] == {"per_class": "all", "labeled": 8, "val": 0.1, "test": 0.2, "held_out": "all"}
    cache = sum(p["images"] for p in report["clients"].values()) * 224**2
    assert cache < 2**23 <= 2 * cache
    assert checks(report)["disk"] == ("ok", f"the cache needs at most {megabytes(2**23)}")
    assert checks(report)["patients"] == ("ok", "90 patients fit several hospitals")
    assert report["machine"]["cores"] >= 1
    assert not (tmp_path / "results").exists()


def test_what_the_study_can_show_is_reported_before_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tree(tmp_path)

    def with_cell(smallest: int) -> dict[str, Any]:
        content = yaml.safe_load(path.read_text())
        content["privacy"]["smallest_cell"] = smallest
        path.write_text(yaml.safe_dump(content))
        return doctor_report(path, capfd)[1]

    report = with_cell(40)
    status, detail = checks(report)["suppressed"]
    assert status == "warn" and "fewer than 40 patients, or images of a class: no score will be shown" in detail
    assert "power" not in checks(report) and "small counts" in checks(report)
    entry = report["clients"]["Edema"]
    assert set(entry["positives"].values()) == {"hidden"} and entry["images"] == entry["positive"] == "hidden"
    assert "180" not in json.dumps(report["checks"]), "a part would follow from the whole and the other parts"
    report = with_cell(1)
    status, detail = checks(report)["power"]
    assert status == "warn" and "positive and" in detail and "points of AUC between two of" in detail
    assert "too small to choose by: no round will be chosen" in checks(report)["validation"][1]
    assert "suppressed" not in checks(report) and "small counts" not in checks(report)
    entry = report["clients"]["Edema"]
    assert sum(map(int, entry["positives"].values())) == entry["images"] * entry["positive"]


def twin(
    folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], **keys: Any
) -> tuple[dict[str, Any], str]:
    """What doctor says about data whose Edema has few positives in `val`, as in all parts, and few rows left out."""
    folder.mkdir()
    tree(folder, patients=150)
    path = configure(folder, split={"test": 0.4}, **keys)
    rng = np.random.default_rng(seed)

    def changed(*given: Any) -> Cohort:
        cohort = build(*given)
        few = int(rng.integers(1, 11))
        for client, reasons in cohort.left_out.items():
            cohort.rows[client] = 400 + few  # both have all rows; the images of Edema are as many as before
            rest = 400 + few - len(cohort.manifests[client])
            own = {"without a usable label": few, "beyond balance and sizes of the parts": rest - few}
            cohort.left_out[client] = dict.fromkeys(reasons, 0) | (own if client == "Edema" else {LEFT_OUT[0]: rest})
        frame = cohort.manifests["Edema"]
        test = frame.index[frame["split"] == "test"]
        frame["y"] = (np.arange(len(frame)) % 2).astype("int8")
        share = int(rng.integers(12, len(test) - 12))
        frame.loc[test, "y"] = (np.arange(len(test)) < share).astype("int8")
        return cohort

    monkeypatch.setattr(checks_of_data, "build", changed)
    report = doctor_report(path, capfd)[1]
    about_data = [
        c for c in report["checks"] if c["check"] in ("power", "left out", "small counts", "report", "tuning")
    ]
    rng = np.random.default_rng(seed)
    main(["doctor", "--config", str(path)])
    lines = [line for line in capfd.readouterr().out.splitlines() if "Edema" in line or "Lesion" in line]
    return {"clients": report["clients"], "checks": about_data}, "\n".join(lines)


def test_two_studies_that_differ_in_what_is_held_back_are_the_same_to_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither the points of AUC nor the rows that were left out tell the hidden positives and counts."""
    private: dict[str, Any] = {"privacy": {"smallest_images": 1, "smallest_steps": 1}}
    first, second = (twin(tmp_path / str(s), s, monkeypatch, capfd, **private) for s in (1, 2))
    assert first == second
    assert "at best (if half of them are positive), the" in first[1]
    assert "rows of Edema that are not used: without a usable label, beyond" in first[1]
    first, second = (twin(tmp_path / f"public{s}", s, monkeypatch, capfd, privacy="public") for s in (1, 2))
    assert first[0] != second[0] and first[1] != second[1], "the comparison sees these numbers"
    for check in ("power", "left out"):
        details = [[c["detail"] for c in found["checks"] if c["check"] == check] for found, _ in (first, second)]
        assert details[0] != details[1], check


def test_what_the_report_will_lack_and_where_hidden_counts_are_is_said_before_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree(tmp_path)
    path = configure(tmp_path, privacy={"smallest_images": 1, "smallest_steps": 1})
    status, detail = checks(doctor_report(path, capfd)[1])["small counts"]
    assert status == "warn" and "clients/*/counts.json" in detail
    assert main(["doctor", "--config", str(path)]) == 0
    assert "hidden: small enough to identify persons; exact in clients/*/counts.json" in capfd.readouterr().out
    status, detail = checks(doctor_report(configure(tmp_path, privacy="public"), capfd)[1])["report"]
    assert status == "warn" and "without calibration (it needs 3 times 20 test images of both classes)" in detail


def test_many_short_trainings_are_better_in_few_jobs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path)
    runs = {f"run_{n}": {"method": "fedavg"} for n in range(6)}
    short = {"runs": runs, "train": {"rounds": 2, "device": "cpu"}}

    def found(seconds: float, **changes: Any) -> dict[str, Any]:
        monkeypatch.setattr("fdamed.pipeline.checks.data.seconds_per_image", lambda _: seconds)
        content = yaml.safe_load(configure(tmp_path, **short).read_text()) | {"seeds": [0, 1]} | changes
        (tmp_path / "jobs.yaml").write_text(yaml.safe_dump(content))
        return {c["check"]: c for c in doctor_report(tmp_path / "jobs.yaml", capfd)[1]["checks"]}

    assert "12 trainings of about 1 s" in found(1e-4)["jobs"]["detail"]
    assert found(1e-4)["jobs"]["fix"].startswith("`batch_runs: 6` trains several in one job")
    assert "jobs" not in found(1.0) and "jobs" not in found(1e-4, batch_runs=6) and "jobs" not in found(1e-4, seeds=[0])


def test_the_table_for_people_says_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--config", str(tree(tmp_path))]) == 0
    out = capfd.readouterr().out
    assert "the tables can be read; refused rows: none" in out
    assert main(["doctor", "--config", str(configure(tmp_path, privacy="public"))]) == 0
    assert "180 rows, 90 patients" in capfd.readouterr().out
    assert "asked: labeled 8" in out and "asked: 0.2" in out


def test_a_column_for_images_and_patients_is_warned_about(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree(tmp_path)
    table = {"layout": "table", "root": str(tmp_path / "raw"), "table": f"{RELEASE}/train.csv"}
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    content["data"] = table | {"columns": {"image": "Path", "patient": "Path"}, "labels": {"Edema": "Edema"}}
    content["split"] |= {"clients": {"A": "Edema", "B": "Edema"}, "target": "B"}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    assert main(["doctor", "--json", "--config", str(tmp_path / "config.yaml")]) == 0
    (found,) = [c for c in json.loads(capfd.readouterr().out)["checks"] if c["check"] == "patients" and c["fix"]]
    assert "`Path` is the column of image and patient" in found["detail"] and "data.columns.patient" in found["fix"]


def fail(report: dict[str, Any]) -> str:
    return "; ".join(c["detail"] for c in report["checks"] if c["status"] == "fail")


def test_a_missing_column_unreadable_files_and_an_impossible_split_give_exit_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    header = ["Seks" if c == "Sex" else c for c in CHEXPERT_HEADER]
    code, report = doctor_report(tree(tmp_path / "column", header), capfd)
    assert code == 2
    assert "missing column `Sex` (nearest: Seks" in fail(report)

    path = tree(tmp_path / "files")
    for row in rows_of(90)[:60]:
        (tmp_path / "files/raw" / row[0]).write_bytes(b"")
    code, report = doctor_report(path, capfd)
    assert code == 2
    assert "% of a sample of 128 files cannot be read: EMPTY" in fail(report)

    tree(tmp_path / "split")
    code, report = doctor_report(configure(tmp_path / "split", split={"labeled": 4000}), capfd)
    assert code == 2
    assert "too few for 4000 labeled" in fail(report)
    fixes = [c["fix"] for c in report["checks"] if c["status"] == "fail"]
    assert fixes[0].startswith("Ask for fewer labeled images"), "without the balance there are not 4000 images either"

    code, report = doctor_report(configure(tmp_path, data={"root": str(tmp_path / "nowhere")}), capfd)
    assert code == 2
    assert "no such folder" in fail(report)


def test_a_small_source_can_train_on_all_its_images_or_agree_to_a_smaller_minimum(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tree(tmp_path)
    policy = {"smallest_images": 150, "smallest_steps": 1}
    _, report = doctor_report(configure(tmp_path, privacy=policy, runs={"fedavg": {}}), capfd)
    (fix,) = [c["fix"] for c in report["checks"] if c["check"] == "minimum"]
    assert fix.startswith("Write `split.held_out: targets`, so that sources train on all their images. Or: Give ")
    assert "or write `privacy.smallest_images: 20` if the hospital agrees" in fix


def test_few_unreadable_files_are_no_number_of_the_sample(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """2 % of 128 files would be three."""
    path = tree(tmp_path)
    for row in rows_of(90)[:3]:
        (tmp_path / "raw" / row[0]).write_bytes(b"")
    detail = checks(doctor_report(path, capfd)[1])["files"][1]
    assert detail.startswith("1 to 10 of a sample of 128 files cannot be read: EMPTY")


def test_the_last_lines_have_the_remedy_and_do_not_repeat_the_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    header = ["Seks" if c == "Sex" else c for c in CHEXPERT_HEADER]
    path = tree(tmp_path, header)
    assert main(["doctor", "--config", str(path)]) == 2
    out, err = capfd.readouterr()
    what, where, fix = err.split("error: ")[1].splitlines()
    assert (what, where) == ("the study would fail: tables", f"where: {path}")
    assert "missing column `Sex` (nearest: Seks" in out and "missing column" not in err
    assert fix.startswith("to do: The table has: Path, Seks,")


def checks(report: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["check"]: (c["status"], c["detail"]) for c in report["checks"]}


@pytest.fixture
def no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_slurm_is_checked_only_where_it_is(tmp_path: Path, no_slurm: Path, capfd) -> None:
    code, report = doctor_report(tree(tmp_path), capfd)
    assert code == 0 and "sbatch" not in checks(report) and "plug-in" not in checks(report)


def test_a_gpu_that_nobody_has_stops_the_study(tmp_path: Path, no_slurm: Path, capfd, monkeypatch) -> None:
    monkeypatch.setattr(
        "fdamed.pipeline.checks.machine.describe", lambda config: {"cores": 1, "gpu": False, "free_gb": 10}
    )
    tree(tmp_path)
    code, report = doctor_report(configure(tmp_path, train={"device": "cuda"}), capfd)
    assert code == 2 and checks(report)["gpu"][0] == "fail"
    program(no_slurm, "sbatch", "exit 0")
    program(no_slurm, "sinfo", "echo 'gpu*|up|2-00:00:00|4|gpu:a100:4'")
    _, report = doctor_report(configure(tmp_path, train={"device": "cuda"}), capfd)
    assert checks(report)["gpu"] == ("ok", "a partition of the cluster has GPUs")


def test_a_cluster_without_plug_in_sbatch_or_controller_is_reported(
    tmp_path: Path, no_slurm: Path, capfd, monkeypatch
) -> None:
    monkeypatch.setattr("fdamed.pipeline.checks.machine.PLUGIN", "no-such-plug-in")
    path = str(tree(tmp_path))

    def look() -> tuple[int, dict[str, tuple[str, str]]]:
        code = main(["doctor", "--cluster", "--json", "--config", path])
        out, err = capfd.readouterr()
        told.append(err)
        return code, checks(json.loads(out))

    told: list[str] = []
    code, found = look()
    assert "to do: plug-in: pip install 'fdamed[slurm]' sbatch: Run on the cluster's login node." in told[0]
    assert code == 2 and found["plug-in"][0] == found["sbatch"][0] == "fail"
    program(no_slurm, "sbatch", "exit 0")
    program(no_slurm, "sinfo", "exit 1")
    assert "does not answer" in look()[1]["sbatch"][1]
    program(no_slurm, "sinfo", "echo 'main*|up|1-00:00:00|2|(null)'")
    assert look()[1]["sbatch"] == ("ok", "jobs are accepted; partitions: main* (limit 1-00:00:00)")
    program(no_slurm, "sbatch", "exit 1")
    assert look()[1]["sbatch"][0] == "warn"


def said(look: Callable[..., None], *arguments: Any) -> tuple[str, str]:
    """Status and detail of the one thing that a check says."""
    heard: list[tuple[str, str, str]] = []
    look(*arguments, lambda *words: heard.append(words))
    ((status, _, detail, *_),) = heard
    return status, detail


@pytest.fixture
def study(tmp_path: Path) -> Callable[..., Config]:
    return lambda **keys: load(configure(tmp_path, **keys))


@pytest.mark.parametrize(("device", "status"), [("cuda", "fail"), ("auto", "warn"), ("cpu", "ok")])
def test_a_gpu_that_torch_does_not_see_is_no_gpu(
    device: str, status: str, study: Callable[..., Config], monkeypatch
) -> None:
    config = study(train={"device": device})
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = said(lambda say: check_gpu(config, say, True, False))
    assert found[0] == status and ("does not see it" in found[1]) == (device != "cpu")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert said(lambda say: check_gpu(config, say, True, False))[0] == "ok"


def test_the_plug_in_that_is_there_is_named_with_its_version(
    study: Callable[..., Config], no_slurm, monkeypatch
) -> None:
    monkeypatch.setattr("fdamed.pipeline.checks.machine.PLUGIN", "snakemake-interface-common")
    heard: list[tuple[str, str, str]] = []
    assert check_slurm(study(), lambda *words: heard.append(words), "fail") is False
    assert heard[0][:2] == ("ok", "plug-in") and heard[0][2].startswith("snakemake-interface-common 1.")
    assert heard[1][:2] == ("fail", "sbatch")


def test_a_head_whose_label_is_the_same_everywhere_is_warned_about_with_its_fix(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """All images are frontal; sex and age vary."""
    tree(tmp_path)
    runs = {"aux": {"method": "finetune", "auxiliary": {"heads": ["sex", "age", "view"]}}, "fedavg": {}}
    path = configure(tmp_path, model={"heads": ["sex", "age", "view"]}, runs=runs)
    code, report = doctor_report(path, capfd)
    found = [c["detail"] for c in report["checks"] if c["check"] == "heads"]
    assert code == 0 and len(found) == 1
    assert "`view` can learn nothing at Lesion:" in found[0] and "Remove it from runs.*.auxiliary" in found[0]
    assert main(["ingest", "--config", str(path)]) == main(["split", "--config", str(path)]) == 0
    said = capfd.readouterr().err
    assert "warning: the auxiliary head `view`" in said and "can learn nothing at Lesion" not in said
    unused = configure(tmp_path, model={"heads": ["sex", "view"]})
    assert "heads" not in checks(doctor_report(unused, capfd)[1])


def test_a_cohort_of_the_paper_without_pretrained_weights_is_warned_about_and_wrong_ones_fail(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tree(tmp_path)
    status, detail = checks(doctor_report(path, capfd)[1])["weights"]
    assert status == "warn" and "NO PRETRAINED WEIGHTS" in detail and "model.weights" in detail
    net = build_network(Model(width=0.0625))
    save_file(net.trunk.state_dict(), tmp_path / "w.safetensors")
    fitting = {"width": 0.0625, "weights": str(tmp_path / "w.safetensors")}
    assert checks(doctor_report(configure(tmp_path, model=fitting), capfd)[1])["weights"][0] == "ok"
    code, report = doctor_report(configure(tmp_path, model=fitting | {"width": 0.125}), capfd)
    assert code == 2 and "of another network" in fail(report)
