"""What is studied: the data sets, and the phantoms that stand in for them. How they become hospitals: cuts.py."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
"""Names become folders and wildcards."""
Share = Annotated[float, Field(ge=0, lt=1)]
Cell = Annotated[str, BeforeValidator(lambda key: str(key) if type(key) is int else key)]
"""A table's cell as a key: YAML makes a number of `1: Male`, the table has text."""


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


# --- data ------------------------------------------------------------------------------------------------------------


class DataSet(Strict):
    """What all data sets share."""

    root: str
    """Folder of the raw data, exactly as downloaded."""
    salt: str | None = None
    """Secret for the patient pseudonyms; without one a random salt is made once and kept in clients/salt."""
    reject_share: Share = 0.05
    """Stop when more than this share of the rows or files is refused."""
    allowed_roots: tuple[str, ...] = ()
    """Folders outside the root into which links below it may lead, such as a cluster's store; others are refused."""


class Chexpert(DataSet):
    layout: Literal["chexpert"]
    tables: tuple[str, ...] = ("train.csv", "valid.csv")
    """Tables below the release folder; those that are absent are passed over, but not all of them may be."""
    demographics: str | None = None
    """Path of the demographics table (xlsx or csv) with PATIENT and PRIMARY_RACE."""


class Mimic(DataSet):
    layout: Literal["mimic"]
    labels: Literal["chexpert", "negbio"] = "chexpert"
    images: Literal["auto", "jpg", "dcm"] = "auto"
    mimic_iv: str | None = None
    """Folder of MIMIC-IV (patients.csv.gz and admissions.csv.gz below it, hosp/ or core/); default: the data root."""
    races: dict[str, tuple[str, ...]] = {}
    """Race -> the values of admissions.csv that mean it; empty: the table in fdamed/data/datasets/mimic.py."""
    contradiction: Literal["drop", "majority", "first"] = "drop"
    """What becomes of the race of a patient whose admissions name several of the mapped races."""


class Midrc(DataSet):
    layout: Literal["midrc"]
    states: dict[str, tuple[str, ...]] = {}
    """Site -> ranges of three-digit zip codes such as "600-629"; empty: the table in fdamed/data/datasets/midrc.py."""
    test_window: tuple[int, int] | None = None
    """Count a case as positive only if a positive test lies within these days of the study, e.g. [-14, 14]."""


class Nih(DataSet):
    layout: Literal["nih"]


class Table(DataSet):
    layout: Literal["table"]
    table: str
    """CSV or TSV file, below the root or absolute."""
    columns: dict[str, str]
    """Column of the row contract -> column of the table; `image` and `patient` are needed."""
    labels: dict[str, str]
    """Name of a label -> column of the table."""
    values: dict[str, dict[Cell, str | float | None]] = {}
    """Column of the row contract or label -> {value in the table: value in the contract}."""


class Shift(Strict):
    """How far a phantom hospital lies from the others; every knob is 0 for 'as the reference scanner'."""

    gamma: float = 0.0
    exposure: float = 0.0
    noise: Annotated[float, Field(ge=0)] = 0.0
    blur: Annotated[float, Field(ge=0)] = 0.0
    position: Annotated[float, Field(ge=0)] = 0.0
    prevalence: Annotated[float, Field(gt=0, lt=1)] = 0.5
    sex: Annotated[float, Field(ge=-1, le=1)] = 0.0
    """Correlation of the finding with male sex."""
    age: Annotated[float, Field(ge=-1, le=1)] = 0.0
    """Correlation of the finding with old age."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Relative number of patients."""


class Phantom(Strict):
    """Synthetic chest radiographs, written in the layout of `data` before anything else runs."""

    patients: Annotated[int, Field(ge=10)] = 600
    size: Annotated[int, Field(ge=32, le=4096)] = 320
    seed: int = 0
    subtlety: Annotated[float, Field(ge=0, le=1)] = 0.5
    """0: findings shout; 1: findings whisper."""
    domains: dict[str, Shift] = {}
    """Shift of each condition (chexpert), race (mimic) or state (midrc); empty: the built-in ones."""


class Moved(Strict):
    """How a public set is changed into another domain, image by image; the same at every reading."""

    rotate: Annotated[float, Field(ge=-180, le=180)] = 0.0
    """Degrees, counter-clockwise."""
    invert: bool = False
    """Black for white."""
    noise: Annotated[float, Field(ge=0)] = 0.0
    """Gaussian noise (standard deviation, pixels in 0..1) that belongs to the image, clipped to its range."""
    seed: int = 0


class Domain(Strict):
    """One public set on disk."""

    kind: Literal["idx", "npz", "digits", "usps", "mat", "cifar10", "folder", "mnist_m", "colored"]
    """How its files look; see docs/benchmarks.md."""
    root: str = ""
    """Folder or file; `digits` (scikit-learn's) needs none."""
    correlation: Annotated[float, Field(ge=-1, le=1)] = 0.0
    """With `colored`: how strongly the color goes with the class; made from an idx set."""
    shift: Moved | None = None
    """Make another domain of the set: {rotate: 30, invert: true, noise: 0.2}."""


class Benchmark(Strict):
    """Public sets without patients: their samples become hospitals by a `Partition`."""

    layout: Literal["benchmark"]
    domains: dict[Name, Domain]


Data = Annotated[Chexpert | Mimic | Midrc | Nih | Table | Benchmark, Field(discriminator="layout")]
