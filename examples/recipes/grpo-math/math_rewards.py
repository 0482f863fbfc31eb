r"""The reward of this recipe: the answer in the last `\boxed{…}` is the right one, or it is not."""

from typing import Any

_BOX = r"\boxed{"


def boxed_answer(completions: list[list[dict[str, str]]], solution: list[str], **_: Any) -> list[float]:
    """Return 1.0 for each completion whose last box holds the solution, 0.0 for any other.

    Args:
        completions: what the samplers wrote, as messages.
        solution: the data's column of this name, one per completion.
    """
    return [
        float(_plain(_boxed(completion[-1]["content"])) == _plain(right))
        for completion, right in zip(completions, solution, strict=True)
    ]


def _boxed(text: str) -> str | None:
    """Return what the last box of a text holds; None if there is none, or it has no end."""
    _, found, rest = text.rpartition(_BOX)
    depth = 1
    for position, character in enumerate(rest if found else ""):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[:position]
    return None


def _plain(text: str | None) -> str | None:
    """Return a formula without what does not change it: spaces, dollars, and names of the same fraction."""
    if text is None:
        return None
    for written, plain in ((" ", ""), ("$", ""), (r"\dfrac", r"\frac"), (r"\left", ""), (r"\right", "")):
        text = text.replace(written, plain)
    return text.rstrip(".")
