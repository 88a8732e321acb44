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
UNCERTAIN = {"ones": "count as positive", "zeros": "count as negative", "ignore": "are excluded"}


def output_of(config: Config, target: str) -> tuple[list[str], str]:
    """The classes by name, in the order of the output, and what counted as positive and as negative in training."""
    split = config.split
    if not isinstance(split, Split):
        return [str(n) for n in range(config.model.classes)], "the numbered classes of a public benchmark set"
    label = split.label or split.clients[target]
    if split.positive_is == 0:
        return [label, f"no {label}"], f"positive: {label} is 0 in the data set's labels; negative: {label} is 1"
    meaning = f"positive: {label} is 1 in the data set's labels; negative: {NEGATIVES[split.negatives]}"
    uncertain = UNCERTAIN[split.uncertain_by_label.get(label, split.uncertain)]
    return [f"no {label}", label], f"{meaning}; uncertain labels {uncertain}"


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
