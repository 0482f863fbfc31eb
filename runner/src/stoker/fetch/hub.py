"""Hugging Face Hub and its mirrors, through the Hub's own client."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stoker.contract.exits import ExitCode, RunError
from stoker.fetch.request import FetchRequest
from stoker.fetch.selection import File
from stoker.fetch.source import FileSource, Unavailable

# Failures of the disk, which the client reports like failures of the network.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENAMETOOLONG)
# The folder for what comes from Xet, among unfinished files.
_XET = ".xet"


class Hub(FileSource):
    """A model or data set repository.

    `HF_ENDPOINT` (or `ENDPOINT`) names a mirror, `ACCESS_TOKEN` (or `HF_TOKEN`) gives access.
    """

    def __init__(self, request: FetchRequest) -> None:
        super().__init__(request)
        # Progress bars of many files fill a pod's log; we print one line now and then.
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
        import huggingface_hub
        from huggingface_hub.utils import logging

        # Its warnings show signed addresses, which give access. Our own lines tell what fails.
        logging.set_verbosity_error()
        endpoint = request.options.get("ENDPOINT") or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        self._endpoint = endpoint.rstrip("/")  # the client puts a slash after it
        self._token = request.options.get("ACCESS_TOKEN")
        self._api = huggingface_hub.HfApi(endpoint=self._endpoint, token=self._token)
        self._commit: str | None = None

    @property
    def revision(self) -> str | None:
        """The commit."""
        return self._commit

    def files(self) -> Sequence[File]:
        """List the repository at the revision, which is resolved to a commit once."""
        repo: dict[str, Any] = {"repo_id": self.request.place, "repo_type": self.request.kind}
        with self._told_apart():
            if self._commit is None:
                self._commit = self._api.repo_info(**repo, revision=self.request.revision, timeout=30).sha
            tree = self._api.list_repo_tree(**repo, revision=self._commit, recursive=True)
            return [_file(entry) for entry in tree if hasattr(entry, "blob_id")]

    def tidy(self, folder: Path) -> None:
        """Remove unfinished files from Xet, which each try names anew."""
        for path in (folder / _XET).rglob("*.incomplete"):
            path.unlink(missing_ok=True)

    def fetch(self, file: File, folder: Path) -> Path:
        """Fetch one file.

        Plain HTTP continues where an earlier try stopped. The client itself cannot: it gives unfinished files random
        names. Files that the Hub keeps in Xet come through that protocol, much faster, and always from the start.
        """
        from huggingface_hub import file_download, utils

        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        where: dict[str, Any] = {"repo_type": self.request.kind, "revision": self._commit}
        with self._told_apart():
            url = file_download.hf_hub_url(self.request.place, file.remote, endpoint=self._endpoint, **where)
            found = file_download.get_hf_file_metadata(url, token=self._token)
            if found.xet_file_data is not None and utils.is_xet_available() and not target.exists():
                xet = folder / _XET
                return Path(self._api.hf_hub_download(self.request.place, file.remote, local_dir=xet, **where))
        headers = utils.build_hf_headers(token=self._token)
        # The address of a content network is signed instead, for a limited time.
        signed = urlsplit(found.location).netloc != urlsplit(url).netloc
        if signed:
            headers.pop("authorization", None)
        with self._told_apart(signed=signed), target.open("ab") as output:
            if output.tell() > file.size:
                output.truncate(0)
            file_download.http_get(
                found.location, output, resume_size=output.tell(), headers=headers, expected_size=file.size
            )
        return target

    @contextmanager
    def _told_apart(self, *, signed: bool = False) -> Iterator[None]:
        """Turn the client's exceptions into ours.

        Args:
            signed: True for a signed address, which refuses access once it has expired.
        """
        from huggingface_hub import errors

        uri, fields = self.request.uri, self.request.fields
        token = f"put a token into {fields.secret} as ACCESS_TOKEN"
        try:
            yield
        except errors.GatedRepoError as error:
            page = f"{self._endpoint}/{'datasets/' if self.request.kind == 'dataset' else ''}{self.request.place}"
            raise RunError(
                ExitCode.NO_INPUT,
                f"{uri} is gated: accept its terms at {page} and {token}"
                + (" of an account that accepted them (the given one has no access)" if self._token else ""),
            ) from error
        except errors.RevisionNotFoundError as error:
            raise RunError(
                ExitCode.NO_INPUT,
                f"{uri}: {self.request.place} has no revision {self.request.revision!r}: correct it in {fields.uri}",
            ) from error
        except errors.RepositoryNotFoundError as error:
            raise RunError(
                ExitCode.NO_INPUT,
                f"{uri} was not found at {self._endpoint}: correct the name; if it is private, "
                + ("use the token of an account that may read it" if self._token else token),
            ) from error
        except errors.LocalEntryNotFoundError as error:  # the client means: the server did not answer
            raise Unavailable(f"{self._endpoint} does not answer ({_cause(error)})") from error
        except errors.OfflineModeIsEnabled as error:
            raise RunError(
                ExitCode.CONFIG,
                f"{uri} cannot be fetched while HF_HUB_OFFLINE is set: remove it from {fields.environment}",
            ) from error
        except errors.EntryNotFoundError as error:
            raise RunError(ExitCode.NO_INPUT, f"{uri}: {_first_line(error)}") from error
        except errors.HTTPError as error:
            self._raise_by_status(error, signed=signed)
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _DISK:
                raise
            raise Unavailable(f"{self._endpoint}: {_cause(error)}") from error

    def _raise_by_status(self, error: Any, *, signed: bool) -> None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403) and not signed:
            raise RunError(
                ExitCode.NO_INPUT,
                f"{self._endpoint} refuses access to {self.request.uri} ({status}): put a valid ACCESS_TOKEN of an "
                f"account that may read it into {self.request.fields.secret}",
            ) from error
        if status in (400, 404, 410, 451):
            raise RunError(ExitCode.NO_INPUT, f"{self.request.uri}: {_first_line(error)}") from error
        raise Unavailable(f"{self._endpoint}: {_cause(error)}") from error


def _file(entry: Any) -> File:
    sha256 = getattr(entry.lfs, "sha256", None) if entry.lfs else None
    digest = f"sha256:{sha256}" if sha256 else f"git:{entry.blob_id}"
    return File(entry.path, entry.path, entry.size, digest, digest)


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return _first_line(error)


def _first_line(error: BaseException) -> str:
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    # The signature of an address gives access, so it must not appear in a log.
    return re.sub(r"(https?://[^\s?'\"]*)\?[^\s'\"]*", r"\1?…", line)
