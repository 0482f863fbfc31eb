"""Object stores, through fsspec: S3 and compatible stores, Google Cloud Storage."""

from __future__ import annotations

import base64
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.packages import not_installed
from stoker.contract.words import say
from stoker.fetch.request import FetchRequest
from stoker.fetch.selection import File
from stoker.fetch.source import INSTALL, FileSource, Unavailable

# The size of one ranged request. A change of the object is noticed between two requests.
_BLOCK_BYTES = 16 * 2**20
_CONNECT_SECONDS = 10
_READ_SECONDS = 60
_MD5 = re.compile(r"[0-9a-f]{32}")
_NO_CREDENTIALS = ("NoCredentialsError", "DefaultCredentialsError", "PartialCredentialsError")
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired")


class Objects(FileSource):
    """A prefix of a bucket."""

    def __init__(self, request: FetchRequest) -> None:
        super().__init__(request)
        self._connect()

    def _connect(self) -> None:
        import fsspec

        request = self.request
        with self._told_apart():
            options = {"s3": _s3_options, "gs": _gs_options}[request.scheme](request)
            self._fs = fsspec.filesystem(request.scheme, skip_instance_cache=True, use_listings_cache=False, **options)

    def files(self) -> Sequence[File]:
        """List the objects below the prefix, without those that only stand for folders."""
        where = "/".join(filter(None, (self.request.place, self.request.path)))
        with self._told_apart():
            # A missing bucket gives an empty listing too; info tells the two apart.
            found = self._fs.find(where, detail=True) or {where: self._fs.info(where)}
        return [
            self._file(path, info)
            for path, info in found.items()
            if info["type"] == "file" and not path.endswith("/") and not info["name"].endswith("/")
        ]

    def fetch(self, file: File, folder: Path) -> Path:
        """Fetch one object, from where an earlier try stopped."""
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as output:
            if output.tell() > file.size:
                output.truncate(0)
            with self._told_apart():
                # S3's client requests each range on condition that the object has not changed.
                stream = self._fs.open(file.remote, "rb", block_size=_BLOCK_BYTES, cache_type="none")
                if self._file(file.remote, stream.details).tag != file.tag:
                    raise Unavailable(f"{self.request.uri}: {file.path} changed during the fetch")
                stream.seek(output.tell())
            while True:
                with self._told_apart():
                    block = stream.read(_BLOCK_BYTES)
                if not block:
                    break
                output.write(block)  # outside the block above: a full disk is not the store's failure
        return target

    def _file(self, remote: str, info: Mapping[str, Any]) -> File:
        path, size = remote.removeprefix(f"{self.request.place}/"), int(info["size"])
        if self.request.scheme == "s3":
            # An MD5 only if the object was uploaded in one piece and not encrypted with a KMS key.
            tag = str(info["ETag"]).strip('"')
            return File(path, remote, size, tag, f"md5:{tag}" if _MD5.fullmatch(tag) else "")
        md5 = info.get("md5Hash")
        tag = str(info.get("etag") or info.get("generation") or md5)
        return File(path, remote, size, tag, f"md5:{base64.b64decode(md5).hex()}" if md5 else "")

    def is_digest(self, file: File) -> bool:
        """Ask whether an S3 object's ETag is a checksum at all, after it did not match."""
        if self.request.scheme != "s3":
            return True
        with self._told_apart():
            bucket, key, _ = self._fs.split_path(file.remote)
            head = self._fs.call_s3("head_object", Bucket=bucket, Key=key)
        return "SSECustomerAlgorithm" not in head and not str(head.get("ServerSideEncryption", "")).startswith("aws:")

    @contextmanager
    def _told_apart(self) -> Iterator[None]:
        """Turn the clients' exceptions into ours."""
        uri = self.request.uri
        try:
            yield
        except (RunError, Unavailable):
            raise
        except FileNotFoundError as error:
            raise RunError(
                ExitCode.NO_INPUT, f"{uri} was not found: correct the bucket or the path in {self.request.fields.uri}"
            ) from error
        except PermissionError as error:
            raise self._refused(error) from error
        except ImportError as error:
            raise RunError(ExitCode.CONFIG, not_installed(uri, INSTALL, error.name)) from error
        except Exception as error:
            if _code(error) in _EXPIRED:
                self._connect()  # assumes the role again
            elif _is_final(error) or type(error).__name__ in _NO_CREDENTIALS:
                raise self._refused(error) from error
            raise Unavailable(f"{uri}: {type(error).__name__}: {error}") from error

    def _refused(self, error: BaseException) -> RunError:
        names = "ACCESS_KEY_ID and SECRET_ACCESS_KEY" if self.request.scheme == "s3" else "the credentials"
        code = _code(error) or type(error).__name__
        return RunError(
            ExitCode.NO_INPUT,
            f"{self.request.uri}: access refused ({code}): put {names} of an account that may list and read it into "
            f"{self.request.fields.secret}, or give the pod's service account that access",
        )


