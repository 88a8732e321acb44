"""The documentation: every command parses, every page is in the navigation, and every link leads somewhere.

Commands are checked with the real parsers and configurations; tests/integration/test_docs_run.py runs them.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fdamed.cli.options import add_options
from fdamed.cli.parser import commands as fdamed_commands
from fdamed.config.loader import catalog, load
from fdamed.data.datasets.table import PARSERS
from fdamed.data.vocabulary import ACCEPTED
from tests.support.documented import PAGES, REFUSED, ROOT, commands, values, words_of

OTHER_PROGRAMS = {
    "source",
    "cp",
    "sed",
    "pip",
    "apt",
    "apt-get",
    "scancel",
    "eval",
    "git",
    "$EDITOR",
    "chmod",
    "export",
    "mlflow",
    "npm",
    "conda",
    "docker",
    "apptainer",
    "cd",
}
COMMANDS = fdamed_commands()
_spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "docs/pages.py")
assert _spec and _spec.loader
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)
MADE_BY_READER = {"mine.yaml", "tuned.yaml", "study.yaml", "config/ours.yaml", "test_fedavgm.py"}
"""Files that a page asks its reader to write."""
OF_A_BUNDLE = "docs/README.md"
"""Written by `fdamed export --bundle`."""


def parse(words: list[str]) -> None:
    """Parse a command of fdamed as the program does; SystemExit: it is refused."""
    if words[0] in ("--help", "--version", "-V", "-h"):
        return
    parser = argparse.ArgumentParser(prog=f"fdamed {words[0]}")
    add_options(parser, COMMANDS[words[0]].options)
    if words[1:] != ["--help"]:
        parser.parse_args(words[1:])


def check(words: list[str]) -> None:
    program = words[0].removeprefix(".venv/bin/")
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [w for w in words[1:] if "=" not in w and w not in targets] == []
    elif program == "fdamed":
        for command in " ".join(words[1:]).split(" + "):  # commands that one process runs in turn
            parse(command.split(" "))
        check_configurations(words, "--config")
    elif program == "snakemake":
        check_configurations(words, "--configfile")
        for profile in values(words, "--workflow-profile"):
            assert (ROOT / "profiles" / profile.removeprefix("profiles/") / "config.yaml").exists()
    elif program == "python" and words[1] == "-m":
        assert words[2].split(".")[0] in ("pytest", "benchmarks"), words
        assert (ROOT / (words[2].replace(".", "/") + ".py")).exists() or words[2] == "pytest"
    elif program.startswith(".ci/"):
        assert (ROOT / program).exists()
    elif program == "pytest":
        assert all((ROOT / w).exists() for w in words[1:] if w.startswith("tests/"))
    else:
        assert program in OTHER_PROGRAMS, f"no test knows this command: {program}"


def check_configurations(words: list[str], option: str) -> None:
    given = [w for w in values(words, option) if w not in MADE_BY_READER and "{" not in w and w != "C"]
    if given:
        load(*(ROOT / w for w in given))


@pytest.mark.parametrize(("page", "line"), sorted({c for c in commands() if c[1] not in REFUSED}))
def test_every_command_in_the_documentation_parses(page: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        check(words_of(line))
    except SystemExit:
        pytest.fail(f"{page}: {line}\n{capsys.readouterr().err}")


@pytest.mark.slow
def test_every_study_in_the_documentation_can_be_planned(tmp_path: Path) -> None:
    """`snakemake -n` of each configuration that a page names; planning needs no data."""
    planned = {tuple(values(words_of(line), "--configfile")) for _, line in commands() if "snakemake" in line}
    planned = {p for p in planned if p and not MADE_BY_READER & set(p)}
    assert len(planned) > 10
    for configurations in sorted(planned):
        paths = [str(ROOT / c) for c in configurations]
        line = ["snakemake", "-n", "--cores", "1", "--quiet", "all", "--directory", str(tmp_path)]
        words = [sys.executable, "-m", *line, "--snakefile", str(ROOT / "Snakefile"), "--configfile", *paths]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "MissingInputException" in done.stderr, (configurations, done.stderr[-2000:])


def navigation(entries: object) -> set[str]:
    """Every page that the navigation names."""
    if isinstance(entries, str):
        return {entries}
    parts = entries.values() if isinstance(entries, dict) else entries
    assert isinstance(parts, list | type({}.values()))
    return set().union(*(navigation(part) for part in parts))


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page() -> None:
    named = navigation(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    there = {str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md") if "decisions" not in p.parts}
    assert named - {"decisions/index.md"} == there


def test_pages_fetch_nothing_from_elsewhere() -> None:
    """Neither fonts nor the search worker of pages that are opened as files."""
    pages = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    own = [*pages["extra_css"], *pages["extra"]["polyfills"]]
    assert pages["theme"]["font"] is False and any("iframe-worker" in name for name in own)
    assert all((ROOT / "docs" / name).is_file() for name in own)


def test_every_federated_method_has_a_page_with_its_use() -> None:
    notes = yaml.safe_load((ROOT / "docs/methods/about.yaml").read_text())
    assert set(notes) == federated()
    assert all(note["when"].endswith(".") for note in notes.values())
    assert all(re.match(r"(Validated|Not validated)\b.+\.$", note["validated"]) for note in notes.values())
    for name, note in notes.items():
        page = pages.method_page(name, catalog()[name], note)
        assert "## Server program" in page and "def round(" in page, name


def federated() -> set[str]:
    return {name for name, entry in catalog().items() if not entry.get("classical")}


def test_generated_tables_have_every_command_and_method() -> None:
    marks = {name for page in PAGES for name in re.findall(r"<!-- table of (\w+) -->", page.read_text())}
    assert marks == set(pages.TABLES)
    table = pages.commands_table()
    assert [c for c in COMMANDS.values() if f"| `{c.name}` | {c.summary} | `{c.examples[0]}` |" not in table] == []
    assert {name for name in federated() if f"| `{name}` |" not in pages.privacy_table()} == set()
    assert {name for name in federated() if f"| [`{name}`]({name}.md) |" not in pages.methods_table()} == set()


def rows_of(table: str) -> dict[str, list[str]]:
    """`section key` -> the cells of a generated table of keys."""
    out, section = {}, ""
    for line in table.splitlines():
        section = line if line.startswith("#") else section
        if line.startswith("| `"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            out[f"{section} {cells[0]}"] = cells
    return out


def test_the_configuration_reference_has_values_default_meaning_and_example_of_every_key() -> None:
    rows = rows_of(pages.configuration_table())
    assert len(rows) > 150
    assert [key for key, cells in rows.items() if len(cells) != 5 or not all(cells)] == []
    rounds = rows["## `train` `rounds`"]
    assert rounds[1:4] == ["whole number ≥ 1", "`50`", "Communication rounds."] and rounds[4].startswith("`rounds: ")
    assert rows["### `train.source` `optimizer`"][1] == '`"adam"`, `"sgd"`'
    assert rows["## `split` (Split) `clients`"][2] == "required"


def test_examples_of_the_configuration_reference_are_yaml_of_their_key() -> None:
    for key, cells in rows_of(pages.configuration_table()).items():
        if cells[4] != "see below":
            text = cells[4].strip("`").replace("\\|", "|")
            assert list(yaml.safe_load(f"{{{text}}}")) == [cells[0].strip("`")], key


def test_every_accepted_word_of_a_column_is_parsed() -> None:
    words = {name: text.partition(" in any case")[0].split(", ") for name, text in ACCEPTED.items()}
    for name in ("sex", "view", "burned_in"):
        assert f"| `{name}` | {ACCEPTED[name]} |" in pages.columns_table()
        for word in words[name]:
            PARSERS[name](word.lower())
            PARSERS[name](word.upper())
            with pytest.raises(ValueError):
                PARSERS[name](f"{word}x")
    assert [PARSERS["age"](text) for text in ("62", "062Y", "006M", "95", "120")] == [62, 62, 0.5, 90, 90]
    assert f"| `race` | {ACCEPTED['race']} |" in pages.columns_table()
    assert [PARSERS["race"](text) for text in ("caucasian", "African American", "Maori")] == ["White", "Black", "Maori"]
    assert "| `site` | any text |" in pages.columns_table()


def test_the_index_of_decisions_names_what_supersedes_a_record() -> None:
    lines = {line[3:7]: line for line in pages.decisions().splitlines() if line.startswith("* [")}
    records = {path.name[:4]: path.read_text() for path in (ROOT / "docs/decisions").glob("[0-9]*.md")}
    superseded = {number for number, text in records.items() if "uperseded" in text}
    assert lines.keys() == records.keys() and len(superseded) > 10
    assert [n for n in sorted(superseded) if not re.search(r"superseded by \[\d{4}\]", lines[n])] == []


def test_links_between_pages_lead_somewhere() -> None:
    generated = {ROOT / f"docs/methods/{name}.md" for name in catalog()}
    broken = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if (
                "://" not in link
                and not (page.parent / link).exists()
                and (page.parent / link).resolve() not in generated
            ):
                broken.append(f"{page.name}: {link}")
    assert broken == []


def test_every_test_file_that_a_page_names_exists() -> None:
    there = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    cited = {(page.name, name) for page in PAGES for name in re.findall(r"\btest_\w+\.py\b", page.read_text())}
    assert len(cited) > 20
    assert sorted((page, name) for page, name in cited if name not in there | MADE_BY_READER) == []


def test_every_page_that_the_code_names_exists() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git repository")
    missing = []
    for name in listed.stdout.splitlines():
        if (
            name.startswith("docs/")
            or not (ROOT / name).is_file()
            or not name.endswith((".py", ".yaml", ".smk", ".html"))
        ):
            continue
        for page in re.findall(r"\bdocs/[\w/-]+\.(?:md|yaml)\b", (ROOT / name).read_text(encoding="utf-8")):
            if page != OF_A_BUNDLE and not (ROOT / page).exists():
                missing.append(f"{name}: {page}")
    assert missing == []
