"""What of a configuration goes into digests: everything but defaults, so that a new key changes no digest."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from fdamed.core.files import digest


def without_defaults(section: BaseModel, exclude: set[str] | None = None) -> dict[str, Any]:
    """A section as JSON values, without the keys that have their default.

    Keys that are required, such as `data.layout` and `split.by`, always stay. The result parses to the same section.
    """
    return section.model_dump(mode="json", exclude_defaults=True, exclude=exclude)


def digest_sections(*sections: BaseModel) -> str:
    """Twelve hex digits of these sections; the same whether a default is written out or left out."""
    return digest([without_defaults(section) for section in sections])
