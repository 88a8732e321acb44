"""Show what of a study is done, running, stopped, failed or pending.

It reads files and changes none.

Examples:
    fdamed status --config config/config.yaml
    fdamed status --config config/config.yaml --json
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from fdamed.cli.options import add_config, add_json, read_config
from fdamed.config.datasets import Benchmark
from fdamed.config.study import Config
from fdamed.core.locks import is_locked
from fdamed.pipeline.paths import Places
from fdamed.pipeline.selection import is_classical

GROUP = "analyze", 1
STATES = ("done", "running", "stopped", "failed", "pending")
BATCHED = re.compile(r"run \d+ of \d+: ")
"""The log line that starts each run of a batch."""


@dataclass(frozen=True)
class Standing:
    """State of one run, target and seed: finished rounds, and why it failed."""

    run: str
    target: str
    seed: int
    state: str
    rounds: int | None = None
    scored: bool = False
    why: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    places = Places.of(config)
    files, standings = files_of(config, places), [*runs_of(config, places)]
    if arguments.json:
        counts = Counter(s.state for s in standings)
        content = {
            "study": config.study,
            "finished": all(files.values()) and all(s.state == "done" and s.scored for s in standings),
            "files": files,
            "runs": {state: counts[state] for state in STATES},
            "each": [asdict(s) for s in standings],
        }
        print(json.dumps(content, indent=1, ensure_ascii=False))
        return
    show(config, files, standings)


def files_of(config: Config, places: Places) -> dict[str, bool]:
    """Step -> whether its files exist, in the order of the work."""
    root = places.root
    data = ("partition",) if isinstance(config.data, Benchmark) else ("ingest", "split", "cache", "leakage")
    made = {
        "ingest": [root / "ingest.json"],
        "split": [root / "cohort.json"],
        "cache": [places.client(p) / "order.parquet" for p in config.split.clients],
        "leakage": [root / "leakage.json"],
        "partition": [root / "leakage.json", *(places.client(p) / "order.parquet" for p in config.split.clients)],
        "init": [places.init(seed) / "theta.safetensors" for seed in config.seeds],
        "advise": [root / "advice" / f"{t}.json" for t in config.split.targets],
        "audit": [root / "audit" / f"{t}.json" for t in config.split.targets],
        "attributes": [root / "attributes" / f"{t}.json" for t in config.split.targets],
        "membership": [root / "membership" / f"{p}.json" for p in config.split.clients],
        "track": [root / "tracked.json"],
        "report": [root / "report" / "index.html"],
    }
    trained = not all(map(is_classical, config.expanded_runs().values()))
    advised, probed = (
        ("advise",) if config.advise else (),
        ("attributes",) if config.audit.attributes and trained else (),
    )
    asked = config.audit.membership and trained and not isinstance(config.data, Benchmark)
    steps = (*data, "init", *advised, "audit", *probed, *(("membership",) if asked else ()), "track", "report")
    return {step: all(path.exists() for path in made[step]) for step in steps}


def runs_of(config: Config, places: Places) -> list[Standing]:
    """Every run, target and seed of the study."""
    logs = logs_of(config)
    return [
        standing(places, run, target, seed, places.root / "logs" / f"{logs[run]}.{target}.{seed}.log")
        for run in config.expanded_runs()
        for target in config.split.targets
        for seed in config.seeds
    ]


def logs_of(config: Config) -> dict[str, str]:
    """Run -> prefix of its log; runs of a batch share one."""
    runs = config.expanded_runs()
    classical = [name for name, run in runs.items() if is_classical(run)]
    trained = [name for name in runs if name not in classical]
    if config.batch_runs == 1:
        return {n: f"fit_classical.{n}" for n in classical} | {n: f"federate.{n}" for n in trained}
    batch = {n: f"federate.batch_{place // config.batch_runs}" for place, n in enumerate(trained)}
    return {n: f"fit_classical.{n}" for n in classical} | batch


def standing(places: Places, run: str, target: str, seed: int, log: Path) -> Standing:
    folder = places.run(run, target, seed)
    if (folder / "done").exists():
        return Standing(run, target, seed, "done", None, (folder / "scores" / f"{target}.json").exists())
    rounds = rounds_in(folder)
    if is_locked(folder):
        return Standing(run, target, seed, "running", rounds)
    why = last_error(log, f"{run}/{target}/{seed}")
    state = "failed" if why else "stopped" if rounds else "pending"
    return Standing(run, target, seed, state, rounds, why=why)


def rounds_in(folder: Path) -> int | None:
    """Rounds in the checkpoints of an unfinished run; None without any."""
    done = 0
    for name in ("state", "state/then"):
        path = folder / name / "record.jsonl"
        if path.is_file():
            with open(path, "rb") as file:
                done += sum(_rounds(line) for line in file)
    return done or None


def _rounds(line: bytes) -> int:
    """Rounds of one checkpoint; an incomplete last line belongs to no checkpoint."""
    return len(json.loads(line)["metrics"]) if line.endswith(b"}\n") else 0


def last_error(log: Path, name: str) -> str:
    """Why a job failed: the text after its last `error:`, or the last line of a traceback."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    begins = [place for place, line in enumerate(lines) if BATCHED.match(line)]
    if begins:  # a batch: only what stands under this run's own line
        mine = next((place for place in begins if lines[place].endswith(f": {name}")), None)
        if mine is None:
            return ""
        lines = lines[mine + 1 : next((place for place in begins if place > mine), len(lines))]
    told = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    told = [line for line in told if "of this batch failed" not in line]
    if told:
        return told[-1]
    return lines[-1] if any(line.startswith("Traceback") for line in lines) else ""


def show(config: Config, files: dict[str, bool], standings: list[Standing]) -> None:
    from rich.table import Table
    from rich.text import Text

    from fdamed.core.progress import console

    out = console()
    made = ", ".join(step for step, there in files.items() if there) or "nothing"
    left = ", ".join(step for step, there in files.items() if not there) or "nothing"
    table = Table("run", *STATES, "rounds of the unfinished", title=f"{config.study}: {len(standings)} runs")
    for name in config.expanded_runs():
        here = [s for s in standings if s.run == name]
        counts = Counter(s.state for s in here)
        rounds = sorted(s.rounds for s in here if s.rounds)
        cells = [Text(str(counts[s] or "-"), style=_style(s, counts[s])) for s in STATES]
        table.add_row(name, *cells, f"{rounds[0]} to {rounds[-1]}" if rounds else "")
    total: Counter[str] = Counter(s.state for s in standings)
    table.add_section()
    table.add_row("all", *(str(total[s] or "-") for s in STATES), "")
    out.print(table)
    unscored = sum(s.state == "done" and not s.scored for s in standings)
    print(f"done: {made}\npending: {left}" + (f"\ntrained but not scored: {unscored} runs" if unscored else ""))
    for s in [s for s in standings if s.state == "failed"][:10]:
        print(f"failed: {s.run}/{s.target}/{s.seed}: {s.why}")


def _style(state: str, number: int) -> str:
    return (
        {"done": "green", "running": "cyan", "failed": "red", "stopped": "yellow"}.get(state, "") if number else "dim"
    )
