"""How the Hub's repositories are named, alone and in `hf://` addresses. Pure."""

from __future__ import annotations

import re
from urllib.parse import unquote

from stoker.contract.exits import ExitCode, RunError

_REPO_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_LONGEST_REPO = 96


def is_repository(name: str) -> bool:
    """Return whether the Hub has repositories of such names (huggingface_hub 1.x, validate_repo_id)."""
    parts = name.split("/")
    return (
        len(parts) <= 2
        and all(_REPO_PART.fullmatch(part) for part in parts)
        and len(parts[-1]) <= _LONGEST_REPO
        and not any(text in name for text in ("--", ".."))
        and not name.endswith(".git")
    )


def repository_in(kind: str, uri: str, given: str) -> tuple[str, str, str | None]:
    """Return name, path and revision of `hf://…`; `datasets/` may come first, as in the Hub's own URIs.

    Args:
        kind: `model` or `dataset`.
        uri: the address.
        given: what messages call it.

    Raises:
        RunError: it names no repository (64).
    """
    words = uri.partition("://")[2].strip("/").split("/")
    if words[0] in ("datasets", "models") and len(words) >= 3:
        if words[0] != f"{kind}s":
            raise RunError(ExitCode.USAGE, f"{given} {uri!r} is not a {kind}: write hf://ORG/NAME of a {kind}")
        words = words[1:]
    # Only the Hub's oldest repositories, such as gpt2, have one word; then a revision follows it.
    size = 1 if "@" in words[0] else 2
    name, at, revision = "/".join(words[:size]).partition("@")
    inside = [unquote(word) for word in words[size:]]
    if revision == "refs" and inside[:1] in (["pr"], ["convert"]) and len(inside) > 1:
        revision, inside = "/".join(("refs", *inside[:2])), inside[2:]
    if not is_repository(name) or (at and not revision) or ".." in inside or "" in inside:
        raise RunError(
            ExitCode.USAGE,
            f"{given} {uri!r} is not a repository: write hf://ORG/NAME, hf://ORG/NAME@REVISION or "
            "hf://ORG/NAME/FOLDER (write / in a revision as %2F)",
        )
    return name, "/".join(inside), unquote(revision) or None
