"""What is said where Python packages are missing, and how to get them."""

from __future__ import annotations


def from_checkout(extra: str) -> str:
    """Return how to get the packages of one of the runner's extras."""
    return f"from a checkout, pip install './runner[{extra}]'"


def not_installed(user: str, fix: str, *packages: str | None) -> str:
    """Return the sentence for packages that are missing.

    Args:
        user: what needs them, as the subject of the sentence.
        fix: how to get them.
        packages: their names, one or more.
    """
    noun, verb = ("package", "is") if len(packages) == 1 else ("packages", "are")
    return f"{user} needs the Python {noun} {', '.join(map(str, packages))}, which {verb} not installed: {fix}"
