"""A finished study as data frames: `fdamed.results.load("results/demo")`.

Scores, rounds and pairs are the tables of the report: what the report hides is hidden here, too. Nothing below
`clients/` is read, so the frames may leave the machine as the report may.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fdamed.core.errors import FdamedError, nearest
from fdamed.core.files import read_json, read_lines

KEY = ["run", "target", "seed"]


@dataclass(frozen=True)
class Study:
    """The results of one study; every attribute but `folder` is a data frame, read when it is asked for."""

    folder: Path

    @property
    def scores(self) -> pd.DataFrame:
        """One row per run, target, seed, client and metric: value with interval over patients, or `why` not."""
        return self.table("scores")

    @property
    def rounds(self) -> pd.DataFrame:
        """One row per target, run, metric and round: mean over seeds with interval."""
        return self.table("rounds")

    @property
    def pairs(self) -> pd.DataFrame:
        """One row per target, metric and pair of runs: difference with interval, p and Holm's p; same patients."""
        return self.table("pairs")

    @property
    def ledger(self) -> pd.DataFrame:
        """One row per run, target, seed, round, sender, receiver, step and kind of message: bytes and messages."""
        frames = [pd.DataFrame(read_lines(f / "ledger.jsonl")).assign(**key) for f, key in self._finished()]
        return _key_first(pd.concat(frames, ignore_index=True))

    @property
    def runs(self) -> pd.DataFrame:
        """One row per finished run, target and seed: its settings, nested ones as `train.source.lr`."""
        return _key_first(pd.json_normalize([read_json(folder / "run.json") for folder, _ in self._finished()]))

    def table(self, name: str) -> pd.DataFrame:
        """A table of the report by its name, such as `subgroups`; `tables` lists them."""
        if name not in self.tables:
            what = f"this study has no table `{name}`{nearest(name, self.tables)}"
            raise FdamedError(what, str(self.folder), f"It has: {', '.join(self.tables)}.")
        return pd.read_csv(self.folder / "report" / "tables" / f"{name}.csv")

    @property
    def tables(self) -> list[str]:
        """The names of the report's tables."""
        return sorted(path.stem for path in (self.folder / "report" / "tables").glob("*.csv"))

    def _finished(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Folder and key of every finished run."""
        for done in sorted(self.folder.glob("runs/*/*/*/done")):
            run, target, seed = done.parent.parts[-3:]
            yield done.parent, {"run": run, "target": target, "seed": int(seed)}


def load(folder: Path | str) -> Study:
    """The study below `results/`, if it is finished."""
    study = Study(Path(folder))
    if not study.tables:
        fix = "Give results/STUDY of a finished study; `fdamed run` or `fdamed report` writes its tables."
        raise FdamedError("there is no report in this folder", str(folder), fix)
    return study


def _key_first(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[[*KEY, *(c for c in frame.columns if c not in KEY)]]
