"""The one error that is the user's to mend."""

from __future__ import annotations


class FdamedError(Exception):
    """A mistake with a known remedy: what is wrong, where it is, what to do.

    None of the three texts may quote patient data: they reach logs and screens.
    """

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(f"{what} ({where}). {fix}")
        self.what = what
        self.where = where
        self.fix = fix

    def __reduce__(self) -> tuple[type[FdamedError], tuple[str, str, str]]:
        """Survive the way back from a worker process."""
        return (type(self), (self.what, self.where, self.fix))
