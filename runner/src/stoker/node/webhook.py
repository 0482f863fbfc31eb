"""Tells somebody that a run has ended: one POST of JSON to the address in STOKER_WEBHOOK."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from stoker.contract.exits import ExitCode
from stoker.contract.secrets import hide
from stoker.contract.variables import WEBHOOK
from stoker.contract.words import say, timestamp

# The pod waits so long at most, whatever the receiver does.
_SECONDS = 10.0
# A signal leaves little time; less than this is not worth a try.
_LEAST_SECONDS = 1.0
# Some receivers keep only short texts.
_MESSAGE_CHARACTERS = 2000


def end_of_run(code: ExitCode, message: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is told of the end of an attempt.

    Args:
        code: how it ended.
        message: why, as in the log.
        about: what is known of the run, such as its name and its id.
    """
    text = hide(message)[:_MESSAGE_CHARACTERS]
    outcome = {ExitCode.FINISHED: "finished", ExitCode.STOPPED: "stopped"}.get(code, "failed")
    return {
        "event": outcome,
        # Chat services show this field, and ignore the others.
        "text": f"run {about.get('run') or about.get('job_id') or 'without an id'} {outcome}: {text}",
        "code": int(code),
        "meaning": code.meaning,
        "message": text,
        # Kubernetes may try again after the other codes.
        "final": code is ExitCode.FINISHED or code.is_final,
        "time": timestamp(),
        **about,
    }


def tell(address: str, body: Mapping[str, Any], seconds: float = _SECONDS) -> bool:
    """Send a body, in bounded time. A failure is a warning: it never changes how a run ends.

    Args:
        address: where to; empty for nowhere.
        body: what to send.
        seconds: how long this may take.

    Returns:
        whether the receiver has taken it.
    """
    if not address:
        return False
    seconds = min(seconds, _SECONDS)
    if seconds < _LEAST_SECONDS:
        say(f"warning: no notification was sent to {WEBHOOK}: there was no time left before the end of the pod")
        return False
    problems: list[str] = []
    # A look-up of a name and an answer in drops may take any time, so that a thread of its own waits for them.
    sender = threading.Thread(target=lambda: problems.append(_sent(address, body, seconds)), daemon=True)
    sender.start()
    sender.join(seconds)
    problem = problems[0] if problems else f"no answer within {seconds:.0f} s"
    if problem:
        say(f"warning: no notification was sent to {WEBHOOK} ({problem}); the run is not affected")
    return not problem


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Urllib would repeat a POST as a GET, without what it is to tell."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _sent(address: str, body: Mapping[str, Any], seconds: float) -> str:
    """Send, and return what went wrong; empty if nothing did."""
    try:
        request = urllib.request.Request(
            address,
            json.dumps(body, allow_nan=False).encode(),
            {"Content-Type": "application/json", "User-Agent": "stoker"},
        )
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=seconds):
            return ""
    except urllib.error.HTTPError as error:
        error.close()
        return f"the receiver answered {error.code}"
    except urllib.error.URLError as error:
        # Its reason names no address; other exceptions may.
        return (
            f"{type(error.reason).__name__}: {error.reason}" if isinstance(error.reason, OSError) else "no connection"
        )
    except Exception as error:  # noqa: BLE001 - whatever happens here, the run has ended as it has
        return type(error).__name__
