"""The paths of a study below results/{study}/, and readers that name the command which makes a missing file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fdamed.config.datasets import Benchmark, DataSet
from fdamed.config.split import Partition, Split
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError
from fdamed.core.files import atomic

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from fdamed.models.flat import Layout


FROZEN = "init"
"""The name of the untrained backbone."""
LAST = "last_config"
"""The file below `clients/` that names the configuration with which the study was last run."""


@dataclass(frozen=True)
class Places:
    """The paths of one study."""

    root: Path

    @classmethod
    def of(cls, config: Config) -> Places:
        return cls(Path(config.results) / config.study)

    @property
    def clients(self) -> Path:
        """Files that stay with the clients."""
        return self.root / "clients"

    def client(self, name: str) -> Path:
        return self.clients / name

    def init(self, seed: int) -> Path:
        return self.root / "init" / str(seed)

    def run(self, run: str, target: str, seed: int) -> Path:
        return self.root / "runs" / run / target / str(seed)

    def features(self, client: str, backbone: str, target: str, seed: int) -> Path:
        """The features of a client's images; backbone: `init`, or a run."""
        return self.client(client) / "features" / backbone / target / f"{seed}.safetensors"

    def weights(self, backbone: str, target: str, seed: int) -> Path:
        """The weights of a backbone: `init`, or a run."""
        folder = self.init(seed) if backbone == FROZEN else self.run(backbone, target, seed)
        return folder / "theta.safetensors"

    def memory(self, client: str, run: str, target: str, seed: int) -> Path:
        return self.client(client) / "memory" / run / target / str(seed)


def clinical(config: Config) -> tuple[DataSet, Split]:
    """The data set and its split, if the study uses radiographs."""
    if isinstance(config.data, Benchmark) or isinstance(config.split, Partition):
        fix = "Use `fdamed partition`: it makes clients of public sets."
        raise FdamedError("this command is for radiographs, and the data is a benchmark set", "data.layout", fix)
    return config.data, config.split


def needed(path: Path, made_by: str) -> Path:
    """The path, if it exists; else an error that names the command which makes it."""
    if not path.exists():
        raise FdamedError("a file of an earlier step is missing", str(path), f"Run `fdamed {made_by}` first.")
    return path


def rows_in(path: Path, made_by: str) -> pd.DataFrame:
    """The rows of a parquet file."""
    import pandas as pd
    from pyarrow import ArrowInvalid

    try:
        return pd.read_parquet(needed(path, made_by))
    except (ArrowInvalid, OSError):
        raise FdamedError("the file is damaged", str(path), f"Remove it and run `fdamed {made_by}` again.") from None


def write_rows(path: Path, frame: pd.DataFrame) -> None:
    with atomic(path) as draft:
        frame.to_parquet(draft, index=False)


def weights_in(path: Path, made_by: str, layout: Layout, heads: Mapping[str, Tensor] | None = None) -> Tensor:
    """The weights as one vector, if they fit the configuration's model; `heads`: those of shared auxiliary heads."""
    from fdamed.models.flat import vector_from

    try:
        return vector_from({**tensors_in(path, made_by), **(heads or {})}, layout)
    except (KeyError, ValueError):
        raise foreign_weights(path, made_by) from None


def tensors_in(path: Path, made_by: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        content: dict[str, Tensor] = load_file(needed(path, made_by))
    except SafetensorError:
        raise foreign_weights(path, made_by) from None
    return content


def foreign_weights(path: Path, made_by: str) -> FdamedError:
    """The error for a file whose tensors do not fit."""
    what = "the weights are damaged, or those of another model"
    return FdamedError(what, str(path), f"Run `fdamed {made_by}` again with this configuration.")
