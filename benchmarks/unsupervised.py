"""The tables of docs/results/unsupervised.md, from the finished runs of studies in config/papers/unsupervised/.

`python -m benchmarks.unsupervised results/fashion_photometric fedavg` prints each run's accuracy in the last round
(mean and 95 % t-interval over its seeds) and its paired difference to the control, over the seeds that both have, with
the p of the paired t-test, corrected by Holm for all runs that are compared with the control (`--runs`: for these).
With `--csv FILE` the accuracy of every seed is added to a file.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student
from scipy.stats import ttest_1samp

from fdamed.evaluation.comparison.paired_tests import holm


def accuracies(folder: Path) -> pd.DataFrame:
    """One row a finished run, target and seed: the accuracy in % on the test part after the last round."""
    rows = []
    for done in sorted(folder.glob("runs/*/*/*/done")):
        run, target, seed = done.parent.relative_to(folder / "runs").parts
        file = folder / "clients" / target / "rounds" / run / target / f"{seed}.jsonl"
        found = json.loads(file.read_text(encoding="utf-8").splitlines()[-1]).get("test/acc")
        scores = folder / "clients" / target / "scores" / run / target / f"{seed}.json"
        if found is None and scores.exists():  # a tuned run: `fdamed evaluate` has tested the chosen candidate
            found = json.loads(scores.read_text(encoding="utf-8"))["acc"]
        if found is not None:  # other candidates are not tested
            rows.append((folder.name, target, run, int(seed), round(100 * found, 2)))
    return pd.DataFrame(rows, columns=["study", "target", "run", "seed", "accuracy"])


def interval(values: pd.Series) -> tuple[float, float]:
    """Mean and half the width of its 95 % t-interval; no width with one value."""
    n = len(values)
    half = student.ppf(0.975, n - 1) * values.std(ddof=1) / np.sqrt(n) if n > 1 else np.nan
    return float(values.mean()), float(half)


def table(found: pd.DataFrame, control: str) -> str:
    lines = [f"| run | seeds | accuracy | minus {control} | p (Holm) | better in |", "|---|---|---|---|---|---|"]
    for target, here in found.groupby("target"):
        wide = here.pivot(index="seed", columns="run", values="accuracy")
        others = [run for run in wide.columns if control in wide and run != control]
        gains = {run: (wide[run] - wide[control]).dropna() for run in others}
        gains = {run: gain for run, gain in gains.items() if len(gain) > 1}
        p = dict(zip(gains, holm([float(ttest_1samp(gain, 0.0).pvalue) for gain in gains.values()]), strict=True))
        for run in wide.columns:
            mean, half = interval(wide[run].dropna())
            cells = [f"{run} ({target})", str(wide[run].count()), f"{mean:.1f} ± {half:.1f}", "", "", ""]
            if run in gains:
                gain = gains[run]
                mean, half = interval(gain)
                cells[3:] = [
                    f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})",
                    f"{p[run]:.2g}",
                    f"{(gain > 0).sum()} of {len(gain)}",
                ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="a study's folder below results/")
    parser.add_argument("control", help="the run that the others are compared with")
    parser.add_argument("--runs", nargs="*", help="only these beside the control; default: all")
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    found = accuracies(given.study)
    asked = found["run"].isin([given.control, *(given.runs or found["run"])])
    print(table(found[asked], given.control))
    if given.csv:
        before = pd.read_csv(given.csv) if given.csv.exists() else found.iloc[:0]
        others = before[before["study"] != given.study.name]
        pd.concat([others, found]).sort_values(["study", "target", "run", "seed"]).to_csv(given.csv, index=False)


if __name__ == "__main__":
    main()
