"""What a server has to load and unload, from what is published and what is loaded. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

from stoker.serve.adapters.versions import Version


@dataclass(frozen=True, slots=True)
class Load:
    """Load an adapter under a name from a folder."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload the adapter with a name."""

    name: str


Action = Load | Unload


def newest(
    versions: Iterable[Version], keep: int, unfit: Collection[str] = (), live: Collection[str] = ()
) -> dict[str, str]:
    """Return the versions to serve: the newest of each adapter that can be served, and all that are live.

    Args:
        versions: all published versions.
        keep: how many versions of each adapter.
        unfit: names of versions that cannot be served. A bad version never replaces a working one.
        live: names of versions that stay until their run retracts them, however many.

    Returns:
        the folder of each, by name.
    """
    fit = sorted(version for version in versions if version.name not in unfit)
    return {
        version.name: str(version.path)
        for _, family in groupby(fit, key=lambda version: version.adapter)
        for version in _kept(list(family), keep, live)
    }


def _kept(family: list[Version], keep: int, live: Collection[str]) -> list[Version]:
    return [version for version in family[:-keep] if version.name in live] + family[-keep:]


def decide(wanted: Mapping[str, str], loaded: Mapping[str, str], fixed: Collection[str] = ()) -> list[Action]:
    """Return the actions that bring a server from what it has to what it should have.

    New names are loaded before old ones are unloaded, so that some version is always served. Only a name that moves to
    another folder is unloaded first, since a server has one folder for a name.

    Args:
        wanted: folder by name.
        loaded: folder by name, as the server reports it.
        fixed: names that never change, such as those the server was started with.
    """
    mine = {name: path for name, path in loaded.items() if name not in fixed}
    wanted = {name: path for name, path in wanted.items() if name not in fixed}
    moved = sorted(name for name in wanted if name in mine and mine[name] != wanted[name])
    new = sorted(name for name in wanted if mine.get(name) != wanted[name])
    old = sorted(name for name in mine if name not in wanted)
    return [*(Unload(name) for name in moved), *(Load(name, wanted[name]) for name in new), *(Unload(n) for n in old)]
