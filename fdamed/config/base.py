"""What all sections of a configuration share, and their digests."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from fdamed.core.files import digest

NAME = r"^[A-Za-z][A-Za-z0-9_]{0,63}$"
Name = Annotated[str, StringConstraints(pattern=NAME)]
"""Names become folders and wildcards."""
Share = Annotated[float, Field(ge=0, lt=1)]


class Strict(BaseModel):
    """A frozen section that accepts no unknown key."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        unknown = [str(key) for key in value if key not in cls.model_fields] if isinstance(value, dict) else []
        if unknown:
            context = {"unknown": unknown, "allowed": sorted(cls.model_fields)}
            raise PydanticCustomError("unknown_keys", "unknown keys", context)
        return value


def not_removed(entries: Any) -> Any:
    """A mapping without the entries that a later file or a variant has removed by `name: null`."""
    return (
        {name: entry for name, entry in entries.items() if entry is not None} if isinstance(entries, dict) else entries
    )


def without_defaults(section: BaseModel, exclude: set[str] | None = None) -> dict[str, Any]:
    """A section as JSON values, without the keys that have their default: a new key changes no digest.

    Keys that are required, such as `data.layout` and `split.by`, always stay. The result parses to the same section.
    """
    return section.model_dump(mode="json", exclude_defaults=True, exclude=exclude)


def digest_sections(*sections: BaseModel) -> str:
    """Twelve hex digits of these sections, the same whether a default is written or left out."""
    return digest([without_defaults(section) for section in sections])