def _code(error: BaseException) -> str:
    """Return the store's error code: botocore's, else an HTTP status; empty if there is none."""
    for found in (error, error.__cause__):
        response = getattr(found, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        if isinstance(getattr(found, "code", None), int):
            return str(found.code)  # type: ignore[union-attr]
        if isinstance(found, OSError) and str(found).startswith("Forbidden:"):  # gcsfs keeps no more of a 403
            return "403"
    return ""


def _is_final(error: BaseException) -> bool:
    """Return whether the store blames the request, so that another try cannot help."""
    response = getattr(error.__cause__ or error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else _code(error)
    return str(status).startswith("4") and str(status) not in ("408", "412", "416", "429")


def _s3_options(request: FetchRequest) -> dict[str, Any]:
    from botocore.session import get_session

    given, role = request.options, request.options.get("ROLE_ARN")
    options: dict[str, Any] = {
        "endpoint_url": given.get("ENDPOINT"),
        "key": given.get("ACCESS_KEY_ID"),
        "secret": given.get("SECRET_ACCESS_KEY"),
        "client_kwargs": {"region_name": given["REGION"]} if "REGION" in given else {},
    }
    timeouts = {"connect_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS}
    options["config_kwargs"] = {**timeouts, "retries": {"max_attempts": 2, "mode": "standard"}}
    if role and os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") and "ACCESS_KEY_ID" not in given:
        os.environ["AWS_ROLE_ARN"] = role  # the pod's identity assumes the role, and renews it
    elif role:
        options |= _assumed(request, role)
    elif "ACCESS_KEY_ID" not in given and get_session().get_credentials() is None:
        say(f"no credentials for {request.uri}: trying public access")
        options["anon"] = True
    return options


def _assumed(request: FetchRequest, role: str) -> dict[str, str]:
    """Return the temporary credentials of a role (AWS STS: AssumeRole)."""
    from botocore.session import get_session

    given = request.options
    client = get_session().create_client(
        "sts",
        region_name=given.get("REGION"),
        aws_access_key_id=given.get("ACCESS_KEY_ID"),
        aws_secret_access_key=given.get("SECRET_ACCESS_KEY"),
    )
    found = client.assume_role(RoleArn=role, RoleSessionName="stoker-fetch")["Credentials"]
    return {"key": found["AccessKeyId"], "secret": found["SecretAccessKey"], "token": found["SessionToken"]}


def _gs_options(request: FetchRequest) -> dict[str, Any]:
    # Otherwise the client first asks Google over gRPC for the kind of bucket, whatever the endpoint, and waits for
    # minutes if it cannot reach it. Only zonal buckets need this.
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    # It logs a stack trace for each request that it gives up. Our own lines tell what fails.
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    options: dict[str, Any] = {"timeout": _READ_SECONDS, "requests_timeout": _READ_SECONDS}
    # Unlike the other clients, aiohttp does not look for proxies in the environment by itself.
    options["session_kwargs"] = {"trust_env": True}
    if "ENDPOINT" in request.options:
        options["endpoint_url"] = request.options["ENDPOINT"]
    if os.environ.get("STORAGE_EMULATOR_HOST"):
        options["token"] = "anon"
    return options
