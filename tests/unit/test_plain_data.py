"""Any file is a configuration or one clear line."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fdamed.config import loader as configfile
from fdamed.core.errors import FdamedError, printable

STUDY: dict[str, Any] = {
    "study": "demo",
    "results": "results",
    "data": {"layout": "chexpert", "root": "data/x", "reject_share": 0.1, "allowed_roots": ["/store"]},
    "split": {"by": "condition", "clients": {"a": "Edema", "b": "Pneumonia"}, "target": "a", "labeled": 20},
    "image": {"size": 64},
    "privacy": {"release": ["weights"], "smallest_cell": 11, "smallest_images": 1, "smallest_steps": 1},
    "model": {"width": 0.5, "heads": ["sex"]},
    "train": {"rounds": 5, "source": {"lr": 0.001, "batch": 8}, "device": "cpu"},
    "runs": {"gp": {"beta": 0.4, "auxiliary": {"heads": ["sex"]}}, "fedavg": {"sweep": {"labeled": [5, 10]}}},
    "seeds": [0, 1],
    "tracking": {"uri": None},
}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds: [0]\nstudy: x\nseeds: [1]", "the key `seeds` occurs twice (mapping in line 1)"),
        ("data: {root: a, root: b}", "the key `root` occurs twice"),
        ("a: !!python/object/apply:os.system ['touch sang']", "could not determine a constructor"),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("a: !!int x", "not readable as YAML"),
        ("a: 2026-99-99", "not readable as YAML"),
        ("[" * 5000, "recursion"),
        ("a: [1, 2", "while parsing"),
        ("a: b: c", "mapping values are not allowed"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("? {a: 1}\n: 2", "unhashable"),
        ("\x00", "special characters are not allowed"),
        ("just words", "a mapping of keys"),
        ("", "a mapping of keys"),
    ],
    ids=lambda value: re.sub(r"\W+", "_", value)[:24],
)
def test_a_file_that_is_not_plain_data_is_one_clear_line(text: str, message: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.yaml"
    path.write_text(text)
    with pytest.raises(FdamedError) as caught:
        configfile.load(path)
    assert message in caught.value.what and caught.value.where == str(path)
    assert len(caught.value.what) < 1000 and "\n" not in caught.value.what
    assert not (tmp_path / "sang").exists()


def test_json_is_read_as_strictly(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    for text, message in (('{"a": 1, "a": 2}', "twice"), ("{", "expected")):
        path.write_text(text)
        with pytest.raises(FdamedError, match=message):
            configfile.read(path)
    path.write_text(json.dumps(STUDY))
    assert configfile.read(path) == STUDY


def test_honest_aliases_and_merges_work(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("base: &b {lr: 0.1, batch: 8}\nown: {<<: *b, lr: 0.2}\nagain: [*b, *b]\n")
    base = {"lr": 0.1, "batch": 8}
    assert configfile.read(path) == {"base": base, "own": {"lr": 0.2, "batch": 8}, "again": [base, base]}


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.text(alphabet="{}[]:,&*!|>-?#'\"%@` \nab01.", max_size=60), st.binary(max_size=60)))
def test_whatever_the_file_holds_it_is_plain_data_or_refused(tmp_path_factory, content: str | bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    try:
        configfile.read(path)
    except FdamedError as error:
        assert "\n" not in error.what


PLACES = [
    ("study",),
    ("results",),
    ("data",),
    ("data", "layout"),
    ("data", "root"),
    ("data", "reject_share"),
    ("data", "allowed_roots"),
    ("split",),
    ("split", "by"),
    ("split", "clients"),
    ("split", "clients", "a"),
    ("split", "target"),
    ("split", "labeled"),
    ("image",),
    ("image", "size"),
    ("privacy", "release"),
    ("privacy", "smallest_cell"),
    ("model", "width"),
    ("model", "heads"),
    ("train",),
    ("train", "rounds"),
    ("train", "source"),
    ("train", "source", "lr"),
    ("runs",),
    ("runs", "gp"),
    ("runs", "gp", "beta"),
    ("runs", "gp", "auxiliary"),
    ("runs", "fedavg", "sweep"),
    ("runs", "fedavg", "sweep", "labeled"),
    ("seeds",),
    ("tracking", "uri"),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def changed(place: tuple[str, ...], key: str, value: Any) -> dict[str, Any]:
    raw = copy.deepcopy(STUDY)
    node = raw
    for step in place:
        node = node[step]
    node[key] = value
    return raw


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(PLACES), VALUES)
def test_a_wrong_value_is_named_by_its_key(place: tuple[str, ...], value: Any) -> None:
    try:
        study = configfile.parse(changed(place[:-1], place[-1], value), "study.yaml")
    except FdamedError as error:
        assert place[0] in error.what or place[-1] in error.what, error.what
        assert error.what.isprintable() and len(error.what) < 4000
        return
    for folder in [study.study, *study.expanded_runs(), *study.split.clients]:
        assert re.fullmatch(r"[A-Za-z][\w.+-]*", folder, re.ASCII), f"{folder!r} becomes a folder"


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(
        [(), *((s,) for s in ("data", "split", "image", "model", "train")), ("train", "source"), ("runs", "gp")]
    ),
    st.text(max_size=12),
    VALUES,
)
def test_an_unknown_key_is_refused_by_its_name(place: tuple[str, ...], key: str, value: Any) -> None:
    known = STUDY
    for step in place:
        known = known[step]
    if key in known or key in ("then", "noise", "label", "seed", "side"):
        return
    with pytest.raises(FdamedError) as caught:
        configfile.parse(changed(place, f"{key}_", value), "study.yaml")
    assert f"{printable(key)}_" in caught.value.what


def test_a_dump_of_the_study_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY))
    assert configfile.load(path) == configfile.parse(STUDY, "here")


@pytest.mark.parametrize("word", ["2e7dbf63e415", "123456e78901", "1e-07", "123456789012", "12", "yes"])
def test_a_word_that_looks_like_a_number_is_read_as_it_was_written(word: str, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(configfile.dump({"digest": word}), encoding="utf-8")
    assert configfile.read(tmp_path / "site.yaml") == {"digest": word}
    (tmp_path / "bare.yaml").write_text("digest: 2e7dbf63e415", encoding="utf-8")
    assert configfile.read(tmp_path / "bare.yaml") == {"digest": "2e7dbf63e415"}
