"""How many processes a run has and where they meet, resolved from Trainer, the runtime and the user.

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

# The largest number of pods in an Indexed Job of Kubernetes.
_MAX_NODES = 100_000
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class World:
    """The processes of a run, seen from one node.

    Attributes:
        nnodes: number of nodes (pods).
        nproc_per_node: processes on each node.
        node_rank: this node's rank, from 0.
        master_addr: host name of node 0.
        master_port: port of the rendezvous on node 0.
        settings: the five values with their origins.
        notices: what a user should know about how they were chosen.
        problems: what is wrong; the run must not start unless this is empty.
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
        """Return the host names of all nodes by rank; empty with one node, or if node 0's name is not JobSet's.

        JobSet names a pod `<jobset>-<job>-<replica>-<index>.<jobset>`; Trainer sets node 0's name as the master.
        """
        host, dot, domain = self.master_addr.partition(".")
        if self.nnodes == 1 or not dot or not host.endswith("-0") or host.replace("-", "").isdigit():
            return ()
        return tuple(f"{host[:-1]}{index}.{domain}" for index in range(self.nnodes))


class _Draft:
    """Collects the settings, notices and problems of a world."""

    def __init__(self, facts: Facts, options: Mapping[str, str]) -> None:
        self.facts = facts
        self.options = options
        self.settings: list[Setting] = []
        self.notices: list[str] = []
        self.problems: list[str] = []

    def text(self, name: str, default: str | None) -> tuple[str | None, str]:
        """Return a value and its origin: the command's option, Trainer's variable, or the default."""
        variable = f"PET_{name.upper()}"
        value = self.facts.get(variable)
        option = self.options.get(name)
        if option is not None:
            if value is not None and value != option and name != "nproc_per_node":
                self.problems.append(
                    f"the command says --{name}={option} but the TrainJob says {value} ({variable}): "
                    f"leave --{name} out of the command and set spec.trainer in the TrainJob"
                )
            return option, "command"
        if value is not None:
            return value, variable
        return default, "runner"

    def number(self, name: str, default: int | None, minimum: int, maximum: int) -> int:
        """Return a whole number and record its origin; record a problem and return the minimum if it is wrong."""
        text, source = self.text(name, None if default is None else str(default))
        if text is None:
            self.problems.append(
                f"PET_{name.upper()} is not set, but this run has several nodes: start it from a TrainJob, "
                "or set the variable on each node"
            )
            return minimum
        value = whole_number(text)
        if value is None or not minimum <= value <= maximum:
            self.problems.append(f"{name} is {text!r} ({source}): write a whole number from {minimum} to {maximum}")
            return minimum
        self.settings.append(Setting(name, text, source))
        return value


def resolve_world(facts: Facts, options: Mapping[str, str] | None = None) -> World:
    """Resolve the world of a run.

    Args:
        facts: the facts of the container.
        options: the command's own options by torchrun's names, for example `{"nproc_per_node": "2"}`.
    """
    draft = _Draft(facts, options or {})
    nnodes = draft.number("nnodes", 1, 1, _MAX_NODES)
    index = facts.get("JOB_COMPLETION_INDEX")
    if nnodes == 1 and facts.get("PET_NNODES") is None and index not in (None, "0"):
        draft.problems.append(
            f"PET_NNODES is not set, so this pod, number {index} of its job, would train alone: "
            "add `trainer: {}` to the TrainJob's spec, or PET_NNODES to the runtime's env"
        )
    node_rank = draft.number("node_rank", 0 if nnodes == 1 else None, 0, _MAX_NODES)
    if node_rank >= nnodes:
        draft.problems.append(
            f"node_rank is {node_rank}, but the run has {nnodes} nodes: write a number from 0 to {nnodes - 1}"
        )
    master_port = draft.number("master_port", DEFAULT_PORT, 1, _MAX_PORT)
    master_addr = _master_addr(draft, nnodes)
    if facts.accelerator not in ACCELERATORS:
        draft.problems.append(
            f"STOKER_ACCELERATOR is {facts.accelerator!r}: it must be one of {', '.join(ACCELERATORS)}"
        )
    nproc = _nproc_per_node(draft)
    return World(
        nnodes,
        nproc,
        node_rank,
        master_addr,
        master_port,
        tuple(draft.settings),
        tuple(draft.notices),
        tuple(draft.problems),
    )


def _master_addr(draft: _Draft, nnodes: int) -> str:
    if nnodes == 1:
        # Without a host name, a slow cluster DNS cannot delay a single node.
        draft.settings.append(Setting("master_addr", "127.0.0.1", "runner", "the run has one node"))
        return "127.0.0.1"
    text, source = draft.text("master_addr", None)
    if text is None:
        draft.problems.append(
            "PET_MASTER_ADDR is not set, but this run has several nodes: start it from a TrainJob, "
            "or set the variable to node 0's host name"
        )
        return ""
    draft.settings.append(Setting("master_addr", text, source))
    return text


