"""CheXpert (Irvin et al., 2019), small and full size: train.csv, valid.csv and the demographics table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from fdamed.config.datasets import DataSet
from fdamed.core.errors import FdamedError, no_folder
from fdamed.data.vocabulary import parse_age, parse_known_view, parse_race, parse_sex, parse_view

if TYPE_CHECKING:
    import pandas as pd

    from fdamed.data.row_reader import RowReader, TableRows

CONDITIONS = [
    "No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion", "Edema",
    "Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Pleural Other", "Fracture",
    "Support Devices",
]  # fmt: skip
TABLES = ("train.csv", "valid.csv")
"""Of which one may be absent."""
COLUMNS = ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *CONDITIONS)
PATH = r"^(?:[^/]+/)?(?P<below>(?P<part>train|valid|test)/(?P<patient>patient[^/]+)/(?P<study>[^/]+)/[^/]+)$"
"""The release folder's name is optional: only what lies below it counts."""


class Chexpert(DataSet, local=("demographics",)):
    labels_from_reports: ClassVar[bool] = True
    paper_split: ClassVar[str] = "condition"

    layout: Literal["chexpert"]
    demographics: str | None = Field(None, examples=["data/CHEXPERT DEMO.xlsx"])
    """Path of the demographics table (xlsx or csv) with PATIENT and PRIMARY_RACE."""

    def rows(self, reader: RowReader) -> pd.DataFrame:
        """The rows of all tables of the release, with race if a demographics table is configured."""
        import pandas as pd

        from fdamed.data.table_reader import existing

        root = Path(self.root)
        release = _release_folder(root)
        prefix = "" if release == root else release.name + "/"
        paths = [p for p in (existing(release, name) for name in TABLES) if p]
        frame = pd.concat([_parsed(reader.table(path, COLUMNS), prefix) for path in paths], ignore_index=True)
        if self.demographics:
            path = Path(self.demographics)
            table = reader.table(path if path.is_file() else root / path, ["PATIENT", "PRIMARY_RACE"])
            frame["race"] = frame["patient"].map(_races(table))
        return reader.index(frame, frame["patient"], frame["study"])


def _release_folder(root: Path) -> Path:
    """The folder that holds the tables: the root itself, or the one release below it."""
    from fdamed.data.table_reader import existing

    if not root.is_dir():
        raise FdamedError(no_folder(root), str(root), "Set data.root to the CheXpert folder.")
    if existing(root, *TABLES):
        return root
    found = sorted(p for p in root.iterdir() if p.is_dir() and existing(p, *TABLES))
    if len(found) != 1:
        several = f"several releases: {', '.join(p.name for p in found)}"
        what = several if found else f"no {' or '.join(TABLES)} in the folder nor in a folder below it"
        raise FdamedError(what, str(root), "Set data.root to one CheXpert release folder or its parent.")
    return found[0]


def _parsed(table: TableRows, prefix: str) -> pd.DataFrame:
    table.check_paths("Path")
    table.set(**table.frame["Path"].str.extract(PATH))
    table.reject(table.frame["below"].isna(), "PATH_UNKNOWN", "Path is not .../train/patientN/studyN/view.jpg")
    table.check_unique("below")
    table.parse("Age", "age", parse_age)
    table.parse("Sex", "sex", parse_sex)
    table.parse("Frontal/Lateral", "view", parse_known_view)
    table.parse("AP/PA", "projection", lambda text: parse_view(text)[1])
    table.parse_labels({c: c for c in CONDITIONS})
    return table.frame.assign(image=prefix + table.frame["below"], release_split=table.frame["part"])


def _races(table: TableRows) -> pd.Series:
    """Patient -> race, for the patients whose rows agree."""
    table.strip_spaces("PATIENT")
    table.parse("PRIMARY_RACE", "race", parse_race)
    known = table.frame[["PATIENT", "race"]].dropna().drop_duplicates()
    twice = known["PATIENT"].duplicated(keep=False)
    for row in known.index[twice]:
        detail = "the patient has several races; the race stays unknown"
        table.reader.rejects.add(table.path.name, int(row), "RACE_CONTRADICTS", detail)
    return known[~twice].set_index("PATIENT")["race"]
