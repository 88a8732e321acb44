"""The pretended GPU, imported only when a test asks for it: from then on functorch does not work in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fdamed.training.input import budget


@pytest.fixture
def gpu() -> Callable[..., contextlib.AbstractContextManager[Any]]:
    """`with gpu(free=...) as counts:` a GPU is there, with so many bytes."""
    from tests.support.pretended_gpu import pretended_gpu

    @contextlib.contextmanager
    def anew(**options: int) -> Iterator[Any]:
        budget.cache_clear()
        with pretended_gpu(**options) as counts:
            yield counts
        budget.cache_clear()

    return anew
