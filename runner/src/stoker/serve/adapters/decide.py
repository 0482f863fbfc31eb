"""What a server has to load and unload. Pure: what is published and what is loaded decide."""

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
    """Take a name away."""

    name: str


Action = Load | Unload


def newest(versions: Iterable[Version], keep: int, unfit: Collection[str] = ()) -> dict[str, str]:
    """Return what should be served of the published versions: of each adapter the newest that can be.

    Args:
        versions: all there are.
        keep: how many of each adapter.
        unfit: names of versions that cannot be served; they take no other version's place.

    Returns:
        the folder of each, by name.
    """
    fit = sorted(version for version in versions if version.name not in unfit)
    return {
        version.name: str(version.path)
        for _, family in groupby(fit, key=lambda version: version.adapter)
        for version in list(family)[-keep:]
    }


def decide(wanted: Mapping[str, str], loaded: Mapping[str, str], fixed: Collection[str] = ()) -> list[Action]:
    """Return what brings a server from what it has to what it should have.

    New names come before old ones go, so that there is no moment without a version. Only a name that is to come from
    another folder has to go first, since a server has one folder for a name.

    Args:
        wanted: folder by name.
        loaded: folder by name, as the server tells.
        fixed: names the server was started with, which are left alone.
    """
    mine = {name: path for name, path in loaded.items() if name not in fixed}
    wanted = {name: path for name, path in wanted.items() if name not in fixed}
    moved = sorted(name for name in wanted if name in mine and mine[name] != wanted[name])
    new = sorted(name for name in wanted if mine.get(name) != wanted[name])
    old = sorted(name for name in mine if name not in wanted)
    return [*(Unload(name) for name in moved), *(Load(name, wanted[name]) for name in new), *(Unload(n) for n in old)]
