"""Reports a run's progress to Kubeflow Trainer's status server (KEP-2779) and to the terminal. Nothing else reports it.

Each POST replaces the whole status. A slow or missing server never delays training: a separate thread posts the
newest status, and only the last post is waited for.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, TextIO
from urllib.error import HTTPError

from stoker.contract.variables import PROGRESS_SECONDS
from stoker.contract.words import say, timestamp

# Limits of the status server (kubeflow/trainer v2.3.0): one value over 64 characters refuses the whole update.
_MAX_CHARACTERS = 64
_MAX_METRICS = 256
_SECONDS_BETWEEN = 5.0
_REQUEST_SECONDS = 10.0
# The last status is what the finished TrainJob shows for good.
_LAST_TRIES = 3
_SECONDS_BETWEEN_LAST_TRIES = 1.0
# A name that is too long ends in this many characters of its digest, so that names stay distinct.
_DIGEST_CHARACTERS = 8
# How often a step sends an update, and how often it prints a line if the output is not a terminal.
_SECONDS_BETWEEN_STEPS = 1.0
_SECONDS_BETWEEN_LINES = 10
_CLEAR_TO_END = "\x1b[K"


class Progress:
    """Follows a run's steps on rank 0, and reports them.

    Args:
        first_step: step at which this attempt began.
        total: steps requested, over all attempts.
        world_size: processes that train.
        environ: has the address of the status server, if there is one.
        stream: where progress lines go outside a cluster.
    """

    def __init__(
        self,
        first_step: int,
        total: int,
        world_size: int,
        environ: Mapping[str, str] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._first_step = first_step
        self._total = total
        self._world_size = world_size
        self._began = self._last = time.monotonic()
        self._step = self._told = first_step
        # Tokens so far, and the time of that count.
        self._tokens: tuple[float, float] | None = None if first_step else (0.0, self._began)
        self._metrics: dict[str, float] = {}
        self._reporter = ProgressReporter(environ)
        # Kubernetes sets this variable in every container.
        every = int(environ.get(PROGRESS_SECONDS) or _SECONDS_BETWEEN_LINES)
        self._line = None if "KUBERNETES_SERVICE_HOST" in environ else ProgressLine(stream or sys.stderr, every)
        # A failing run does not call `close`, but its last step must be reported too.
        atexit.register(self.close)
        self._tell(first_step, self._began)

    def step(self, step: int) -> None:
        """Record that a step is complete; cheap enough for every step."""
        now = time.monotonic()
        self._step = step
        if now - self._last >= _SECONDS_BETWEEN_STEPS or step >= self._total:
            self._tell(step, now)

    def log(self, step: int, metrics: Mapping[str, float], tokens: float | None = None) -> dict[str, float]:
        """Record the metrics of a step.

        Args:
            step: steps completed.
            metrics: name → value; earlier metrics stay until they get a new value.
            tokens: tokens trained on so far by all ranks, if the trainer counts them.

        Returns:
            the newest value of every metric so far, and of `tokens_per_second`.
        """
        now = time.monotonic()
        self._metrics.update({name: value for name, value in metrics.items() if math.isfinite(value)})
        if tokens is not None:
            if self._tokens is not None and now > self._tokens[1] and tokens > self._tokens[0]:
                self._metrics["tokens_per_second"] = round((tokens - self._tokens[0]) / (now - self._tokens[1]), 1)
            self._tokens = (tokens, now)
        self._tell(step, now)
        return dict(self._metrics)

    def close(self) -> None:
        """Report the last step if it is not reported yet, and wait for that; call it once."""
        atexit.unregister(self.close)
        if self._told != self._step:
            self._tell(self._step, time.monotonic(), last=True)
        self._reporter.close()
        if self._line is not None:
            self._line.close()

    def _tell(self, step: int, now: float, last: bool = False) -> None:
        self._last, self._told, self._step = now, step, step
        left = seconds_left(self._first_step, step, self._total, now - self._began)
        numbers = {**self._metrics, "step": step, "world_size": self._world_size}
        self._reporter.report(status_body(step, self._total, left, numbers))
        if self._line is not None:
            self._line.show(line_of(step, self._total, left, self._metrics), now, last or step >= self._total)


def seconds_left(first_step: int, step: int, total: int, elapsed: float) -> float | None:
    """Return the estimated remaining time in seconds, None before the first step.

    Args:
        first_step: step at which this attempt began; earlier steps took none of its time.
        step: steps completed.
        total: steps requested.
        elapsed: seconds since this attempt began to train.
    """
    done = step - first_step
    return elapsed / done * max(0, total - step) if done > 0 else None


def percentage_of(step: int, total: int) -> int:
    """Return the progress in whole percent, rounded down: 100 only when all steps are complete."""
    return max(0, min(100, 100 * step // total)) if total > 0 else 0


def line_of(step: int, total: int, left: float | None, metrics: Mapping[str, float]) -> str:
    """Return a progress line, for example `step 12 of 100 (12 %), 1:30 left, loss 1.23, 5120 tokens/s`."""
    parts = [f"step {step} of {total} ({percentage_of(step, total)} %)"]
    if left is not None and step < total:
        minutes, seconds = divmod(round(left), 60)
        hours, minutes = divmod(minutes, 60)
        parts.append(f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left")
    for name, unit in (("loss", ""), ("learning_rate", ""), ("tokens_per_second", "tokens/s")):
        if name in metrics:
            value = f"{metrics[name]:.4g}"
            parts.append(f"{value} {unit}" if unit else f"{name.replace('_', ' ')} {value}")
    return ", ".join(parts)


class ProgressLine:
    """Rewrites one line on a terminal; elsewhere, prints a line from time to time.

    Args:
        stream: where the lines go.
        every: seconds between two lines, if it is not a terminal.
    """

    def __init__(self, stream: TextIO, every: float = _SECONDS_BETWEEN_LINES) -> None:
        self._stream = stream
        self._every = every
        self._terminal = stream.isatty()
        self._shown = -math.inf
        self._text = ""

    def show(self, text: str, now: float, last: bool = False) -> None:
        """Show the newest state.

        Args:
            text: the line.
            now: seconds of a clock that never goes back.
            last: True if no other state follows.
        """
        if text == self._text:
            return
        if self._terminal:
            # The cursor stays at the start of the line, so that the next output overwrites it.
            self._write(f"[stoker] {text}{_CLEAR_TO_END}\r")
        elif last or now - self._shown >= self._every:
            self._write(f"[stoker] {text}\n")
        else:
            return
        self._shown, self._text = now, text

    def close(self) -> None:
        """Leave the line on the terminal."""
        if self._terminal and self._text:
            self._write("\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:  # nobody reads the output any more
            return


def status_body(step: int, total: int, seconds_left: float | None, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return the body of one update.

    Args:
        step: steps completed.
        total: steps requested.
        seconds_left: estimated remaining time; None if unknown.
        metrics: name → value; long names are shortened for the server, and values that are not finite are dropped.
    """
    listed = [
        {"name": _shortened(name), "value": _shortened(f"{value:.6g}")}
        for name, value in metrics.items()
        if math.isfinite(value)
    ]
    status: dict[str, Any] = {
        "progressPercentage": percentage_of(step, total),
        "metrics": listed[:_MAX_METRICS],
        "lastUpdatedTime": timestamp(),
    }
    if seconds_left is not None:
        status["estimatedRemainingSeconds"] = max(0, round(seconds_left))
    return {"trainerStatus": status}


