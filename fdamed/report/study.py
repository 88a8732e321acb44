"""A finished study as the report sees it: its files, and what several sections need of them, worked out once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fdamed.config.loader import catalog
from fdamed.config.runs import Run, candidates
from fdamed.config.study import Config
from fdamed.core import run_record
from fdamed.core.counts import released_cohort, study_counts
from fdamed.core.disclosure import SUPPRESSED
from fdamed.core.errors import FdamedError
from fdamed.core.files import read_json
from fdamed.core.run_record import Key, Record
from fdamed.evaluation import costs, protocol, run_tables
from fdamed.evaluation.comparison.controls import controls, is_control
from fdamed.evaluation.intervals import Interval
from fdamed.evaluation.run_tables import ALL_TARGETS, at_target
from fdamed.report.absences import absences, remarks

NONE = Interval(None, None, 0)
METRICS = {"auc": "AUC", "acc": "accuracy"}
Json = dict[str, Any]
Summary = Mapping[tuple[str, str, str], Interval]
"""(target, run, metric) -> mean and interval over seeds."""


def is_ceiling(method: str) -> bool:
    """Whether any phase trains on all of the target's labels: an upper bound, not a competitor."""
    return any(catalog()[name]["every_target_label"] for name in method.split(", then "))


@dataclass(frozen=True)
class Row:
    """A run at one target."""

    index: int
    run: str
    method: str
    scores: Mapping[str, Interval]
    why: Mapping[str, str]
    """Metric -> why it is undefined."""
    chosen: Interval
    """Main score at the round that validation chooses."""
    chosen_round: float | None
    mb: float | None
    """MB sent by all hospitals."""
    remark: str
    """Excluded updates and lost rounds."""
    control: str = ""
    """The run that is its control, if the study has one."""
    is_control: bool = False
    seeds: int = 0
    """Trained seeds, with or without a score that may be shown."""
    whole_step: bool = True
    """Whether the target's update is taken as a whole."""

    @property
    def ceiling(self) -> bool:
        return is_ceiling(self.method)

    @property
    def alone(self) -> bool:
        """Whether the target trains alone, on its few labels."""
        return catalog().get(self.method, {}).get("theory") == "target_only"

    @property
    def scored(self) -> bool:
        """Whether any score may be shown."""
        return any(score.mean is not None for score in self.scores.values())

    def height(self, metric: str) -> float:
        """What rows are ordered by; a run without a score comes last."""
        mean = self.scores[metric].mean
        return -1.0 if mean is None else mean


@dataclass(frozen=True)
class View:
    """The runs at one target (or their mean over all targets), best first; runs of sweeps apart."""

    name: str
    plain: Sequence[Row]
    swept: Sequence[Row]
    suffix: str = ""
    """What the names of its figure files end with."""

    @property
    def ranked(self) -> Sequence[Row]:
        """The runs that are compared: those of sweeps only where there are no others."""
        return self.plain or self.swept