def yields(facts: Facts) -> bool:
    """Return whether PET_NPROC_PER_NODE yields to STOKER_NPROC_PER_NODE, or without it to the number of devices."""
    return _is_trainers_default(facts) and (facts.get("STOKER_NPROC_PER_NODE") is not None or _is_for_devices(facts))


def _is_trainers_default(facts: Facts) -> bool:
    # If nobody asks for a number, Trainer writes auto or 1, or the CPU count: the TrainJob's request, else its limit
    # (v2.3.0 torch.go). On CPUs, where processes are often as many as the limit, the limit counts as asked for.
    limit = facts.get("STOKER_CPU_LIMIT") if _is_for_devices(facts) else None
    return facts.get("PET_NPROC_PER_NODE") in (None, *AUTO, "1", facts.get("STOKER_CPU_REQUEST"), limit)


def _is_for_devices(facts: Facts) -> bool:
    return facts.accelerator in ACCELERATORS and facts.accelerator != "cpu"


def _nproc_per_node(draft: _Draft) -> int:
    text, source, reason = _processes(draft)
    if text in AUTO:
        return _from_devices(draft, source)
    facts = draft.facts
    nproc = whole_number(text)
    if nproc is None or nproc < 1:
        draft.problems.append(f"nproc_per_node is {text!r} ({source}): write auto or a whole number, 1 or more")
        return 1
    if _is_for_devices(facts):
        found = len(facts.devices)
        if nproc > found:
            more = f"request {nproc} in resourcesPerNode"
            if facts.hidden_by:
                more = f"{facts.hidden_by} hides others, so leave it out, or {more}"
            draft.problems.append(
                f"{_per_node(nproc)} ({source}) {'needs' if nproc == 1 else 'need'} {nproc} {facts.accelerator} "
                f"device{'' if nproc == 1 else 's'}, but this container sees {found}: {more}, or use fewer processes"
            )
        elif nproc < found:
            draft.notices.append(
                f"{_per_node(nproc)} ({source}) {'leaves' if nproc == 1 else 'leave'} {found - nproc} of the {found} "
                f"{facts.accelerator} devices of this container idle: use {found} processes, or request {nproc} in "
                "resourcesPerNode"
            )
    draft.settings.append(Setting("nproc_per_node", str(nproc), source, reason))
    return nproc


def _processes(draft: _Draft) -> tuple[str, str, str]:
    """Return what was said about the processes per node, a number or `auto`, with its origin and why it wins."""
    facts = draft.facts
    text, source = draft.text("nproc_per_node", None)
    ours, trainers = facts.get("STOKER_NPROC_PER_NODE"), facts.get("PET_NPROC_PER_NODE")
    if text is None:
        text = AUTO[0]
    if source == "command":
        if trainers != text and not _is_trainers_default(facts):
            draft.notices.append(f"using the command's {_per_node(text)}, not {trainers} (PET_NPROC_PER_NODE)")
    elif not yields(facts):
        if ours not in (None, text):
            draft.notices.append(f"using the TrainJob's {_per_node(text)}, not the runtime's {ours}")
    elif ours not in (None, text):
        _say_not_trainers(draft, f"{_per_node(str(ours))} (STOKER_NPROC_PER_NODE)", " too")
        return str(ours), "STOKER_NPROC_PER_NODE", f"wins over PET_NPROC_PER_NODE={trainers}, Trainer's default"
    elif ours is None and text not in (*AUTO, str(len(facts.devices))):
        if facts.devices:
            processes = f"{_per_node(len(facts.devices))}, one per {facts.accelerator} device"
            _say_not_trainers(draft, processes, "")
        return AUTO[0], "runner", ""
    return text, source, ""


def _per_node(count: int | str) -> str:
    return f"{count} {'process' if str(count) == '1' else 'processes'} per node"


def _say_not_trainers(draft: _Draft, instead: str, too: str) -> None:
    trainers = draft.facts.get("PET_NPROC_PER_NODE")
    if trainers not in (None, *AUTO):
        draft.notices.append(
            f"using {instead}, not {trainers} (PET_NPROC_PER_NODE), which looks like Trainer's default: "
            f"if you want {trainers}, set STOKER_NPROC_PER_NODE in spec.trainer.env{too}"
        )


def _from_devices(draft: _Draft, source: str) -> int:
    facts = draft.facts
    if facts.devices:
        count = len(facts.devices)
        draft.settings.append(Setting("nproc_per_node", str(count), source, f"auto: one per visible device ({count})"))
        return count
    if _is_for_devices(facts):
        advice = "check resourcesPerNode and the node's device plugin, or choose a runtime for cpu"
        if facts.hidden_by:
            advice = f"{facts.hidden_by} hides all that it has: leave it out, or write the numbers of devices, from 0"
        draft.problems.append(
            f"the runtime is for {facts.accelerator}, but this container sees no such device: {advice}"
        )
    draft.settings.append(Setting("nproc_per_node", "1", source, "auto: one process without devices"))
    return 1
