"""Progress of a run, posted to Kubeflow Trainer's status server (KEP-2779), and the only writer there.

Each POST replaces the whole status. A slow or absent server never holds up training: posts happen on a thread of
their own, the newest status wins, and the last one is waited for.
"""

from __future__ import annotations

import json
import math
import os
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Limits of the status server (kubeflow/trainer v2.3.0): one value over 64 characters refuses the whole update.
_MAX_CHARACTERS = 64
_MAX_METRICS = 256
_SECONDS_BETWEEN = 5.0
_REQUEST_SECONDS = 10.0


def status_body(step: int, total: int, seconds_left: float | None, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return the body of one update.

    Args:
        step: steps done.
        total: steps asked for.
        seconds_left: estimated remaining time; None if unknown.
        metrics: name → value; names and values are cut to what the server takes, values that are no number left out.
    """
    percentage = 100 * step // total if total else 0
    listed = [
        {"name": name[:_MAX_CHARACTERS], "value": f"{value:.6g}"[:_MAX_CHARACTERS]}
        for name, value in metrics.items()
        if math.isfinite(value)
    ]
    status: dict[str, Any] = {
        "progressPercentage": min(100, percentage),
        "metrics": listed[:_MAX_METRICS],
        "lastUpdatedTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    if seconds_left is not None:
        status["estimatedRemainingSeconds"] = max(0, round(seconds_left))
    return {"trainerStatus": status}


class ProgressReporter:
    """Posts the newest status at most every five seconds, and the last one always.

    Args:
        environ: where Trainer put the server's address and the paths of its CA and token.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._url = environ.get("KUBEFLOW_TRAINER_SERVER_URL")
        self._ca = environ.get("KUBEFLOW_TRAINER_SERVER_CA_CERT")
        self._token = environ.get("KUBEFLOW_TRAINER_SERVER_TOKEN")
        self._pending: dict[str, Any] | None = None
        self._wake = threading.Condition()
        self._closing = False
        self._complained = False
        self._thread: threading.Thread | None = None
        if self._url:
            self._thread = threading.Thread(target=self._post_all, name="stoker-progress", daemon=True)
            self._thread.start()

    def report(self, body: dict[str, Any]) -> None:
        """Hand over the newest status; returns at once."""
        with self._wake:
            self._pending = body
            self._wake.notify()

    def close(self) -> None:
        """Post what is pending, and wait for that (bounded by the request's time-out)."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(2 * _REQUEST_SECONDS)

    def _post_all(self) -> None:
        last = -_SECONDS_BETWEEN
        while True:
            with self._wake:
                while self._pending is None and not self._closing:
                    self._wake.wait()
                early = last + _SECONDS_BETWEEN - time.monotonic()
                if early > 0 and not self._closing:
                    self._wake.wait(early)
                    continue
                body, self._pending = self._pending, None
            if body is None:
                return
            self._post(body)
            last = time.monotonic()

    def _post(self, body: dict[str, Any]) -> None:
        try:
            # The kubelet renews the token's file, so it is read each time.
            token = Path(self._token).read_text().strip() if self._token else ""
            request = urllib.request.Request(
                str(self._url),
                data=json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
                method="POST",
            )
            context = ssl.create_default_context(cafile=self._ca) if self._ca else None
            with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS, context=context):
                pass
        except (OSError, ValueError) as error:
            if not self._complained:
                self._complained = True
                print(f"[stoker] progress could not be reported: {error}", file=sys.stderr, flush=True)
