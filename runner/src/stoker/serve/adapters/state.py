"""What one replica has: for its readiness, its metrics and people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from stoker.serve.fleet.desired import Held

_HELP = {
    "stoker_serving_up": "1 if the model answers.",
    "stoker_adapter_loaded": "1 for each adapter this replica serves.",
    "stoker_adapter_problem": "1 for each adapter that cannot be served or has no effect.",
    "stoker_adapter_effect_nats": "Largest change an adapter makes to a log-probability of a fixed text.",
    "stoker_adapter_publish_seconds": "Seconds from publishing an adapter until this replica serves it.",
    "stoker_adapters_missing": "Number of adapters that should be served but are not.",
    "stoker_adapters_last_look_timestamp_seconds": "Time of the last comparison of the folder with the server.",
}


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One look at a replica.

    Attributes:
        server: what it is: its base model and how many adapters it has room for.
        up: the model answers.
        settled: every adapter that was published when the server started has been loaded or found unfit.
        time: when, in seconds since the epoch.
        loaded: folder of each adapter it serves, by name.
        missing: names that should be served but are not.
        problems: what is wrong with an adapter, by name.
        effects: largest change an adapter makes to a log-probability, in nats, by name.
        delays: seconds from publishing to loaded, by name.
        held: what it has of its fleet's desired state; None if it belongs to no fleet.
    """

    server: Mapping[str, str | int | None] = field(default_factory=dict)
    up: bool = False
    settled: bool = False
    time: float = 0.0
    loaded: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    effects: Mapping[str, float] = field(default_factory=dict)
    delays: Mapping[str, float] = field(default_factory=dict)
    held: Held | None = None

    @property
    def ready(self) -> bool:
        """True if requests may come: the model answers, and what was published before is loaded.

        A version that fails later does not make the replica unready; metrics and alerts report it. One that lacks what
        its fleet has kept is not ready: requests count on it.
        """
        return self.up and self.settled and (self.held is None or self.held.ready)

    def to_json(self, sees: bool | None = None) -> str:
        """Return the state for a person to read.

        Args:
            sees: whether there is a folder for the versions that somebody asks for; None if nobody asks.
        """
        data = {
            "ready": self.ready,
            "server": dict(self.server),
            "loaded": sorted(self.loaded),
            "missing": list(self.missing),
            "problems": dict(self.problems),
            "effects": dict(self.effects),
            **({} if sees is None else {"sees": sees}),
            **({} if self.held is None else {"fleet": self.held.to_json()}),
        }
        return json.dumps(data, indent=2, sort_keys=True) + "\n"

    def metrics(self) -> str:
        """Return the state in Prometheus' text format."""
        lines: list[str] = []
        for metric, samples in self._samples().items():
            lines += [f"# HELP {metric} {_HELP[metric]}", f"# TYPE {metric} gauge"]
            lines += [f"{metric}{labels} {value}" for labels, value in samples]
        return "\n".join(lines) + "\n"

    def _samples(self) -> dict[str, list[tuple[str, float]]]:
        return {
            "stoker_serving_up": [("", int(self.up))],
            "stoker_adapter_loaded": [(_label(name), 1) for name in sorted(self.loaded)],
            "stoker_adapter_problem": [(_label(name), 1) for name in sorted(self.problems)],
            "stoker_adapter_effect_nats": list(_labelled(self.effects)),
            "stoker_adapter_publish_seconds": list(_labelled(self.delays)),
            "stoker_adapters_missing": [("", len(self.missing))],
            "stoker_adapters_last_look_timestamp_seconds": [("", self.time)],
        }


def _labelled(values: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name, value in sorted(values.items()):
        yield _label(name), value


def _label(name: str) -> str:
    adapter, _, version = name.partition(":")
    return f'{{adapter="{_escaped(adapter)}",version="{_escaped(version)}",name="{_escaped(name)}"}}'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
