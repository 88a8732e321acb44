"""The command line as people meet it: help, examples, mistakes, completion, colors."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from fdamed.cli import main as cli
from fdamed.cli.parser import GROUPS, commands

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("command", list(commands()))
def test_every_example_is_a_command_line_that_parses(command: str) -> None:
    for line in commands()[command].examples:
        call = re.search(r"fdamed [^>)]*", line)
        assert call, line
        words = shlex.split(call[0])[1:]
        assert words[0] == command, line
        assert cli.parsed(words).command == command
        for name in re.findall(r"config/\w+\.yaml", line):
            assert (ROOT / name).is_file(), name


def test_help_shows_every_group_in_order_and_each_command_an_example(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    places = [out.index(f"\n{heading}:") for heading in GROUPS]
    assert places == sorted(places)
    with pytest.raises(SystemExit):
        cli.main(["export", "--help"])
    assert commands()["export"].examples[0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("exprt x --out y", "`export`"),
        ("federate --confg a.yaml", "`--config`"),
        ("predict --modle m image.dcm", "`--model`"),
        ("doctor --config a.yaml --jsno", "`--json`"),
        ("methods --jsn=1", "`--json`"),
    ],
)
def test_a_misspelled_word_is_answered_with_the_nearest_one(typed: str, meant: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(typed.split())
    lines = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2
    assert [line.split(":")[0] for line in lines[:3]] == ["error", "where", "to do"]
    assert f"Did you mean {meant}" in lines[2]


def test_a_mistake_without_a_likeness_says_where_help_is(capsys) -> None:
    for words in ([], ["zzzzzz"], ["report", "--zzzzzz", "1", "--config", "a.yaml"], ["methods", "--bogus"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(words)
        assert stopped.value.code == 2
        stderr = capsys.readouterr().err
        assert "--help`" in stderr and "Did you mean" not in stderr


def test_one_method_is_explained_with_its_options_messages_and_paper(capsys) -> None:
    assert cli.main(["methods", "fedprox"]) == 0
    stdout = capsys.readouterr().out
    for part in ("MLSys", "0: FedAvg", "0.01", "number, 0.0 or more", "number from 0.0 to 1.0", "mu: scalar"):
        assert part in stdout
    assert "kd3a" not in stdout
    for typed, near in (("fedprx", "(did you mean `fedprox`?)"), ("fedfoo", "`fedfoo`\n")):
        assert cli.main(["methods", typed]) != 0
        assert near in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("", ["study", "Folder of all results."]),
        ("split.labeled", ["split.labeled (Split)", "values: whole number ≥ 2", "default: 100", "example: labeled:"]),
        ("runs.mine.beta", ["weight of the source side"]),
        ("train.source", ["How the sources train.", "weight_decay"]),
        ("data.columns", ["image and patient are required", "male, female, m, f", "blank or unknown"]),
    ],
)
def test_a_key_of_the_configuration_is_explained(key: str, words: list[str], capsys) -> None:
    assert cli.main(["config", *([key] if key else [])]) == 0
    out = capsys.readouterr().out
    assert [word for word in words if word not in out] == []


def test_every_key_of_a_shipped_configuration_is_explained(capsys) -> None:
    def keys(content: object, path: str) -> list[str]:
        inner = content.items() if isinstance(content, dict) else ()
        return [path, *(k for key, value in inner for k in keys(value, f"{path}.{key}".lstrip(".")))]

    content = yaml.safe_load((ROOT / "config/table.yaml").read_text())
    own = ("data.columns.", "data.labels.", "data.values.", "split.clients.", "runs.")
    known = [key for key in keys(content, "") if not key.startswith(own)]
    assert len(known) > 30 and [key for key in known if cli.main(["config", key])] == []


def test_an_unknown_key_is_answered_with_the_nearest_one(capsys) -> None:
    assert cli.main(["config", "split.labelled"]) == 2
    assert "there is no key `split.labelled` (did you mean `labeled`?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options"), [("config/config.yaml", ""), ("my study.yaml", " --config 'my study.yaml'")]
)
def test_a_command_that_a_message_suggests_can_be_pasted(
    name: str, options: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Without --config all commands read config/config.yaml; another file is in the suggested command."""
    (tmp_path / "config").mkdir()
    shutil.copy(ROOT / "config/config.yaml", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["split", *(["--config", name] if options else [])]) == 2
    (suggested,) = re.findall(r"`(fdamed [^`]*)`", capsys.readouterr().err)
    assert suggested == f"fdamed ingest{options}"
    assert cli.parsed(shlex.split(suggested)[1:]).config == [name]


def test_the_runs_are_served_only_once_there_are_some(tmp_path: Path, monkeypatch, capsys) -> None:
    served: list[list[str]] = []
    monkeypatch.setattr("os.execv", lambda _, words: served.append(words))
    (tmp_path / "config").mkdir()
    shutil.copy(ROOT / "config/config.yaml", tmp_path / "config/config.yaml")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["mlflow"]) == 2 and "there is no MLflow database yet" in capsys.readouterr().err
    (tmp_path / "results/mlflow").mkdir(parents=True)
    (tmp_path / "results/mlflow/mlflow.db").touch()
    assert cli.main(["mlflow", "--port", "5077"]) == 0
    (words,) = served
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert (options["--host"], options["--port"]) == ("127.0.0.1", "5077")
    assert options["--backend-store-uri"] == f"sqlite:///{tmp_path.resolve()}/results/mlflow/mlflow.db"


