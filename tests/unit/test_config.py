from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import yaml

from fdamed.cli.commands import schema
from fdamed.config import loader as config
from fdamed.core.errors import FdamedError

ROOT = Path(__file__).resolve().parents[2]
BASE = {
    "study": "demo",
    "data": {"layout": "chexpert", "root": "data/x"},
    "split": {"by": "condition", "clients": {"a": "Edema", "b": "Pneumonia"}, "target": "a"},
    "privacy": {"smallest_steps": 7},
    "runs": {"gp": {"beta": 0.4}, "fedavg": {}},
}


def changed(**paths: object) -> dict:
    raw = copy.deepcopy(BASE)
    for path, value in paths.items():
        node = raw
        *way, last = path.split("__")
        for step in way:
            node = node.setdefault(step, {})
        node[last] = value
    return raw


def refused(raw: dict) -> str:
    with pytest.raises(FdamedError) as caught:
        config.parse(raw, "study.yaml")
    assert caught.value.where == "study.yaml"
    assert "nothing was started" in caught.value.fix
    return caught.value.what


def test_a_misspelled_option_of_a_method_is_named_with_what_is_allowed() -> None:
    what = refused(changed(runs__gp__bta=0.5))
    assert "`runs.gp.bta`" in what and "did you mean `beta`?" in what and "warmup" in what


def test_an_unknown_method_is_named_with_all_that_there_are() -> None:
    what = refused(changed(runs__fedavgg={}))
    assert "unknown method `fedavgg` (did you mean `fedavg`?)" in what and "oracle" in what


def test_adam_is_refused_where_a_method_or_a_choice_needs_plain_sgd() -> None:
    sgd = {"train": {"source": {"optimizer": "sgd", "lr": 0.01}}}
    for run in ({"method": "scaffold"}, {"warmup": {"method": "scaffold", "rounds": 1}}, {"then": "scaffold"}):
        what = refused(changed(runs__gp=run))
        assert what == "`runs.gp`: scaffold, variate: II needs plain SGD at the sources, which train with adam"
        config.parse(changed(runs__gp=run | sgd), "study.yaml")
    config.parse(changed(runs__gp={"method": "scaffold", "variate": "I"}), "study.yaml")
    assert "fednova needs plain SGD at the sources" in refused(changed(runs__fednova={}))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (changed(sead=3), "unknown key `sead` (did you mean `seeds`?)"),
        (changed(sead=3), "tracking, train, variant, variants"),
        (changed(train=3), "`train`: should be a section with keys (given: 3)"),
        (changed(seeds="0"), "`seeds`: should be a list (given: '0')"),
        (changed(data__rot="x"), "unknown key `data.rot` (did you mean `root`?)"),
        (changed(train__source={"lr": 0.1, "bach": 3}), "`train.source.bach` (did you mean `batch`?)"),
        (changed(privacy="Public"), "`privacy`: should be a section with keys, or `public`"),
        (changed(split__target="c"), "is not one of the clients: a, b, each"),
        (changed(split__clients={"a": "Edema"}), "at least two clients"),
        (changed(split__by="race"), "`label` is required: the label to predict"),
        (changed(runs={}), "`runs`: Dictionary should have at least 1 item"),
        (changed(seeds=[1, 1]), "lists a seed twice"),
        (changed(runs__gp__beta=1.5), "`runs.gp.beta`: should be between 0.0 and 1.0"),
        (changed(runs__gp__beta="much"), "`runs.gp.beta`: should be a number"),
        (changed(runs__gp__warmup=1.5), "`runs.gp.warmup.rounds`: should be a whole number"),
        (changed(runs__gp__keep_negative="yes"), "`runs.gp.keep_negative`: should be true or false"),
        (changed(runs__gp__align=True), "`runs.gp.align`: is now called `each`; should be one of each, mean, none"),
        (changed(runs__gp__align=False), "`runs.gp.align`: is now called `none`; should be one of each, mean, none"),
        (changed(runs__gp__granularity="tensor"), "should be one of layer, model"),
        (changed(runs__gp__auxiliary={"heads": ["sex"]}), "not in `model.heads`"),
        (changed(runs__gp__labeled=500), "`split.labeled` only 100"),
        (changed(model={"heads": ["race"]}), "the race head needs at least two classes"),
        (changed(data__layout="chexprt"), "chexpert"),
        (changed(study="a/b"), "`study`"),
        (changed(runs__gp={"sweep": {"labeled": [40, 500]}}), "labeled` is 500"),
        (changed(runs__gp={"sweep": {"labeled": [0]}}), "`labeled`: "),
        (changed(runs__gp={"sweep": {"method": ["fedavg"]}}), "cannot vary `method`"),
        (changed(runs__gp={"sweep": {"beta": []}}), "needs at least one value"),
        (changed(runs__gp__warmup=50), "leaves none of the 50 rounds to gp"),
        (changed(runs__gp__warmup={"method": "finetune_offline", "rounds": 25}), "leaves none of the 50 rounds"),
        (changed(runs__gp__warmup={"method": "fedavgg", "rounds": 2}), "unknown method `fedavgg`"),
        (changed(runs__gp__warmup={"rounds": 2, "mu": 1}), "unknown key `runs.gp.warmup.mu`"),
        (changed(runs__gp__warmup={"method": "fedrf_tca", "rounds": 2}), "does not end with one model"),
        (changed(runs__gp__warmup={"method": "fedavg"}), "missing key `runs.gp.warmup.rounds`"),
        (changed(runs__gp__beta=float("nan")), "should be a number"),
        (changed(train={"source": {"lr": 0}}), "`train.source.lr`"),
        (changed(train={"source": {"lr": 0.1, "batch": 1}}), "`train.source.batch`"),
    ],
)
def test_each_mistake_is_one_clear_line(raw, message) -> None:
    what = refused(raw)
    assert message in what
    assert "\n" not in what


