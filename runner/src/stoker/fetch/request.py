"""Reads what to fetch from the environment of an initializer's container. Pure.

The names of the variables are Kubeflow Trainer's (v2.3.0, pkg/initializers/types) and its SDK's (0.5.0).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.repositories import repository_in
from stoker.fetch.fields import Fields, fields_of

KINDS = ("dataset", "model")
# Names of a runtime's jobs. A pod's host name is <TrainJob>-<job>-<index>-<index>.
_HOST = re.compile(rf"(?:^|-)({'|'.join(KINDS)})-initializer-\d+-\d+$")
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")
# Both or neither.
CREDENTIALS = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")
# Where the claim of a pvc:// address must be mounted in the initializer's container, as in KServe.
CLAIMS = Path("/mnt/pvc")
# Where the clients of object stores read the store's address, the first that is set. Ours comes before their own.
_ENDPOINTS = {
    "s3": ("ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "gs": ("ENDPOINT", "STORAGE_EMULATOR_HOST"),
}
_FORMS = (
    "hf://ORG/NAME[@REVISION][/FOLDER], s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, file:///FOLDER or pvc://CLAIM/FOLDER"
)


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """One thing to fetch.

    Attributes:
        kind: `model` or `dataset`.
        uri: STORAGE_URI as given.
        scheme: `hf`, `s3`, `gs` or `file`.
        place: a repository's name, a bucket, or an absolute folder.
        path: the folder, file or prefix inside the place; empty for all of it.
        revision: branch, tag or commit of a repository; None for its default.
        target: the folder for the files.
        ignore: patterns of files to skip; None lets the runner choose.
        options: the other variables of the contract that are set, by name.
        endpoint: the object store with the bucket, `default` for its client's own; empty for other sources.
        job_id: the job's id, the same in all its attempts; empty if not known.
        replace: True to replace other content of the target.
        fields: where the user writes all this.
    """

    kind: str
    uri: str
    scheme: str
    place: str
    path: str
    revision: str | None
    target: Path
    ignore: tuple[str, ...] | None
    options: Mapping[str, str]
    endpoint: str
    job_id: str
    replace: bool
    fields: Fields


def kind_of(given: str | None, host: str) -> str:
    """Return what to fetch: from the command, else from the pod's host name.

    Raises:
        RunError: neither has it (64).
    """
    named = given or (match[1] if (match := _HOST.search(host)) else None)
    if named is None:
        raise RunError(
            ExitCode.USAGE, "nothing to fetch is named: write `stoker fetch model` or `stoker fetch dataset`"
        )
    return named


def request_of(kind: str, env: Mapping[str, str], workspace: Path) -> FetchRequest | None:
    """Return what the environment asks for; None if it asks for nothing.

    Args:
        kind: `model` or `dataset`.
        env: the container's environment.
        workspace: the job's workspace.

    Raises:
        RunError: STORAGE_URI or another variable is wrong (64).
    """
    uri = env.get("STORAGE_URI", "").strip()
    if not uri:
        return None
    fields = fields_of(kind, env.get("STOKER_FETCH_FOR", ""))
    scheme, place, path, revision = _parsed(kind, uri, fields.given)
    names = ("ACCESS_TOKEN", "ENDPOINT", *CREDENTIALS, "REGION", "ROLE_ARN")
    options = {name: env[name].strip() for name in names if env.get(name, "").strip()}
    if sum(name in options for name in CREDENTIALS) == 1:
        raise RunError(ExitCode.USAGE, f"only one of {' and '.join(CREDENTIALS)} is set: put both into {fields.secret}")
    if "ENDPOINT" in options and not re.match(r"https?://[^/\s]+", options["ENDPOINT"]):
        raise RunError(
            ExitCode.USAGE, f"ENDPOINT is {options['ENDPOINT']!r}: write an address such as https://host:port"
        )
    ignored = env.get("IGNORE_PATTERNS")
    replace = env.get("STOKER_FETCH_REPLACE", "").strip().lower()
    if replace not in ("", "true", "false"):
        raise RunError(ExitCode.USAGE, f"STOKER_FETCH_REPLACE is {replace!r}: write true or false")
    return FetchRequest(
        kind=kind,
        uri=uri,
        scheme=scheme,
        place=place,
        path=path,
        revision=revision,
        target=workspace / kind,
        ignore=None if ignored is None else tuple(word.strip() for word in ignored.split(",") if word.strip()),
        options=options,
        endpoint=_endpoint(scheme, env),
        job_id=env.get("STOKER_JOB_ID", ""),
        replace=replace == "true",
        fields=fields,
    )


def _parsed(kind: str, uri: str, given: str) -> tuple[str, str, str, str | None]:
    """Return scheme, place, path and revision of a URI, which messages call `given`."""
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise RunError(ExitCode.USAGE, f"{given} {uri!r} is not a URI ({error}): write {_FORMS}") from error
    scheme = parts.scheme.lower()
    if "\0" in uri or parts.query or parts.fragment or (scheme != "hf" and "@" in parts.netloc):
        raise RunError(
            ExitCode.USAGE,
            f"{given} {_masked(uri)!r} has more than a place and a path: write {_FORMS}; put credentials into a secret",
        )
    inside = unquote(parts.path).strip("/")
    if ".." in inside.split("/"):
        raise RunError(ExitCode.USAGE, f"{given} {uri!r} contains `..`: write the path without it")
    if scheme == "hf":
        return "hf", *repository_in(kind, uri, given)
    if scheme in ("s3", "gs"):
        if not _BUCKET.fullmatch(parts.netloc):
            raise RunError(ExitCode.USAGE, f"{given} {uri!r} has no bucket: write {scheme}://BUCKET/PREFIX")
        return scheme, parts.netloc, inside, None
    if scheme == "file":
        if parts.netloc not in ("", "localhost") or not inside:
            raise RunError(ExitCode.USAGE, f"{given} {uri!r} has no folder: write file:///FOLDER, with three slashes")
        return "file", f"/{inside}", "", None
    if scheme == "pvc":
        if not parts.netloc:
            raise RunError(ExitCode.USAGE, f"{given} {uri!r} has no claim: write pvc://CLAIM/FOLDER")
        return "file", str(CLAIMS / parts.netloc / inside), "", None
    if scheme == "cache":
        raise RunError(
            ExitCode.USAGE,
            f"{given} {uri!r} names Kubeflow Trainer's data cache, which is not a source: write {_FORMS}",
        )
    raise RunError(ExitCode.USAGE, f"{given} {uri!r} has an unknown scheme: write {_FORMS}")


def _endpoint(scheme: str, env: Mapping[str, str]) -> str:
    """Return the address of the object store, without credentials: two stores may have a bucket of one name.

    A mirror of the Hub does not count, since it has the Hub's repositories.
    """
    if scheme not in _ENDPOINTS:
        return ""
    return next((_masked(given) for name in _ENDPOINTS[scheme] if (given := env.get(name, "").strip())), "default")


def _masked(uri: str) -> str:
    """Return a URI without credentials before an `@` or after a `?`: everybody may read logs."""
    return re.sub(r"\?.*", "?…", re.sub(r"//[^/]*@", "//…@", uri), flags=re.DOTALL)
