"""The report: results with their uncertainty, and nothing that must not be released."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))


from fdamed.cli.main import main
from fdamed.config.loader import parse
from fdamed.core.counts import counts_of
from fdamed.evaluation.intervals import Interval, counted, interval, listed, megabytes, signed
from fdamed.evaluation.run_tables import ALL_TARGETS
from fdamed.report import paper_tables as beside
from fdamed.report.plots.figure import ticks
from fdamed.report.plots.lines import Line, against_cost, by_round
from fdamed.report.plots.lines import Path as Trail
from tests.support.run_folders import (
    CLIENTS,
    edit,
    note_by_round,
    without_auc,
    write_absences,
    write_rounds,
    write_run,
    write_study,
)

STUDY = {"runs": {"fedavg": {}, "gp": {}}, "train": {"rounds": 4}}


class Balanced(HTMLParser):
    """Fails on a tag that is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()


def report(config: Path) -> str:
    assert main(["report", "--config", str(config)]) == 0
    page = (config.parent / "report/index.html").read_text(encoding="utf-8")
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    return page


def visible(page: str) -> str:
    """The page's words, without style, script and tags."""
    bare = re.sub(r"(?s)<(style|script)>.*?</\1>|<[^>]+>", " ", page)
    return " ".join(bare.replace("\xa0", " ").replace("&nbsp;", " ").split())


def test_the_report_is_one_file_that_fetches_nothing(tmp_path: Path) -> None:
    page = report(write_study(tmp_path, **STUDY))
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    assert not re.search(r"<(link|img|iframe)\b|\bsrc=|@import|url\(", page)
    assert "default-src 'none'" in page


