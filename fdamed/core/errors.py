"""The one error that users can fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

NO_MEMORY = ("can't allocate memory", "out of memory", "bad allocation", "Cannot allocate memory")
"""Messages of torch's plain RuntimeError when the host is out of memory."""


class FdamedError(Exception):
    """An error with a known remedy: what is wrong, where, and how to fix it.

    None of the three texts may quote patient data: they reach logs and screens. Names that users gave may appear in
    them; control characters are escaped, so that they cannot move the cursor, reverse the text or start a new line.
    """

    def __init__(self, what: str, where: str, fix: str) -> None:
        what, where, fix = printable(what), printable(where), printable(fix)
        super().__init__(f"{what} ({where}). {fix}")
        self.what = what
        self.where = where
        self.fix = fix

    def __reduce__(self) -> tuple[type[FdamedError], tuple[str, str, str]]:
        """Survive the way back from a worker process."""
        return (type(self), (self.what, self.where, self.fix))

    def lines(self) -> str:
        """The message in three lines, as the command line shows it after `error: `."""
        return f"{self.what}\nwhere: {self.where}\nto do: {self.fix}"


def printable(text: str) -> str:
    """The text with line breaks, control characters and direction marks escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def nearest(word: str, known: Iterable[str], cutoff: float = 0.65) -> str:
    """` (did you mean `x`?)` for the known word that is most similar, or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f" (did you mean `{found[0]}`?)" if found else ""


def no_folder(folder: Path) -> str:
    """`there is no such folder`, with the most similar name where the path first fails."""
    first = next((p for p in (*reversed(folder.parents), folder) if not p.exists()), folder)
    beside = [p.name for p in first.parent.iterdir() if p.is_dir()][:1000] if first.parent.is_dir() else []
    near = difflib.get_close_matches(first.name, beside, n=1, cutoff=0.5)
    return "there is no such folder" + (f" (did you mean `{first.with_name(near[0])}`?)" if near else "")


def memory_error(error: Exception, doing: str, where: str, batches: str) -> FdamedError | None:
    """The error that names the batch sizes, such as `train.source.batch 32`; None: `error` is another one."""
    import torch

    plain = isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY)
    if not plain and not isinstance(error, MemoryError | torch.OutOfMemoryError):
        return None
    return FdamedError(
        f"out of memory in {doing} ({batches})",
        where,
        "Give the job more memory, run fewer jobs at a time, or choose a smaller batch, which changes the results. "
        "The last checkpoint is kept.",
    )
