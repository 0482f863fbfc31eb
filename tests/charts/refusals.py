"""What a chart says when it refuses values: what is wrong, where, and at the end the fix."""

from __future__ import annotations

import re

_FIX = re.compile(r"(--set|Choose|Give|Mount|Raise|Remove|Rename|Run|Set|To|Use|Write) ")
_OWN = "execution error at ("
_OF_THE_RUNNER = re.compile(r"^runtimes\.\S+\.args\.(\S+): (--)?\1 ", re.MULTILINE)
"""A flag that the runner refuses is refused in its words."""


def ends_with_the_fix(refusal: str) -> bool:
    """Return whether the last sentence says what to do; True for refusals in the words of the schema or the runner.

    Args:
        refusal: what Helm wrote on stderr.
    """
    if _OWN not in refusal or _OF_THE_RUNNER.search(refusal):
        return True
    message = refusal.partition(_OWN)[2].replace("Use --debug flag to render out invalid YAML", "").strip()
    return _FIX.match(re.split(r"[.?]\s+|\n\s*", message)[-1]) is not None
