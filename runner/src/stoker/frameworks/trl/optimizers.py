"""Finds what an optimizer lacks, does not take, or cannot have. Pure.

The rules are those of transformers 5 (trainer_optimizer.py), which finds them once the model is loaded, or never.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from stoker.plan.arguments import FlagTable, Setting
from stoker.plan.interfaces import Asked

# Beginnings of optimizers that project the gradients of some layers.
LOW_RANK = ("galore", "apollo")
_LAYERWISE = "_layerwise"
# Optimizer → its arguments; those of other packages are not known. A test compares them with what transformers reads.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adafactor"), ()),
    "sgd": ("momentum", "dampening", "weight_decay", "nesterov"),
    "adagrad": ("lr_decay", "weight_decay", "eps"),
    "rmsprop": ("momentum", "alpha", "eps", "weight_decay", "centered"),
}
# Arguments that are true or false; any other is a number.
_SWITCHES = ("nesterov", "centered")


def optimizer_problems(asked: Asked, table: FlagTable, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each flag that the optimizer needs or does not take, and for one that no run can have.

    Args:
        asked: what the user asks for.
        table: the method's flags, with the trainer's defaults.
        settings: the merged settings.
    """
    yield from own_optimizer_problems(settings)
    optimizer = settings.get("optim")
    if optimizer is not None and str(optimizer.value).startswith(LOW_RANK):
        if "optim_target_modules" not in settings or not settings["optim_target_modules"].value:
            yield (
                f"--optim {optimizer.value} ({optimizer.source}) needs the layers to project: write "
                "--optim_target_modules all-linear, or their names"
            )
    elif optimizer is None and "optim" not in asked.values:
        yield from _unread_arguments(str(table.flags["optim"].default), settings)


def own_optimizer_problems(settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each optimizer and each argument that is wrong whatever else is set."""
    for part in _arguments(settings):
        if part.count("=") != 1:
            yield (
                f"--optim_args ({settings['optim_args'].source}) has {part!r}, which is not a key=value: separate them "
                "by commas, as in momentum=0.9,nesterov=true"
            )
    if "optim" in settings:
        name = str(settings["optim"].value)
        yield from _unread_arguments(name, settings)
        # transformers trains them in one process without a launcher alone; torchrun starts every run.
        if name.endswith(_LAYERWISE):
            yield (
                f"--optim {name} ({settings['optim'].source}) trains only without a launcher: write --optim "
                f"{name.removesuffix(_LAYERWISE)}"
            )


def _unread_arguments(optimizer: str, settings: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one problem for each argument that the optimizer would not read, or not as a number."""
    if optimizer not in ARGUMENTS:
        return
    known = ARGUMENTS[optimizer]
    for part in _arguments(settings):
        key, equals, value = part.partition("=")
        given = f"--optim_args ({settings['optim_args'].source}) has {key}"
        if equals and key not in known:
            yield f"{given}, which the optimizer {optimizer} does not take: {_advice(key, known)}"
        elif equals and key not in _SWITCHES and not _is_number(value):
            yield f"{given}={value}: write a number"


def _arguments(settings: Mapping[str, Setting]) -> list[str]:
    """Return the arguments of the optimizer, split as transformers splits them."""
    text = str(settings["optim_args"].value) if "optim_args" in settings else ""
    return text.replace(" ", "").split(",") if text else []


def _advice(key: str, known: tuple[str, ...]) -> str:
    if not known:
        return "leave it out"
    close = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
