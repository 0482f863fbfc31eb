"""What the fields of a config may hold, and what to say of one that holds something else. Pure."""

from __future__ import annotations

import math


def is_text(value: object) -> bool:
    """Return whether a value is text, and not empty."""
    return isinstance(value, str) and bool(value)


def are_texts(value: object) -> bool:
    """Return whether a value is a list of texts, and not empty."""
    return isinstance(value, list) and bool(value) and all(map(is_text, value))


def is_whole(config: object, name: str, least: int) -> bool:
    """Return whether a field is a whole number, and not less than `least`."""
    value = getattr(config, name)
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def number(config: object, name: str) -> float:
    """Return a field's number; NaN, which is in no range, for any other value."""
    value = getattr(config, name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def must_be(config: object, name: str, what: str, where: str = "") -> str:
    """Return what is wrong with a field: its name and value, and what to write instead.

    Args:
        config: the object.
        name: the field's name.
        what: what it must be.
        where: where the user writes it; the name of the object's class by default.
    """
    return f"{where or type(config).__name__}: {name} is {getattr(config, name)!r}: it must be {what}"
