"""Digests of a configuration leave out defaults, in one place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import create_model

from fdamed.config.base import digest_sections, without_defaults
from fdamed.config.loader import load, parse
from fdamed.config.privacy import Privacy
from fdamed.config.runs import Run
from fdamed.config.study import Audit, Image, Model, Recipe, Tracking, Train
from tests.unit.test_config import WHOLE, changed


@pytest.mark.parametrize("section", [Image, Model, Train, Privacy, Audit, Tracking], ids=lambda s: s.__name__)
def test_a_new_key_with_a_default_changes_no_digest(section: type) -> None:
    longer = create_model("Longer", __base__=section, new_key=(int, 7))
    assert digest_sections(longer()) == digest_sections(section())
    assert digest_sections(longer(new_key=8)) != digest_sections(section())


def test_a_new_key_deep_inside_changes_no_digest() -> None:
    longer = create_model("Longer", __base__=Recipe, new_key=(int, 7))
    assert digest_sections(Train(source=longer(lr=0.5))) == digest_sections(Train(source=Recipe(lr=0.5)))


def test_a_default_that_is_written_out_changes_no_digest() -> None:
    short = parse(changed(), "x")
    full = parse(changed(train__rounds=50, train__validation={}, model__norm="batch", split__val=0.1), "x")
    assert digest_sections(short) == digest_sections(full)
    assert digest_sections(short) != digest_sections(parse(changed(train__rounds=49), "x"))


def test_the_keys_that_choose_a_form_stay() -> None:
    dumped = without_defaults(parse(changed(runs__gp={"then": "finetune_head"}), "x"))
    assert dumped["data"]["layout"] == "chexpert" and dumped["split"]["by"] == "condition"
    assert dumped["runs"]["gp"] == {"then": {"method": "finetune_head"}}
    assert without_defaults(Run(method="gp", beta=0.5)) == {"method": "gp", "beta": 0.5}


def test_an_empty_section_is_not_an_absent_one() -> None:
    with_noise = parse(changed(runs={"fedavg": {}}, model__norm="group", privacy__differential={}), "x")
    assert without_defaults(with_noise)["privacy"]["differential"] == {}


@pytest.mark.parametrize("path", WHOLE, ids=lambda p: p.stem)
def test_what_the_jobs_read_is_the_same_configuration(path: Path) -> None:
    config = load(path)
    written = json.loads(json.dumps(without_defaults(config)))
    assert parse(written, "x") == config
    for run in config.expanded_runs().values():
        assert Run.model_validate(without_defaults(run)) == run
