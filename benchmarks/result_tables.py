"""The tables of docs/results/healthcare.md, from finished studies.

`python -m benchmarks.result_tables results/chexpert_phantom results/mimic_phantom` prints Markdown for each study:
scores of the last round, AUC at the round that the validation part selects and along the way, and paired differences
of the AUC. `--csv FILE` also writes the score of every seed, which the folder of the page keeps.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from fdamed.results import Study, load

ALONG = (5, 10, 20, 30, 60)
PAIRS = (
    ("finetune", "fedavg"),
    ("finetune_auxinfo", "finetune"),
    ("gp", "finetune"),
    ("gp_auxinfo", "gp"),
    ("gp", "half_step"),
    ("gp", "target_only"),
    ("gp", "fedavg"),
    ("finetune", "target_only"),
    ("kd3a", "fedavg"),
    ("fada", "fedavg"),
    ("oracle", "gp"),
    ("oracle", "finetune"),
)


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def scores(study: Study) -> str:
    """One row a run: ACC and AUC with their intervals, at the selected round, and along the way."""
    head, rounds = study.table("headline"), study.rounds
    auc = rounds[rounds["metric"] == "test/auc"].set_index(["run", "round"])["mean"]
    along = [r for r in ALONG if r in auc.index.get_level_values("round")]
    lines = ["| run | ACC | AUC | AUC, selected round | " + " | ".join(f"round {r}" for r in along) + " |"]
    lines.append("|---" * (4 + len(along)) + "|")
    for row in head.to_dict("records"):
        run, chosen = row["run"], row["chosen_auc"]
        cells = [f"{percent(row[s])} ± {percent((row[f'{s}_high'] - row[f'{s}_low']) / 2)}" for s in ("acc", "auc")]
        cells.append("" if pd.isna(chosen) else f"{percent(chosen)} (round {row['chosen_round']:.0f})")
        cells += [percent(auc[run, r]) if (run, r) in auc.index else "" for r in along]
        lines.append(f"| {run} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def differences(study: Study) -> str:
    """Paired differences of the AUC in points, with interval and Holm's p over all pairs of the study."""
    pairs = study.pairs[study.pairs["metric"] == "auc"]
    keys = zip(pairs["first"], pairs["second"], strict=True)
    found = dict(zip(keys, pairs[["value", "low", "high", "p_holm"]].to_numpy(), strict=True))
    found |= {(b, a): (-value, -high, -low, p) for (a, b), (value, low, high, p) in list(found.items())}
    runs = sorted({name for pair in found for name in pair})
    swept = [(a + tail, b + ("" if b == "fedavg" else tail)) for a, b in PAIRS for tail in _tails(a, runs)]
    lines = ["| | points of AUC | Holm's p |", "|---|---|---|"]
    for first, second in (pair for pair in swept if pair in found):
        value, low, high, p = found[first, second]
        text = f"{100 * value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        lines.append(f"| {first} - {second} | {text} | {p:.2g} |")
    return "\n".join(lines)


def _tails(name: str, runs: list[str]) -> list[str]:
    """The endings of a run's sweep: "" for the run itself."""
    return [run.removeprefix(name) for run in runs if run == name or run.startswith(f"{name}-")]


def every_seed(study: Study) -> pd.DataFrame:
    wide = study.scores.query("split == 'test' and metric in ('acc', 'auc')")
    table = wide.pivot_table(index=["run", "seed"], columns="metric", values="value").reset_index()
    return table.assign(study=study.folder.name)[["study", "run", "seed", "acc", "auc"]].round(4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", type=Path)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    studies = [load(folder) for folder in given.studies]
    for study in studies:
        print(f"\n### {study.folder.name}\n\n{scores(study)}\n\n{differences(study)}")
    if given.csv:
        pd.concat(map(every_seed, studies)).to_csv(given.csv, index=False)


if __name__ == "__main__":
    main()
