"""The files that a visitor meets first: license, citation, containers and environments name what exists."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import yaml

from fdamed import __version__
from fdamed.cli.parser import commands
from fdamed.config.datasets import LAYOUTS
from fdamed.config.loader import catalog, load

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
INSTRUCTIONS = {"FROM", "COPY", "RUN", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
SECTIONS = {"files", "post", "environment", "runscript"}
NEEDED = {"pyproject.toml", "README.md", "LICENSE", "fdamed", *("Snakefile", "config", "envs", "profiles", "workflow")}
"""What building the wheel reads; the last five through the links in fdamed/project/."""


def dockerfile() -> list[tuple[str, list[str]]]:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, shlex.split(rest)) for word, rest in lines]


def test_the_dockerfile_copies_what_the_wheel_needs_and_nothing_else() -> None:
    steps = dockerfile()
    assert {word for word, _ in steps} <= INSTRUCTIONS and steps[0] == ("FROM", ["python:3.11-slim"])
    copied = [source for word, words in steps if word == "COPY" for source in words[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    assert set(copied) == NEEDED | {"envs/requirements.lock"}
    assert ("ENTRYPOINT", ["[fdamed]"]) in steps and "fdamed" in PROJECT["project"]["scripts"]
    assert [words for word, words in steps if word == "USER"] == [["1000"]]


def test_no_data_and_no_results_get_into_an_image() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*" and {line[1:] for line in lines if line.startswith("!")} == NEEDED


def test_the_apptainer_definition_copies_the_same_files() -> None:
    text = (ROOT / "envs/fdamed.def").read_text()
    head, *parts = re.split(r"^%(\w+)\n", text, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    assert sections.keys() == SECTIONS and "Bootstrap: docker\nFrom: python:3.11-slim\n" in head
    pairs = [line.split() for line in sections["files"].splitlines() if line.strip()]
    assert {source for source, _ in pairs} == NEEDED and all(place == f"/src/{source}" for source, place in pairs)
    installed = re.findall(r"pip install .*", sections["post"])
    assert installed == [
        r.removesuffix(" && rm -rf /src") for r in re.findall(r"pip install .*", (ROOT / "Dockerfile").read_text())
    ]


def test_conda_environments_name_files_beside_them() -> None:
    for path in (ROOT / "envs").glob("*.yaml"):
        content = yaml.safe_load(path.read_text())
        (pip,) = [entry["pip"] for entry in content["dependencies"] if isinstance(entry, dict)]
        assert content["name"] and "python=3.11" in content["dependencies"]
        assert all((path.parent / line.split()[1]).exists() for line in pip) and "-e .." in pip


def test_the_citation_has_the_version_the_license_and_every_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__ and citation["license"] == PROJECT["project"]["license"] == "MIT"
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")
    titles = " ".join(entry["title"] for entry in citation["references"]).lower()
    for words in ("for healthcare", "via gradient projection", "via random features", "statistics tuning"):
        assert words in titles
    named = {run for entry in citation["references"] for run in re.findall(r"\b[a-z_]+\b", entry["notes"])}
    assert {"gp", "fedgp", "fedda_auto", "fedrf_tca", "fedgtst"} <= named & catalog().keys()
    assert all(entry["authors"] for entry in citation["references"])


def test_the_changelog_names_no_release_that_there_is_not() -> None:
    assert re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE) == ["[Unreleased]"]


def test_the_readme_is_at_most_120_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_new_offers_every_data_set_with_a_configuration_that_is_valid() -> None:
    offered = commands()["new"].options["--layout"]["choices"]
    assert set(offered) == LAYOUTS.keys() - {"benchmark"} | {"demo"}
    for layout in set(offered) - {"demo"}:
        assert load(ROOT / f"config/{layout}.yaml").data.layout == layout
