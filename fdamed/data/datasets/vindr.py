"""VinDr-CXR (Nguyen et al., 2022): annotations/image_labels_{train,test}.csv and DICOM files in train/ and test/.

The release has no patient identifiers: every image counts as its own patient. Sex, age and view come from the headers.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fdamed.config.datasets import DataSet
from fdamed.core.errors import FdamedError

if TYPE_CHECKING:
    import pandas as pd

    from fdamed.data.row_reader import RowReader, TableRows

PARTS = ("train", "test")
IDS = ("image_id", "rad_id")
NAMES = {"No finding": "No Finding", "Other disease": "Other diseases"}
"""Labels whose spelling differs between the tables, or from the other data sets."""


class Vindr(DataSet):
    layout: Literal["vindr"]

    def rows(self, reader: RowReader) -> pd.DataFrame:
        """One row per image. In train/ three radiologists read each image, in test/ five agreed on one row.

        1: at least half of the readers marked the label; 0: none; -1 (uncertain): fewer than half. So
        `split.uncertain` chooses between the majority (zeros), any reader (ones) and agreement (ignore).
        """
        import pandas as pd

        from fdamed.data.table_reader import existing

        root = Path(self.root)
        folder = root / "annotations" if (root / "annotations").is_dir() else root
        paths = {part: existing(folder, f"image_labels_{part}.csv") for part in PARTS}
        if not any(paths.values()):
            fix = "Set data.root to the release folder, which holds annotations/, train/ and test/."
            raise FdamedError("there is no annotations/image_labels_train.csv", str(root), fix)
        frame = pd.concat([_votes(reader.table(p), part) for part, p in paths.items() if p], ignore_index=True)
        return reader.index(frame, frame["image_id"], frame["image_id"])


def _votes(table: TableRows, part: str) -> pd.DataFrame:
    """One row per image from one row per image and reader."""
    keys = [key for key in IDS if key in table.frame]
    names = [c for c in table.frame.columns if c not in IDS and c]
    if "image_id" not in keys or not names:
        fix = "The table has image_id, rad_id (train only) and one column per label."
        raise FdamedError("missing column `image_id` or labels", str(table.path), fix)
    table.strip_spaces(*keys)
    table.check_unique(*keys)
    table.check_paths("image_id")
    table.parse_labels({NAMES.get(name, name): name for name in names})
    labels = [c for c in table.frame.columns if c.startswith("label.")]
    share = table.frame.groupby("image_id", sort=False)[labels].mean()
    votes = (share >= 0.5).astype("float32").mask((share > 0) & (share < 0.5), -1.0).reset_index()
    return votes.assign(image=f"{part}/" + votes["image_id"] + ".dicom", release_split=part)
