"""The tables of docs/results/unsupervised.md, from the finished runs of studies in config/papers/unsupervised/.

`python -m benchmarks.unsupervised results/fashion_photometric fedavg` prints each run's accuracy in the last round
(mean and 95 % t-interval over its seeds) and its paired difference to the control, over the seeds that both have.
With `--csv FILE` the accuracy of every seed is added to a file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student


def accuracies(folder: Path) -> pd.DataFrame:
    """One row a finished run, target and seed: the accuracy in % on the test part after the last round."""
    rows = []
    for done in sorted(folder.glob("runs/*/*/*/done")):
        run, target, seed = done.parent.relative_to(folder / "runs").parts
        file = folder / "clients" / target / "rounds" / run / target / f"{seed}.jsonl"
        last = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])
        if last.get("test/acc") is not None:  # a candidate is not tested
            rows.append((folder.name, target, run, int(seed), round(100 * last["test/acc"], 2)))
    return pd.DataFrame(rows, columns=["study", "target", "run", "seed", "accuracy"])


def interval(values: pd.Series) -> tuple[float, float]:
    """Mean and half the width of its 95 % t-interval; no width with one value."""
    n = len(values)
    half = student.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n) if n > 1 else np.nan
    return float(values.mean()), float(half)


def table(found: pd.DataFrame, control: str) -> str:
    lines = [f"| run | seeds | accuracy | minus {control} | better in |", "|---|---|---|---|---|"]
    for target, here in found.groupby("target"):
        wide = here.pivot(index="seed", columns="run", values="accuracy")
        for run in wide.columns:
            mean, half = interval(wide[run].dropna())
            cells = [f"{run} ({target})", str(wide[run].count()), f"{mean:.1f} ± {half:.1f}", "", ""]
            gain = (wide[run] - wide[control]).dropna() if control in wide else wide[run].iloc[:0]
            if run != control and len(gain) > 1:
                mean, half = interval(gain)
                cells[3:] = [
                    f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})",
                    f"{(gain > 0).sum()} of {len(gain)}",
                ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="a study's folder below results/")
    parser.add_argument("control", help="the run that the others are compared with")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    found = accuracies(given.study)
    print(table(found, given.control))
    if given.csv:
        before = pd.read_csv(given.csv) if given.csv.exists() else found.iloc[:0]
        others = before[before["study"] != given.study.name]
        pd.concat([others, found]).sort_values(["study", "target", "run", "seed"]).to_csv(given.csv, index=False)


if __name__ == "__main__":
    main()