def test_a_sweep_becomes_one_run_for_each_value() -> None:
    study = config.parse(changed(runs__gp={"sweep": {"beta": [0.5], "warmup": [0, 1]}}), "x")
    runs = study.expanded_runs()
    assert list(runs) == ["gp-beta-0.5-warmup-0", "gp-beta-0.5-warmup-1", "fedavg"]
    assert [runs[f"gp-beta-0.5-warmup-{n}"].options for n in (0, 1)] == [{"beta": 0.5}] * 2
    assert runs["gp-beta-0.5-warmup-0"].warmup is None and runs["gp-beta-0.5-warmup-1"].warmup.rounds == 1
    assert runs["fedavg"].method == "fedavg"


def test_a_swept_value_is_checked_too() -> None:
    assert "should be between" in refused(changed(runs__gp={"sweep": {"beta": [0.5, 2]}}))


def test_the_salt_is_never_shown() -> None:
    assert "123456789" not in refused(changed(data__salt=123456789))


def test_later_files_win_key_by_key(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(yaml.safe_dump(BASE))
    second.write_text("split: {target: b}\nseeds: [4]\n")
    study = config.load(first, second)
    assert study.split.target == "b" and study.seeds == (4,) and study.split.by == "condition"


def test_a_missing_or_broken_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(FdamedError, match="does not exist"):
        config.load(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1, 2")
    with pytest.raises(FdamedError, match="not readable as YAML") as caught:
        config.load(broken)
    assert f'in "{broken}", line 1, column 9' in caught.value.what


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("split:\n\ttarget: a\n", "Line 2 begins with a tab: indent with spaces."),
        ("split:\n  by: site\n target: a\n", "Indent line 3 like the other keys of its section"),
        ("split:\n  by: site\n   target: a\n", "Indent line 3 like the other keys of its section"),
        ("train:\n  rounds 4\n  source: {}\n", "Indent line 3 like the other keys of its section, and write a colon"),
    ],
)
def test_a_tab_or_a_wrong_indentation_is_named_with_its_line(tmp_path: Path, text: str, fix: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(FdamedError) as caught:
        config.load(path)
    assert caught.value.fix.startswith(fix)


def test_every_target_in_turn() -> None:
    assert config.parse(changed(split__target="each"), "x").split.targets == ("a", "b")


FILES = sorted((ROOT / "config").rglob("*.yaml"))
WHOLE = [path for path in FILES if "data" in config.read(path)]
"""The others are overlays."""


def every_study() -> list[tuple[Path, str | None]]:
    return [(path, variant) for path in WHOLE for variant in (None, *config.read(path).get("variants", ()))]


CHOOSING = ("recipe", "rates", "choice", "choice_one")
"""Variants that choose settings on seeds of their own, and report nothing."""


@pytest.mark.parametrize(("path", "variant"), every_study(), ids=lambda value: getattr(value, "stem", value))
def test_every_shipped_configuration_is_valid(path: Path, variant: str | None) -> None:
    study = config.load(path, variant=variant)
    assert study.runs
    assert len(study.seeds) >= 3 or variant in CHOOSING


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_commands_in_a_files_comments_name_files_and_variants_that_exist(path: Path) -> None:
    for command in re.findall(r"snakemake .*", path.read_text(encoding="utf-8")):
        names = re.findall(r"config/\S+\.yaml", command)
        assert names and all((ROOT / name).is_file() for name in names), command
        variants = re.findall(r"variant=([\w.]+)(?!\S*\$)", command)
        known = {v for name in names for v in config.read(ROOT / name).get("variants", ())}
        assert all(v in known for v in variants if f"variant={v}$" not in command), command


def test_config_shows_only_what_users_copy_and_the_papers_are_below() -> None:
    assert len(FILES) <= 54
    assert {p.parent.name for p in FILES if p.parent != ROOT / "config"} == {
        *("healthcare", "fedgp", "fedrf_tca", "fedgtst", "unsupervised", "faults")
    }


def test_a_variant_is_merged_over_the_file_and_several_are_merged_in_turn() -> None:
    raw = changed(variants={"long": {"train": {"rounds": 99}}, "short": {"train": {"rounds": 20}, "seeds": [5]}})
    assert config.parse(raw, "x") == config.parse(changed(), "x")
    assert config.parse(raw | {"variant": "long"}, "x").train.rounds == 99
    both = config.parse(raw | {"variant": ["short", "long"]}, "x")
    assert both.train.rounds == 99 and both.seeds == (5,)
    assert "unknown variant `lang` (did you mean `long`?); allowed: long, short" in refused(raw | {"variant": "lang"})


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (changed(split__by="iid", split__clients=10), "`split.clients` (did you mean `n_clients`?)"),
        (changed(split__labelled=9), "`split.labelled` (did you mean `labeled`?)"),
        (changed(image={"equalise": True}), "`image.equalise` (did you mean `equalize`?)"),
        (changed(train={"source": {"optimiser": "sgd"}}), "`train.source.optimiser` (did you mean `optimizer`?)"),
        (changed(runs__gp__labelled=4), "`runs.gp.labelled` (did you mean `labeled`?)"),
        (changed(runs__gp__train={"target": {"bach": 3}}), "`train.target.bach` (did you mean `batch`?)"),
        (
            changed(runs__gp__then={"method": "finetune_head", "optimiser": "fresh"}),
            "`runs.gp.then.optimiser` (did you mean `optimizer`?)",
        ),
        (changed(runs__coral={"centre": True}), "`runs.coral.centre` (did you mean `center`?)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_misspelled_key_is_answered_with_the_one_it_resembles(raw: dict, message: str) -> None:
    assert f"unknown key {message}; " in refused(raw)


def test_a_name_that_a_user_chose_is_never_an_old_key() -> None:
    clients = {"cohort": "Edema", "parties": "Pneumonia"}
    study = config.parse(
        changed(split__clients=clients, split__target="cohort", runs={"centre": {"method": "gp"}}), "x"
    )
    assert set(study.split.clients) == {"cohort", "parties"} and set(study.runs) == {"centre"}


def test_the_generated_files_are_not_stale() -> None:
    assert config.CATALOG.read_text() == schema.catalog_text(), "run `make schema`"
    assert (ROOT / "config" / "schema.json").read_text() == schema.schema_text(), "run `make schema`"


COHORTS = ("chexpert", "mimic", "midrc", "chexpert_phantom", "mimic_phantom", "midrc_phantom")
OVERLAYS = [
    *((name, cohort) for name in ("beta", "auxiliary", "projection") for cohort in COHORTS),
    ("labels", "midrc"),
    ("labels_phantom", "midrc_phantom"),
]


@pytest.mark.parametrize(("name", "cohort"), OVERLAYS)
def test_every_figure_of_the_healthcare_paper_can_be_laid_over_its_cohorts(name: str, cohort: str) -> None:
    overlay = ROOT / "config" / "papers" / "healthcare" / f"{name}.yaml"
    alone = config.load(ROOT / "config" / f"{cohort}.yaml")
    both = config.load(ROOT / "config" / f"{cohort}.yaml", overlay)
    assert set(alone.expanded_runs()) < set(both.expanded_runs())


def test_a_sweep_over_alpha_goes_to_the_auxiliary_tasks() -> None:
    study = config.load(ROOT / "config" / "chexpert.yaml", ROOT / "config" / "papers" / "healthcare" / "auxiliary.yaml")
    run = study.expanded_runs()["auxinfo_alpha-alpha-0.2"]
    assert run.auxiliary is not None and run.auxiliary.alpha == 0.2 and "alpha" not in run.options
    assert study.sweeps()["auxinfo_alpha-alpha-0.2"].values == {"alpha": 0.2}


def test_a_run_can_differ_in_how_it_trains() -> None:
    study = config.load(ROOT / "config" / "papers" / "fedgp" / "fashion_mnist.yaml")
    oracle = study.train_of(study.expanded_runs()["oracle-noise-0.4"])
    assert oracle.source.lr == 0.003 and oracle.source.batch == study.train.source.batch == 64
    assert study.noise_of(study.expanded_runs()["oracle-noise-0.4"]) == 0.4


def test_public_sets_and_radiographs_are_split_each_in_their_own_way() -> None:
    raw = yaml.safe_load((ROOT / "config" / "papers" / "fedgp" / "fashion_mnist.yaml").read_text())
    raw["data"] = {"layout": "nih", "root": "data/nih"}
    with pytest.raises(FdamedError, match="does not fit"):
        config.parse(raw, "here")


def test_a_figure_of_a_paper_names_a_run_of_the_study() -> None:
    raw = yaml.safe_load((ROOT / "config" / "papers" / "healthcare" / "mnist_noniid.yaml").read_text())
    raw["published"]["values"]["gpp"] = 1.0
    with pytest.raises(FdamedError, match="gpp"):
        config.parse(raw, "here")


@pytest.mark.parametrize(
    ("key", "now"), [("cut", "split"), ("train__guard", "validation"), ("audit__probe", "attributes")]
)
def test_an_old_key_names_the_new_one(key: str, now: str) -> None:
    assert f"(it is now `{now}`)" in refused(changed(**{key: {}}))


@pytest.mark.parametrize(("text", "key"), [("runs: {gp: }", "runs.gp"), ("split: {clients: {a: }}", "split.clients.a")])
def test_an_empty_entry_removes_one_of_an_earlier_file_and_is_else_an_error(
    tmp_path: Path, text: str, key: str
) -> None:
    path, earlier = tmp_path / "config.yaml", tmp_path / "earlier.yaml"
    path.write_text(text)
    with pytest.raises(FdamedError, match="is empty, and no earlier file has it") as caught:
        config.merged(path)
    assert caught.value.what.startswith(f"`{key}`") and "{}" in caught.value.fix
    earlier.write_text(text.replace(": }", ": fedavg}"))
    section = config.merged(earlier, path)
    for name in key.split("."):
        section = section[name]
    assert section is None


def test_a_column_of_the_table_is_answered_with_what_it_is_mapped_to() -> None:
    table = {"layout": "table", "root": "x", "table": "t.csv", "labels": {"Edema": "Befund"}}
    raw = changed(data=table | {"columns": {"image": "Bild", "patient": "Fall", "site": "Haus"}}, split__by="Haus")
    raw["split"] |= {"label": "Edema"}
    assert "is mapped to `site`: write `by: site`" in refused(raw)


def test_a_minimum_that_the_labeled_images_miss_names_their_key() -> None:
    with pytest.raises(FdamedError, match=r"40 labeled images to train on \(split.labeled\)") as caught:
        config.parse(changed(split__labeled=40), "study.yaml")
    assert "`split.labeled: 100` or more" in caught.value.fix


def test_a_client_of_an_earlier_file_is_removed_by_null() -> None:
    clients = {**changed()["split"]["clients"], "more": "More"}
    assert "more" in config.parse(changed(split__clients=clients), "x").split.clients
    removed = config.parse(changed(split__clients=clients | {"more": None}), "x")
    assert removed == config.parse(changed(), "x")
