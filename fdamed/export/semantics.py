"""The meaning of a model's output and the preprocessing of its input, from the study's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fdamed.config.split import Split
from fdamed.config.study import Config

if TYPE_CHECKING:
    from fdamed.export.input import Preparation

NEGATIVES = {
    "zero": "the label is 0",
    "blank": "the label is blank",
    "no_finding": "No Finding is 1",
}
UNCERTAIN = {"ones": "count as positive", "zeros": "count as negative", "ignore": "are left out"}


def label_of(config: Config, target: str) -> str | None:
    """The label that the target predicts; None: a public set with numbered classes."""
    if not isinstance(config.split, Split):
        return None
    return config.split.label or config.split.clients[target]


def classes_of(config: Config, target: str) -> list[str]:
    """The classes by name, in the order of the output."""
    label = label_of(config, target)
    if label is None or not isinstance(config.split, Split):
        return [str(number) for number in range(config.model.classes)]
    present, absent = label, f"no {label}"
    return [absent, present] if config.split.positive_is == 1 else [present, absent]


def meaning_of(config: Config, target: str) -> str:
    """What counted as positive and as negative in training."""
    label, cut = label_of(config, target), config.split
    if label is None or not isinstance(cut, Split):
        return "the numbered classes of a public benchmark set"
    if cut.positive_is == 0:
        return f"positive: {label} is 0 in the data set's labels; negative: {label} is 1"
    uncertain = UNCERTAIN[cut.uncertain_by_label.get(label, cut.uncertain)]
    text = f"positive: {label} is 1 in the data set's labels; negative: {NEGATIVES[cut.negatives]}"
    return f"{text}; uncertain labels {uncertain}"


def preparation_of(config: Config, order: Path) -> Preparation | None:
    """The preprocessing; None for public sets, whose arrays are used as they are."""
    from fdamed.export.input import Preparation

    if not isinstance(config.split, Split):
        return None
    return Preparation(config.image.size, config.image.equalize, _views(order))


def _views(path: Path) -> tuple[str, ...]:
    """The views of the images in a client's order.parquet, if all of them are known."""
    import pyarrow.parquet as pq

    if not path.is_file() or "view" not in pq.ParquetFile(path).schema_arrow.names:
        return ()
    found = set(pq.ParquetFile(path).read(columns=["view"])["view"].to_pylist())
    return tuple(sorted(v for v in found if v)) if None not in found else ()