def test_the_version_is_printed(capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0 and re.match(r"fdamed \d", capsys.readouterr().out)


def test_help_takes_less_than_fifteen_hundredths_of_a_second() -> None:
    """CPU time, best of three: what a busy machine adds is not ours."""
    code = "from fdamed.cli import main as cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass"
    spent = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        after = os.times()
        spent.append(after.children_user - before.children_user + after.children_system - before.children_system)
    assert min(spent) < 0.15, spent


def test_a_plus_separates_commands_that_one_process_runs_in_turn(capsys) -> None:
    assert cli.main(["methods", "gp", "+", "methods", "fedavg"]) == 0
    out = capsys.readouterr().out
    assert -1 < out.index("gp") < out.index("fedavg")


def test_after_a_command_that_fails_the_next_ones_are_not_run(capsys) -> None:
    assert cli.main(["methods", "nowhere", "+", "methods", "fedavg"]) == 2
    assert "fedavg" not in capsys.readouterr().out


def test_a_mistake_in_a_later_command_is_found_before_the_first_is_run(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["methods", "gp", "+", "methosd"])
    found = capsys.readouterr()
    assert found.out == "" and "methods" in found.err


@pytest.mark.parametrize(
    "words", [["methods", "--json"], ["status", "--config", str(ROOT / "config" / "config.yaml"), "--json"]]
)
def test_a_reader_who_leaves_early_is_no_fault(words: list[str]) -> None:
    """More than a pipe holds, and less than Python's own buffer."""
    code = f"import sys; from fdamed.cli import main as cli; sys.exit(cli.main({words}))"
    theirs, ours = os.pipe()
    os.close(theirs)
    done = subprocess.run([sys.executable, "-c", code], stdout=ours, stderr=subprocess.PIPE, check=False)
    os.close(ours)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> dict[str, Path]:
    """The completion code of each shell, beside an `fdamed` that it can ask."""
    folder = tmp_path_factory.mktemp("completion")
    program = folder / "fdamed"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m fdamed "$@"\n')
    program.chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        (folder / shell).write_text(subprocess.check_output([program, "completion", shell], text=True))
    return {shell: folder / shell for shell in ("bash", "zsh", "fish")}


CASES = {
    "fdamed exp": {"export"},
    "fdamed predict --wor": {"--workers"},
    "fdamed completion ": {"bash", "zsh", "fish"},
}


def with_program(scripts: dict[str, Path]) -> dict[str, str]:
    return os.environ | {"PATH": f"{scripts['bash'].parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize("line", list(CASES))
def test_bash_completes(scripts, line: str) -> None:
    setup = f"source {shlex.quote(str(scripts['bash']))}; COMP_LINE={shlex.quote(line)}; COMP_POINT={len(line)}; "
    code = setup + 'COMP_TYPE=9; _python_argcomplete fdamed; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, env=with_program(scripts), check=True)
    assert set(done.stdout.split()) == CASES[line], done.stderr


def test_completing_imports_nothing_heavy() -> None:
    code = "import sys; from fdamed.cli import main as cli; cli.build(['predict']); print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    assert not {"torch", "pandas", "mlflow"} & set(loaded.split())


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish here")
@pytest.mark.parametrize("line", list(CASES))
def test_fish_completes(scripts, line: str) -> None:
    code = f'source {scripts["fish"]}; complete -C "{line}"'
    done = subprocess.run(["fish", "-c", code], capture_output=True, text=True, env=with_program(scripts), check=True)
    assert {word.split("\t")[0] for word in done.stdout.splitlines()} >= CASES[line], done.stderr


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here")
def test_zsh_completes(scripts, tmp_path: Path) -> None:
    """In a pseudo-terminal: zsh completes nowhere else."""
    import pty

    child, screen = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.execvpe("zsh", ["zsh", "-f", "-i"], with_program(scripts) | {"TERM": "dumb", "PS1": "$ "})
    try:
        setup = f"autoload -U compinit; compinit -u -D; source {scripts['zsh']}"
        os.write(screen, f"{setup}; print REA''DY\n".encode())
        _read_until(screen, "READY")
        os.write(screen, b"fdamed exp\t--witho\t")
        assert "--without-onnx" in _read_until(screen, "--without-onnx")
    finally:
        os.close(screen)
        os.waitpid(child, 0)


def _read_until(screen: int, word: str, seconds: float = 120.0) -> str:
    import select

    output, end = "", time.monotonic() + seconds
    while word not in output and time.monotonic() < end:
        if select.select([screen], [], [], 1.0)[0]:
            output += os.read(screen, 4096).decode(errors="replace")
    return output


def test_no_color_is_printed_where_no_color_is_set_or_nobody_looks(monkeypatch, capsys) -> None:
    assert cli.main(["methods"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    from rich.text import Text

    from fdamed.core.progress import console

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console().print(Text("x", style="red"))
    assert "\x1b[31m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    console().print(Text("x", style="red"))
    assert "\x1b" not in capsys.readouterr().out