def _shortened(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{text[: _MAX_CHARACTERS - _DIGEST_CHARACTERS - 1]}~{digest}"


class ProgressReporter:
    """Posts the newest status at most every five seconds, and always the last one.

    Args:
        environ: has the server's address and the paths of its CA and token, set by Trainer.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._url = environ.get("KUBEFLOW_TRAINER_SERVER_URL")
        self._ca = environ.get("KUBEFLOW_TRAINER_SERVER_CA_CERT")
        self._token = environ.get("KUBEFLOW_TRAINER_SERVER_TOKEN")
        self._pending: dict[str, Any] | None = None
        self._wake = threading.Condition()
        self._closing, self._closed = False, 0.0
        self._complained = False
        self._thread: threading.Thread | None = None
        if self._url:
            self._thread = threading.Thread(target=self._post_all, name="stoker-progress", daemon=True)
            self._thread.start()

    def report(self, body: dict[str, Any]) -> None:
        """Queue the newest status; returns at once."""
        with self._wake:
            self._pending = body
            self._wake.notify()

    def close(self) -> None:
        """Post the newest status if that has not been done, and wait for it (at most two request time-outs)."""
        with self._wake:
            self._closing, self._closed = True, time.monotonic()
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(2 * _REQUEST_SECONDS)

    def _post_all(self) -> None:
        last, tries = -_SECONDS_BETWEEN, _LAST_TRIES
        while True:
            with self._wake:
                while self._pending is None and not self._closing:
                    self._wake.wait()
                early = last + _SECONDS_BETWEEN - time.monotonic()
                if early > 0 and not self._closing:
                    self._wake.wait(early)
                    continue
                body, self._pending, closing = self._pending, None, self._closing
            if body is None:
                return
            posted = self._post(body)
            last = time.monotonic()
            if posted:
                continue
            if closing:
                tries -= 1
                # One that hangs is not waited for a second time: a pod that stops has little time.
                if not tries or last - self._closed >= _REQUEST_SECONDS:
                    return
                time.sleep(_SECONDS_BETWEEN_LAST_TRIES)
            self._put_back(body)

    def _put_back(self, body: dict[str, Any]) -> None:
        """Queue a status anew, which is the last until a newer one comes."""
        with self._wake:
            if self._pending is None:
                self._pending = body

    def _post(self, body: dict[str, Any]) -> bool:
        """Post a status; return whether another try would be of no use: it has arrived, taken or refused."""
        try:
            # The kubelet renews the token, so read it each time.
            token = Path(self._token).read_text().strip() if self._token else ""
            request = urllib.request.Request(
                str(self._url),
                data=json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
                method="POST",
            )
            context = ssl.create_default_context(cafile=self._ca) if self._ca else None
            with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS, context=context):
                return True
        # HTTPException: the server does not answer in HTTP, for example because it expects TLS.
        except (OSError, ValueError, HTTPException) as error:
            if not self._complained:
                self._complained = True
                say(f"progress could not be reported: {error}")
            return isinstance(error, HTTPError) and error.code < 500
