"""Plans and flag tables as text for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.samplers import SamplerRequest
from stoker.frameworks import TRL, known_frameworks
from stoker.frameworks.trl.recipes import DEFAULTS, TUNINGS, recipe_for
from stoker.plan.arguments import Setting
from stoker.plan.estimate import NOT_COUNTED, Memory, gib, parked
from stoker.plan.model_shape import ModelShape
from stoker.plan.plan import Plan
from stoker.plan.world import ACCELERATORS


def plan_text(plan: Plan) -> str:
    """Return a plan as `stoker plan` prints it: every value, and where it came from."""
    world = plan.world
    size = f"world size {world.size} = {world.nnodes} nodes × {world.nproc_per_node} processes"
    lines = [
        f"{plan.framework} {plan.method} ({plan.module}) on {plan.accelerator}, plan {plan.hash}",
        "",
        f"{size}, this is node {world.node_rank}",
        *_table(world.settings),
        "",
        "trainer flags",
        *([f"  --config {plan.config}"] if plan.config else []),
        *_table(plan.shown_settings),
        "",
        "before the start",
        *(f"  the {check.what} {check.path} must be {_STATES[check.kind]}" for check in plan.checks),
        *([f"  nodes must have a name: {', '.join(world.peers())}"] if world.peers() else []),
        "",
        *(f"env       {name}={value}{_origin(plan, name)}" for name, value in plan.shown_env.items()),
        f"output    {plan.output_dir} (resume: {plan.resume})",
        *([] if plan.memory is None else [_memory(plan.memory, plan.device_bytes)]),
        *([] if plan.samplers is None else [_samplers(plan.samplers)]),
        *([] if plan.samplers is None or plan.memory is None else [_parked(plan.samplers, plan.memory)]),
        f"stop      {plan.grace_seconds} s from SIGTERM to SIGKILL",
        f"hang      {plan.hang_seconds} s without a step" if plan.hang_seconds else "hang      not looked for",
        *([f"idle      {plan.idle_seconds} s without a request to the samplers"] if plan.idle_seconds else []),
        *([f"metrics   at port {plan.metrics_port} of each node"] if plan.metrics_port else []),
        f"launch    torchrun {shlex.join(plan.torchrun_argv)}",
        *(f"note      {notice}" for notice in plan.notices),
    ]
    return "\n".join(lines)


def _samplers(request: SamplerRequest) -> str:
    adapter = "the whole model" if request.rank is None else f"adapters of rank {request.rank}"
    return f"samplers  serve {request.model} as {request.name}, and {adapter} from {request.adapters}"


def _parked(request: SamplerRequest, memory: Memory) -> str:
    return f"parked    {parked(memory.model_weights, request.dtype, whole=request.rank is None)}"


def _memory(memory: Memory, device_bytes: int | None) -> str:
    device = "" if device_bytes is None else f", and a device has {gib(device_bytes)}"
    return f"memory    {memory}{device}. Not counted: {NOT_COUNTED}"


def estimate_text(shape: ModelShape, ways: Sequence[tuple[str, Memory]], device_bytes: int | None) -> str:
    """Return what a model needs on each device, as `stoker estimate` prints it: a line for each way to train it."""

    def verdict(memory: Memory) -> str:
        if device_bytes is None:
            return ""
        return "fits" if memory.total <= device_bytes else "does not fit"

    head = ("", "weights", "gradients", "optimizer", "sum", "")
    rows = [
        (
            f"{memory.how}{f' ({write})' if write else ''}",
            gib(memory.weights),
            gib(memory.gradients),
            "unknown" if memory.optimizer is None else gib(memory.optimizer),
            gib(memory.total),
            verdict(memory),
        )
        for write, memory in ways
    ]
    device = "" if device_bytes is None else f", which has {gib(device_bytes)}"
    return "\n".join(
        [
            f"{shape.family}, {shape.weights:,} weights, {ways[0][1].trained_weights:,} of them trained",
            "",
            f"on each device{device}; first what was asked for",
            *(line.rstrip() for line in _columns([head, *rows])),
            "",
            f"not counted: {NOT_COUNTED}",
        ]
    )


def forecast_text(told: Mapping[str, Any], processes: int, too_much: bool) -> str:
    """Return tokens, time and measured memory of a TrainJob, as `stoker estimate` prints them.

    Args:
        told: what is known.
        processes: of the TrainJob.
        too_much: whether the measured memory is more than a device has.
    """
    peak = told["measured_peak_gib"]
    lines = [] if peak is None else [f"measured there: {peak:.1f} GiB at most, with activations"]
    if too_much:
        lines[0] += ". This does not fit: write a smaller batch or shorter samples, or use larger devices"
    if told["tokens"] is None:
        lines.append("tokens and time: unknown; both runs need a number of steps, or both a number of epochs")
    else:
        minutes = -(-told["seconds"] // 60)
        lines.append(
            f"about {told['tokens']:,} tokens in {minutes // 60} h {minutes % 60:02} min on {processes} processes, "
            "without start and evaluation"
        )
    return "\n".join(["", *lines])


def _origin(plan: Plan, name: str) -> str:
    return "  config file" if name in plan.config_env else ""


_STATES = {"writable": "writable", "exists": "there"}


def _table(settings: Iterable[Setting]) -> list[str]:
    rows = [
        (s.name, " ".join(s.value) if isinstance(s.value, tuple) else s.value, s.source, s.reason) for s in settings
    ]
    if not rows:
        return ["  (none)"]
    name, value = (max(len(row[column]) for row in rows) for column in (0, 1))
    return [
        f"  {row[0]:<{name}}  {row[1]:<{value}}  {row[2]}{f': {row[3]}' if row[3] else ''}".rstrip() for row in rows
    ]


def flags(method: str, containing: str) -> str:
    """Return a method's flags, a line each.

    Raises:
        RunError: no framework has the method, or no flag of the method has that text in its name (64).
    """
    for framework in known_frameworks().values():
        if method in framework.methods:
            table = framework.flag_table(method)
            found = [flag for flag in table.flags.values() if containing in flag.name]
            if not found:
                raise RunError(
                    ExitCode.USAGE, f"no flag of {method} has {containing!r} in its name: use a shorter text"
                )
            return "\n".join(
                f"{table.spell(flag.name)} <{'|'.join(flag.choices) or flag.type}"
                f"{'…' if flag.many or flag.listed else ''}>"
                f"{f' (default {flag.default})' if flag.default is not None else ''}{flag.help and f': {flag.help}'}"
                for flag in found
            )
    known = ", ".join(m for framework in known_frameworks().values() for m in framework.methods)
    raise RunError(ExitCode.USAGE, f"{method!r} is not a method: choose one of {known}")


def recipe_list() -> str:
    """Return every default that Stoker sets, for which runs, and why."""
    return "\n".join(_columns([(d.flag, d.value, d.where, d.reason) for d in DEFAULTS]))


def recipe(accelerator: str, tuning: str, method: str) -> str:
    """Return the defaults for one kind of run, and why.

    Raises:
        RunError: the accelerator, the kind of tuning or the method is unknown (64).
    """
    for what, given, known in (
        ("--accelerator", accelerator, ACCELERATORS),
        ("--tuning", tuning, TUNINGS),
        ("--method", method, TRL.methods),
    ):
        if given not in known:
            raise RunError(ExitCode.USAGE, f"{what} is {given!r}: choose one of {', '.join(known)}")
    return "\n".join(_columns([(d.flag, d.value, d.reason) for d in recipe_for(accelerator, tuning, method)]))


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]
