"""The one error that is the user's to mend."""

from __future__ import annotations


class FdamedError(Exception):
    """A mistake with a known remedy: what is wrong, where it is, what to do.

    None of the three texts may quote patient data: they reach logs and screens. Names that users gave may stand in
    them, and are shown without the power to move a cursor, turn the text round or begin a line of their own.
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


def printable(text: str) -> str:
    """The text with line breaks, control characters and marks of direction written out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
