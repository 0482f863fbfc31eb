"""How many processes a run has and where they meet: resolved from what Trainer, the runtime and the user said.

Pure. Trainer's rules are those of its torch plugin (kubeflow/trainer v2.3.0, pkg/runtime/framework/plugins/torch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.plan.arguments import Setting
from stoker.plan.facts import Facts, whole_number

DEFAULT_PORT = 29500
ACCELERATORS = ("nvidia", "amd", "intel", "tpu", "cpu")
AUTO = ("auto", "gpu")

# The most pods an Indexed Job of Kubernetes may have.
_MAX_NODES = 100_000
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class World:
    """The group of processes a run asked for, seen from one node.

    Attributes:
        nnodes: number of nodes (pods).
        nproc_per_node: processes on each.
        node_rank: this node's rank, from 0.
        master_addr: host name of node 0.
        master_port: port of the rendezvous there.
        settings: the five values with their origins.
        notices: what a user should know about how they were chosen.
        problems: what contradicts; not empty means the run must not start.
    """

    nnodes: int
    nproc_per_node: int
    node_rank: int
    master_addr: str
    master_port: int
    settings: tuple[Setting, ...]
    notices: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of processes of the whole run."""
        return self.nnodes * self.nproc_per_node

    def peers(self) -> tuple[str, ...]:
        """Return the host names of all nodes by rank; empty where they follow from nothing (one node, no DNS).

        JobSet names a pod `<jobset>-<job>-<replica>-<index>.<jobset>`; Trainer gives node 0's name as the master.
        """
        host, dot, domain = self.master_addr.partition(".")
        if self.nnodes == 1 or not dot or not host.endswith("-0") or host.replace("-", "").isdigit():
            return ()
        return tuple(f"{host[:-1]}{index}.{domain}" for index in range(self.nnodes))


class _Said:
    """Collects settings, notices and problems while a world is resolved."""

    def __init__(self, facts: Facts, options: Mapping[str, str]) -> None:
        self.facts = facts
        self.options = options
        self.settings: list[Setting] = []
        self.notices: list[str] = []
        self.problems: list[str] = []

    def text(self, name: str, default: str | None) -> tuple[str | None, str]:
        """Return a value and its origin: the command line's option, Trainer's variable, or the default."""
        told = self.facts.get(f"PET_{name.upper()}")
        option = self.options.get(name)
        if option is not None:
            if told is not None and told != option and name != "nproc_per_node":
                self.problems.append(
                    f"the command says --{name}={option} but the TrainJob says {told} (PET_{name.upper()}): "
                    f"leave --{name} out of the command and set spec.trainer in the TrainJob"
                )
            return option, "command"
        if told is not None:
            return told, f"PET_{name.upper()}"
        return default, "runner"

    def number(self, name: str, default: int | None, minimum: int, maximum: int) -> int:
        """Return a whole number, noting its origin; a problem and the minimum where it is none."""
        text, source = self.text(name, None if default is None else str(default))
        if text is None:
            self.problems.append(
                f"PET_{name.upper()} is not set in a run of several nodes: start it from a TrainJob, "
                "or set it for each node"
            )
            return minimum
        value = whole_number(text)
        if value is None or not minimum <= value <= maximum:
            self.problems.append(f"{name} is {text!r} ({source}): write a whole number from {minimum} to {maximum}")
            return minimum
        self.settings.append(Setting(name, text, source))
        return value


def resolve_world(facts: Facts, options: Mapping[str, str] | None = None) -> World:
    """Resolve the world a run asked for.

    Args:
        facts: what the container was told.
        options: what the command itself said, by torchrun's names, e.g. `{"nproc_per_node": "2"}`.
    """
    said = _Said(facts, options or {})
    nnodes = said.number("nnodes", 1, 1, _MAX_NODES)
    index = facts.get("JOB_COMPLETION_INDEX")
    if nnodes == 1 and facts.get("PET_NNODES") is None and index not in (None, "0"):
        said.problems.append(
            f"this pod is number {index} of its job but PET_NNODES is not set, so it would train alone: "
            "add `trainer: {}` to the TrainJob's spec, or PET_NNODES to the runtime's env"
        )
    node_rank = said.number("node_rank", 0 if nnodes == 1 else None, 0, _MAX_NODES)
    if node_rank >= nnodes:
        said.problems.append(f"node_rank is {node_rank} but there are {nnodes} nodes: ranks go from 0 to {nnodes - 1}")
    master_port = said.number("master_port", DEFAULT_PORT, 1, _MAX_PORT)
    master_addr = _master_addr(said, nnodes)
    if facts.accelerator not in ACCELERATORS:
        said.problems.append(
            f"STOKER_ACCELERATOR is {facts.accelerator!r}: it must be one of {', '.join(ACCELERATORS)}"
        )
    nproc = _nproc_per_node(said)
    return World(
        nnodes,
        nproc,
        node_rank,
        master_addr,
        master_port,
        tuple(said.settings),
        tuple(said.notices),
        tuple(said.problems),
    )


