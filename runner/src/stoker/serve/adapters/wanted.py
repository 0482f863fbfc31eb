"""What a replica should serve: the published versions and the list, without what cannot be served."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from stoker.contract.exits import RunError
from stoker.contract.files import read_json
from stoker.contract.manifest import MANIFEST, is_live
from stoker.serve.adapters import check
from stoker.serve.adapters.decide import newest
from stoker.serve.adapters.files import BaseModel, adapter_written, read_adapter
from stoker.serve.adapters.findings import CRASHES, Findings
from stoker.serve.adapters.prepare import room
from stoker.serve.adapters.settings import NOT_YAML, Settings, declared, read_document
from stoker.serve.adapters.versions import Version, named, read_published

# An adapter with a problem is checked again: a shared file system may lag, a server may recover.
RETRY_SECONDS = 30.0


class UnreadableError(Exception):
    """What is published cannot be read.

    Args:
        where: the folder or file.
        message: why.
    """

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where


class Wanted:
    """The adapters that a replica should serve.

    Args:
        settings: what the adapters are.
        model: the replica's base model.
        findings: where checks leave their results.

    Attributes:
        unfit: names that would be served, but cannot be.
        live: names of versions that a run publishes while it trains.
        published: when each version was published, in seconds since the epoch.
    """

    def __init__(self, settings: Settings, model: BaseModel, findings: Findings) -> None:
        self._settings, self._model, self._findings = settings, model, findings
        self._limit = room(settings, []) if settings.changes else 0
        self._told: dict[str, Version] = {}
        self._ordinary: set[str] = set()  # names of versions that are not live
        self.unfit: set[str] = set()
        self.live: set[str] = set()
        self.published: dict[str, float] = {}

    def read(
        self,
        now: float,
        loaded: Mapping[str, str],
        told: Collection[str] = (),
        ordered: Mapping[str, str] | None = None,
        stamps: Mapping[str, int] | None = None,
    ) -> dict[str, str]:
        """Return the folder of each adapter that should be served and can be, by name.

        Args:
            now: seconds since the epoch.
            loaded: folder of each adapter that is served, by name.
            told: names of versions that somebody says are published. They are checked again at once.
            ordered: folder of each adapter that the fleet wants, by name. They need no manifest, since any trainer
                writes them.
            stamps: when the weights of each of these were written as the fleet loaded them, in nanoseconds since the
                epoch, by name; 0 if that is not known.

        Raises:
            UnreadableError: the folder or the list cannot be read.
        """
        versions = self._versions(told)
        listed, ordered, stamps = self._listed(), ordered or {}, stamps or {}
        self._sort_out(versions)
        self._findings.keep_only({*(version.name for version in versions), *listed, *ordered, *self._settings.fixed})
        # Checking reads whole files, so it starts with the newest versions and ends as soon as enough fit.
        unfit: set[str] = set()
        while True:
            wanted = newest(versions, self._settings.keep, unfit, self.live)
            found = {name for name, path in wanted.items() if not self._fits(name, path, now, loaded, told)}
            if not found:
                break
            unfit |= found
        self.unfit = unfit
        for version in versions:
            if version.name not in self.published:
                self.published[version.name] = _published_at(version, now)
        for name, path in listed.items():
            if self._fits(name, path, now, loaded):
                wanted[name] = path
            else:
                self.unfit.add(name)
                if name in loaded:  # the new folder cannot be served, so the old one stays
                    wanted[name] = loaded[name]
        for name, path in ordered.items():
            if self._fits(name, path, now, loaded, ordered, manifest=False, written=stamps.get(name, 0)):
                wanted[name] = path
            else:
                self.unfit.add(name)
        return wanted

    def _versions(self, told: Collection[str]) -> list[Version]:
        """Return what is published: what the folder lists, and what was told and is there.

        A network file system may list an old content for half a minute, but finds a name that it never looked for.
        """
        folder = self._settings.folder
        if folder is None:
            return []
        try:
            found = set(read_published(folder))
        except OSError as error:
            raise UnreadableError(str(folder), f"cannot be read: {error}") from error
        told_now = {version.name: version for name in told if (version := named(folder, name))}
        self._told = {
            name: version
            for name, version in {**self._told, **told_now}.items()
            if version not in found and version.path.is_dir()
        }
        return sorted({*found, *self._told.values()})

    def _sort_out(self, versions: list[Version]) -> None:
        """Find out which versions are live, by the manifest that each has from its beginning."""
        names = {version.name for version in versions}
        self.live &= names
        self._ordinary &= names
        self.published = {name: when for name, when in self.published.items() if name in names}
        for version in versions:
            if version.name not in self.live and version.name not in self._ordinary:
                manifest = read_json(version.path / MANIFEST)
                if isinstance(manifest, dict):  # else it may be read later
                    (self.live if is_live(manifest) else self._ordinary).add(version.name)

    def _listed(self) -> dict[str, str]:
        path = self._settings.listed
        if path is None:
            return {}
        try:
            return {one.name: str(one.path) for one in declared(read_document(path), str(path))}
        except FileNotFoundError:  # an optional ConfigMap that does not exist yet
            return {}
        except (OSError, *NOT_YAML) as error:
            raise UnreadableError(str(path), f"cannot be read: {error}") from error
        except RunError as error:
            raise UnreadableError(str(path), error.message) from error

    def _fits(
        self,
        name: str,
        path: str,
        now: float,
        loaded: Mapping[str, str],
        told: Collection[str] = (),
        *,
        manifest: bool = True,
        written: int = 0,
    ) -> bool:
        """Return whether an adapter can be served, by the last check or a new one."""
        if self._findings.crashes_server(name):
            self._findings.note(name, path, f"it crashed vLLM {CRASHES} times, so it is skipped: retract it", now)
            return False
        known = self._findings.of(name)
        if known and known.path == path:
            if not known.problem or loaded.get(name) == path:
                return True
            if now - known.time < RETRY_SECONDS and name not in told:
                return False
        try:
            required = manifest and self._settings.require_manifest
            found = check.problems(read_adapter(Path(path)), self._model, self._limit, require_manifest=required)
        except (OSError, ValueError) as error:
            found = [f"{path} cannot be read: {error}"]
        if written and not found and loaded.get(name) != path and adapter_written(Path(path)) != written:
            found = [f"the weights in {path} have changed since they were loaded: unload {name}, and load it again"]
        self._findings.note(name, path, "; ".join(found), now)
        return not found


def _published_at(version: Version, now: float) -> float:
    try:
        return version.path.stat().st_ctime  # a rename is the last change of a folder's inode
    except OSError:
        return now
