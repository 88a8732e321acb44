from __future__ import annotations

import json
import logging
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import yaml

from fdamed.cli import main as cli
from fdamed.cli.parser import commands
from fdamed.core.logs import show_on_stderr
from fdamed.federation.client import Client
from fdamed.federation.transport.multiprocess import Processes
from tests.support import federation as hospitals

ROOT = Path(__file__).resolve().parents[2]


def test_help_imports_nothing_heavy() -> None:
    code = "import sys\nfrom fdamed.cli.main import main\n"
    code += "try: main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(out.splitlines()[-1].split())
    assert not loaded & {"torch", "pandas", "numpy", "mlflow", "monai", "pydantic", "rich"}
    assert all(f"\n    {name} " in out for name in commands())


def test_scoring_with_onnxruntime_imports_neither_torch_nor_pandas() -> None:
    """The decoding processes do; they are started from a server of their own."""
    code = "import sys, fdamed.cli.commands.predict, fdamed.export.input, fdamed.export.runtime; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not set(out.split()) & {"torch", "pandas", "monai", "mlflow"}


def test_a_users_mistake_is_three_lines_and_exit_code_2(tmp_path: Path, capsys) -> None:
    assert cli.main(["parameters", "--config", str(tmp_path / "none.yaml")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "where", "to do"]


def test_an_unforeseen_error_at_a_hospital_does_not_quote_its_data(monkeypatch, capsys) -> None:
    from fdamed.cli.commands import ingest

    def broken(arguments) -> None:
        raise ValueError("^".join(["Doe", "Jane"]))

    monkeypatch.setattr(ingest, "run", broken)
    assert cli.main(["ingest", "--config", "x.yaml"]) == 70
    stderr = capsys.readouterr().err
    assert "ValueError" in stderr and "test_cli.py" in stderr
    assert "Doe^Jane" not in stderr


def test_the_healthcare_papers_parameter_counts(tmp_path: Path, capsys) -> None:
    raw = yaml.safe_load((ROOT / "config" / "chexpert.yaml").read_text())
    three = {"heads": ["sex", "age", "view"]}
    runs = {"shared": {"method": "gp", "auxiliary": three}, "private": {"method": "gp", "auxiliary": three}}
    runs["private"]["auxiliary"] = three | {"share": False}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(raw | {"runs": runs | {"fedavg": {}}}))
    assert cli.main(["parameters", "--config", str(tmp_path / "study.yaml")]) == 0
    counts = json.loads(capsys.readouterr().out)
    assert counts["total"] == 56_212_170 == 5 * 11_242_434
    assert counts["total_with_heads"] == {
        "shared": 56_221_200,  # 5 x 14 x 129 more: Table 3
        "private": 56_219_394,  # the target has none
    }


def test_the_methods_are_listed_with_what_crosses_the_wire(capsys) -> None:
    assert cli.main(["methods", "--json"]) == 0
    listed = {m["name"]: m for m in json.loads(capsys.readouterr().out)}
    assert {"fedavg", "finetune", "finetune_offline", "target_only", "oracle", "gp", "fedda", "fedgp"} <= set(listed)
    assert listed["fedavg"]["target_labels"] is False
    kinds = {k for step in listed["gp"]["wire"] for k in step["from_hospital"].values()}
    assert kinds == {"update", "count", "scalar"}


def test_the_methods_table_prints(capsys) -> None:
    assert cli.main(["methods"]) == 0
    assert "fedgp" in capsys.readouterr().out


@pytest.mark.parametrize("name", list(commands()))
def test_every_command_explains_itself(name, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([name, "--help"])
    assert stopped.value.code == 0
    assert "usage: fdamed" in capsys.readouterr().out


def test_a_file_in_the_folder_of_commands_is_a_command_with_summary_group_and_example() -> None:
    files = (ROOT / "fdamed" / "cli" / "commands").glob("[a-z]*.py")
    assert sorted(commands()) == sorted(file.stem.replace("_", "-") for file in files)
    assert all(command.summary and command.examples for command in commands().values())


@pytest.mark.parametrize(("option", "expected"), [("-v", ["d", "i", "w"]), ("", ["i", "w"]), ("-q", ["w"])])
def test_log_messages_go_to_standard_error_and_can_be_silenced(option, expected, capsys, monkeypatch) -> None:
    monkeypatch.setenv("FDAMED_LOG", "info")
    assert cli.main([*option.split(), "methods", "--json"]) == 0
    capsys.readouterr()
    logger = logging.getLogger("fdamed.some.module")
    for level, text in ((logging.DEBUG, "d"), (logging.INFO, "i"), (logging.WARNING, "w")):
        logger.log(level, text)
    shown = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("warning: ") for line in shown] == expected


def talkative(name: str) -> Client:
    """A client that logs while it is built, in its own process."""
    logging.getLogger("fdamed.some.module").info(f"{name} is built")
    logging.getLogger("fdamed.some.module").warning(f"{name} has few images")
    return hospitals.hospital(name)


@pytest.mark.parametrize(
    ("level", "shown"), [("info", ["target is built", "warning: target has few images"]), ("error", [])]
)
def test_the_messages_of_client_processes_are_shown_like_those_of_the_server(level, shown, capfd, monkeypatch) -> None:
    monkeypatch.setenv("FDAMED_LOG", level)
    show_on_stderr()
    transport = Processes(
        {"target": partial(talkative, "target")}, hospitals.model().layout, "test", {"target": hospitals.RELEASE}
    )
    assert transport.state("target") is not None
    transport.close()
    assert capfd.readouterr().err.splitlines() == shown
