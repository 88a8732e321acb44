"""Where everything lies below results/{cohort}/ (docs/reference/files.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fdamed.config.datasets import Benchmark, DataSet
from fdamed.config.split import Partition, Split
from fdamed.config.study import Config
from fdamed.core.errors import FdamedError

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from fdamed.models.flat import Layout


FROZEN = "init"
"""The backbone that no run has trained."""


@dataclass(frozen=True)
class Places:
    """The paths of one cohort."""

    root: Path

    @classmethod
    def of(cls, config: Config) -> Places:
        return cls(Path(config.results) / config.study)

    @property
    def clients(self) -> Path:
        """What stays in the hospitals."""
        return self.root / "clients"

    def client(self, name: str) -> Path:
        return self.clients / name

    def init(self, seed: int) -> Path:
        return self.root / "init" / str(seed)

    def run(self, run: str, target: str, seed: int) -> Path:
        return self.root / "runs" / run / target / str(seed)

    def features(self, client: str, backbone: str, target: str, seed: int) -> Path:
        """What a hospital's images become in a backbone: `init`, or the run whose weights it has."""
        return self.client(client) / "features" / backbone / target / f"{seed}.safetensors"

    def weights(self, backbone: str, target: str, seed: int) -> Path:
        """The weights of a backbone: `init`, or a run."""
        folder = self.init(seed) if backbone == FROZEN else self.run(backbone, target, seed)
        return folder / "theta.safetensors"

    def memory(self, client: str, run: str, target: str, seed: int) -> Path:
        return self.client(client) / "memory" / run / target / str(seed)

    def predictions(self, client: str, run: str, target: str, seed: int) -> Path:
        return self.client(client) / "predictions" / run / target / f"{seed}.parquet"


def clinical(config: Config) -> tuple[DataSet, Split]:
    """The data set and its cut, if the study is one of radiographs."""
    if isinstance(config.data, Benchmark) or isinstance(config.split, Partition):
        fix = "Public sets become hospitals by `fdamed partition`."
        raise FdamedError("this stage is for radiographs, and the data is a benchmark set", "data.layout", fix)
    return config.data, config.split


def needed(path: Path, made_by: str) -> Path:
    """The path, if it is there; an error that names the stage which makes it if not."""
    if not path.exists():
        raise FdamedError("a file of an earlier stage is missing", str(path), f"Run `fdamed {made_by}` first.")
    return path


def rows_in(path: Path, made_by: str) -> pd.DataFrame:
    """The rows of an earlier stage's parquet file."""
    import pandas as pd
    from pyarrow import ArrowInvalid

    try:
        return pd.read_parquet(needed(path, made_by))
    except (ArrowInvalid, OSError):
        raise FdamedError("the file is damaged", str(path), f"Remove it and run `fdamed {made_by}` again.") from None


def weights_in(path: Path, made_by: str, layout: Layout) -> Tensor:
    """The weights of an earlier stage as one vector, if they are this configuration's model's."""
    from fdamed.models.flat import vector_from

    try:
        return vector_from(tensors_in(path, made_by), layout)
    except (KeyError, ValueError):
        raise foreign_weights(path, made_by) from None


def tensors_in(path: Path, made_by: str) -> dict[str, Tensor]:
    """The tensors of an earlier stage by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        content: dict[str, Tensor] = load_file(needed(path, made_by))
    except SafetensorError:
        raise foreign_weights(path, made_by) from None
    return content


def foreign_weights(path: Path, made_by: str) -> FdamedError:
    """The error of a file whose tensors do not fit."""
    what = "the weights are damaged, or those of another model"
    return FdamedError(what, str(path), f"Run `fdamed {made_by}` again with this configuration.")
