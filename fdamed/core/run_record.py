"""Reads and checks the folder of a finished run (docs/reference/files.md)."""

from __future__ import annotations

import glob
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fdamed.core.counts import counts_of
from fdamed.core.disclosure import (
    auc_decimals,
    hides_classes,
    hides_part,
    hides_score,
    released_round,
    released_score,
    rounded,
    too_small,
    without_scores,
)
from fdamed.core.errors import FdamedError

Row = dict[str, Any]
"""One line of a .jsonl file."""
SERVER = "server"
AGAIN = "Delete the run's folder and start again; the run is trained anew."
CONTENT = ("run.json", "metrics.jsonl", "timing.jsonl", "ledger.jsonl", "done")


@dataclass(frozen=True)
class Sent:
    """Bytes that one client sent, by step and kind, over all rounds."""

    client: str
    to: str
    step: str
    kind: str
    bytes: int
    messages: int


@dataclass(frozen=True)
class Record:
    """A finished run: its settings, rounds, traffic and scores; counts and scores only as they may be shown."""

    run: str
    target: str
    seed: int
    method: str
    facts: Row
    rounds: tuple[Row, ...]
    timing: tuple[Row, ...]
    sent: tuple[Sent, ...]
    traffic: dict[int, tuple[int, int]]
    """Round -> bytes sent and received by clients."""
    scores: dict[str, Row]
    weights: str
    """Digest of the final weights."""
    digest: str
    """Digest of everything above."""
    validation: dict[str, float] | None = None
    """Of a tuned run: candidate -> the validation score by which one was chosen; None: they may not be shown."""

    @property
    def key(self) -> str:
        return f"{self.facts['study']}/{self.run}/{self.target}/{self.seed}"

    @property
    def phases(self) -> list[Row]:
        """`phase` (warmup, main, then), `method`, `title`, `options`, `rounds` and `train` of each phase."""
        alone = {"phase": "main", "method": self.method, "rounds": len(self.rounds)}
        alone |= {key: self.facts.get(key) or {} for key in ("options", "train")}
        return list(self.facts.get("phases") or [alone])

    @property
    def second(self) -> list[Row]:
        """The second phase, where there is one."""
        return [row for row in self.phases if row["phase"] == "then"]

    def rounds_before(self, phase: str) -> int:
        """Rounds of the phases before this one."""
        names = [row["phase"] for row in self.phases]
        return sum(int(row["rounds"]) for row in self.phases[: names.index(phase)])

    @property
    def bytes_out(self) -> int:
        """Bytes that clients sent."""
        return sum(s.bytes for s in self.sent if s.client != SERVER)


def read(folder: Path, smallest: int) -> Record | None:
    """The run of a folder `.../{run}/{target}/{seed}`; None while it is not finished.

    Scores come from the clients' folders, without those on groups that have fewer than `smallest` of a class.
    """
    if not (folder / "done").is_file():
        return None
    facts = _json(folder / "run.json")
    run, target, seed = (str(facts.get(key)) for key in ("run", "target", "seed"))
    if (run, target, seed) != folder.parts[-3:] or not {"study", "method", "rounds"} <= facts.keys():
        raise FdamedError(
            "run.json does not belong to this folder, or lacks its study, method or rounds", _short(folder), AGAIN
        )
    sent, traffic = _ledger(folder / "ledger.jsonl")
    found = {p.parts[-5]: _json(p) for p in _score_files(folder)}
    hidden = {client: too_small(smallest) if hides_score(score, smallest) else "" for client, score in found.items()}
    classes = {client: hides_classes(counts_of(folder.parents[3], client), smallest) for client in found}
    scores = {c: released_score(score, hidden[c], smallest, classes[c]) for c, score in found.items()}
    rounds = _rounds(folder, smallest, bool(hidden.get(target)))
    return Record(
        run=run,
        target=target,
        seed=int(seed),
        method=str(facts["method"]),
        facts=facts,
        rounds=rounds,
        timing=tuple(_json(folder / "timing.jsonl")),
        sent=sent,
        traffic=traffic,
        scores=scores,
        weights=(folder / "done").read_text(encoding="utf-8").strip(),
        digest=_digest(folder, json.dumps([rounds, scores])),
        validation=_validation(folder, facts, smallest),
    )


Key = tuple[str, str, int]
"""Run, target, seed."""


