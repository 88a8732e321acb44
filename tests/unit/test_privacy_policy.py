"""The privacy policy of a client: minimum of images and steps, no use of images without noise, no sums of one."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fdamed.config.loader import catalog, load, parse
from fdamed.config.policy_checks import check_minimum, most_images
from fdamed.config.privacy import NO_MINIMUM, Minimum, local_steps
from fdamed.config.study import Recipe
from fdamed.core.errors import FdamedError
from fdamed.core.rng import stream
from fdamed.federation.client import answer
from fdamed.federation.method import REGISTRY, Method, Model
from fdamed.federation.runner import run
from fdamed.federation.server import Server
from fdamed.federation.transport.base import InProcess
from fdamed.methods._shared.local_training import compute_update, train_locally
from fdamed.methods.scaffold import Ask, train_corrected
from fdamed.report.sections import privacy as privacy_section
from fdamed.training.local import batches
from tests.support import federation as hospitals

ROOT = Path(__file__).resolve().parents[2]
METHODS = sorted(REGISTRY)
STUDY: dict[str, Any] = {
    "study": "c",
    "data": {"layout": "chexpert", "root": "/x"},
    "split": {"by": "condition", "clients": {"A": "Edema", "B": "Pneumonia"}, "target": "B", "labeled": 200},
    "model": {"norm": "group"},
    "runs": {"fedavg": {}},
}


def study(**sections: Any) -> dict[str, Any]:
    content = copy.deepcopy(STUDY)
    for name, section in sections.items():
        content[name] = (content.get(name, {}) | section) if name != "runs" else section
    return content


def error_of(**sections: Any) -> FdamedError:
    with pytest.raises(FdamedError) as caught:
        parse(study(**sections), "study.yaml")
    return caught.value


# --- the floor -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "batch", "epochs"), [(100, 16, 1), (97, 16, 2), (16, 16, 1), (1, 4, 3), (5, 2, 1)])
def test_steps_are_counted_as_training_takes_them(n: int, batch: int, epochs: int) -> None:
    taken = sum(1 for epoch in range(epochs) for _ in batches(n, batch, stream(0, "order", epoch)))
    recipe = Recipe(lr=0.1, batch=batch, epochs=epochs)
    assert local_steps(n, recipe) == taken
    assert local_steps(n, recipe.model_copy(update={"steps": 2})) == min(taken, 2)


def test_a_hospital_with_too_few_images_sends_nothing_and_says_what_to_do() -> None:
    client = hospitals.hospital("north")
    client.minimum = Minimum(images=15, steps=1)
    before = client.model.read()
    with pytest.raises(FdamedError) as refused:
        answer(client, train_locally, 1, 0, Model(x=hospitals.theta()))
    assert refused.value.what == (
        "north has 14 images; the minimum for sharing any result is 15 (privacy.smallest_images)"
    )
    assert refused.value.where == "hospital north" and "Give north at least 15 images" in refused.value.fix
    assert "or write `privacy.smallest_images: 14` if the hospital agrees" in refused.value.fix
    assert torch.equal(client.model.read(), before) and not client.memory


def test_a_count_that_could_point_at_persons_is_not_in_the_message() -> None:
    refused = Minimum().refusal("north", 9)
    assert refused is not None and "1 to 10 images" in refused.what and "9" not in refused.what


def test_a_model_of_too_few_steps_does_not_leave_and_epochs_count() -> None:
    client = hospitals.hospital("north")
    client.minimum = Minimum(images=1, steps=5)  # 14 images in fours are 4 steps
    with pytest.raises(FdamedError, match=r"north takes 4 local steps a round.*minimum.*is 5.*privacy\.smallest_steps"):
        answer(client, train_locally, 1, 0, Model(x=hospitals.theta()))
    client.recipe = Recipe(lr=0.02, batch=4, epochs=2)
    assert answer(client, train_locally, 1, 0, Model(x=hospitals.theta())).n == 14


def test_a_mean_gradient_counts_as_one_pass_whatever_the_epochs_of_the_recipe() -> None:
    client = hospitals.hospital("north")
    client.recipe, client.minimum = Recipe(lr=0.02, batch=4, epochs=2), Minimum(images=1, steps=8)
    theta, zeros = hospitals.theta(), torch.zeros(client.model.layout.trainable)
    answer(client, compute_update, 1, 0, Model(x=theta))  # 8 steps
    with pytest.raises(FdamedError, match="north takes 4 local steps a round; the minimum"):
        answer(client, train_corrected, 1, 0, Ask(x=theta, c=zeros, option=1, round=1, taken=0))


@pytest.mark.parametrize("name", METHODS)
def test_no_method_gets_anything_from_a_hospital_below_the_floor(name: str) -> None:
    resident = hospitals.model()
    clients = {n: hospitals.hospital(n, resident=resident, **hospitals.suited(name)) for n in hospitals.NAMES}
    for client in clients.values():
        client.minimum = Minimum()
    server = Server(InProcess(clients), "target", "test")
    with pytest.raises(FdamedError, match="minimum for sharing"):
        run(hospitals.registered(name), server, hospitals.theta(), 2, hospitals.no_judge)
    assert all(line["from"] == "server" for line in server.ledger.settle())


def test_a_straggler_of_one_epoch_is_below_the_floor_that_all_epochs_keep() -> None:
    fedprox = REGISTRY["fedprox"]
    for stragglers in (0.0, 0.5):
        client = hospitals.hospital("north")
        client.recipe, client.minimum = Recipe(lr=0.02, batch=4, epochs=2), Minimum(images=1, steps=8)
        server = Server(InProcess({"north": client, "target": hospitals.hospital("target")}), "target", "test")
        server.begin(1, 1)
        made = fedprox(stragglers=stragglers)
        if stragglers:
            with pytest.raises(FdamedError, match="north takes 4 local steps"):
                made.round(made.start(hospitals.theta()), server)
        else:
            assert torch.isfinite(made.round(made.start(hospitals.theta()), server).x).all()


def test_the_minimum_is_a_hundred_images_and_ten_steps_where_patients_are_behind_them() -> None:
    config = parse(study(), "test")
    assert config.minimum == Minimum(100, 10)
    assert parse(study(privacy={"smallest_images": 30, "smallest_steps": 2}), "test").minimum == Minimum(30, 2)
    assert load(ROOT / "tests/workflow/tiny_benchmark.yaml").minimum == NO_MINIMUM  # a public set


def test_a_refusal_of_advice_has_the_number_of_labels_that_ends_it() -> None:
    cut = study()["split"] | {"labeled": 200}
    with pytest.raises(FdamedError, match=r"or `split\.labeled: 500` or more"):
        parse(study(split=cut, runs={"gp": {}}) | {"advise": True}, "test")
    parse(study(split=cut | {"labeled": 500}, runs={"gp": {}}) | {"advise": True}, "test")


def test_a_refusal_for_too_few_steps_gives_every_line_that_ends_it() -> None:
    cut, expected = (
        study()["split"] | {"labeled": 100},
        r"`runs\.gp\.train\.target\.epochs: 2` \(100 images in batches of 16: 14 steps\), or for all runs "
        r"`train\.target\.epochs: 2`, or leave gp out of `runs`, or write `privacy\.smallest_steps: 7`",
    )
    with pytest.raises(FdamedError, match=expected):
        parse(study(split=cut, runs={"gp": {}}, train={}), "test")
    recipe = {"lr": 2e-4, "batch": 16}
    parse(study(split=cut, runs={"gp": {}}, train={"target": recipe | {"epochs": 2}}), "test")
    parse(study(split=cut, runs={"gp": {}}, train={}, privacy={"smallest_steps": 7}), "test")
    with pytest.raises(FdamedError, match=r"`runs\.gp\.train\.target\.epochs: 3`"):
        parse(study(split=cut, runs={"gp": {"train": {"target": recipe | {"batch": 32}}}}, train={}), "test")


@pytest.mark.parametrize("name", ["chexpert", "midrc"])
def test_the_real_cohorts_keep_the_usual_floor(name: str) -> None:
    assert load(ROOT / f"config/{name}.yaml").minimum == Minimum(100, 10)


@pytest.mark.parametrize(
    ("name", "steps", "epochs"),
    [("mimic", 4, 3), ("nih", 7, 2), ("papers/healthcare/nih_sample", 7, 2), ("papers/healthcare/nih_view", 7, 2)],
)
def test_cohorts_with_a_hundred_labels_lower_the_steps_alone_and_more_epochs_would_keep_them(
    name: str, steps: int, epochs: int
) -> None:
    """In batches of 32 they are 4 steps, of 16 they are 7."""
    assert load(ROOT / f"config/{name}.yaml").minimum == Minimum(100, steps)
    config = load(ROOT / f"config/{name}.yaml")
    slower = config.train.model_copy(update={"target": config.train.target.model_copy(update={"epochs": epochs})})
    strict = config.privacy.model_copy(update={"smallest_steps": None})
    changed = config.model_copy(update={"train": slower, "privacy": strict})
    sizes = {p: {"train": 300, "adapt": 100} for p in config.split.clients}
    for run_name, spec in changed.expanded_runs().items():
        check_minimum(run_name, spec, changed, catalog(), sizes, "test")


def test_a_configuration_below_the_floor_is_refused_before_the_first_job() -> None:
    few = error_of(split={"labeled": 60}, runs={"gp": {}})
    assert (
        "`runs.gp`, target B: B has 60 labeled images to train on (split.labeled)" in few.what
        and "Nothing was started" in few.fix
    )
    assert "takes 7 local steps" in error_of(split={"labeled": 100}, runs={"gp": {}}).what
    parse(study(split={"labeled": 60}), "test")  # fedavg never asks the target
    small = error_of(split={"per_class": 45, "labeled": 20}, runs={"fedavg": {}})
    assert "A has 90 images" in small.what  # two classes, at most


def test_the_sizes_of_a_cohort_are_held_against_the_floor_before_training() -> None:
    config = parse(study(), "test")
    sizes = {"A": {"train": 90, "adapt": 9}, "B": {"train": 500, "adapt": 200}}
    with pytest.raises(FdamedError, match="A has 99 images"):
        check_minimum("fedavg", config.expanded_runs()["fedavg"], config, catalog(), sizes, "cohort.json")


# --- noise and sums --------------------------------------------------------------------------------------------------

NOISE = {"differential": {"multiplier": 1.0}}
SGD = {"train": {"source": {"lr": 0.01, "optimizer": "sgd"}}}


@pytest.mark.parametrize("name", sorted(catalog()))
def test_noise_works_with_the_methods_that_declare_it_and_with_no_other(name: str) -> None:
    sections: dict[str, Any] = {"runs": {name: NOISE}, "privacy": {"release": ["weights", "features", "count"]}, **SGD}
    if catalog()[name]["noised"]:
        assert parse(study(**sections), "test").differential_of(parse(study(**sections), "test").runs[name])
    else:
        assert "send values that DP-SGD does not protect" in error_of(**sections).what


def test_noise_needs_a_norm_that_looks_at_one_image_at_a_time() -> None:
    error = error_of(model={"norm": "batch"}, privacy=NOISE)
    assert "BatchNorm mixes the images of a batch" in error.what and error.fix == "Set `model.norm: group`."


def test_what_noise_cannot_cover_is_refused_beside_it() -> None:
    heads = {"model": {"heads": ["sex"], "norm": "group"}}
    assert "auxiliary heads" in error_of(**heads, runs={"fedavg": NOISE | {"auxiliary": {"heads": ["sex"]}}}).what
    assert "bfloat16" in error_of(train={"precision": "bfloat16"}, privacy=NOISE).what
    assert "uses the sources again" in error_of(runs={"fedavg": NOISE | {"then": {"method": "fedavg"}}}).what
    parse(study(runs={"fedavg": NOISE | {"then": {"method": "finetune_head"}}}), "test")


def test_advice_asks_for_gradients_without_noise_and_is_refused_where_the_study_has_it() -> None:
    with pytest.raises(FdamedError, match="gradients of the sources without noise"):
        parse(study(privacy=NOISE) | {"advise": True}, "test")


SECURE = {"privacy": {"secure_aggregation": True}}


def test_secure_aggregation_with_fedgp_is_refused_because_a_projection_needs_each_update() -> None:
    error = error_of(**SECURE, runs={"fedgp": {}})
    assert "fedgp cannot run with privacy.secure_aggregation" in error.what
    assert "a projection on each source's update needs each update" in error.what


def test_a_method_that_declares_nothing_counts_as_one_that_needs_each_update() -> None:
    assert Method.needs_each and not catalog()["fedavg"]["needs_each"]


@pytest.mark.parametrize("name", sorted(catalog()))
def test_secure_aggregation_works_with_the_methods_that_need_only_sums_and_with_no_other(name: str) -> None:
    release = {"release": ["weights", "update", "statistic", "features", "scalar", "count"], "secure_aggregation": True}
    why = catalog()[name]["needs_each"]
    three: dict[str, Any] = {"split": study()["split"] | {"clients": {c: c for c in "ABC"}}}
    if why:
        assert why in error_of(privacy=release, runs={name: {}}, **SGD, **three).what
    else:
        assert parse(study(privacy=release, runs={name: {}}, **SGD, **three), "test").privacy.secure_aggregation


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"runs": {"fedda": {"align": True}}}, "scaled by its own nominal step"),
        ({"train": {"validation": {"norms": {}}}}, "compares single updates"),
        ({"train": {"validation": {"directions": {}}}}, "compares single updates"),
        ({"train": {"participation": 0.5}}, "a sum over one source is its own answer"),
    ],
)
def test_options_that_need_single_updates_are_refused_beside_secure_aggregation(
    sections: dict[str, Any], why: str
) -> None:
    three: dict[str, Any] = {"split": study()["split"] | {"clients": {c: c for c in "ABC"}}}
    assert why in error_of(**SECURE, **three, **sections).what


def test_advice_and_one_source_are_refused_beside_secure_aggregation() -> None:
    assert "a sum over one source is its own answer" in error_of(**SECURE).what
    three: dict[str, Any] = {"split": study()["split"] | {"clients": {c: c for c in "ABC"}}}
    with pytest.raises(FdamedError, match="compares the gradients of single sources"):
        parse(study(**SECURE, **three) | {"advise": True}, "test")


# --- the report ------------------------------------------------------------------------------------------------------


def test_the_report_states_the_floor_and_what_noise_cost_each_run_and_all_together() -> None:
    pytest.importorskip("opacus", reason="the extra `privacy` is not installed")
    config = parse(study(), "test")
    cost = {"epsilon": 2.5, "delta": 1e-3, "spent": [[1.0, 0.1, 50]]}
    facts = {"privacy": {"mode": "reproducible", "sources": {"A": cost}}}
    record = _Record("noisy", facts)
    frame = privacy_section.costs([record, dataclasses.replace(record, run="again"), _Record("plain", {})])  # type: ignore[list-item]
    assert list(frame["run"]) == ["noisy", "again"] and list(frame["epsilon"]) == [2.5, 2.5]
    from fdamed.training.dp_sgd import epsilon

    assert set(frame.iloc[:, 5]) == {epsilon([(1.0, 0.1, 100)], 1e-3)}
    context = privacy_section.context(SimpleNamespace(config=config, records=[record]))  # type: ignore[arg-type]
    assert (context["minimum"].images, context["minimum"].steps) == (100, 10) and context["rows"][0][:4] == (
        "noisy",
        "A",
        "reproducible",
        2.5,
    )
    assert privacy_section.tables(SimpleNamespace(records=[_Record("plain", {})])) == {}  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class _Record:
    run: str
    facts: dict[str, Any]


def test_the_most_images_of_a_hospital_are_a_maximum_and_not_what_is_left_on_average() -> None:
    """Patients are drawn: with 20 a class, all 40 images may fall to training, whatever the shares of val and test."""
    cut = STUDY["split"] | {"per_class": 20, "labeled": 10, "val": 0.2, "test": 0.4}
    most = most_images(parse(study(split=cut, privacy={"smallest_images": 1, "smallest_steps": 1}), "study.yaml"))
    assert most == {client: {"train": 30, "adapt": 10} for client in ("A", "B")}


def test_advice_is_refused_where_a_fold_of_the_labels_is_smaller_than_the_minimum() -> None:
    """500 labels: folds of 100 images, and 400 to train on, in 25 steps of 16."""
    few = study(split={"labeled": 499}) | {"advise": True}
    with pytest.raises(FdamedError, match="one of 5 folds of the 499 labeled images"):
        parse(few, "test")
    parse(few | {"advise": False}, "test")
    swept = study(split={"labeled": 500}) | {"advise": True}
    swept["runs"] = {"gp": {"sweep": {"labeled": [300, 500]}}}
    with pytest.raises(FdamedError, match=r"`runs\.gp-labeled-300`: .* one of 5 folds of the 300 labeled images"):
        parse(swept, "test")
    parse(study(split={"labeled": 500}) | {"advise": True}, "test")
