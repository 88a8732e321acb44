"""Which files a path from a table may lead to: those below the data root, or behind links into allowed folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fdamed.data.image import Unreadable


@dataclass(frozen=True)
class Roots:
    """Folders in which images may lie, with a memo of the folders below that were resolved."""

    real: tuple[str, ...]
    """Without links, each with a slash at its end. Tables name paths below the first; links may lead to all."""
    folders: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path | str, allowed: Sequence[str] = ()) -> Roots:
        """The data root and the folders of `data.allowed_roots`."""
        return cls(tuple(os.path.realpath(folder).rstrip("/") + "/" for folder in (root, *allowed)))

    def contain(self, real: str) -> bool:
        """Whether a path without links lies below one of the roots."""
        return real.startswith(self.real)

    def locate(self, image: str) -> Path:
        """The file that a path from a table means, if it lies below a root also after all links are followed."""
        parent, _, name = image.rpartition("/")
        if image.startswith("/") or name in ("", ".", "..") or "\0" in image:
            raise Unreadable("PATH_OUTSIDE_ROOT")
        try:
            if parent not in self.folders:
                self.folders[parent] = Path(self.real[0], parent).resolve()
            path = self.folders[parent] / name
            if path.is_symlink():
                path = path.resolve()
        except (OSError, RuntimeError, UnicodeEncodeError):
            raise Unreadable("UNREADABLE") from None
        if not self.contain(str(path)):
            raise Unreadable("PATH_OUTSIDE_ROOT")
        return path