@dataclass(frozen=True, eq=False)
class Study:
    """Files of a study; everything else is derived from them when a section asks for it."""

    config: Config
    folder: Path
    records: Sequence[Record]
    missing: Sequence[Key]
    cohort: Json
    """As released: None where a count is held back."""
    ingest: Json
    leakage: Json
    advice: Mapping[str, Json | None]
    """Target -> recommendation before training, None where it is missing; empty if the study asks for none."""
    audits: Mapping[str, Json]
    """Target -> its audit, with the attribute inference in it."""
    membership: Sequence[Json]
    """The membership inference of each client."""
    withheld: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Section -> what is missing in it and why, where hospitals elsewhere have answered."""
    candidates: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    """Tuned run -> its candidates at every target and seed, which have no test score."""

    @property
    def smallest(self) -> int:
        return self.config.smallest_cell

    @cached_property
    def runs(self) -> dict[str, Run]:
        """All runs with every sweep expanded, runs of sweeps last."""
        every, places = self.config.expanded_runs(), self.config.sweeps()
        return dict(sorted(every.items(), key=lambda item: item[0] in places))

    @cached_property
    def plain(self) -> dict[str, Run]:
        """The runs that are not swept; where all are swept, all."""
        places = self.config.sweeps()
        return {name: run for name, run in self.runs.items() if name not in places} or self.runs

    @cached_property
    def methods(self) -> dict[str, str]:
        """Run -> its method, and that of its second phase."""
        return {n: ", then ".join(p.method for p in (r, r.then) if p) for n, r in self.runs.items()}

    @cached_property
    def index(self) -> dict[str, int]:
        return {run: i for i, run in enumerate(self.runs)}

    @cached_property
    def fold(self) -> dict[str, str]:
        """Swept run -> the name that all values of its sweep share."""
        return {name: f"{place.run} (swept)" for name, place in self.config.sweeps().items()}

    @cached_property
    def scores(self) -> pd.DataFrame:
        return run_tables.tidy(self.records)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        return run_tables.rounds(self.records)

    @cached_property
    def sent(self) -> pd.DataFrame:
        return costs.sent(self.records)

    @cached_property
    def left(self) -> pd.DataFrame:
        """The same with all candidates of a tuned run in its place: what they sent has left the hospitals, too."""
        plain = [record for record in self.records if record.run not in self.candidates]
        return costs.sent([*plain, *(record for found in self.candidates.values() for record in found)])

    @cached_property
    def traffic(self) -> pd.DataFrame:
        return costs.by_run(self.records)

    @cached_property
    def absences(self) -> pd.DataFrame:
        return absences(self.folder / "runs", self.records)

    @cached_property
    def main(self) -> str:
        """The score that runs are ranked by."""
        return run_tables.main_score(self.scores)

    @property
    def name(self) -> str:
        """The main score in words."""
        return METRICS[self.main]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The main score first."""
        return ("auc", "acc") if self.main == "auc" else ("acc",)

    @property
    def chance(self) -> float | None:
        """The main score of guessing, where it is known."""
        return 0.5 if self.main == "auc" or self.config.model.classes == 2 else None

    @cached_property
    def summary(self) -> Summary:
        return run_tables.summary(self.scores)

    def score(self, target: str, run: str, metric: str) -> Interval:
        """Mean and interval over seeds; `NONE` if the run has no such score."""
        return self.summary.get((target, run, metric), NONE)

    @cached_property
    def chosen(self) -> Summary:
        """The same at the round that validation chooses, with that round."""
        return protocol.at_chosen_round(self.records)

    @property
    def suppressed(self) -> bool:
        return bool(self.scores["why"].str.startswith(SUPPRESSED).any())

    @cached_property
    def views(self) -> list[View]:
        """One for each target, their mean first where there are several."""
        here = at_target(self.scores)
        unknown = here[here["why"] != ""]
        undefined = {
            (place, run, metric): why
            for target, run, metric, why in unknown[["target", "run", "metric", "why"]].itertuples(index=False)
            for place in (target, ALL_TARGETS)
        }
        sent = self.traffic.set_index(["target", "run"])["mb_out"].to_dict()
        sent |= {(ALL_TARGETS, run): mb for run, mb in self.traffic.groupby("run")["mb_out"].mean().items()}
        trained: dict[tuple[str, str], set[int]] = {}
        for record in self.records:
            for place in (record.target, ALL_TARGETS):
                trained.setdefault((place, record.run), set()).add(record.seed)
        controlled = controls(self.runs)
        noted = remarks(self.absences, self.records)
        out: list[View] = []
        targets = self.config.split.targets
        for target in [ALL_TARGETS, *targets] if len(targets) > 1 else targets:
            rows = [
                Row(
                    index=self.index[run],
                    run=run,
                    method=method,
                    scores={m: self.score(target, run, m) for m in METRICS},
                    why={m: str(undefined.get((target, run, m), "not run")) for m in METRICS},
                    chosen=self.chosen.get((target, run, self.main), NONE),
                    chosen_round=self.chosen.get((target, run, "round"), NONE).mean,
                    mb=sent.get((target, run)),
                    remark=noted.get((target, run), ""),
                    control=controlled.get(run, ""),
                    is_control=is_control(self.runs[run]),
                    seeds=len(trained.get((target, run), ())),
                    whole_step=float(self.runs[run].options.get("server_step", 1.0)) == 1.0,
                )
                for run, method in self.methods.items()
            ]
            rows.sort(key=lambda row: row.height(self.main), reverse=True)
            plain = [r for r in rows if r.run not in self.fold]
            swept = [r for r in rows if r.run in self.fold]
            out.append(View(target, plain, swept, f"_{target}" if out else ""))
        return out


def read_study(config: Config) -> Study:
    """The study's files; an error names what is missing and how to make it."""
    folder = Path(config.results) / config.study
    keys = [(r, t, s) for r in config.expanded_runs() for t in config.split.targets for s in config.seeds]
    records, missing = run_record.study(folder / "runs", keys, config.smallest_cell)
    if not records:
        raise FdamedError("no run of this study is finished", str(folder), "Run `snakemake --cores 2` first.")
    for name in ("cohort.json", "ingest.json", "leakage.json"):
        if not (folder / name).is_file():
            raise FdamedError(f"{name} is missing", str(folder), "Run `snakemake --cores 2`: it makes what is missing.")
    targets = config.split.targets
    tuned = {
        name: [(one, target, seed) for one in candidates(name, run) for target in targets for seed in config.seeds]
        for name, run in config.expanded_runs().items()
        if run.tune
    }
    audits = {t: found for t in targets if (found := _optional(folder / "audit" / f"{t}.json"))}
    members = [_optional(folder / "membership" / f"{c}.json") for c in config.split.clients]
    return Study(
        config=config,
        folder=folder,
        records=records,
        missing=missing,
        cohort=released_cohort(folder, config.smallest_cell),
        ingest=study_counts(folder, "ingest.json"),
        leakage=study_counts(folder, "leakage.json"),
        advice={t: _optional(folder / "advice" / f"{t}.json") for t in targets} if config.advise else {},
        audits={
            t: audit | {"attributes": _optional(folder / "attributes" / f"{t}.json")} for t, audit in audits.items()
        },
        membership=[found for found in members if found] if config.audit.membership else [],
        withheld=_optional(folder / "withheld.json") or {},
        candidates={run: run_record.study(folder / "runs", of, config.smallest_cell)[0] for run, of in tuned.items()},
    )


def _optional(path: Path) -> Json | None:
    return read_json(path) if path.is_file() else None