def test_every_file_of_the_report_is_there_and_made_again_it_is_the_same(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    report(config)
    folder = config.parent / "report"
    for name in ("headline", "scores", "rounds", "bytes", "cohort"):
        assert (folder / f"tables/{name}.csv").is_file()
    for name in ("headline", "rounds_auc", "rounds_acc", "cost", "sent"):
        figure = (folder / f"figures/{name}.svg").read_text(encoding="utf-8")
        assert figure.startswith('<svg xmlns="http://www.w3.org/2000/svg"') and "var(" not in figure
    assert "hospital" in (folder / "what_left_each_hospital.csv").read_text().splitlines()[0]
    assert not list(folder.rglob("*.part"))
    first = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    report(config)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == first


def test_the_report_owns_its_folder_and_leaves_nothing_of_what_it_showed_before(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    folder = config.parent / "report"
    for name in ("tables/gaps.csv", "figures/calibration_gp_NC.svg"):  # as of a study that was public
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("17 positives")
    (folder / "mine.txt").touch()
    report(config)
    assert not (folder / "tables/gaps.csv").exists() and not (folder / "figures/calibration_gp_NC.svg").exists()
    assert (folder / "tables/headline.csv").is_file() and (folder / "mine.txt").exists()


def test_the_way_from_rows_to_images_is_a_table_without_small_counts(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    clients = json.loads((config.parent / "cohort.json").read_text())["clients"]
    images = {c: sum(counts_of(config.parent, c)["images"].values()) for c in clients}
    left = {"without a usable label": 40, "beyond balance and sizes of the parts": 0}
    few = left | {"without a usable label": 7}
    edit(
        config.parent / "clients/cohort.json",
        left_out={c: few if c == "NC" else left for c in clients},
        rows={c: n + (7 if c == "NC" else 40) for c, n in images.items()},
    )
    (config.parent / "clients/NC/rejects.csv").write_text("file,row,reason,detail\na.png,,TRUNCATED,\n")
    page = visible(report(config))
    assert "From rows to images" in page
    flow = config.parent / "report/tables/flow.csv"
    table = pd.read_csv(flow, dtype=str).set_index("hospital")
    assert table.loc["NC", "without a usable label"] == table.loc["NC", "rows"] == "hidden"
    assert table.loc["NC", "unreadable"] == "TRUNCATED <11"
    steps = ["rows", "without a usable label", "images", "unreadable"]
    assert table.loc["ED", steps].tolist() == ["hidden", "hidden", str(images["ED"]), "0"], "ED has the rows of NC"
    edit(config.parent / "clients/cohort.json", by="site")
    report(config)
    table = pd.read_csv(flow, dtype=str).set_index("hospital")
    assert table.loc["NC", "without a usable label"] == table.loc["NC", "rows"] == "hidden"
    assert table.loc["ED", steps].tolist() == [str(images["ED"] + 40), "40", str(images["ED"]), "0"]


def test_phantoms_are_named_loudly_and_real_data_are_not(tmp_path: Path) -> None:
    assert "Synthetic phantoms." in visible(report(write_study(tmp_path / "a", **STUDY)))
    assert "Synthetic phantoms" not in visible(report(write_study(tmp_path / "b", **STUDY, phantom=None)))


def test_names_and_texts_are_shown_not_run(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    config = write_study(tmp_path, **STUDY)
    for seed in (0, 1, 2):
        folder = config.parent / f"runs/gp/NC/{seed}"
        edit(folder / "run.json", method=evil, versions={"torch": evil})
        ledger = (folder / "ledger.jsonl").read_text().replace('"update"', '"\\"><script>x</script>"')
        (folder / "ledger.jsonl").write_text(ledger)
        layers = (folder / "layers.jsonl").read_text().replace("layer1.0.conv1", evil)
        (folder / "layers.jsonl").write_text(layers)
    edit(config.parent / "clients/ingest.json", rejected={evil: 40})
    page = report(config)
    assert page.count("<script>") == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_secrets_and_places_are_not_in_the_report(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    report(config)
    for path in (config.parent / "report").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert b"a-secret-salt" not in content and b"/secret/place" not in content, path
        assert str(tmp_path).encode() not in content, path


def test_missing_runs_are_listed_and_counted(tmp_path: Path) -> None:
    config = write_study(tmp_path, missing=(("gp", "NC", 1),), **STUDY)
    text = visible(report(config))
    assert "1 of 6 runs is missing" in text
    assert "gp / NC / seed 1" in text


def test_a_run_that_never_finished_has_its_line(tmp_path: Path) -> None:
    config = write_study(tmp_path, missing=tuple(("gp", "NC", s) for s in (0, 1, 2)), **STUDY)
    text = visible(report(config))
    assert "3 of 6 runs are missing" in text
    assert "gp gp not run" in text


def test_one_seed_gives_no_interval_and_says_so(tmp_path: Path) -> None:
    page = report(write_study(tmp_path, **STUDY | {"seeds": [0]}))
    assert "One seed." in page
    assert " ± 0." not in visible(page[: page.index('id="published"')])
    assert 'class="band"' not in page


def test_undefined_scores_and_rounds_are_listed_not_drawn_as_zero(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    for seed in (0, 1, 2):
        folder = config.parent / f"runs/gp/NC/{seed}"
        score = config.parent / f"clients/NC/scores/{folder.parts[-3]}/NC/{folder.name}.json"
        edit(score, auc=None, why={"auc": "no positives"}, positives=0)
        write_rounds(folder, [{"round": 1, "test/acc": 0.5, "test/auc": None}])
    text = visible(report(config))
    assert "no positives" in text
    assert "fedavg reaches an AUC of" in text and "no other method to compare it with" in text


def test_small_cells_show_nowhere(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    for seed in (0, 1, 2):
        edit(config.parent / f"clients/NC/scores/gp/NC/{seed}.json", n=60, positives=7)
        edit(config.parent / f"clients/NC/scores/fedavg/NC/{seed}.json", n=60, positives=7)
    text = visible(report(config))
    assert "suppressed: fewer than 11 patients, or images of a class" in text
    assert "no run has an AUC at NC (suppressed: fewer than 11 patients, or images of a class)" in text
    assert "LABEL_OUT_OF_RANGE <11" in text.replace("&lt;", "<")
    assert "1 to 10 near-duplicate images" in text


def test_a_report_without_scores_counts_its_seeds_and_names_the_remedy_and_no_plot(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    for run in ("fedavg", "gp"):
        for seed in (0, 1, 2):
            edit(config.parent / f"clients/NC/scores/{run}/NC/{seed}.json", n=60, positives=7)
    page = report(config)
    assert "Every score is in clients/NC/scores/" in visible(page) and "privacy: public" in visible(page)
    assert re.findall(r'<td class="num" data-value="3">3</td>', section(page, "scores"))
    assert "Marks: mean" not in visible(section(page, "scores"))
    assert "Further left is cheaper" not in visible(section(page, "efficiency"))


def test_a_rounded_auc_is_said_to_be_so_and_its_interval_holds_what_rounding_hides(tmp_path: Path) -> None:
    """Three AUCs that round to 0.80 may differ by 0.01: half of the interval is 2.484 * 0.005 * sqrt(3/2)."""
    config = write_study(tmp_path, **STUDY)
    positives = counts_of(config.parent, "NC")["positives"] | {"val": 7}
    edit(config.parent / "clients/NC/counts.json", positives=positives)
    for seed, auc in enumerate((0.801, 0.802, 0.803)):
        edit(config.parent / f"clients/NC/scores/gp/NC/{seed}.json", n=60, positives=30, auc=auc)
    part = section(report(config), "scores")
    assert "0.800 ± 0.015" in part and "The AUC at NC is rounded to 0.01" in visible(part)
    assert part.count("the number of positives, which is hidden, would follow from it") == 1
    assert len(re.findall(r'<td class="num none" data-value="">hidden</td>', part)) == 2, "the accuracy of both runs"


def test_each_target_has_its_view_and_their_mean_comes_first(tmp_path: Path) -> None:
    cut = {"by": "condition", "clients": dict(list(CLIENTS.items())[:3]), "target": "each"}
    config = write_study(tmp_path, **STUDY | {"split": cut, "seeds": [0, 1]})
    page = report(config)
    tabs = re.findall(r'<button type="button" data-view="(\d)" aria-pressed="(\w+)">([^<]+)', page)
    assert tabs == [("0", "true", ALL_TARGETS), ("1", "false", "LO"), ("2", "false", "CO"), ("3", "false", "ED")]
    assert "No method is better than all others at each of 3 targets." in visible(page)


def test_the_mean_over_targets_says_what_is_hidden_at_one_of_them(tmp_path: Path) -> None:
    cut = {"by": "condition", "clients": dict(list(CLIENTS.items())[:3]), "target": "each"}
    config = write_study(tmp_path, **STUDY | {"split": cut, "seeds": [0, 1]})
    first = next(iter(cut["clients"]))
    positives = counts_of(config.parent, first)["positives"] | {"val": 7}
    edit(config.parent / f"clients/{first}/counts.json", positives=positives)
    part = section(report(config), "scores").partition('data-view="1"')[0]
    assert "not run" not in part and '<td class="num none" data-value="">hidden</td>' in part
    assert f"The AUC at {first} is rounded to" in part
    assert "Not every target has enough validation images to choose a round by" in visible(part)


def test_bytes_are_a_mean_over_the_targets_that_ran(tmp_path: Path) -> None:
    cut = {"by": "condition", "clients": dict(list(CLIENTS.items())[:3]), "target": "each"}
    gone = tuple(("gp", "LO", s) for s in (0, 1, 2))
    page = report(write_study(tmp_path, missing=gone, **STUDY | {"split": cut}))
    rows = re.findall(r'<tr><th scope="row" data-value="gp">gp</th><td data-value="update">update</td>.*?</tr>', page)
    cells = re.findall(r'data-value="([\d.]+)"', rows[0])
    # Targets CO and ED: LO sends in both, 4 rounds of 2.8 MB; CO and ED in one of the two.
    assert [float(c) for c in cells] == pytest.approx([11_200_000, 5_600_000, 5_600_000, 5.6])


def test_thirty_runs_start_with_the_best_eight_and_fedavg_switched_on(tmp_path: Path) -> None:
    runs = {"fedavg": {}} | {f"run{i}": {"method": "fedprox"} for i in range(29)}
    page = report(write_study(tmp_path, **STUDY | {"runs": runs, "seeds": [0, 1]}))
    assert len(re.findall(r'data-toggle="\d+" aria-pressed="true"', page)) == 9
    assert len(re.findall(r'data-toggle="\d+" aria-pressed="false"', page)) == 21


def test_the_papers_figures_stand_beside_ours_where_the_layout_is_the_papers(tmp_path: Path) -> None:
    page = report(write_study(tmp_path / "a", **STUDY | {"phantom": None}))
    assert re.search(r"FedAvg_Finetune_GP</th><td[^>]*>gp</td><td[^>]*>72\.63 ± 2\.27</td><td[^>]*>\d\d\.\d\d ± ", page)
    assert re.search(r"FADA</th><td[^>]*>–</td><td[^>]*>61\.83 ± 3\.33</td><td[^>]*>not run</td>", page)
    assert "not comparable" not in visible(page)
    cut = {"by": "view", "label": "Edema", "clients": {"F": "frontal", "L": "lateral"}, "target": "L"}
    assert "72.63" not in visible(report(write_study(tmp_path / "b", **STUDY | {"split": cut})))


def test_beside_phantoms_the_page_says_that_figures_cannot_be_compared(tmp_path: Path) -> None:
    text = visible(report(write_study(tmp_path, **STUDY)))
    assert "82.40 ± 2.17" in text
    assert "the paper’s numbers and ours are not comparable" in text


def test_the_leaking_rule_is_announced_loudly(tmp_path: Path) -> None:
    cut = {"by": "condition", "clients": CLIENTS, "target": "NC", "rule": "reference"}
    assert "Leaking split rule." in visible(report(write_study(tmp_path, **STUDY | {"split": cut})))


def test_runs_that_send_nothing_are_reported_as_such(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY | {"runs": {"target_only": {"method": "fedavg"}}})
    assert "No hospital sent anything" in visible(report(config))


@pytest.mark.parametrize("name", ["cohort.json", "ingest.json"])
def test_a_missing_file_of_the_study_is_one_clear_error(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_study(tmp_path, **STUDY | {"seeds": [0]})
    (config.parent / name).unlink()
    assert main(["report", "--config", str(config)]) == 2
    assert f"{name} is missing" in capsys.readouterr().err
    assert not (config.parent / "report/index.html").exists()


# --- sweeps ----------------------------------------------------------------------------------------------------------

SWEPT = {
    "fedavg": {},
    "oracle": {},
    "wide": {"method": "gp", "sweep": {"beta": [0.8, 0, 0.4]}},
    "other": {"method": "fedgp", "sweep": {"beta": [0, 0.4]}},
}


def figures(config: Path) -> set[str]:
    return {path.stem for path in (config.parent / "report/figures").iterdir()}


def section(page: str, name: str) -> str:
    begin = page.index(f'<section id="{name}">')
    return page[begin : page.index("</section>", begin)]


def swept_study(folder: Path, **changes: object) -> Path:
    """The swept runs score far above the plain ones."""
    config = write_study(folder, **STUDY | {"runs": SWEPT} | changes)
    for path in config.parent.glob("clients/NC/scores/wide-beta-0.4/NC/*.json"):
        edit(path, auc=0.95)
    return config


def test_a_sweep_has_one_plot_and_one_table_for_all_runs_that_go_over_the_option(tmp_path: Path) -> None:
    part = section(report(swept_study(tmp_path)), "sweeps")
    assert len(re.findall(r"<h3>Sweep over beta</h3>", part)) == 1
    labels = re.findall(r'aria-label="(\w+) at NC by beta"', part)
    assert labels == ["AUC", "accuracy"]
    assert re.findall(r'<th scope="col" class="num">([^<]*)</th>', part) == ["0", "0.4", "0.8"]
    row = re.search(r'<th scope="row">wide</th>(.*?)</tr>', part)
    assert row is not None and "0.950 ± 0.000" in row[1] and row[1].count("<td") == 3
    other = re.search(r'<th scope="row">other</th>(.*?)</tr>', part)
    assert other is not None and other[1].endswith('<td class="num">–</td>')
    assert part.count('class="reference"') == 4, "fedavg and oracle, in both plots"


def test_swept_runs_are_folded_and_never_called_best(tmp_path: Path) -> None:
    page = report(swept_study(tmp_path))
    text = visible(page)
    assert "fedavg reaches an AUC of" in text and "there is no other method to compare it with" in text
    first = page[page.index("<table") : page.index("</table>")]
    assert 'data-value="fedavg"' in first and "wide-beta" not in first
    assert "5 runs of sweeps" in text
    assert text.count("wide-beta-0.4") >= 2, "in the folded table and among the switches"
    assert "wide (swept)" in text and "selected on the test part" in text


def test_a_study_of_nothing_but_sweeps_says_that_its_best_value_was_seen_on_the_test_part(tmp_path: Path) -> None:
    config = swept_study(tmp_path, runs={"wide": SWEPT["wide"]})
    text = visible(report(config))
    assert "The highest mean AUC is that of wide-beta-0.4" in text
    assert "Its value was selected on the test part" in text


def test_two_swept_options_are_a_table_and_words_get_places_on_the_axis(tmp_path: Path) -> None:
    runs = {
        "fedavg": {},
        "both": {"method": "gp", "sweep": {"beta": [0.2, 0.8], "labeled": [20, 50, 100]}},
        "word": {"method": "gp", "sweep": {"granularity": ["layer", "model"]}},
        "few": {"method": "gp", "sweep": {"labeled": [10, 100]}},
    }
    part = section(report(write_study(tmp_path, **STUDY | {"runs": runs})), "sweeps")
    table = part[part.index("<h3>Sweep over beta and labeled</h3>") :]
    heads = re.findall(r'<th scope="col" class="num">([^<]*)</th>', table[: table.index("</table>")])
    assert heads == ["0.2; 20", "0.2; 50", "0.2; 100", "0.8; 20", "0.8; 50", "0.8; 100"]
    assert ">layer</text>" in part and ">model</text>" in part
    assert "labeled (log scale)" in part and "granularity (log scale)" not in part


def test_the_papers_table_4_stands_beside_a_sweep_over_labeled_images_of_its_cohort(tmp_path: Path) -> None:
    cut = {"by": "site", "label": "covid", "clients": {"IL": "IL", "CA": "CA"}, "target": "IL"}
    data = {"layout": "midrc", "root": "/x"}
    runs = {"fedavg": {}, "gp": {"sweep": {"labeled": [50, 100]}}}
    changes = {"runs": runs, "split": cut, "data": data, "phantom": None}
    part = section(report(write_study(tmp_path, **STUDY | changes)), "sweeps")
    assert re.search(r'paper: GP</th><td class="num">53\.27</td><td class="num">55\.38</td>', part)


# --- the paper -------------------------------------------------------------------------------------------------------


def test_a_row_of_the_paper_is_the_run_with_most_heads_and_other_cohorts_have_no_rows() -> None:
    runs = {
        "aux": {"method": "finetune", "auxiliary": {"heads": ["sex"]}},
        "all": {"method": "finetune", "auxiliary": {"heads": ["sex", "age"]}},
        "half_step": {"method": "target_only", "server_step": 0.5},
    }
    cut = {"by": "condition", "clients": {"A": "x", "B": "y"}, "target": "B", "label": "z"}
    raw = {
        "study": "c",
        "split": cut,
        "privacy": {"smallest_steps": 7},
        "runs": runs,
        "model": {"heads": ["sex", "age"]},
    }
    config = parse(raw | {"data": {"layout": "chexpert", "root": "/x"}}, "test")
    found = beside.table2(config, config.expanded_runs(), {("B", "all", "auc"): Interval(0.63, 0.05, 3)}, "B")
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["FedAvg_Finetune_AuxInfo"]["run"] == "all" and rows["FedAvg_Finetune_AuxInfo"]["ran"]
    assert rows["FedAvg"]["run"] is None and not rows["FedAvg"]["ran"]
    names = list(rows)
    control = names[names.index("FedAvg_Finetune_AuxInfo_GP") + 1]
    assert rows[control]["run"] == "half_step" and rows[control]["paper"] is None
    other = parse(raw | {"data": {"layout": "nih", "root": "/x"}}, "test")
    assert beside.table2(other, other.expanded_runs(), {}, "B") is None


def test_costs_stand_beside_the_papers_and_rows_that_did_not_run_are_listed(tmp_path: Path) -> None:
    part = section(report(write_study(tmp_path, **STUDY | {"runs": {"fedavg": {}, "finetune": {}}})), "compute")
    text = visible(part)
    assert "paper 5.6212E+07" in text and "paper 31.53" in text
    assert re.search(r"FADA not run paper 5\.6369E\+07", text)
    assert "fine-tune on 100 labeled target images" in text


def test_a_study_that_is_none_of_the_papers_shows_none_of_its_costs(tmp_path: Path) -> None:
    clients = {"A": "a", "B": "b"}
    split = {"by": "site", "label": "Edema", "clients": clients, "target": "B"}
    config = write_study(tmp_path, **STUDY | {"runs": {"fedavg": {}, "finetune": {}}, "split": split})
    text = visible(section(report(config), "compute"))
    assert "finetune" in text and "paper" not in text.lower() and "not run" not in text


# --- protocol, absences, weights, classes ----------------------------------------------------------------------------


def test_the_caption_names_the_protocol_and_the_headline_has_the_chosen_round(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    for seed in (0, 1, 2):
        rows = [{"round": r, "val/auc": float(r == 2), "test/auc": 0.123 if r == 2 else 0.9} for r in (1, 2, 3, 4)]
        write_rounds(config.parent / f"runs/gp/NC/{seed}", rows)
    page = report(config)
    assert re.search(r'data-value="0\.123">0\.123 ± 0\.000 <small>round 2</small>', page)
    text = visible(section(page, "scores"))
    for words in (
        "Seeds 0, 1, 2; rounds 4.",
        "1 epoch in batches of 32 at each source and 1 epoch in batches of 16 at the target",
        "it costs the target 74 labeled validation images",
        "The test part never chooses a round.",
        # Rounds, labels, steps: 700 + 100 images of LO in batches of 32 are 25 steps; 100 of NC in batches of 16 are 7.
        "gp 4 100 91 4 sources 7",
    ):
        assert words in text


def test_hospitals_that_were_left_out_are_named_with_round_and_reason(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    reason = "update rejected: g has entries that are not finite"
    write_absences(config.parent / "runs/gp/NC/0", (2, "LO", reason), (4, "LO", reason))
    write_absences(config.parent / "runs/gp/NC/1", (3, "ED", "its process ended"))
    page = report(config)
    text = visible(page)
    assert "3 updates were missing or rejected , in 1 run" in text
    assert f"gp NC LO {reason} 2 2, 4 0" in text and "gp NC ED its process ended 1 3 1" in text
    assert "gp 3 updates missing or rejected" in text
    assert "fedavg 3 updates" not in text
    assert 'id="absences"' not in report(write_study(tmp_path / "none", **STUDY))
    table = (config.parent / "report/tables/absences.csv").read_text().splitlines()
    assert table[1] == f"gp,NC,0,2,LO,train_locally,{reason}"


def test_counts_have_their_grammar(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    write_absences(config.parent / "runs/gp/NC/0", (2, "LO", "its process ended"))
    text = visible(report(config))
    assert "1 update was missing or rejected , in 1 run" in text
    assert "computed on at least 1 image, and every model in at least 1 local step per round" in text
    assert [counted(n, "seed") for n in (0, 1, 2, 1000)] == ["0 seeds", "1 seed", "2 seeds", "1,000 seeds"]
    assert [listed(list("abcde")[:n]) for n in (1, 2, 4, 5)] == ["a", "a and b", "a, b, c and d", "a, b, c and 2 more"]


def test_curves_of_two_points_are_not_drawn_and_one_line_says_so(tmp_path: Path) -> None:
    page = report(write_study(tmp_path / "two", **STUDY | {"train": {"rounds": 2}}))
    (part,) = re.findall(r'<section id="rounds" class="folded">.*?</section>', page)
    assert "<svg" not in part and "Not shown: a curve needs 3 rounds with a score, and no run has more than 2." in part
    assert (tmp_path / "two/results/demo/report/tables/rounds.csv").is_file()
    assert "<svg" in section(report(write_study(tmp_path / "three", **STUDY | {"train": {"rounds": 3}})), "rounds")


def test_a_round_that_too_few_validation_images_would_choose_is_not_shown(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    assert "AUC, chosen round" in visible(report(config))
    path = config.parent / "clients/NC/counts.json"
    counts = json.loads(path.read_text())
    edit(path, patients=counts["patients"] | {"val": 30})
    text = visible(report(config))
    assert "AUC, chosen round" not in text and "validation images of the target are too few to choose a round" in text


def test_versions_are_a_table_with_a_row_for_all_runs_that_share_them(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    for seed in (0, 1, 2):
        edit(config.parent / f"runs/fedavg/NC/{seed}/run.json", versions={"torch": "2.1", "source": "abc"})
        known = {"torch": "2.1", "source": "def", "commit": "unknown"}
        edit(config.parent / f"runs/gp/NC/{seed}/run.json", versions=known)
    part = visible(section(report(config), "reproducibility"))
    assert "unknown" not in part.partition("Configuration")[0]
    assert "Runs torch source" in part and "fedavg 2.1 abc gp 2.1 def" in part


def test_controls_are_named_in_the_table_of_scores(tmp_path: Path) -> None:
    half = {"method": "target_only", "server_step": 0.5}
    runs = {"gp": {}, "target_only": {}, "half_step": half, "oracle": {}}
    part = visible(section(report(write_study(tmp_path, **STUDY | {"runs": runs})), "scores"))
    assert "target_only control" in part and "half_step control" in part and "oracle upper bound" in part
    assert "gp control" not in part


def test_a_broken_list_of_absences_is_one_clear_error(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    (config.parent / "runs/gp/NC/0/absences.jsonl").write_text('{"round": 1}\n')
    assert main(["report", "--config", str(config)]) == 2


def test_lost_rounds_are_listed(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    note_by_round(config.parent / "runs/gp/NC/2", lost=1.0)
    assert "gp 4 rounds lost" in visible(report(config))


def test_weights_of_sources_are_drawn_by_round_as_a_mean_over_seeds(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    for seed, weight in zip((0, 1, 2), (0.1, 0.2, 0.6), strict=True):
        note_by_round(config.parent / f"runs/gp/NC/{seed}", weight__LO=weight, weight__CO=0.5, loss__CO=0.5)
    part = section(report(config), "weights")
    assert 'aria-label="weight of each source by round: gp, target NC"' in part
    assert part.count("<polyline") == 2
    table = (config.parent / "report/tables/weights.csv").read_text().splitlines()
    assert sorted(table[1:])[4:] == [f"gp,NC,weight,LO,{r},0.3" for r in (1, 2, 3, 4)]


def test_jacobians_are_drawn_by_round_with_a_curve_for_each_run(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    assert 'id="jacobians"' not in report(config)
    for seed, norm in zip((0, 1, 2), (1.0, 2.0, 6.0), strict=True):
        for run in ("gp", "fedavg"):
            note_by_round(config.parent / f"runs/{run}/NC/{seed}", jacobian__norm=norm, jacobian__spread=0.5)
    note_by_round(config.parent / "runs/gp/NC/0", jacobian__guide=7.0, jacobian__unknown=1.0)
    part = section(report(config), "jacobians")
    assert re.findall(r'aria-label="([\w ]+) by round: target NC"', part) == [
        "mean reported norm",
        "variance of the reported norms",
        "guide norm",
    ]
    assert part.count("<polyline") == 2 + 2 + 1
    assert {"jacobian_norm_NC", "jacobian_spread_NC", "jacobian_guide_NC"} <= figures(config)
    table = (config.parent / "report/tables/jacobians.csv").read_text().splitlines()
    assert [f"NC,norm,gp,{r},3" for r in (1, 2, 3, 4)] == [row for row in table if row.startswith("NC,norm,gp")]


def test_with_many_classes_everything_is_judged_by_accuracy(tmp_path: Path) -> None:
    config = swept_study(tmp_path, model={"classes": 10})
    for folder in config.parent.glob("runs/*/*/*"):
        without_auc(folder)
    page = report(config)
    text = visible(page)
    assert "fedavg reaches an accuracy of" in text
    assert "Accuracy, chosen round" in text and "AUC, chosen round" not in text
    assert re.findall(r'aria-label="(\w+) at NC by beta"', page) == ["accuracy"]
    assert 'class="chance"' not in page, "with ten classes chance is not a half"
    assert "% pos." not in text


def test_gains_by_auxiliary_task_are_drawn_against_the_run_without(tmp_path: Path) -> None:
    runs = {"finetune": {}, "wide": {"method": "gp", "sweep": {"beta": [0, 0.5]}}}
    runs |= {h: {"method": "finetune", "auxiliary": {"heads": [h]}} for h in ("sex", "age")}
    config = write_study(tmp_path, **STUDY | {"runs": runs, "model": {"heads": ["sex", "age"]}})
    note_by_round(config.parent / "runs/finetune/NC/0", weight__LO=0.5)
    part = section(report(config), "auxiliary")
    assert part.count('class="mark') == 2 and 'class="reference"' in part
    assert re.search(r'<th scope="row">sex</th><td>sex</td><td>finetune</td><td class="num">[+−]0\.\d{3} ± ', part)
    assert {"auxiliary_gain", "sweep_beta_auc", "sweep_beta_acc", "weight_finetune_NC"} <= figures(config)


# --- drawings --------------------------------------------------------------------------------------------------------


def test_ticks_are_round_numbers_inside_the_range() -> None:
    assert ticks(0.52, 0.91) == [0.6, 0.7, 0.8, 0.9]
    assert ticks(0, 11.2) == [0, 2.5, 5, 7.5, 10]
    assert ticks(1, 1) == [1]


def test_a_curve_breaks_where_a_round_is_undefined() -> None:
    drawn = by_round([Line(0, "gp", [1, 2, 3, 4], [0.5, 0.6, None, 0.7])], "t", "AUC")
    assert drawn.count("<polyline") == 2
    assert by_round([Line(0, "gp", [1], [None])], "t", "AUC") == ""


def test_numbers_are_written_for_readers() -> None:
    assert interval(Interval(0.8125, 0.0204, 3)) == "0.812 ± 0.020"
    assert interval(Interval(0.8125, None, 1), percent=True) == "81.25"
    assert interval(Interval(0.97, 0.05, 3)) == "0.970 (0.92–1.00)"
    assert interval(None) == "–"
    assert [signed(v) for v in (0.0, -0.0, -0.04, 0.06)] == ["+0.0", "+0.0", "+0.0", "+0.1"]
    assert [megabytes(v) for v in (11.2, 3.2e-5, 0.0045, 2500.0)] == ["11.2 MB", "32 B", "4.5 kB", "2.5 GB"]


def test_a_second_study_folder_is_not_read(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    write_run(config.parent, "old_run", "fedavg", "NC", 0, list(CLIENTS), 4)
    assert "old_run" not in report(config)


def test_models_passed_on_to_the_target_and_features_are_shown_where_they_crossed(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY | {"runs": {"fedavg": {}, "kd3a": {}}, "seeds": [0]})
    assert "Forwarded" not in section(report(config), "communication")
    path = config.parent / "runs/kd3a/NC/0/ledger.jsonl"
    head = '{"round": 1, "step": "learn", "messages": 1, '
    passed = '"from": "server", "to": "NC", "kind": "individual", "bytes": 987654}\n'
    shown = '"from": "NC", "to": "server", "kind": "features", "bytes": 54321}\n'
    path.write_text(path.read_text() + head + passed + head + shown)
    part = section(report(config), "communication")
    text = visible(part)
    assert "Forwarded to the target" in text and "987,654" in text.replace(" ", ",").replace("\u202f", ",")
    assert "models of single hospitals, not averaged" in text and "one vector for each image" in text
    assert 'class="fill c' in part and "individual: " not in part  # the bars count what left hospitals


# --- score against bytes ----------------------------------------------------------------------------------------------


def plane_of(page: str) -> str:
    """The first drawing of the section on bytes."""
    found = re.search(r'(?s)<section id="efficiency">.*?(<svg class="chart".*?</svg>)', page)
    assert found
    return found[1]


def test_scores_stand_against_all_bytes_sent_on_a_logarithmic_axis(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    for seed in (0, 1, 2):  # gp sends a tenth of what fedavg does, both ways
        path = config.parent / f"runs/gp/NC/{seed}/ledger.jsonl"
        path.write_text(path.read_text().replace("2800000", "280000"))
    page = report(config)
    drawing = plane_of(page)
    ends = {run: float(x) for run, x in re.findall(r"<title>(\w+): ([\d.,]+) MB</title>", drawing)}
    # Four sources, four rounds; up a model and a count, down a model with each of them.
    assert ends == pytest.approx({"fedavg": 4 * 4 * 3 * 2.8, "gp": 4 * 4 * 3 * 0.28}, rel=0.01)
    at = {int(i): float(x) for i, x in re.findall(r'data-run="(\d)".*?class="mark[^>]*translate\(([\d.]+)', drawing)}
    marks = re.findall(r'x="([\d.]+)" y="\d+\.?\d*" text-anchor="middle">([\d.]+)</text>', drawing)
    place = {float(text): float(x) for x, text in marks}
    assert place[20.0] - place[10.0] == pytest.approx(place[10.0] - place[5.0], abs=0.2)  # one factor, one distance
    assert place[10.0] < at[1] < place[20.0] < at[0]  # gp ends at 13 MB, fedavg at 134
    assert len(re.findall('<polyline class="line thin', drawing)) == 2
    assert "log scale" in visible(page)


def test_the_table_of_scores_by_bytes_counts_both_ways_until_each_round(tmp_path: Path) -> None:
    config = write_study(tmp_path, **STUDY)
    report(config)
    lines = (config.parent / "report/tables/score_by_bytes.csv").read_text().splitlines()
    assert lines[0] == "target,run,round,mb_sent,metric,mean,low,high,seeds"
    rows = [line.split(",") for line in lines[1:]]
    spent = [float(r[3]) for r in rows if r[1] == "fedavg"]
    assert spent == pytest.approx([4 * (3 * 2.8 + 8e-6) * n for n in (1, 2, 3, 4)], rel=1e-5)
    assert {(r[4], r[8]) for r in rows} == {("test/auc", "3")}


def test_a_run_that_sends_nothing_stands_left_of_all_and_one_amount_is_no_axis() -> None:
    score = Interval(0.7, 0.05, 3)
    silent = Trail(0, "alone", score, [(0.0, 0.6), (0.0, 0.7)])
    few, many = (
        Trail(1, "few", score, [(0.5, 0.6), (0.7, 0.6), (1.0, 0.7)]),
        Trail(2, "many", score, [(50.0, 0.6), (1000.0, 0.7)]),
    )
    drawing = str(against_cost([silent, few, many], "title", ("MB", "AUC")))
    x = [float(v) for v in re.findall(r'class="mark[^>]*translate\(([\d.]+)', drawing)]
    assert x == sorted(x) and len(set(x)) == 3
    assert drawing.count('class="line thin') == 1 and ">0</text>" in drawing, "two points are no curve"
    assert ">1,000</text>" in drawing and "nan" not in drawing
    for only in ([silent], [Trail(1, "one", score, [(2.0, 0.7)])]):
        assert "nan" not in str(against_cost(only, "title", ("MB", "AUC")))
    assert str(against_cost([], "title", ("MB", "AUC"))) == ""


def test_bytes_of_all_targets_are_the_mean_over_them(tmp_path: Path) -> None:
    cut = {"by": "condition", "clients": CLIENTS, "target": "each"}
    config = write_study(tmp_path, **STUDY | {"split": cut, "runs": {"fedavg": {}}, "seeds": [0, 1]})
    report(config)
    lines = (config.parent / "report/tables/score_by_bytes.csv").read_text().splitlines()
    last = {line.split(",")[0]: float(line.split(",")[3]) for line in lines[1:] if line.split(",")[2] == "4"}
    assert set(last) == {ALL_TARGETS, *CLIENTS} and len(set(last.values())) == 1
