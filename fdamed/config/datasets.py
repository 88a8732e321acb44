"""The `data` section: the data set, and the phantom that can replace it."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from fdamed.config.base import Name, Share, Strict
from fdamed.core.disclosure import LOCAL_KEYS

if TYPE_CHECKING:
    import pandas as pd

    from fdamed.data.row_reader import RowReader

LAYOUTS = {
    "chexpert": "fdamed.data.datasets.chexpert:Chexpert",
    "mimic": "fdamed.data.datasets.mimic:Mimic",
    "midrc": "fdamed.data.datasets.midrc:Midrc",
    "nih": "fdamed.data.datasets.nih:Nih",
    "padchest": "fdamed.data.datasets.padchest:Padchest",
    "vindr": "fdamed.data.datasets.vindr:Vindr",
    "table": "fdamed.data.datasets.table:Table",
    "benchmark": "fdamed.config.datasets:Benchmark",
}
"""`data.layout` -> its class. By name, because a data set is one file in `fdamed/data/`, which this package may not
import, and because a configuration needs only its own."""
Cell = Annotated[str, BeforeValidator(lambda key: str(key) if type(key) is int else key)]
"""A table's cell as a key: YAML reads the 1 of `1: Male` as a number, the table has text."""


class DataSet(Strict):
    """What all data sets share; each one is a subclass in fdamed/data/datasets/."""

    labels_from_reports: ClassVar[bool] = False
    """Whether a program extracted the labels from radiology reports."""
    paper_split: ClassVar[str] = ""
    """How the healthcare paper splits this data set (`split.by`); the report then shows its figures next to ours."""

    layout: str
    root: str
    """Folder of the raw data, exactly as downloaded."""
    salt: str | None = Field(None, examples=["a long random text"])
    """Secret for the patient pseudonyms; without one a random salt is made once and kept in clients/salt."""
    reject_share: Share = 0.05
    """Stop when more than this share of the rows or files is rejected."""
    allowed_roots: tuple[str, ...] = Field((), examples=[["/store/images"]])
    """Folders outside the root that links below it may lead to, such as a cluster's store; others are rejected."""

    def __init_subclass__(cls, local: tuple[str, ...] = (), **options: Any) -> None:
        """`local`: the data set's own keys that name files of this machine, which no report shows."""
        super().__init_subclass__(**options)
        LOCAL_KEYS.update(local)

    def rows(self, reader: RowReader) -> pd.DataFrame:
        """The rows of the data set's tables in the columns of `fdamed.data.manifest`."""
        raise NotImplementedError


Correlated = Annotated[float, Field(ge=-0.5, le=0.5)]


class Correlation(Strict):
    """Correlation (Pearson's, over patients) of illness with demographics at one client."""

    sex: Correlated = 0.0
    """With male sex."""
    age: Correlated = 0.0
    """With age."""
    race: Correlated = 0.0
    """With the layout's most frequent race."""


class Phantom(Strict):
    """Synthetic chest radiographs, written in the layout of `data` before ingest."""

    patients: Annotated[int, Field(ge=10)] = 600
    """Patients to draw, with one or more images each."""
    size: Annotated[int, Field(ge=32, le=4096)] = 320
    """Height and width of the written images in pixels."""
    seed: int = 0
    """Seed of patients and images."""
    subtlety: Annotated[float, Field(ge=0, le=1)] = 0.5
    """0: findings are obvious; 1: findings are barely visible."""
    concept: Annotated[float, Field(ge=0, le=1)] = 1.0
    """How different the finding behind the label looks between clients; 0: the same finding everywhere."""
    scanner: Annotated[float, Field(ge=0, le=3)] = 1.0
    """Factor of the differences between the clients' scanners; 0: the same scanner everywhere."""
    noise: Annotated[float, Field(ge=0, le=3)] = 0.0
    """Detector noise in every image, besides the scanner's own: 1 adds 0.03 to its deviation of 0.012 (density)."""
    label_noise: Annotated[float, Field(ge=0, le=0.5)] = 0.0
    """Share of the patients whose label is not what their images show."""
    correlation: dict[str, Correlation] = Field(default_factory=dict, examples=[{"Edema": {"sex": 0.3}}])
    """Client, as the data set names it -> correlation of illness with sex, age and race; 0 where not given."""


class Moved(Strict):
    """How a public set is turned into another domain; the result is the same each time it is read."""

    rotate: Annotated[float, Field(ge=-180, le=180)] = 0.0
    """Degrees, counter-clockwise."""
    invert: bool = False
    """Black for white."""
    contrast: Annotated[float, Field(gt=0)] = 1.0
    """Factor of the pixels, before `brightness` is added."""
    brightness: Annotated[float, Field(ge=-1, le=1)] = 0.0
    """Added to the pixels in 0..1, clipped to their range."""
    noise: Annotated[float, Field(ge=0)] = 0.0
    """Gaussian noise (standard deviation, pixels in 0..1) that belongs to the image, clipped to its range."""
    seed: int = 0
    """Seed of the noise."""


class Domain(Strict):
    """One public set on disk."""

    kind: Literal["idx", "npz", "digits", "usps", "mat", "cifar10", "folder", "mnist_m", "colored", "blended"]
    """Format of its files; see docs/reference/public_data_sets.md."""
    root: str = ""
    """Folder or file; `digits` (scikit-learn's) needs none."""
    correlation: Annotated[float, Field(ge=-1, le=1)] = 0.0
    """With `colored`: how strongly the color goes with the class; made from an idx set."""
    shift: Moved | None = None
    """Make another domain of the set: {rotate: 30, invert: true, noise: 0.2}."""


class Benchmark(Strict):
    """Public sets without patients: a `Partition` assigns their samples to clients."""

    layout: Literal["benchmark"]
    domains: dict[Name, Domain]


def dataset_class(layout: object) -> Any:
    """The class of a layout."""
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise ValueError(f"unknown layout; set data.layout to one of {', '.join(LAYOUTS)}")
    return resolve_name(LAYOUTS[layout])


def _of_layout(value: Any) -> Any:
    if isinstance(value, DataSet | Benchmark):
        return value
    if not isinstance(value, dict):
        raise ValueError("should be a mapping with `layout` and `root`")
    return dataset_class(value.get("layout")).model_validate(value)


class _ByLayout:
    """Validates `data` with the class of its layout, and lists all of them in the JSON schema."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_of_layout)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        choices = {layout: dataset_class(layout).__pydantic_core_schema__ for layout in LAYOUTS}
        return handler(core_schema.tagged_union_schema(choices, discriminator="layout"))


Data = Annotated[DataSet | Benchmark, _ByLayout()]
