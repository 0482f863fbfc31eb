"""Hides secrets in what Stoker writes for people: lines, errors, plans, and what outlives a pod."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

# Replaces a secret.
HIDDEN = "(not shown)"

# Names of variables that hold a secret, and those of them that only look so: pieces of text, and paths of files.
_NAME = re.compile(
    r"TOKEN(?!IZER|S)|SECRET|PASSW|PASSPHRASE|(API|ACCESS|PRIVATE|ACCOUNT)_?KEY|CREDENTIAL|WEBHOOK|_(PAT|PWD|DSN)$",
    re.IGNORECASE,
)
_NOT_A_SECRET = re.compile(r"(BOS|CLS|EOS|IMAGE|MASK|PAD|SEP|UNK)_TOKEN|_(DIR|FILE|PATH)$", re.IGNORECASE)
# A shorter value may be an everyday word.
_LEAST_LENGTH = 8
# What a text may hold → its part before and after the secret, which stay.
_PATTERNS = (
    # A user and a password in an address.
    re.compile(r"(://)[^/\s:@'\"]*:[^/\s@'\"]+(@)"),
    # A signature or a key in an address.
    re.compile(
        r"([?&](?:X-(?:Amz|Goog)-(?:Credential|Security-Token|Signature)|sig|signature|(?:\w+_)?token|(?:api_?)?key)=)"
        r"(?!\(not shown\))[^&\s'\"\\]+()",
        re.IGNORECASE,
    ),
    re.compile(r"(\bbearer\s+)[\w.~+/=-]{8,}()", re.IGNORECASE),
    # Tokens that tell what they are: of the Hub, GitHub, GitLab, OpenAI and its like, Slack, and JSON web tokens.
    re.compile(
        r"()\b(?:hf_[A-Za-z0-9]{16,}|gh[oprsu]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{20,}"
        r"|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)()"
    ),
    # A value after its name. A word such as `token` alone counts only as a key in quotes.
    re.compile(
        r"((?:\b[\w-]*(?:(?:api|access|private|account)_?key|(?:hub|hf|auth|access|refresh|session|api)_?token|passwo?r?d)"
        r"|(?<=[\"'])(?:token|secret))\\?[\"']?\s*[:=]\s*\\?[\"']?)"
        r"(?!(?:null|none|true|false)\b|[<({\[])[^\s\"'\\,;&})\]]+()",
        re.IGNORECASE,
    ),
)


def is_secret(name: str) -> bool:
    """Return whether the value of a variable of this name is a secret."""
    return bool(_NAME.search(name)) and not _NOT_A_SECRET.search(name)


def hidden(value: Any, *, by_key: bool = True) -> Any:
    """Return a value, such as JSON holds, without the secrets in its texts and, by default, those that its keys name.

    In a pod, a key such as ``secretName`` looks so and holds none.
    """
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {
            key: HIDDEN
            if by_key and isinstance(inner, str) and inner and is_secret(str(key))
            else hidden(inner, by_key=by_key)
            for key, inner in value.items()
        }
    return [hidden(inner, by_key=by_key) for inner in value] if isinstance(value, list | tuple) else value


def hidden_json(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON without secrets: those of its texts, and those that a name before them tells.

    Args:
        value: what is about to be written.
        indent: as `json.dumps` takes it.
    """
    # First as they are: JSON writes line ends and quotes in another way.
    return hide(json.dumps(hidden(value, by_key=False), indent=indent))


def hide(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return a text without the secrets in it.

    Args:
        text: what is about to be written.
        environ: the environment, whose secrets are hidden wherever they stand; that of this process by default.
    """
    environ = os.environ if environ is None else environ
    values = {value.strip() for name, value in environ.items() if is_secret(name)}
    for value in sorted((value for value in values if len(value) >= _LEAST_LENGTH), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\g<1>{HIDDEN}\g<2>", text)
    return text
