"""Text of a run as it stands in a page: escaped, without secrets, and without what would change how the rest reads."""

from __future__ import annotations

import re
from html import escape

from stoker.contract.secrets import hide
from stoker.contract.words import REPLACED, printable

# Halves of characters, and marks that turn the direction of what follows.
_UNFIT = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def shown(value: object, most: int = 200) -> str:
    """Return a value for a page.

    Args:
        value: what a run, a model or a user has written.
        most: so many characters of it are shown.
    """
    text = hide(str(value))
    cut = text if len(text) <= most else f"{text[:most]} …"
    return escape(_UNFIT.sub(REPLACED, printable(cut)))
