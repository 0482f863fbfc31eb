"""Sends a result to an OCI registry, as an artifact that `oras pull` takes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.results.packages import needing

FORM = "oci://REGISTRY/NAME:TAG"
# The names that the distribution specification allows.
_ADDRESS = re.compile(r"oci://[\w.-]+(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+:\w[\w.-]{0,127}")
# As for Docker, a registry on this machine needs no TLS.
_LOOPBACK = re.compile(r"(localhost|127\.[\d.]+)(:\d+)?")
_PLAIN = "application/octet-stream"
# The names that oras' own client reads.
_USER, _PASSWORD = "ORAS_USER", "ORAS_PASS"
_REMEDY = f"give {_USER} and {_PASSWORD} of an account that may push there, or log in with docker or oras"
_REFUSED = (401, 403)
_SECONDS = 60.0
_UNKNOWN = 404


class _AnswerError(Exception):
    """A registry's answer that is not a success.

    Args:
        status: its HTTP status.
        reason: what it says.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"HTTP {status} {reason}")
        self.status = status


def is_address(uri: str) -> bool:
    """Return whether a result can be pushed to an address; it begins with `oci://`."""
    return _ADDRESS.fullmatch(uri) is not None


def push(folder: Path, files: Sequence[str], uri: str) -> None:
    """Send files of a folder. The tag is written last, so that nobody pulls a part of them.

    Args:
        folder: the folder.
        files: names of its files.
        uri: where to, as `is_address` takes it.

    Raises:
        RunError: access is refused, the repository or a package is missing (78), or the registry fails (69).
    """
    with needing("fetch"):
        import oras.client  # noqa: F401
        import requests
    target = uri.removeprefix("oci://")
    try:
        _client(target).push(
            target=target,
            files=[f"{folder / name}:{_PLAIN}" for name in files],
            disable_path_validation=True,
            quiet=True,
        )
    except _AnswerError as error:
        if error.status in _REFUSED:
            raise RunError(ExitCode.CONFIG, f"{uri} cannot be written to ({error}): {_REMEDY}") from error
        if error.status == _UNKNOWN:
            missing = "there is no such repository: make it, or name another"
            raise RunError(ExitCode.CONFIG, f"{uri}: {missing} ({error})") from error
        raise RunError(ExitCode.UNAVAILABLE, f"{uri}: the registry answered {error}: try again") from error
    except requests.RequestException as error:
        raise RunError(ExitCode.UNAVAILABLE, f"{uri}: {type(error).__name__}: {error}: try again") from error
    except ValueError as error:  # oras was asked who it is, and knows no account
        raise RunError(ExitCode.CONFIG, f"{uri} cannot be written to ({error}): {_REMEDY}") from error


def _client(target: str) -> Any:
    """Return oras' client of a registry, which reads files while it sends them.

    Raises:
        requests.RequestException: the registry does not answer.
    """
    import requests
    from oras.client import OrasClient
    from oras.logger import setup_logger

    class RegistryClient(OrasClient):
        def do_request(self, url: str, method: str = "GET", *words: Any, **named: Any) -> Any:
            answer = super().do_request(url, method, *words, **named)
            # To ask whether a file is there already is no failure.
            if not answer.ok and method != "HEAD":
                raise _AnswerError(answer.status_code, answer.reason)
            return answer

        def put_upload(self, blob: str, container: Any, layer: dict[str, Any]) -> Any:
            # oras' own holds the whole file in memory.
            started = self.do_request(f"{self.prefix}://{container.upload_blob_url()}", "POST")
            place = self._get_location(started, container)
            place += f"{'&' if '?' in place else '?'}digest={layer['digest']}"
            headers = {"Content-Type": _PLAIN, "Content-Length": str(layer["size"])}
            if basic:
                headers |= self.auth.get_auth_header()  # a file cannot be sent twice
            with Path(blob).open("rb") as file:
                return self.do_request(place, "PUT", data=file, headers=headers)

    setup_logger(quiet=True)
    host = target.partition("/")[0]
    insecure = _LOOPBACK.fullmatch(host) is not None
    challenge = requests.get(f"{'http' if insecure else 'https'}://{host}/v2/", timeout=_SECONDS)
    # oras takes every registry for one that hands out tokens, unless it is told.
    basic = challenge.headers.get("WWW-Authenticate", "").lower().startswith("basic")
    client = RegistryClient(insecure=insecure, auth_backend="basic" if basic else "token")
    user, password = os.environ.get(_USER, ""), os.environ.get(_PASSWORD, "")
    if basic or (user and password):
        client.auth.set_basic_auth(user, password)
    return client
