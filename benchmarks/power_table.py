"""The table of docs/how_to/labels_patients_seeds.md: the smallest difference that a study can show, in points of AUC.

python -m benchmarks.power_table
"""

from __future__ import annotations

from fdamed.evaluation.comparison.power import expected

PATIENTS = (20, 50, 100, 200, 500)
STUDIES = ((2, 3), (2, 10), (6, 3), (6, 10))
"""Runs and seeds."""


def main() -> None:
    print("| test patients of each class |", *(f"{runs} runs, {seeds} seeds |" for runs, seeds in STUDIES))
    print("|---|" + "---:|" * len(STUDIES))
    for n in PATIENTS:
        points = [100 * expected(n, n, s).smallest_difference(r * (r - 1) // 2) for r, s in STUDIES]
        print(f"| {n} |", *(f"{value:.0f} |" for value in points))


if __name__ == "__main__":
    main()
