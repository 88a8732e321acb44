"""Tables of a study: means, order, what is hidden, and text that nobody's spreadsheet runs."""

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

from run_folders import PARTIES, edit, write_study

from fdamed.disclosure import LOCAL, counts, hides, shareable, vague
from fdamed.errors import FdamedError
from fdamed.evaluate import cohort, tables, traffic
from fdamed.records import Record, read, study

SMALL = {"runs": {"fedavg": {}, "gp": {}}, "train": {"rounds": 3}}


def records_of(config: Path) -> list[Record]:
    return [r for r in (read(p.parent) for p in sorted(config.parent.glob("runs/*/*/*/done"))) if r]


def test_the_headline_is_the_mean_over_seeds_at_the_target_best_first(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL)
    for seed, auc in zip((0, 1, 2), (0.78, 0.80, 0.82), strict=True):
        edit(config.parent / f"runs/fedavg/NC/{seed}/scores/NC.json", auc=auc)
        edit(config.parent / f"runs/gp/NC/{seed}/scores/NC.json", auc=0.9)
    found = tables.headline(tables.tidy(records_of(config), 11))
    assert list(found["run"]) == ["gp", "fedavg"]
    row = found.iloc[1]
    assert row["auc"] == pytest.approx(0.8)
    assert row["auc_high"] - row["auc"] == pytest.approx(4.30265 * 0.02 / np.sqrt(3), rel=1e-5)
    assert row["auc_seeds"] == 3


def test_an_undefined_score_is_in_no_mean_and_keeps_its_reason(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL)
    edit(config.parent / "runs/gp/NC/0/scores/NC.json", auc=None, why={"auc": "no positives"}, n=50, positives=0)
    scores = tables.tidy(records_of(config), 11)
    gone = scores[(scores["run"] == "gp") & (scores["seed"] == 0) & (scores["party"] == "NC")].set_index("metric")
    assert gone.loc["auc", "why"] == "no positives"
    assert np.isnan(gone.loc["auc", "value"])
    assert tables.summary(scores)["NC", "gp", "auc"].n == 2


@pytest.mark.parametrize(("n", "positives"), [(10, 5), (100, 10), (100, 90)])
def test_scores_over_few_images_of_a_class_are_suppressed(tmp_path: Path, n: int, positives: int) -> None:
    config = write_study(tmp_path, **SMALL, seeds=[0])
    edit(config.parent / "runs/gp/NC/0/scores/NC.json", n=n, positives=positives)
    records = records_of(config)
    scores = tables.tidy(records, 11)
    mine = scores[(scores["run"] == "gp") & (scores["party"] == "NC")]
    assert mine["value"].isna().all()
    assert mine["why"].str.startswith("suppressed").all()
    assert "gp" not in set(tables.rounds(records, 11)["run"])
    assert tables.tidy(records, 1)["value"].notna().all()


def test_with_several_targets_the_mean_is_taken_within_a_seed_first(tmp_path: Path) -> None:
    cut = {"by": "condition", "parties": {"A": "Edema", "B": "Pneumonia"}, "target": "each"}
    config = write_study(tmp_path, **SMALL | {"cut": cut, "seeds": [0, 1, 2]})
    for target, values in {"A": (0.6, 0.7, 0.8), "B": (0.9, 0.8, 0.9)}.items():
        for seed, auc in enumerate(values):
            edit(config.parent / f"runs/gp/{target}/{seed}/scores/{target}.json", auc=auc)
    (config.parent / "runs/gp/B/2/done").unlink()
    found = tables.summary(tables.tidy(records_of(config), 11))
    # Seeds 0 and 1 have both targets and the same mean, .75; seed 2 lacks B and is left out.
    assert found[tables.ALL_TARGETS, "gp", "auc"].mean == pytest.approx(0.75)
    assert found[tables.ALL_TARGETS, "gp", "auc"].half == pytest.approx(0.0, abs=1e-12)
    assert (found[tables.ALL_TARGETS, "gp", "auc"].n, found["B", "gp", "auc"].n) == (2, 2)


def test_curves_by_round_have_the_interval_of_the_seeds(tmp_path: Path) -> None:
    records = records_of(write_study(tmp_path, **SMALL))
    found = tables.rounds(records, 11).set_index(["run", "metric", "round"])
    values = [r.rounds[1]["test/auc"] for r in records if r.run == "gp"]
    row = found.loc[("gp", "test/auc", 2)]
    assert row["mean"] == pytest.approx(np.mean(values))
    assert row["high"] - row["mean"] == pytest.approx(4.30265 * np.std(values, ddof=1) / np.sqrt(3), rel=1e-5)