def _master_addr(said: _Said, nnodes: int) -> str:
    if nnodes == 1:
        # One node needs no name of its own, so a slow cluster DNS cannot hold it up.
        said.settings.append(Setting("master_addr", "127.0.0.1", "runner", "one node meets itself"))
        return "127.0.0.1"
    text, source = said.text("master_addr", None)
    if text is None:
        said.problems.append(
            "PET_MASTER_ADDR is not set in a run of several nodes: start it from a TrainJob, or set it to node 0's name"
        )
        return ""
    said.settings.append(Setting("master_addr", text, source))
    return text


def _nproc_per_node(said: _Said) -> int:
    facts = said.facts
    text, source = said.text("nproc_per_node", "auto")
    profile = facts.get("STOKER_NPROC_PER_NODE")
    told = facts.get("PET_NPROC_PER_NODE")
    reason = ""
    # Trainer's number may be derived, so the command's is no contradiction to it; but a user's it may be too.
    if source == "command" and told not in (None, *AUTO, "1", facts.get("STOKER_CPU_REQUEST"), text):
        said.notices.append(f"{text} processes per node as the command says, not {told} (PET_NPROC_PER_NODE)")
    if source != "command" and profile is not None and profile != text:
        # Trainer writes 1 or the CPU count where nobody asked for a number (v2.3.0 torch.go), so those two give way.
        derived = told in (None, *AUTO, "1", facts.get("STOKER_CPU_REQUEST"))
        if derived:
            reason = f"wins over PET_NPROC_PER_NODE={told}, which Trainer derives when nobody asks"
            if told not in (None, *AUTO):
                said.notices.append(
                    f"{profile} processes per node (STOKER_NPROC_PER_NODE), not {told} (PET_NPROC_PER_NODE): Trainer's "
                    "number equals what it writes unasked. If you did ask for it, set STOKER_NPROC_PER_NODE in "
                    "spec.trainer.env too"
                )
            text, source = profile, "STOKER_NPROC_PER_NODE"
        else:
            said.notices.append(f"{text} processes per node as the TrainJob asks, not the runtime's {profile}")
    if text in AUTO:
        return _from_devices(said, source)
    nproc = whole_number(text or "")
    if nproc is None or nproc < 1:
        said.problems.append(f"nproc_per_node is {text!r} ({source}): write auto or a whole number, 1 or more")
        return 1
    if facts.accelerator in ACCELERATORS and facts.accelerator != "cpu" and nproc > len(facts.devices):
        said.problems.append(
            f"{nproc} processes per node were asked for ({source}) but this container sees {len(facts.devices)} "
            f"{facts.accelerator} devices: ask for {nproc} in resourcesPerNode, or for fewer processes"
        )
    said.settings.append(Setting("nproc_per_node", str(nproc), source, reason))
    return nproc


def _from_devices(said: _Said, source: str) -> int:
    facts = said.facts
    if facts.devices:
        count = len(facts.devices)
        said.settings.append(Setting("nproc_per_node", str(count), source, f"auto: {count} devices visible"))
        return count
    if facts.accelerator in ACCELERATORS and facts.accelerator != "cpu":
        said.problems.append(
            f"the runtime is for {facts.accelerator} but this container sees no such device: "
            "check resourcesPerNode and the node's device plugin, or choose a runtime for cpu"
        )
    said.settings.append(Setting("nproc_per_node", "1", source, "auto: no device, so one process"))
    return 1
