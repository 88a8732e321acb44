from __future__ import annotations

import copy
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


def test_a_misspelt_option_of_a_method_is_named_with_what_is_allowed() -> None:
    what = refused(changed(runs__gp__bta=0.5))
    assert "`runs.gp.bta`" in what and "did you mean `beta`?" in what and "warmup" in what


def test_an_unknown_method_is_named_with_all_that_there_are() -> None:
    what = refused(changed(runs__fedavgg={}))
    assert "unknown method `fedavgg` (did you mean `fedavg`?)" in what and "oracle" in what


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (changed(sead=3), "unknown key `sead` (did you mean `seeds`?)"),
        (changed(data__rot="x"), "unknown key `data.rot` (did you mean `root`?)"),
        (changed(train__source={"lr": 0.1, "bach": 3}), "`train.source.bach` (did you mean `batch`?)"),
        (changed(split__target="c"), "is not one of the clients: a, b, each"),
        (changed(split__clients={"a": "Edema"}), "at least two clients"),
        (changed(split__by="race"), "`label` must say what is to be predicted"),
        (changed(runs={}), "`runs` is empty"),
        (changed(seeds=[1, 1]), "a seed is listed twice"),
        (changed(runs__gp__beta=1.5), "`runs.gp.beta`: should lie between 0.0 and 1.0"),
        (changed(runs__gp__beta="much"), "`runs.gp.beta`: should be a number"),
        (changed(runs__gp__warmup=1.5), "`runs.gp.warmup`: should be a whole number"),
        (changed(runs__gp__align="yes"), "`runs.gp.align`: should be true or false"),
        (changed(runs__gp__granularity="tensor"), "should be one of layer, model"),
        (changed(runs__gp__auxiliary={"heads": ["sex"]}), "not in model.heads"),
        (changed(runs__gp__labeled=500), "split.labeled only 100"),
        (changed(model={"heads": ["race"]}), "the race head needs `races`"),
        (changed(data__layout="chexprt"), "chexpert"),
        (changed(cohort="a/b"), "`cohort`"),
        (changed(runs__gp={"sweep": {"labeled": [40, 500]}}), "labeled is 500"),
        (changed(runs__gp={"sweep": {"labeled": [0]}}), "`labeled`: "),
        (changed(runs__gp={"sweep": {"method": ["fedavg"]}}), "cannot go over `method`"),
        (changed(runs__gp={"sweep": {"beta": []}}), "needs values"),
        (changed(runs__gp__warmup=50), "leaves none of the 50 rounds"),
        (changed(runs__gp__beta=float("nan")), "should be a number"),
        (changed(train={"source": {"lr": 0}}), "`train.source.lr`"),
        (changed(train={"source": {"lr": 0.1, "batch": 1}}), "`train.source.batch`"),
    ],
)
def test_each_mistake_is_one_clear_line(raw, told) -> None:
    what = refused(raw)
    assert told in what
    assert "\n" not in what


def test_a_sweep_becomes_one_run_for_each_value() -> None:
    study = config.parse(changed(runs__gp={"sweep": {"beta": [0, 0.5], "warmup": [1]}}), "x")
    runs = study.expanded_runs()
    assert list(runs) == ["gp-beta-0-warmup-1", "gp-beta-0.5-warmup-1", "fedavg"]
    assert runs["gp-beta-0.5-warmup-1"].options == {"beta": 0.5, "warmup": 1}
    assert runs["fedavg"].method == "fedavg"


def test_a_swept_value_is_checked_too() -> None:
    assert "should lie between" in refused(changed(runs__gp={"sweep": {"beta": [0.5, 2]}}))


def test_the_salt_is_never_shown() -> None:
    assert "123456789" not in refused(changed(data__salt=123456789))


def test_later_files_win_key_by_key(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(yaml.safe_dump(BASE))
    second.write_text("split: {target: b}\nseeds: [4]\n")
    study = config.load(first, second)
    assert study.split.target == "b" and study.seeds == (4,) and study.split.by == "condition"


def test_a_missing_or_broken_file_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(FdamedError, match="no such configuration file"):
        config.load(tmp_path / "absent.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1, 2")
    with pytest.raises(FdamedError, match="not readable as YAML"):
        config.load(broken)


def test_every_target_in_turn() -> None:
    assert config.parse(changed(split__target="each"), "x").split.targets == ("a", "b")


TO_COME = {"fedgtst", "fediir", "fedsr", "scaffold", "fedprox"}
"""Methods of the FedGTST paper's tables; a configuration that names them is checked once they are registered."""


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_configuration_is_valid(path: Path) -> None:
    absent = {r.get("method") or n for n, r in config.read(path)["runs"].items()} - set(config.catalog())
    if absent <= TO_COME and absent:
        pytest.skip(f"not registered yet: {', '.join(sorted(absent))}")
    study = config.load(path)
    assert len(study.seeds) >= 3
    assert study.runs


def test_the_generated_files_are_not_stale() -> None:
    assert config.CATALOG.read_text() == schema.catalog_text(), "run `make schema`"
    assert (ROOT / "config" / "schema.json").read_text() == schema.schema_text(), "run `make schema`"


COHORTS = ("chexpert", "mimic", "midrc", "chexpert_phantom", "mimic_phantom", "midrc_phantom")
OVERLAYS = [
    *((name, cohort) for name in ("beta", "alpha", "tasks", "projection") for cohort in COHORTS),
    ("labels", "midrc"),
    ("labels_phantom", "midrc_phantom"),
]


@pytest.mark.parametrize(("name", "cohort"), OVERLAYS)
def test_every_figure_of_the_healthcare_paper_can_be_laid_over_its_cohorts(name: str, cohort: str) -> None:
    overlay = ROOT / "config" / "healthcare" / f"{name}.yaml"
    alone = config.load(ROOT / "config" / f"{cohort}.yaml")
    both = config.load(ROOT / "config" / f"{cohort}.yaml", overlay)
    assert set(alone.expanded_runs()) < set(both.expanded_runs())


def test_a_sweep_over_alpha_goes_to_the_auxiliary_tasks() -> None:
    study = config.load(ROOT / "config" / "chexpert.yaml", ROOT / "config" / "healthcare" / "alpha.yaml")
    run = study.expanded_runs()["auxinfo_alpha-alpha-0.2"]
    assert run.auxiliary is not None and run.auxiliary.alpha == 0.2 and "alpha" not in run.options
    assert study.sweeps()["auxinfo_alpha-alpha-0.2"].values == {"alpha": 0.2}


def test_a_run_can_differ_in_how_it_trains() -> None:
    study = config.load(ROOT / "config" / "fashion_mnist.yaml")
    oracle = study.train_of(study.expanded_runs()["oracle-noise-0.4"])
    assert oracle.source.lr == 0.003 and oracle.source.batch == study.train.source.batch == 64
    assert study.noise_of(study.expanded_runs()["oracle-noise-0.4"]) == 0.4


def test_public_sets_and_radiographs_are_cut_each_in_their_own_way() -> None:
    raw = yaml.safe_load((ROOT / "config" / "fashion_mnist.yaml").read_text())
    raw["data"] = {"layout": "nih", "root": "data/nih"}
    with pytest.raises(FdamedError, match="does not go with"):
        config.parse(raw, "here")


def test_a_figure_of_a_paper_names_a_run_of_the_study() -> None:
    raw = yaml.safe_load((ROOT / "config" / "mnist_noniid.yaml").read_text())
    raw["published"]["values"]["gpp"] = 1.0
    with pytest.raises(FdamedError, match="gpp"):
        config.parse(raw, "here")
