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

from rich.table import Table
from rich.text import Text

from fdamed.cli.options import print_json, read_config
from fdamed.config.datasets import Benchmark
from fdamed.config.study import Config
from fdamed.core.files import read_json
from fdamed.core.locks import is_locked
from fdamed.core.progress import console
from fdamed.pipeline.paths import Places
from fdamed.pipeline.selection import StudyRun, all_candidates, all_runs, analysis_files, batches

GROUP = "analyze", 1
OPTIONS = {"--config": "", "--json": ""}
STATES = {"done": "green", "running": "cyan", "stopped": "yellow", "failed": "red", "pending": ""}
"""State of a run -> its color."""
BATCHED = re.compile(r"run \d+ of \d+: ")
"""The log line that starts each run of a batch."""


@dataclass(frozen=True)
class State:
    """State of one run, target and seed: finished rounds, and why it failed."""

    run: str
    target: str
    seed: int
    state: str
    rounds: int | None = None
    scored: bool = False
    why: str = ""


def run(arguments: argparse.Namespace) -> None:
    config = read_config(arguments)
    files, runs = files_of(config), runs_of(config)
    if not arguments.json:
        show(config, files, runs)
        return
    counts = Counter(r.state for r in runs)
    content = {
        "study": config.study,
        "finished": all(files.values()) and all(r.state == "done" and r.scored for r in runs),
        "files": files,
        "runs": {state: counts[state] for state in STATES},
        "each": [asdict(r) for r in runs],
        "headline": headline(config),
    }
    print_json(content)


def files_of(config: Config) -> dict[str, bool]:
    """Step -> whether its files exist, in the order of the work."""
    places = Places.of(config)
    root, caches = places.root, [places.client(p) / "order.parquet" for p in config.split.clients]
    data = {
        "ingest": [root / "ingest.json"],
        "split": [root / "cohort.json"],
        "cache": caches,
        "leakage": [root / "leakage.json"],
    }
    if isinstance(config.data, Benchmark):
        data = {"partition": [root / "leakage.json", *caches]}
    init = {"init": [places.init(seed) / "theta.safetensors" for seed in config.seeds]}
    views = {"track": [root / "tracked.json"], "report": [root / "report" / "index.html"]}
    steps = data | init | analysis_files(config) | views
    return {step: all(path.exists() for path in paths) for step, paths in steps.items()}


def headline(config: Config) -> dict[str, str]:
    """Target -> what the heading of the report says; empty without a report."""
    path = Places.of(config).root / "report" / "headline.json"
    return {target: said["sentences"][0] for target, said in read_json(path).items()} if path.is_file() else {}


def runs_of(config: Config) -> list[State]:
    """The state of every run, target and seed of the study."""
    logs = {name: f"{'choose' if run.tune else 'fit_classical'}.{name}" for name, run in config.expanded_runs().items()}
    for number, names in enumerate(batches(config)):
        logs |= {name: f"federate.{name if config.batch_runs == 1 else f'batch_{number}'}" for name in names}
    return [state_of(one, logs[one.name]) for one in (*all_runs(config), *all_candidates(config))]


def state_of(one: StudyRun, log: str) -> State:
    key = (one.name, one.target, one.seed)
    if (one.folder / "done").exists():
        return State(*key, "done", scored=bool(one.candidate_of) or one.scores(one.target).exists())
    rounds = rounds_in(one.places.memory(one.target, *key))
    if is_locked(one.folder):
        return State(*key, "running", rounds)
    why = last_error(one.places.root / "logs" / f"{log}.{one.target}.{one.seed}.log", one.key)
    return State(*key, "failed" if why else "stopped" if rounds else "pending", rounds, why=why)


def rounds_in(memory: Path) -> int | None:
    """Rounds in the checkpoints of an unfinished run, from the target's memory of it; None without any."""
    done = 0
    for path in memory.glob("**/record.jsonl"):  # one for each phase
        with open(path, "rb") as lines:  # an incomplete last line belongs to no checkpoint
            done += sum(len(json.loads(line)["metrics"]) for line in lines if line.endswith(b"}\n"))
    return done or None


def last_error(log: Path, name: str) -> str:
    """Why a job failed: the text after its last `error:`, or the last line of a traceback."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    starts = [place for place, line in enumerate(lines) if BATCHED.match(line)]
    if starts:  # a batch: only the lines of this run
        mine = next((place for place in starts if lines[place].endswith(f": {name}")), len(lines))
        lines = lines[mine + 1 : next((place for place in starts if place > mine), len(lines))]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    errors = [line for line in errors if "of this batch failed" not in line]
    if not errors and any(line.startswith("Traceback") for line in lines):
        errors = lines
    return errors[-1] if errors else ""


def show(config: Config, files: dict[str, bool], runs: list[State]) -> None:
    table = Table("run", *STATES, "rounds of the unfinished", title=f"{config.study}: {len(runs)} runs")
    for name in dict.fromkeys(r.run for r in runs):
        here = [r for r in runs if r.run == name]
        counts = Counter(r.state for r in here)
        rounds = sorted(r.rounds for r in here if r.rounds)
        cells = [Text(str(counts[s] or "-"), style if counts[s] else "dim") for s, style in STATES.items()]
        table.add_row(name, *cells, f"{rounds[0]} to {rounds[-1]}" if rounds else "")
    total = Counter(r.state for r in runs)
    table.add_section()
    table.add_row("all", *(str(total[s] or "-") for s in STATES), "")
    console().print(table)
    for title, wanted in (("done", True), ("pending", False)):
        print(f"{title}: {', '.join(step for step, exists in files.items() if exists is wanted) or 'nothing'}")
    unscored = sum(r.state == "done" and not r.scored for r in runs)
    if unscored:
        print(f"trained but not scored: {unscored} runs")
    for r in [r for r in runs if r.state == "failed"][:10]:
        print(f"failed: {r.run}/{r.target}/{r.seed}: {r.why}")
    for heading in headline(config).values():
        print(f"report: {heading}")
