"""One table for two real hospitals, so that `config/papers/healthcare/guangzhou.yaml` can adapt between them.

`python -m benchmarks.cross_hospital data/cross_hospital` reads `nih/` (ChestX-ray14: `Data_Entry_2017_v2020.csv` and
`images/`; a part of the images will do) and `kermany/` (Guangzhou, Kermany et al. 2018: `table.csv` with image, patient
and pneumonia) below that folder, and writes `--out`, by default `table.csv` beside them. NIH's images are split by view
and age, Guangzhou's, which have neither, into three groups of patients. Abnormal is any finding at NIH and pneumonia in
Guangzhou.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

AGE = 50
"""Years at which NIH's patients are split."""
GROUPS = 3


def nih_rows(folder: Path) -> pd.DataFrame:
    table = pd.read_csv(folder / "Data_Entry_2017_v2020.csv")
    table = table[table["Image Index"].isin({p.name for p in (folder / "images").iterdir()})]
    age = table["Patient Age"]
    band = age.lt(AGE).map({True: f"under {AGE}", False: f"from {AGE}"})
    return pd.DataFrame(
        {
            "image": "nih/images/" + table["Image Index"],
            "patient": "nih " + table["Patient ID"].astype(str),
            "hospital": "NIH " + table["View Position"] + " " + band,
            "abnormal": (table["Finding Labels"] != "No Finding").astype(int),
            "sex": table["Patient Gender"],
            "age": age,
            "projection": table["View Position"],
        }
    )


def guangzhou_rows(folder: Path) -> pd.DataFrame:
    table = pd.read_csv(folder / "table.csv")
    groups = pd.util.hash_pandas_object(table["patient"], index=False) % GROUPS + 1
    return pd.DataFrame(
        {
            "image": "kermany/" + table["image"],
            "patient": "guangzhou " + table["patient"],
            "hospital": "Guangzhou " + groups.astype(str),
            "abnormal": table["pneumonia"],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--out", type=Path, help="default: table.csv in this folder")
    given = parser.parse_args()
    rows = pd.concat([nih_rows(given.root / "nih"), guangzhou_rows(given.root / "kermany")])
    out = given.out or given.root / "table.csv"
    out.parent.mkdir(parents=True, exist_ok=True)
    rows.to_csv(out, index=False)
    print(rows.groupby("hospital").agg(images=("image", "size"), abnormal=("abnormal", "sum")))


if __name__ == "__main__":
    main()
