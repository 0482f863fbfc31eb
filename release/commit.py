"""What a release takes from the commit that it is made of."""

from __future__ import annotations

from release import tools


def revision() -> str:
    """Return the commit."""
    return tools.run("git", "rev-parse", "HEAD").strip()


def seconds() -> str:
    """Return the commit's time, which all that is built from it has: building again gives the same bytes."""
    return tools.run("git", "log", "-1", "--format=%ct").strip()


def is_modified() -> bool:
    """Return whether the checkout has changes that the commit lacks."""
    return bool(tools.run("git", "status", "--porcelain").strip())
