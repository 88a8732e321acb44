"""The whole workflow through Snakemake, on the smallest study: one run, then what must hold of its files."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.support.idx_files import write_idx

REPO = Path(__file__).resolve().parents[2]
TINY = REPO / "tests" / "workflow" / "tiny.yaml"


def snakemake(folder: Path, *arguments: str, config: Path = TINY) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["snakemake", "--snakefile", str(REPO / "Snakefile"), "--directory", str(folder), "--cores", "2"]
    return subprocess.run(
        [*command, "--configfile", str(config), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path, "MLFLOW_DISABLE_TELEMETRY": "true"},
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    done = snakemake(folder)
    assert done.returncode == 0, done.stderr[-6000:]
    return folder


def jobs(output: str) -> dict[str, str]:
    """Rule -> number of jobs, from what a dry run says."""
    pairs = (line.split() for line in output.splitlines())
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def runs(study: Path) -> list[Path]:
    return sorted((study / "results" / "tiny" / "runs").glob("*/*/*/done"))


def test_every_artifact_of_the_contract_is_there(study: Path) -> None:
    root = study / "results" / "tiny"
    for name in ("ingest.json", "cohort.json", "leakage.json", "tracked.json", "report/index.html"):
        assert (root / name).stat().st_size > 0, name
    for name in ("report/tables/headline.csv", "report/what_left_each_hospital.csv"):
        assert (root / name).stat().st_size > 0, name
    for name in ("advice/edema.json", "advice/edema.svg", "advice/edema.ledger.jsonl"):
        assert (root / name).stat().st_size > 0, name
    assert 'id="advice"' in (root / "report/index.html").read_text(encoding="utf-8")
    for name in (
        "audit/edema.json",
        "attributes/edema.json",
        "report/tables/pairs.csv",
        "report/tables/attributes.csv",
    ):
        assert (root / name).stat().st_size > 0, name
    for name in ("membership/lesion.json", "membership/edema.json", "report/tables/membership.csv"):
        assert (root / name).stat().st_size > 0, name
    assert "Membership inference" in (root / "report/index.html").read_text(encoding="utf-8")
    assert len(runs(study)) == 8
    for done in runs(study):
        lines = (done.parent / "metrics.jsonl").read_text().splitlines()
        classical = done.parts[-4] in ("tca", "rftca")
        assert [json.loads(line)["round"] for line in lines] == ([1] if classical else [1, 2])
        assert (root / "clients/edema/scores" / done.parent.relative_to(root / "runs")).with_suffix(".json").is_file()


def test_classical_rows_stand_beside_the_federated_ones_and_their_features_are_in_the_ledger(study: Path) -> None:
    root = study / "results" / "tiny"
    headline = pd.read_csv(root / "report" / "tables" / "headline.csv")
    rows = headline[headline["run"].isin(["tca", "rftca"])]
    assert set(rows["run"]) == {"tca", "rftca"} and rows.filter(like="acc").notna().any(axis=None)
    left = pd.read_csv(root / "report" / "what_left_each_hospital.csv")
    features = left[(left["kind"] == "features") & (left["run"] == "tca")]
    assert {"lesion", "edema", "consolidation"} <= set(features["hospital"])
    assert not left[left["run"] == "fedavg"]["kind"].eq("features").any()
    embedded = {p.relative_to(root).parts[:4] for p in root.rglob("features/*/*/*.safetensors")}
    assert {parts[0] for parts in embedded} == {"clients"} and {parts[3] for parts in embedded} == {"init", "fedavg"}


def test_every_run_is_audited_and_every_trained_model_probed(study: Path) -> None:
    root = study / "results" / "tiny"
    audit = json.loads((root / "audit" / "edema.json").read_text())
    assert set(audit["runs"]) == {"fedavg", "gp_auxinfo", "tca", "rftca"}, "classical rows, too"
    probe = json.loads((root / "attributes" / "edema.json").read_text())
    assert set(probe["runs"]) == {"untrained", "fedavg", "gp_auxinfo"}, "classical rows have no model of their own"
    score = json.loads((root / "clients/edema/scores/tca/edema/0.json").read_text())
    low, high = score["bootstrap"]["intervals"]["auc"]
    assert low <= score["auc"] <= high
    assert not list(root.rglob("attributes/*/edema/*.safetensors")), "features of patients are not kept"


def test_every_hospital_asks_the_models_it_had_a_part_in_who_trained_them(study: Path) -> None:
    root = study / "results" / "tiny"
    membership = {p: json.loads((root / "membership" / f"{p}.json").read_text()) for p in ("lesion", "edema")}
    assert set(membership["lesion"]["targets"]["edema"]["runs"]) == {"fedavg", "gp_auxinfo"}
    assert set(membership["edema"]["targets"]["edema"]["runs"]) == {"gp_auxinfo"}, "fedavg has never seen the target"
    assert membership["edema"]["targets"]["edema"]["runs"]["gp_auxinfo"]["calibrated"]["auc"]
    assert "Membership inference" in (root / "report/index.html").read_text(encoding="utf-8")


def test_the_probe_can_be_switched_off(tmp_path: Path) -> None:
    without = tmp_path / "without.yaml"
    without.write_text(TINY.read_text().replace("advise: true", "audit: {attributes: false, membership: false}"))
    dry = snakemake(tmp_path, "-n", config=without)
    assert dry.returncode == 0 and "audit" in dry.stdout and "rule attributes" not in dry.stdout
    assert not (tmp_path / "results").exists(), "a dry run writes nothing"
    assert "membership" not in dry.stdout


def test_nobody_is_in_two_parts_or_two_clients(study: Path) -> None:
    seen: dict[str, tuple[str, str]] = {}
    for client in ("lesion", "edema", "consolidation"):
        rows = pd.read_parquet(study / "results" / "tiny" / "clients" / client / "manifest.parquet")
        for patient, split in zip(rows["patient"], rows["split"], strict=True):
            assert seen.setdefault(patient, (client, split)) == (client, split)
    assert len(seen) > 20


def test_a_second_run_has_nothing_to_do(study: Path) -> None:
    again = snakemake(study)
    assert again.returncode == 0
    assert "Nothing to be done" in again.stderr


def test_a_changed_beta_runs_again_what_it_affects_and_nothing_else(study: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(TINY.read_text().replace("beta: 0.5", "beta: 0.25"))
    dry = snakemake(study, "-n", config=other)
    assert dry.returncode == 0
    counts = jobs(dry.stdout)
    assert counts["federate"] == "2"
    assert "ingest" not in counts and "cache" not in counts


def test_a_changed_threshold_of_the_report_makes_views_again_and_trains_nothing(study: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(TINY.read_text().replace("smallest_cell: 1,", "smallest_cell: 7,"))
    dry = snakemake(study, "-n", config=other)
    assert dry.returncode == 0
    counts = jobs(dry.stdout)
    assert {"audit", "report_page", "track"} <= set(counts)
    assert not {"split", "cache", "federate", "evaluate", "fit_classical"} & set(counts)


def test_a_changed_phantom_reaches_the_training_even_if_its_own_job_failed_before(study: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(TINY.read_text().replace("patients: 150", "patients: 151"))
    note = study / "data" / "tiny" / ".phantom.json"
    kept = note.with_name("kept")
    note.rename(kept)  # what Snakemake leaves of a phantom job that failed
    try:
        counts = jobs(snakemake(study, "-n", config=other).stdout)
    finally:
        kept.rename(note)
    assert counts["phantom"] == "1" and counts["ingest"] == "1" and counts["federate"] == "4"


def test_advice_can_be_asked_for_alone_and_switched_off(tmp_path: Path) -> None:
    alone = snakemake(tmp_path, "-n", "results/tiny/advice/edema.json")
    assert alone.returncode == 0 and "advise" in alone.stdout
    assert "federate" not in alone.stdout, "advice must not wait for training"
    without = tmp_path / "without.yaml"
    without.write_text(TINY.read_text().replace("advise: true", "advise: false"))
    dry = snakemake(tmp_path, "-n", config=without)
    assert dry.returncode == 0 and "federate" in dry.stdout
    assert "advise" not in dry.stdout


def test_mlflow_has_each_run_once_even_after_a_second_import(study: Path) -> None:
    def active() -> list[str]:
        with sqlite3.connect(study / "results" / "mlflow" / "mlflow.db") as db:
            rows = db.execute("select name from runs where lifecycle_stage = 'active' order by name").fetchall()
        return [name for (name,) in rows]

    before = active()
    assert len(before) == len(set(before)) == 9  # eight runs and the report
    (study / "results" / "tiny" / "tracked.json").unlink()
    assert snakemake(study).returncode == 0
    assert active() == before


def test_snakemakes_own_report_and_graph_work(study: Path) -> None:
    assert snakemake(study, "--report", "report.html").returncode == 0
    page = (study / "report.html").read_text(encoding="utf-8")
    assert "page with the whole study" in page and "what left each hospital" in page
    assert "how sure is that?" in page, "its first page says what the study is about"
    graph = snakemake(study, "--rulegraph")
    assert graph.returncode == 0 and "federate" in graph.stdout


def test_a_misspelled_key_stops_before_anything_starts(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(TINY.read_text().replace("beta:", "bta:"))
    stopped = snakemake(tmp_path, config=wrong)
    assert stopped.returncode != 0
    assert "runs.gp_auxinfo.bta" in stopped.stderr and "did you mean `beta`" in stopped.stderr
    assert "wrong.yaml" in stopped.stderr
    assert not (tmp_path / "results").exists()


def test_a_real_run_says_which_configuration_its_views_show_and_a_dry_one_does_not(study: Path, tmp_path: Path) -> None:
    clients = study / "results" / "tiny" / "clients"
    last = (clients / "last_config").read_text()
    kept = set(clients.glob("config.*.json"))
    assert clients / last.strip() in kept
    other = tmp_path / "other.yaml"
    other.write_text(TINY.read_text().replace("smallest_cell: 1,", "public: true,"))
    assert snakemake(study, "-n", config=other).returncode == 0
    assert (clients / "last_config").read_text() == last and set(clients.glob("config.*.json")) == kept


def test_a_killed_training_job_resumes_and_ends_with_the_same_bits(study: Path) -> None:
    folder = study / "results" / "tiny" / "runs" / "gp_auxinfo" / "edema" / "0"
    digest = (folder / "done").read_text()
    metrics = (folder / "metrics.jsonl").read_text()
    assert not list((folder / "state").iterdir()), "a finished run keeps no state"
    for name in ("done", "metrics.jsonl", "theta.safetensors"):
        (folder / name).unlink()
    config = next(
        c for c in (study / "results" / "tiny" / "clients").glob("config.*.json") if '"beta": 0.5' in c.read_text()
    )
    command = ["fdamed", "federate", "--config", config, "--run", "gp_auxinfo", "--target", "edema", "--seed", "0"]
    fdamed = Path(sys.executable).parent / command[0]
    with subprocess.Popen([fdamed, *command[1:]], cwd=study, stderr=subprocess.PIPE, text=True) as training:
        while "round 1/2" not in training.stderr.readline():
            assert training.poll() is None
        training.kill()
    assert not (folder / "done").exists()
    again = snakemake(study)
    assert again.returncode == 0, again.stderr[-3000:]
    log = (study / "results" / "tiny" / "logs" / "federate.gp_auxinfo.edema.0.log").read_text()
    assert "resumed after round 1 of 2" in log
    assert (folder / "done").read_text() == digest
    assert (folder / "metrics.jsonl").read_text() == metrics


def test_a_batch_of_runs_is_one_job_and_a_change_of_one_reaches_its_batch_alone(tmp_path: Path) -> None:
    batched = tmp_path / "batched.yaml"
    batched.write_text(TINY.read_text().replace("advise: true", "batch_runs: 2") + "  fedgp: {}\n")
    dry = snakemake(tmp_path, "-n", config=batched)
    counts = jobs(dry.stdout)
    assert dry.returncode == 0 and "federate" not in counts
    assert counts["federate_0"] == "2" and counts["federate_1"] == "2", "two batches, two seeds"
    assert counts["analyze"] == "1" and not {"evaluate", "audit", "attributes"} & set(counts)


def test_a_public_set_goes_the_same_way_without_radiographs(tmp_path: Path) -> None:
    write_idx(tmp_path / "idx")
    done = snakemake(tmp_path, config=REPO / "tests" / "workflow" / "tiny_benchmark.yaml")
    assert done.returncode == 0, done.stderr[-6000:]
    root = tmp_path / "results" / "tinybench"
    assert {p.name for p in (root / "runs").iterdir()} == {"fedavg", "gp-noise-0.1", "gp-noise-0.2"}
    score = json.loads((root / "clients/C3/scores/gp-noise-0.2/C3/0.json").read_text())
    last = json.loads((root / "clients/C3/rounds/gp-noise-0.2/C3/0.jsonl").read_text().splitlines()[-1])
    assert score["n"] == 100 and score["auc"] is None and score["acc"] == last["test/acc"]
    audit = json.loads((root / "audit" / "C3.json").read_text())
    assert set(audit["runs"]) == {"fedavg", "gp-noise-0.1", "gp-noise-0.2"} and audit["scores"]["acc"]
    inference = json.loads((root / "attributes" / "C3.json").read_text())
    assert inference["attributes"] == {}, "digits have neither sex nor age"
    advice = json.loads((root / "advice" / "C3.json").read_text())
    (cell,) = advice["cells"]
    assert {row["run"] for row in cell["ranking"]} == {"fedavg", "gp-noise-0.1"}, "gp-noise-0.2 has no rival there"
    assert list(advice["predicted"]) == ["fedavg"] and (root / "report/tables/regret.csv").stat().st_size > 0
    assert 'id="advice"' in (root / "report" / "index.html").read_text(encoding="utf-8")
    assert {p.stem for p in (root / "logs").glob("federate*")} == {"federate.batch_0.C3.0", "federate.batch_1.C3.0"}
    assert (root / "logs" / "analyze.C3.log").is_file(), "one process scores and audits the target's runs"


def test_a_second_phase_goes_through_every_rule_and_is_shown_in_the_report_and_mlflow(tmp_path: Path) -> None:
    write_idx(tmp_path / "idx")
    config = REPO / "tests" / "workflow" / "tiny_transfer.yaml"
    done = snakemake(tmp_path, config=config)
    assert done.returncode == 0, done.stderr[-6000:]
    root = tmp_path / "results" / "tinytransfer"
    folder = root / "runs" / "transfer" / "shifted" / "0"
    facts = json.loads((folder / "run.json").read_text())
    first, second = facts["phases"]
    assert (second["method"], second["rounds"]) == ("finetune_head", 2)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, first["rounds"] + 3)) and len(lines) == facts["rounds"]
    kept = root / "clients/shifted"
    score = json.loads((kept / "scores/transfer/shifted/0.json").read_text())
    last = json.loads((kept / "rounds/transfer/shifted/0.jsonl").read_text().splitlines()[-1])
    assert score["acc"] == last["test/acc"] and score["title"] == "FedAvg, then fine-tuned head"
    page = (root / "report" / "index.html").read_text(encoding="utf-8")
    assert "fedavg, then finetune_head" in page and "50% of the sources" in page and "second phase" in page
    costs = pd.read_csv(root / "report" / "tables" / "costs.csv").set_index("run")
    assert "then finetune_head on 30 labeled target images, 2 rounds" in costs.loc["transfer", "work"]
    budget = pd.read_csv(root / "report" / "tables" / "budget.csv").set_index("run")
    assert str(budget.loc["transfer", "labeled"]) == "30" and budget.loc["transfer", "target_steps"] == 4
    with sqlite3.connect(tmp_path / "results" / "mlflow" / "mlflow.db") as db:
        params = dict(db.execute("select key, value from params where key like 'then%'").fetchall())
    assert params == {"then": "finetune_head", "then_rounds": "2", "then_lr": "0.005"} | {
        "then_head": "new",
        "then_optimizer": "kept",
    }
    changed = tmp_path / "changed.yaml"
    changed.write_text(config.read_text().replace("rounds: 2 }", "rounds: 1 }"))
    counts = jobs(snakemake(tmp_path, "-n", config=changed).stdout)
    assert counts["federate"] == "1" and "partition" not in counts, "another second phase trains its own run again"


def test_a_new_seed_writes_all_initial_weights_again_and_trains_only_itself(study: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(TINY.read_text().replace("seeds: [0, 1]", "seeds: [0, 1, 2]"))
    counts = jobs(snakemake(study, "-n", config=other).stdout)
    assert counts["init"] == "1" and counts["evaluate"] == "1"
    assert counts["federate"] == "2" and counts["fit_classical"] == "2"
