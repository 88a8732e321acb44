"""What all sections of a configuration share, and their digests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from fdamed.core.files import digest

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
"""Names become folders and wildcards."""
Share = Annotated[float, Field(ge=0, lt=1)]


class Strict(BaseModel):
    """A frozen section that accepts no unknown key."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def allowed_keys(model: Any, location: Iterable[int | str] = ()) -> list[str]:
    """The keys of the section at `location` below the section `model`."""
    for step in location:
        if step in model.model_fields:
            model = _section_in(model.model_fields[str(step)].annotation) or model
    return sorted(model.model_fields)


def _section_in(annotation: Any) -> Any:
    """The section class inside a type such as `dict[str, Run]` or `Faults | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for argument in get_args(annotation) if (found := _section_in(argument))), None)


def without_defaults(section: BaseModel, exclude: set[str] | None = None) -> dict[str, Any]:
    """A section as JSON values, without the keys that have their default: a new key changes no digest.

    Keys that are required, such as `data.layout` and `split.by`, always stay. The result parses to the same section.
    """
    return section.model_dump(mode="json", exclude_defaults=True, exclude=exclude)


def digest_sections(*sections: BaseModel) -> str:
    """Twelve hex digits of these sections, the same whether a default is written or left out."""
    return digest([without_defaults(section) for section in sections])