def test_a_round_without_a_value_is_a_gap_not_a_zero(tmp_path: Path) -> None:
    config = write_study(tmp_path, **SMALL | {"seeds": [0]})
    path = config.parent / "runs/gp/NC/0/metrics.jsonl"
    path.write_text('{"round": 1, "test/auc": null}\n{"round": 2, "test/auc": 0.7}\n')
    found = tables.rounds(records_of(config), 11)
    assert found[found["run"] == "gp"]["mean"].isna().tolist() == [True, False]


def test_what_left_is_summed_by_hospital_and_kind(tmp_path: Path) -> None:
    records = records_of(write_study(tmp_path, **SMALL))
    sent = traffic.sent(records)
    row = sent[(sent["run"] == "gp") & (sent["hospital"] == "LO") & (sent["kind"] == "update")].iloc[0]
    assert (row["bytes"], row["messages"], row["seeds"]) == (3 * 2_800_000, 3, 3)
    assert row["mb_per_round"] == pytest.approx(2.8)
    assert "server" not in set(sent["hospital"])
    total = traffic.by_run(records).set_index("run").loc["gp"]
    assert total["mb_out"] == pytest.approx(4 * 3 * (2_800_000 + 8) / 1e6)


def test_no_csv_cell_is_a_formula_and_numbers_stay_numbers() -> None:
    bad = ["=HYPERLINK(1)", "+1", "-1", "@x", "\tx", "\rx", "fine"]
    frame = pd.DataFrame({"=name": bad, "value": [-0.5] * len(bad)})
    rows = list(csv.reader(io.StringIO(tables.to_csv(frame), newline="")))
    assert rows[0] == ["'=name", "value"]
    assert [r[0] for r in rows[1:]] == ["'" + b.replace("\r", " ") for b in bad[:-1]] + ["fine"]
    assert {r[1] for r in rows[1:]} == {"-0.5"}


def test_markdown_and_html_show_what_they_must_not_obey() -> None:
    frame = pd.DataFrame({"run": ["<script>x</script>", "a|b\nc"], "auc": [0.5, np.nan]})
    assert tables.to_markdown(frame).splitlines()[2:] == ["| &lt;script&gt;x&lt;/script&gt; | 0.5 |", "| a\\|b c |  |"]
    assert "<script>" not in tables.to_html(frame)
    assert "<td></td>" in tables.to_html(frame)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=6))
def test_no_small_count_is_shown_or_can_be_worked_out(cells: list[int]) -> None:
    *shown, total = counts(cells, 11)
    assert all(c is None or c == 0 or c >= 11 for c in shown)
    assert total is None if None in shown else total == sum(cells)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)), min_size=4, max_size=4))
def test_the_cohort_table_hides_small_counts_of_either_class(cells: list[tuple[int, int, int]]) -> None:
    sizes = {
        "images": {s: max(c) for s, c in zip(cohort.SPLITS, cells, strict=True)},
        "patients": {s: c[1] for s, c in zip(cohort.SPLITS, cells, strict=True)},
        "positives": {s: c[2] for s, c in zip(cohort.SPLITS, cells, strict=True)},
    }
    frame = cohort.sizes({"parties": {"A": sizes}}, 11)
    for _, row in frame.iterrows():
        for column in ("images", "patients", "positives"):
            assert isinstance(row[column], str) or row[column] == 0 or row[column] >= 11
        if not isinstance(row["images"], str) and not isinstance(row["positives"], str):
            negatives = row["images"] - row["positives"]
            assert negatives == 0 or negatives >= 11
        else:
            assert row["rate"] == cohort.HIDDEN
    splits, total = frame.iloc[:4], frame.iloc[4]
    for column in ("images", "patients", "positives"):
        hidden = splits[column].map(lambda v: isinstance(v, str)).any()
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
    records, missing = study(config.parent / "runs", keys)
    assert len(records) == 5
    assert missing == [("gp", "NC", 1)]


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "ledger.jsonl", "scores/NC.json"])
def test_a_broken_file_of_a_finished_run_is_one_clear_error(tmp_path: Path, name: str) -> None:
    folder = write_study(tmp_path, **SMALL).parent / "runs/gp/NC/0"
    (folder / name).write_text('{"round": 1, ')
    with pytest.raises(FdamedError) as caught:
        read(folder)
    assert name in caught.value.where
    assert "Delete" in caught.value.fix


def test_the_digest_of_a_run_changes_with_each_of_its_files(tmp_path: Path) -> None:
    folder = write_study(tmp_path, **SMALL).parent / "runs/gp/NC/0"
    seen = {read(folder).digest}  # type: ignore[union-attr]
    edit(folder / "scores/NC.json", acc=0.1234)
    seen.add(read(folder).digest)  # type: ignore[union-attr]
    (folder / "done").write_text("other")
    seen.add(read(folder).digest)  # type: ignore[union-attr]
    assert len(seen) == 3
    assert len(PARTIES) == 5
