"""What every replica of a fleet should be like, and what calls make of it. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

# No colon: what has one is a published version.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")


class CallRefusedError(Exception):
    """A call that cannot be done.

    Args:
        status: the HTTP status.
        message: why, and what to do instead.
        replicas: why each of some replicas could not, by name.
    """

    def __init__(self, status: int, message: str, replicas: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.replicas = status, dict(replicas or {})


@dataclass(frozen=True, slots=True)
class Desired:
    """What every replica should be like.

    Attributes:
        generation: grows with each change.
        kept: False while it is tried: it may be taken back.
        paused: no token is generated.
        resets: the generation that was the last to drop cached keys and values; 0 for none. One that was taken back
            does not come again, so replicas that had dropped theirs for it do not skip the next one.
        adapters: folder of each adapter that a call has loaded, by name.
        weights: folder of the weights that a call has loaded; empty for the model's own.
        written: when these were written, in nanoseconds since the epoch; 0 for the model's own.
        stamps: when the weights of each adapter were written, by name; 0 if that is not known.
    """

    generation: int = 0
    kept: bool = True
    paused: bool = False
    resets: int = 0
    adapters: Mapping[str, str] = field(default_factory=dict)
    weights: str = ""
    written: int = 0
    stamps: Mapping[str, int] = field(default_factory=dict)

    def same(self, other: Desired) -> bool:
        """Return whether a replica that is like this one is like the other."""
        return replace(self, generation=0, kept=True) == replace(other, generation=0, kept=True)

    def tried(self, generation: int) -> Desired:
        """Return the same, to be tried."""
        return replace(self, generation=generation, kept=False)

    def kept_as(self, generation: int) -> Desired:
        """Return the same, to be kept."""
        return replace(self, generation=generation, kept=True)

    def to_json(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Desired:
        """Return what a text says. What a later version of this program adds is left out.

        Raises:
            ValueError: it has another form.
        """
        try:
            data = json.loads(text)
            return cls(
                generation=int(data["generation"]),
                kept=bool(data["kept"]),
                paused=bool(data["paused"]),
                resets=int(data["resets"]),
                adapters={str(name): str(path) for name, path in data["adapters"].items()},
                weights=str(data.get("weights", "")),  # a state of an older version has none
                written=int(data.get("written", 0)),
                stamps={str(name): int(when) for name, when in data.get("stamps", {}).items()},
            )
        except (LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is not the state of a fleet ({type(error).__name__}: {error})") from error


Step = Callable[[Desired], Desired]


def load(name: str, path: str, written: int) -> Step:
    """Return the step that loads an adapter.

    Args:
        name: its name in requests.
        path: its folder.
        written: when its weights were written, in nanoseconds since the epoch; 0 if that is not known.

    Raises:
        CallRefusedError: 400, no adapter can have this name.
    """
    if not _NAME.fullmatch(name):
        raise CallRefusedError(400, f"lora_name {name!r} is wrong: use letters, digits, '.', '_' and '-', at most 128")

    def step(now: Desired) -> Desired:
        if name not in now.adapters:
            return replace(now, adapters={**now.adapters, name: path}, stamps={**now.stamps, name: written})
        if now.adapters[name] != path:
            raise CallRefusedError(
                400, f"{name} is loaded from {now.adapters[name]}: give other weights another name, or unload it first"
            )
        if now.stamps.get(name, 0) not in (0, written):  # replicas serve what they have read
            raise CallRefusedError(
                400,
                f"{name} is loaded, and the weights in {path} have changed since: give new weights another name, or "
                "unload it first",
            )
        return now

    return step


def unload(name: str) -> Step:
    """Return the step that unloads an adapter."""

    def step(now: Desired) -> Desired:
        if name not in now.adapters:
            raise CallRefusedError(
                404, f"no call has loaded {name!r}: published versions are unloaded by `stoker adapters retract`"
            )
        return replace(now, adapters=_without(name, now.adapters), stamps=_without(name, now.stamps))

    return step


def _without(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    return {other: value for other, value in found.items() if other != name}


def reload(path: str, written: int) -> Step:
    """Return the step that loads whole weights.

    Args:
        path: their folder; empty for the model's own.
        written: when they were written, in nanoseconds since the epoch; 0 for the model's own.
    """

    def step(now: Desired) -> Desired:
        if path == now.weights and written != now.written:
            raise CallRefusedError(
                400, f"the weights in {path} have changed since they were loaded: write each version to its own folder"
            )
        return replace(now, weights=path, written=written)

    return step


def pause(now: Desired) -> Desired:
    """Let no token be generated."""
    return replace(now, paused=True)


def resume(now: Desired) -> Desired:
    """Go on generating."""
    return replace(now, paused=False)


def reset_cache(now: Desired) -> Desired:
    """Drop cached keys and values."""
    return replace(now, resets=now.generation + 1)


@dataclass(frozen=True, slots=True)
class Held:
    """What one replica has of its fleet's desired state.

    Attributes:
        known: the newest generation that it knows.
        generation: the same if it has all of that, else 0.
        ready: it may answer: it has all of the newest generation, or of the newest that was kept.
        problem: why it does not have all.
        failed: it has tried, and could not; else it may only need time.
    """

    known: int = 0
    generation: int = 0
    ready: bool = False
    problem: str = ""
    failed: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def held(
    newest: Desired,
    kept: Desired,
    loaded: Mapping[str, str],
    left: Collection[str] = (),
    *,
    paused: bool = False,
    resets: int = 0,
    weights: str = "",
    problem: str = "",
) -> Held:
    """Return what a replica has.

    Args:
        newest: the newest desired state.
        kept: the newest that was kept.
        loaded: folder of each adapter that it serves, by name.
        left: names that it serves and should not.
        paused: whether it is paused.
        resets: for which generation its cache was dropped last.
        weights: folder of the weights that it serves; empty for the model's own.
        problem: why something could not be done; empty if all could.
    """

    def misses(wanted: Desired) -> str:
        names = [name for name, path in wanted.adapters.items() if loaded.get(name) != path]
        if names:
            return f"it has not loaded {', '.join(sorted(names))} yet"
        if weights != wanted.weights:
            return f"it has not loaded the weights in {wanted.weights or 'its model'} yet"
        if paused != wanted.paused:
            return f"it is {'' if paused else 'not '}paused"
        return "its cache is not dropped yet" if resets < wanted.resets else ""

    found = problem or misses(newest) or (f"it still serves {', '.join(sorted(left))}" if left else "")
    ready = not found or not misses(kept)
    return Held(newest.generation, 0 if found else newest.generation, ready, found, bool(problem))


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """What a replica answered.

    Attributes:
        ready: it says that it may be asked.
        held: what it has; None if it knows of no fleet.
    """

    ready: bool
    held: Held | None


def lacking(generation: int, seen: Mapping[str, ReplicaStatus | str], listed: Collection[str]) -> dict[str, str]:
    """Return why replicas that may be asked do not have a generation, by name.

    One that says itself that it is not ready has nothing to say: it has everything before it is.

    Args:
        generation: what each should have.
        seen: what each replica answered last, or why it did not.
        listed: those that are listed as ready, so that requests reach them.
    """
    found = {}
    for name in sorted({*seen, *listed}):
        answer = seen.get(name, "it was not asked yet")
        if isinstance(answer, str):
            if name in listed:
                found[name] = answer
        elif answer.held is None:
            if answer.ready:
                found[name] = "it belongs to no fleet: wait until the rollout of the release has ended"
        elif answer.ready and answer.held.generation < generation:
            found[name] = answer.held.problem or "it does not know of it yet"
    return found
