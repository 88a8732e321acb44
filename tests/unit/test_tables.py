"""Tables of a study: means, order, suppressed values, and text that no spreadsheet executes."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from fdamed.config.loader import load
from fdamed.config.privacy import local_steps
from fdamed.config.runs import Swept
from fdamed.config.study import Model, Recipe
from fdamed.core.disclosure import LOCAL, hides, released_counts, shareable, to_csv, vague
from fdamed.core.errors import FdamedError
from fdamed.core.run_record import Record, read, study
from fdamed.data.manifest import PARTS
from fdamed.evaluation import ablations, costs, protocol
from fdamed.evaluation import run_tables as tables
from fdamed.evaluation.intervals import Interval, clipped
from tests.support.run_folders import CLIENTS, edit, without_auc, write_lines, write_rounds, write_study

SMALL = {"runs": {"fedavg": {}, "gp": {}}, "train": {"rounds": 3}}


def records_of(config: Path, smallest: int = 11) -> list[Record]:
    return [r for r in (read(p.parent, smallest) for p in sorted(config.parent.glob("runs/*/*/*/done"))) if r]


def test_the_headline_is_the_mean_over_seeds_at_the_target_best_first(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL)
    for seed, auc in zip((0, 1, 2), (0.78, 0.80, 0.82), strict=True):
        edit(config.parent / f"clients/NC/scores/fedavg/NC/{seed}.json", auc=auc)
        edit(config.parent / f"clients/NC/scores/gp/NC/{seed}.json", auc=0.9)
    found = tables.headline(tables.tidy(records_of(config)))
    assert list(found["run"]) == ["gp", "fedavg"]
    row = found.iloc[1]
    assert row["auc"] == pytest.approx(0.8)
    assert row["auc_high"] - row["auc"] == pytest.approx(4.30265 * 0.02 / np.sqrt(3), rel=1e-5)
    assert row["auc_seeds"] == 3


def test_a_finished_run_whose_scores_by_round_are_gone_is_an_error_and_not_a_run_without_scores(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL)
    sorted(config.parent.rglob("clients/*/rounds/*/*/*.jsonl"))[0].unlink()
    with pytest.raises(FdamedError, match="a file of a finished run is missing"):
        records_of(config)


def test_an_undefined_score_is_in_no_mean_and_keeps_its_reason(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL)
    edit(config.parent / "clients/NC/scores/gp/NC/0.json", auc=None, why={"auc": "no positives"}, n=50, positives=0)
    scores = tables.tidy(records_of(config))
    gone = scores[(scores["run"] == "gp") & (scores["seed"] == 0) & (scores["client"] == "NC")].set_index("metric")
    assert gone.loc["auc", "why"] == "no positives"
    assert np.isnan(gone.loc["auc", "value"])
    assert tables.summary(scores)["NC", "gp", "auc"].n == 2


@pytest.mark.parametrize(("n", "positives"), [(10, 5), (100, 10), (100, 90)])
def test_scores_over_few_images_of_a_class_are_suppressed(tmp_path: Path, n: int, positives: int) -> None:
    config = write_study(tmp_path, **SMALL, seeds=[0])
    edit(config.parent / "clients/NC/scores/gp/NC/0.json", n=n, positives=positives)
    records = records_of(config)
    scores = tables.tidy(records)
    mine = scores[(scores["run"] == "gp") & (scores["client"] == "NC")]
    assert mine["value"].isna().all()
    assert mine["why"].str.startswith("suppressed").all()
    assert "gp" not in set(tables.rounds(records)["run"])
    assert tables.tidy(records_of(config, 1))["value"].notna().all()


def test_with_several_targets_the_mean_is_taken_within_a_seed_first(tmp_path: Path) -> None:
    cut = {"by": "condition", "clients": {"A": "Edema", "B": "Pneumonia"}, "target": "each"}
    config = write_study(tmp_path, **SMALL | {"split": cut, "seeds": [0, 1, 2]})
    for target, values in {"A": (0.6, 0.7, 0.8), "B": (0.9, 0.8, 0.9)}.items():
        for seed, auc in enumerate(values):
            edit(config.parent / f"clients/{target}/scores/gp/{target}/{seed}.json", auc=auc)
    (config.parent / "runs/gp/B/2/done").unlink()
    found = tables.summary(tables.tidy(records_of(config)))
    # Seeds 0 and 1 have both targets and the same mean, .75; seed 2 lacks B and is left out.
    assert found[tables.ALL_TARGETS, "gp", "auc"].mean == pytest.approx(0.75)
    assert found[tables.ALL_TARGETS, "gp", "auc"].half == pytest.approx(0.0, abs=1e-12)
    assert (found[tables.ALL_TARGETS, "gp", "auc"].n, found["B", "gp", "auc"].n) == (2, 2)


def test_curves_by_round_have_the_interval_of_the_seeds(tmp_path: Path) -> None:
    records = records_of(write_study(tmp_path, **SMALL))
    found = tables.rounds(records).set_index(["run", "metric", "round"])
    values = [r.rounds[1]["test/auc"] for r in records if r.run == "gp"]
    row = found.loc[("gp", "test/auc", 2)]
    assert row["mean"] == pytest.approx(np.mean(values))
    assert row["high"] - row["mean"] == pytest.approx(4.30265 * np.std(values, ddof=1) / np.sqrt(3), rel=1e-5)


def test_a_round_without_a_value_is_a_gap_not_a_zero(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL | {"seeds": [0]})
    write_rounds(config.parent / "runs/gp/NC/0", [{"round": 1, "test/auc": None}, {"round": 2, "test/auc": 0.7}])
    found = tables.rounds(records_of(config))
    assert found[found["run"] == "gp"]["mean"].isna().tolist() == [True, False]


def test_what_left_is_summed_by_hospital_and_kind(tmp_path: Path) -> None:
    records = records_of(write_study(tmp_path, **SMALL))
    sent = costs.sent(records)
    row = sent[(sent["run"] == "gp") & (sent["hospital"] == "LO") & (sent["kind"] == "update")].iloc[0]
    assert (row["bytes"], row["messages"], row["seeds"]) == (3 * 2_800_000, 3, 3)
    assert row["mb_per_round"] == pytest.approx(2.8)
    assert "server" not in set(sent["hospital"])
    total = costs.by_run(records).set_index("run").loc["gp"]
    assert total["mb_out"] == pytest.approx(4 * 3 * (2_800_000 + 8) / 1e6)


def test_no_csv_cell_is_a_formula_and_numbers_stay_numbers() -> None:
    bad = ["=HYPERLINK(1)", "+1", "-1", "@x", "\tx", "\rx", "fine"]
    frame = pd.DataFrame({"=name": bad, "value": [-0.5] * len(bad)})
    rows = list(csv.reader(io.StringIO(to_csv(frame), newline="")))
    assert rows[0] == ["'=name", "value"]
    assert [r[0] for r in rows[1:]] == ["'" + b.replace("\r", " ") for b in bad[:-1]] + ["fine"]
    assert {r[1] for r in rows[1:]} == {"-0.5"}


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)), min_size=4, max_size=4))
def test_the_cohort_table_hides_small_counts_of_either_class(cells: list[tuple[int, int, int]]) -> None:
    sizes = {
        "images": {s: max(c) for s, c in zip(PARTS, cells, strict=True)},
        "patients": {s: c[1] for s, c in zip(PARTS, cells, strict=True)},
        "positives": {s: c[2] for s, c in zip(PARTS, cells, strict=True)},
    }
    frame = protocol.sizes({"clients": {"A": released_counts(sizes, 11)}}, 11)
    for _, row in frame.iterrows():
        public = {"images"} if row["part"] in ("train", "adapt", protocol.TOTAL) else set()  # sent with every update
        for column in {"images", "patients", "positives"} - public:
            assert isinstance(row[column], str) or row[column] == 0 or row[column] >= 11
        if not isinstance(row["images"], str) and not isinstance(row["positives"], str):
            negatives = row["images"] - row["positives"]
            assert negatives == 0 or negatives >= 11
        else:
            assert row["rate"] == protocol.HIDDEN
    parts, total = frame.iloc[:4], frame.iloc[4]
    for column in ("images", "patients", "positives"):
        hidden = parts[column].map(lambda v: isinstance(v, str)).any()
        assert isinstance(total[column], str) == hidden


def test_counts_in_words_and_scores_obey_the_smallest_cell() -> None:
    assert (vague(0, 11), vague(3, 11), vague(11, 11)) == ("0", "1 to 10", "11")
    assert [hides(*c, 11) for c in ((0, 0), (50, 0), (50, 25), (50, 45))] == [False, False, False, True]


def test_a_shared_configuration_names_no_secret_and_no_place() -> None:
    given_ = {
        "data": {"root": "data/x", "salt": "s", "layout": "chexpert"},
        "model": {"weights": "/a/b.pth"},
        "w": ["~/c"],
    }
    kept = {"data": {"root": LOCAL, "salt": LOCAL, "layout": "chexpert"}, "model": {"weights": LOCAL}, "w": [LOCAL]}
    assert shareable(given_) == kept
    assert shareable({"tracking": {"uri": "https://user:word@host"}}) == {"tracking": {"uri": LOCAL}}


def test_unfinished_runs_are_named_not_read(tmp_path: Path) -> None:
    config = write_study(tmp_path, missing=(("gp", "NC", 1),), **SMALL)
    keys = [(r, "NC", s) for r in ("fedavg", "gp") for s in (0, 1, 2)]
    records, missing = study(config.parent / "runs", keys, 11)
    assert len(records) == 5
    assert missing == [("gp", "NC", 1)]


SCORES = "../../../../clients/NC/scores/gp/NC/0.json"


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "ledger.jsonl", SCORES])
def test_a_broken_file_of_a_finished_run_is_one_clear_error(tmp_path: Path, name: str) -> None:
    folder = write_study(tmp_path, **SMALL).parent / "runs/gp/NC/0"
    (folder / name).write_text('{"round": 1, ')
    with pytest.raises(FdamedError) as caught:
        read(folder, 11)
    assert name.removeprefix("../../../../") in caught.value.where
    assert "Delete" in caught.value.fix


def test_the_digest_of_a_run_changes_with_each_of_its_files(tmp_path: Path) -> None:
    folder = write_study(tmp_path, **SMALL).parent / "runs/gp/NC/0"
    seen = {read(folder, 11).digest}  # type: ignore[union-attr]
    edit(folder / SCORES, acc=0.1234)
    seen.add(read(folder, 11).digest)  # type: ignore[union-attr]
    (folder / "done").write_text("other")
    seen.add(read(folder, 11).digest)  # type: ignore[union-attr]
    assert len(seen) == 3
    assert len(CLIENTS) == 5


# --- scores that are no shares, classes that are no pairs ------------------------------------------------------------


def test_intervals_of_shares_end_at_0_and_1(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL)
    for seed, auc in zip((0, 1, 2), (0.90, 1.00, 0.98), strict=True):
        edit(config.parent / f"clients/NC/scores/gp/NC/{seed}.json", auc=auc)
        write_rounds(config.parent / f"runs/gp/NC/{seed}", [{"round": 1, "test/auc": auc}])
    records = records_of(config)
    row = tables.headline(tables.tidy(records)).set_index("run").loc["gp"]
    assert row["auc"] == pytest.approx(0.96)
    assert (row["auc_high"], row["auc_low"]) == (1.0, pytest.approx(0.96 - 4.30265 * 0.0529150 / np.sqrt(3), rel=1e-4))
    by_round = tables.rounds(records).set_index(["run", "metric"]).loc[("gp", "test/auc")]
    assert float(by_round["high"]) == 1.0
    assert clipped(Interval(0.02, 0.1, 3)) == (0.0, pytest.approx(0.12))
    assert clipped(Interval(0.5, None, 1)) == (None, None)


def test_with_many_classes_the_accuracy_is_the_main_score(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL)
    assert tables.main_score(tables.tidy(records_of(config))) == "auc"
    for folder in config.parent.glob("runs/*/*/*"):
        without_auc(folder)
    scores = tables.tidy(records_of(config))
    assert tables.main_score(scores) == "acc"
    assert list(tables.headline(scores, ("acc",))["run"]) == ["gp", "fedavg"]
    edit(config.parent / "clients/NC/scores/gp/NC/0.json", n=10)
    hidden = tables.tidy(records_of(config))
    assert hidden[(hidden["run"] == "gp") & (hidden["seed"] == 0) & (hidden["client"] == "NC")]["value"].isna().all()


# --- sweeps ----------------------------------------------------------------------------------------------------------


def test_runs_over_the_same_option_share_a_sweep_and_values_are_in_order() -> None:
    swept = {f"gp-beta-{v}": Swept("gp", {"beta": v}) for v in (0.8, 0, 0.2)}
    swept |= {f"fedgp-beta-{v}": Swept("fedgp", {"beta": v}) for v in (0.2, 0.4)}
    swept |= {f"few-labeled-{v}": Swept("few", {"labeled": v}) for v in (100, 20)}
    beta, labeled = ablations.sweeps(swept)
    assert (beta.options, list(beta.runs)) == (("beta",), ["gp", "fedgp"])
    assert beta.values == [(0,), (0.2,), (0.4,), (0.8,)]
    assert (beta.numeric, beta.logarithmic) == (True, False)
    assert (labeled.values, labeled.logarithmic) == ([(20,), (100,)], True)
    summary = {("NC", "gp-beta-0.2", "auc"): Interval(0.7, 0.4, 3)}
    table = ablations.sweep_table([beta], summary, ["NC"], ["auc"])
    assert list(table["value"]) == ["0", "0.2", "0.8", "0.2", "0.4"]
    assert table.iloc[1][["run", "mean", "high", "seeds"]].tolist() == ["gp", 0.7, 1.0, 3]
    assert table["mean"].isna().tolist() == [True, False, True, True, True]


def test_two_options_make_one_sweep_of_pairs_and_words_are_no_numbers() -> None:
    pairs = [("model", 0.5), ("layer", 0.5), ("layer", 0.1)]
    swept = {f"gp-{g}-{b}": Swept("gp", {"granularity": g, "beta": b}) for g, b in pairs}
    (sweep,) = ablations.sweeps(swept)
    assert sweep.options == ("beta", "granularity")
    assert sweep.runs["gp"][0.5, "model"] == "gp-model-0.5"
    assert not sweep.numeric


# --- protocol --------------------------------------------------------------------------------------------------------


def test_validation_chooses_the_first_best_round_and_never_looks_at_the_test_split() -> None:
    rows = [
        {"round": 1, "val/auc": 0.6, "val/acc": 0.9, "test/auc": 0.99},
        {"round": 2, "val/auc": 0.8, "val/acc": 0.5, "test/auc": 0.70},
        {"round": 3, "val/auc": 0.8, "val/acc": 0.6, "test/auc": 0.90},
        {"round": 4, "val/auc": None, "val/acc": 0.95, "test/auc": 0.95},
    ]
    chosen = protocol.chosen_round(rows)
    assert chosen is not None and chosen["round"] == 2
    without = protocol.chosen_round([row | {"val/auc": None} for row in rows])
    assert without is not None and without["round"] == 4
    assert protocol.chosen_round([{"round": 1, "test/auc": 0.9}]) is None


def test_the_score_at_the_chosen_round_is_a_mean_over_seeds(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL)
    for seed, best in zip((0, 1, 2), (1, 2, 2), strict=True):
        lines: list[dict[str, object]] = [
            {"round": r, "val/auc": float(r == best), "test/auc": 0.1 * r + 0.1 * seed, "test/acc": 0.5}
            for r in (1, 2, 3)
        ]
        write_rounds(config.parent / f"runs/gp/NC/{seed}", lines)
    found = protocol.at_chosen_round(records_of(config))
    assert found["NC", "gp", "auc"].mean == pytest.approx((0.1 + 0.3 + 0.4) / 3)
    assert found["NC", "gp", "round"].mean == pytest.approx(5 / 3)
    for seed in (0, 1, 2):
        edit(config.parent / f"clients/NC/scores/gp/NC/{seed}.json", n=60, positives=7)
    assert ("NC", "gp", "auc") not in protocol.at_chosen_round(records_of(config))


def test_steps_are_counted_as_the_training_loop_makes_them() -> None:
    # 65 = 32 + 32 + 1, and a last batch of one is left out.
    assert [local_steps(n, Recipe(lr=1.0, batch=32, epochs=2)) for n in (64, 65, 66, 1)] == [4, 4, 6, 2]


def test_budgets_follow_from_sizes_labels_and_who_takes_part(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL | {"runs": {"fedavg": {}, "gp": {"labeled": 33}, "oracle": {}}})
    sizes = {"clients": {p: {"images": {"train": 60, "adapt": 40, "val": 9}} for p in CLIENTS}}
    found = protocol.budgets(records_of(config), load(config), sizes).set_index("run")
    # Sources: 100 images in batches of 32, the last one of 4. Target: 33 in batches of 16, the last of one left out.
    assert found[["source_steps", "sources", "labeled", "target_steps"]].T.to_dict("list") == {
        "fedavg": [16, 4, "0", 0],
        "gp": [16, 4, "33", 2],
        "oracle": [0, 0, "100 (all)", 4],
    }


# --- costs -----------------------------------------------------------------------------------------------------------


def test_the_parameters_are_those_of_the_papers_table_3(tmp_path: Path) -> None:
    aux = {"method": "gp", "auxiliary": {"heads": ["sex", "age", "view"]}}
    private = {"method": "gp", "auxiliary": aux["auxiliary"] | {"share": False}}
    runs = {"finetune": {}, "gp_auxinfo": aux, "private": private}
    model = {"heads": ["sex", "age", "view"]}
    config = write_study(tmp_path, **SMALL | {"runs": runs, "model": model, "seeds": [0]})
    for run in runs:  # shared heads are a part of the network
        size = 11_242_434 + (129 * 14 if run == "gp_auxinfo" else 0)
        edit(config.parent / f"runs/{run}/NC/0/run.json", parameters=size)
    settings_ = load(config)
    found = {c.run: c for c in costs.compute_costs(records_of(config), settings_.expanded_runs(), settings_.model, {})}
    assert (found["finetune"].parameters, found["gp_auxinfo"].parameters) == (56_212_170, 56_221_200)
    assert found["private"].parameters == 56_219_394  # the target has none
    assert costs.head_parameters(["age"], Model()) == 129 * 10


def test_seconds_leave_out_the_first_round_and_warm_up_and_are_held_against_fine_tuning(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL | {"runs": {"finetune": {}, "gp": {}}, "seeds": [0]})
    for run, spent in {"finetune": (99, 2, 4), "gp": (99, 50, 6)}.items():
        rows: list[dict[str, object]] = [
            {"round": i + 1, "seconds": s, "started": "2026-01-01T00:00:00+00:00"} for i, s in enumerate(spent)
        ]
        write_lines(config.parent / f"runs/{run}/NC/0/timing.jsonl", rows)
    phases = [{"phase": "warmup", "method": "fedavg", "rounds": 2}, {"phase": "main", "method": "gp", "rounds": 1}]
    edit(config.parent / "runs/gp/NC/0/run.json", phases=phases)
    settings_ = load(config)
    found = {c.run: c for c in costs.compute_costs(records_of(config), settings_.expanded_runs(), settings_.model, {})}
    assert (found["finetune"].seconds.mean, found["gp"].seconds.mean) == (3.0, 6.0)
    assert (found["finetune"].ratio, found["gp"].ratio) == (1.0, 2.0)


# --- gains -----------------------------------------------------------------------------------------------------------


def test_a_gain_is_paired_within_seeds_and_needs_a_run_without_heads(tmp_path: Path) -> None:
    runs = {
        "finetune": {},
        "sex": {"method": "finetune", "auxiliary": {"heads": ["sex"]}},
        "both": {"method": "finetune", "auxiliary": {"heads": ["sex", "age"]}},
        "gp_sex": {"method": "gp", "auxiliary": {"heads": ["sex"]}},
        "other": {"method": "finetune", "labeled": 50, "auxiliary": {"heads": ["age"]}},
    }
    config = write_study(tmp_path, **SMALL | {"runs": runs, "model": {"heads": ["sex", "age"]}})
    values = {"finetune": (0.5, 0.6, 0.7), "sex": (0.6, 0.7, 0.8), "both": (0.5, 0.7, 0.9)}
    for run, aucs in values.items():
        for seed, auc in enumerate(aucs):
            edit(config.parent / f"clients/NC/scores/{run}/NC/{seed}.json", auc=auc)
    found = ablations.auxiliary_gains(load(config).expanded_runs(), tables.tidy(records_of(config)), "auc", "NC")
    assert found[["base", "run", "heads"]].to_numpy().tolist() == [
        ["finetune", "sex", "sex"],
        ["finetune", "both", "sex + age"],
    ]
    # +0.1 in every seed: certain, though the seeds themselves differ by 0.1.
    assert found["gain"].tolist() == pytest.approx([0.1, 0.1])
    assert (found["gain"] - found["low"]).tolist() == pytest.approx([0.0, 4.30265 * 0.1 / 3**0.5], abs=1e-6)


def test_the_parts_that_a_method_needs_besides_are_counted(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL | {"runs": {"finetune": {}, "fada": {}}, "seeds": [0]})
    edit(config.parent / "runs/fada/NC/0/run.json", extra_parameters=157_712)
    settings_ = load(config)
    found = {c.run: c for c in costs.compute_costs(records_of(config), settings_.expanded_runs(), settings_.model, {})}
    assert found["fada"].parameters - found["finetune"].parameters == 157_712


def test_models_of_single_hospitals_that_the_server_passed_on_are_rows_of_their_own(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL | {"runs": {"kd3a": {}}, "seeds": [0]})
    path = config.parent / "runs/kd3a/NC/0/ledger.jsonl"
    who = '{"round": 1, "from": "server", "to": "NC", "step": "learn", '
    line = who + '"kind": "individual", "bytes": 9000, "messages": 1}\n'
    path.write_text(path.read_text() + line)
    sent = costs.sent(records_of(config))
    row = sent[sent["hospital"] == "server"]
    assert row[["to", "kind", "bytes"]].to_numpy().tolist() == [["NC", "individual", 9000.0]]
