"""`fdamed run`: progress as a person reads it, from what Snakemake prints; its signals and its exit code."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fdamed.cli.commands import run as command
from fdamed.cli.commands.run import STAGES, Progress, duration, follow
from fdamed.pipeline.paths import Places

RULES = Path(__file__).parents[2] / "workflow" / "rules"
TABLE = [
    "Job stats:",
    "job         count",
    "--------  -------",
    "cache           3",
    "federate_1      4",
    "all             1",
    "",
]


def test_the_jobs_of_a_stage_are_counted_and_the_time_left_is_that_of_the_jobs_so_far() -> None:
    progress = Progress()
    for line in TABLE:
        assert progress.read(line, 0.0) == ""
    images, training = progress.active()
    assert (images.total, training.total) == (3, 4)
    assert training.text(0.0) == "0 of 4"
    progress.read("rule federate_1:", 10.0)
    assert training.text(20.0) == "0 of 4, running"
    progress.read("Finished jobid: 7 (Rule: federate_1)", 70.0)
    assert training.text(70.0) == "1 of 4, about 3 min left"  # 60 s for one, three more
    assert training.text(160.0) == "1 of 4, about 90 s left"
    for now in (130.0, 190.0, 250.0):
        progress.read("Finished jobid: 8 (Rule: federate_1)", now)
    assert training.text(999.0) == "4 of 4, 4 min"
    assert images.text(999.0) == "0 of 3"


@pytest.mark.parametrize(("seconds", "text"), [(59.6, "60 s"), (99, "99 s"), (150, "2 min"), (7200, "2 h")])
def test_a_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_every_rule_of_the_workflow_belongs_to_one_stage() -> None:
    import re

    found = {
        name for file in RULES.glob("*.smk") for name in re.findall(r"^ *rule (\w+):", file.read_text(), re.MULTILINE)
    }
    listed = [rule for rules in STAGES.values() for rule in rules]
    assert found == set(listed) and len(listed) == len(set(listed))


def test_a_failed_job_is_shown_with_the_end_of_its_log_and_the_exit_code_is_snakemakes(tmp_path: Path, capsys) -> None:
    log = tmp_path / "federate.log"
    log.write_text("".join(f"line {n}\n" for n in range(40)) + "error: no room\n")
    said = [*TABLE, "rule cache:", "Finished jobid: 1 (Rule: cache)", "Error in rule federate_1:", "    jobid: 2"]
    said += [f"    log: {log} (check log file(s) for error details)", "    shell:", "        exec fdamed federate", ""]
    full = io.StringIO()
    code = follow([sys.executable, "-c", f"import sys; print({chr(10).join(said)!r}); sys.exit(3)"], full)
    out = capsys.readouterr().out
    assert code == 3
    assert out.startswith(f"failed: federate_1\n    log: {log}\n    line 29\n") and out.endswith("    error: no room\n")
    assert full.getvalue().splitlines() == said


@pytest.mark.parametrize("place", ["clients/logs/ingest.log", "clients/edema/logs/cache.log"])
def test_of_a_log_below_the_clients_only_the_path_is_shown(tmp_path: Path, place: str) -> None:
    log = tmp_path / place
    log.parent.mkdir(parents=True)
    log.write_text("error: no such patient: 123\n")
    progress = Progress()
    progress.read("Error in rule ingest:", 0.0)
    assert progress.read(f"    log: {log} (check log file(s) for error details)", 0.0) == (
        f"failed: ingest\n    log: {log}"
    )


@pytest.mark.parametrize(
    "line", ["left out at Nord: TRUNCATED (1 to 10)", "before training: one seed: a difference cannot be seen"]
)
def test_what_was_left_out_and_cannot_be_shown_is_said_at_once(line: str) -> None:
    assert Progress().read(line, 0.0) == line


@pytest.mark.parametrize("variant", ["", "quick"])
def test_a_target_after_the_dashes_is_no_further_configuration_file(monkeypatch, tmp_path: Path, variant: str) -> None:
    from snakemake.cli import get_argument_parser

    given: list[list[str]] = []
    monkeypatch.setattr(command, "follow", lambda words, *_, **__: given.append(words) or 0)
    study = SimpleNamespace(study="small", train=SimpleNamespace(device="cpu"))
    monkeypatch.setattr(command, "read_config", lambda _: study)
    monkeypatch.setattr(command.Places, "of", lambda _: Places(tmp_path))
    with pytest.raises(SystemExit, match="0"):
        command.run(Namespace(config=["a.yaml", "b.yaml"], variant=variant, cores="2", arguments=["--", "data"]))
    made = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert made == ["clients/logs/snakemake.log"], "Snakemake names paths, the host and whoever runs it"
    read = get_argument_parser().parse_args(given[0][1:])
    assert (read.targets, [Path(file).name for file in read.configfile]) == (["data"], ["a.yaml", "b.yaml"])
    assert read.cores == 2


def test_an_error_before_the_first_job_is_shown_as_it_is(capsys) -> None:
    assert follow([sys.executable, "-c", "import sys; sys.exit('WorkflowError: no such key')"], io.StringIO()) == 1
    assert capsys.readouterr().out == "WorkflowError: no such key\n"


def test_in_a_pipe_a_finished_stage_is_a_plain_line(capsys) -> None:
    said = [*TABLE, "rule cache:", *["Finished jobid: 1 (Rule: cache)"] * 3, "Nothing to be done (all is there)."]
    assert follow([sys.executable, "-c", f"print({chr(10).join(said)!r})"], io.StringIO()) == 0
    assert capsys.readouterr().out == "images: 3 of 3, 0 s\neverything is up to date\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_snakemake_which_ends_in_its_own_time(number: signal.Signals) -> None:
    inner = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: (print('Nothing to be done: stopped'), sys.exit(5)))\n"
        "print('Nothing to be done: ready', flush=True)\ntime.sleep(60)"
    )
    outer = "import sys, io; from fdamed.cli.commands.run import follow\n"
    outer += f"sys.exit(follow([sys.executable, '-c', {inner!r}], io.StringIO()))"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None and job.stdout.readline() == "everything is up to date\n"
        job.send_signal(number)
        assert job.wait(30) == (130 if number == signal.SIGINT else 75)
        assert (
            job.stdout.read() == "everything is up to date\nstopped; finished work is kept, the same command resumes\n"
        )


def test_a_study_that_ends_well_in_spite_of_a_signal_has_ended_well() -> None:
    inner = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(0))\n"
    inner += "print('Nothing to be done', flush=True)\ntime.sleep(60)"
    outer = "import sys, io; from fdamed.cli.commands.run import follow\n"
    outer += f"sys.exit(follow([sys.executable, '-c', {inner!r}], io.StringIO()))"
    with subprocess.Popen([sys.executable, "-c", outer], stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None and job.stdout.readline()
        job.terminate()
        assert job.wait(30) == 0


def test_the_jobs_of_a_dry_run_are_shown_as_snakemake_lists_them(monkeypatch, tmp_path: Path, capsys) -> None:
    listed, train = [*TABLE, "rule cache:", "    jobid: 3"], SimpleNamespace(device="cpu")
    monkeypatch.setattr(command, "read_config", lambda _: SimpleNamespace(study="small", train=train))
    monkeypatch.setattr(command.Places, "of", lambda _: SimpleNamespace(root=tmp_path, clients=tmp_path))
    shim = tmp_path / "snakemake"
    shim.write_text(f"#!{sys.executable}\nprint({chr(10).join(listed)!r})\n")
    shim.chmod(0o755)
    monkeypatch.setattr(command.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SystemExit, match="0"):
        command.run(Namespace(config=["a.yaml"], variant="", cores="2", arguments=["--", "-n"]))
    assert capsys.readouterr().out.splitlines()[1:] == listed


def test_all_gpus_of_the_machine_are_used_unless_told_otherwise(monkeypatch, tmp_path: Path) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(command, "usable", lambda device: 2)
    monkeypatch.setattr(command, "follow", lambda words, *_, **__: given.append(words) or 0)
    study = SimpleNamespace(study="small", train=SimpleNamespace(device="auto", jobs_per_gpu=2))
    monkeypatch.setattr(command, "read_config", lambda _: study)
    monkeypatch.setattr(command.Places, "of", lambda _: Places(tmp_path))
    for more in ([], ["--", "--resources", "gpu=1"]):
        with pytest.raises(SystemExit, match="0"):
            command.run(Namespace(config=["a.yaml"], variant="", cores="2", arguments=more))
    assert [[word for word in words if word.startswith("gpu=")] for words in given] == [["gpu=4"], ["gpu=1"]]
