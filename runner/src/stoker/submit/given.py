"""Fields that know whether they were given.

KEP-2839's first text gives its fields defaults that are sent to the trainer; its newest text gives the same fields no
default and sends only what was given. One class serves both because it remembers which fields were given.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


class _Unset:
    """The default of a field nobody gave."""

    def __repr__(self) -> str:
        return "unset"


UNSET = _Unset()


def default(value: Any, **options: Any) -> Any:
    """Declare a dataclass field with a default whose use can be told from the same value given."""
    return field(default=UNSET, metadata={"default": value}, **options)


@dataclass
class Remembering:
    """A dataclass whose fields declared with :func:`default` remember whether they were given."""

    def __post_init__(self) -> None:
        """Note what was given, and fill in the defaults."""
        self._given = frozenset(item.name for item in fields(self) if getattr(self, item.name) is not UNSET)
        for item in fields(self):
            if item.name not in self._given:
                setattr(self, item.name, item.metadata["default"])

    def was_given(self, name: str) -> bool:
        """Return whether a field was given when this object was made, or has been changed since."""
        (declared,) = (item for item in fields(self) if item.name == name)
        return name in self._given or getattr(self, name) != declared.metadata.get("default")
