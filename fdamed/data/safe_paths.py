"""Where a path from a table may lead: below the data root, or by links into folders that the configuration names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fdamed.data.image import Unreadable


def real_roots(root: Path | str, allowed: Sequence[str] = ()) -> tuple[str, ...]:
    """The data root and the folders of `data.allowed_roots`, all links followed, each with a slash at its end."""
    return tuple(os.path.realpath(folder).rstrip("/") + "/" for folder in (root, *allowed))


def inside(real: str, roots: tuple[str, ...]) -> bool:
    """Whether a path without links lies below one of `real_roots`."""
    return real.startswith(roots)


@dataclass(frozen=True)
class Roots:
    """Folders in which images may lie, with a memo of those below that were looked at."""

    real: tuple[str, ...]
    """Tables name paths below the first; links may lead into the others."""
    folders: dict[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path | str, allowed: Sequence[str] = ()) -> Roots:
        return cls(real_roots(root, allowed))

    def locate(self, image: str) -> Path:
        """The file that a path from a table means, if it lies below a root also after all links."""
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
        if not inside(str(path), self.real):
            raise Unreadable("PATH_OUTSIDE_ROOT")
        return path