def study(runs: Path, keys: Iterable[Key], smallest: int) -> tuple[list[Record], list[Key]]:
    """The finished runs among `keys` below the folder `runs`, and the keys of those that are not finished."""
    found = {(run, target, seed): read(runs / run / target / str(seed), smallest) for run, target, seed in keys}
    return [record for record in found.values() if record], [key for key, record in found.items() if not record]


def _score_files(folder: Path) -> list[Path]:
    run, target, seed = folder.parts[-3:]
    return sorted((folder.parents[3] / "clients").glob(f"*/scores/{glob.escape(run)}/{target}/{seed}.json"))


def _rounds(folder: Path, smallest: int, hides_test: bool) -> tuple[Row, ...]:
    """The lines of metrics.jsonl with the scores that the target kept, of those parts that may be shown."""
    root, (run, target, seed) = folder.parents[3], folder.parts[-3:]
    counts, path = counts_of(root, target), root / "clients" / target / "rounds" / run / target / f"{seed}.jsonl"
    scored = {row["round"]: row for row in _json(path)}
    rows = [row | scored.get(row["round"], {}) for row in _json(folder / "metrics.jsonl")]
    shown = (released_round(row, counts, smallest) for row in rows)
    return tuple(without_scores(row, ("test/",)) if hides_test else row for row in shown)


def _validation(folder: Path, facts: Row, smallest: int) -> dict[str, float] | None:
    """The mean over the clients that chose, if the validation part of each may be shown."""
    root, (run, target, seed) = folder.parents[3], folder.parts[-3:]
    counts = {client: counts_of(root, client) for client in facts.get("tuned", {}).get("clients", ())}
    if not counts or any(hides_part(found, "val", smallest) for found in counts.values()):
        return None
    each = []
    for client, found in counts.items():
        scores = _json(root / "clients" / client / "tuning" / run / target / f"{seed}.json")
        decimals = auc_decimals(found["images"]["val"], smallest) if hides_classes(found, smallest) else None
        each.append(scores if decimals is None else rounded(scores, decimals))
    return {name: sum(scores[name] for scores in each) / len(each) for name in each[0]}


def layers(folder: Path) -> list[Row]:
    """Lines `round, source, layer, cos` of a run that compares layers; read on demand, because there are many."""
    return list(_json(folder / "layers.jsonl")) if (folder / "layers.jsonl").is_file() else []


def computed(row: Row, clock: str) -> float:
    """Seconds or CPU seconds (`cpu`) of a line of timing.jsonl, as if no answer had been remembered."""
    return float(row[clock]) + float(row.get(f"remembered_{clock}", 0.0))


def millis(row: Row, end: bool = False) -> int:
    """Begin or end of a line of timing.jsonl in milliseconds since 1970."""
    began = datetime.fromisoformat(str(row["started"])).timestamp()
    return round((began + (float(row["seconds"]) if end else 0.0)) * 1000)


def _ledger(path: Path) -> tuple[tuple[Sent, ...], dict[int, tuple[int, int]]]:
    sums: dict[tuple[str, str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    rounds: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for row in _json(path):
        size = int(row["bytes"])
        cell = sums[row["from"], row["to"], row["step"], row["kind"]]
        cell[0] += size
        cell[1] += int(row["messages"])
        rounds[int(row["round"])][row["from"] == SERVER] += size
    sent = tuple(Sent(*key, bytes=cell[0], messages=cell[1]) for key, cell in sorted(sums.items()))
    return sent, {r: (out, into) for r, (out, into) in sorted(rounds.items())}


def _json(path: Path) -> Any:
    """The content of a .json file, or the lines of a .jsonl file as a list."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":  # one call for the whole file is four times faster than one per line
            text = "[" + ",".join(line for line in text.splitlines() if line) + "]"
        return json.loads(text)
    except (OSError, ValueError):
        raise FdamedError("a file of a finished run is missing or cannot be read", _short(path), AGAIN) from None


def _short(path: Path) -> str:
    return str(Path(*path.parts[-6:]))


def _digest(folder: Path, shown: str) -> str:
    """Sixteen hex digits of the run's files and of what is shown of its scores, the same on every machine."""
    h = hashlib.sha256()
    for path in (folder / name for name in CONTENT):
        content = path.read_bytes()
        h.update(f"{path.name}:{len(content)}:".encode() + content)
    h.update(shown.encode())
    return h.hexdigest()[:16]
