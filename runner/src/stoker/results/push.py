"""Sends a result to a model hub, a bucket or a registry, by their own clients. The manifest goes last."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.manifest import MANIFEST
from stoker.contract.repositories import is_repository
from stoker.results import oci
from stoker.results.packages import needing

FORMS = f"hf://ORG/NAME[@BRANCH], s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or {oci.FORM}"
_HUB = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_BUCKET = re.compile(r"(s3|gs)://[\w.-]+(/[^\s?#]+)+")
# Codes of a store or a hub that refuses access.
_REFUSED = (401, 403)


def check_target(uri: str) -> None:
    """Refuse an address that nothing can be sent to.

    Raises:
        RunError: its form is unknown (64).
    """
    hub = _HUB.fullmatch(uri)
    if not ((hub and is_repository(hub[1])) or _BUCKET.fullmatch(uri) or oci.is_address(uri)):
        raise RunError(ExitCode.USAGE, f"--push {uri} is not an address that this command writes to: write {FORMS}")


def push(folder: Path, files: Sequence[str], uri: str, *, public: bool = False) -> None:
    """Send files of a folder.

    Args:
        folder: the folder.
        files: names of its files.
        uri: where to, as `check_target` takes it.
        public: True to let everybody read a repository that is new on the hub.

    Raises:
        RunError: access is refused or a package is missing (78), or the other side fails (69).
    """
    if match := _HUB.fullmatch(uri):
        _to_hub(folder, files, match[1], match[2], public=public)
    elif oci.is_address(uri):
        oci.push(folder, files, uri)
    else:
        _to_bucket(folder, files, uri)


def _to_hub(folder: Path, files: Sequence[str], name: str, branch: str | None, *, public: bool) -> None:
    with needing("fetch"):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        import huggingface_hub
        from huggingface_hub import errors
    api = huggingface_hub.HfApi(library_name="stoker")
    try:
        api.create_repo(name, private=not public, exist_ok=True)
        if branch:
            api.create_branch(name, branch=branch, exist_ok=True)
        # One commit: readers see all of it or nothing.
        api.upload_folder(
            repo_id=name,
            folder_path=folder,
            allow_patterns=list(files),
            revision=branch,
            commit_message="stoker export",
        )
    except errors.LocalTokenNotFoundError as error:
        raise _no_rights(f"hf://{name}", "no token", "put one that may write into HF_TOKEN") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        # The Hub says that a repository of others does not exist.
        if status in (*_REFUSED, 404):
            remedy = f"put a token of an account that may write to {name} into HF_TOKEN"
            raise _no_rights(f"hf://{name}", f"HTTP {status}", remedy) from error
        raise RunError(ExitCode.UNAVAILABLE, f"hf://{name}: the hub answered {status}: try again") from error
    except (OSError, RuntimeError) as error:
        raise RunError(ExitCode.UNAVAILABLE, f"hf://{name}: {type(error).__name__}: {error}: try again") from error


def _to_bucket(folder: Path, files: Sequence[str], uri: str) -> None:
    scheme = urlsplit(uri).scheme
    with needing("fetch"):
        import fsspec

        import_of = {"s3": "s3fs", "gs": "gcsfs"}[scheme]
        __import__(import_of)
    # The client finds credentials by itself: in AWS_… and GOOGLE_… variables, or by the account of the pod.
    store = fsspec.filesystem(scheme, skip_instance_cache=True)
    place = uri.rstrip("/").partition("://")[2]
    remedy = (
        "give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" if scheme == "s3" else "give GOOGLE_APPLICATION_CREDENTIALS"
    )
    remedy += ", or the pod's service account, the right to write there"
    try:
        for name in sorted(files, key=lambda name: name == MANIFEST):
            store.put_file(str(folder / name), f"{place}/{name}")
    except PermissionError as error:
        raise _no_rights(uri, "access refused", remedy) from error
    except FileNotFoundError as error:
        raise RunError(ExitCode.CONFIG, f"{uri}: there is no such bucket: make it, or name another") from error
    except Exception as error:
        # Clients of buckets raise types of their own.
        if "Credentials" in type(error).__name__:
            raise _no_rights(uri, "no credentials", remedy) from error
        raise RunError(ExitCode.UNAVAILABLE, f"{uri}: {type(error).__name__}: {error}: try again") from error


def _no_rights(where: str, why: str, remedy: str) -> RunError:
    return RunError(ExitCode.CONFIG, f"{where} cannot be written to ({why}): {remedy}")
