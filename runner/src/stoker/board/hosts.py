"""Names under which the page answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit


def name_of(header: str) -> str:
    """Return the name in a `Host` header, without its port, in small letters; empty if there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:  # a bracket that nothing closes
        return ""


def is_known(name: str, known: Iterable[str]) -> bool:
    """Return whether a name is one of those that are known, or below one such as `*.example.com`; `*` is any."""
    return any(
        one == "*" or name == one.lower() or (one.startswith("*.") and name.endswith(one[1:].lower())) for one in known
    )
