"""Finds the trainer's arguments in `stoker run …` and `stoker plan …`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

COMMANDS = ("run", "plan")
HELP_OPTIONS = ("-h", "--help")
# Our options end at the first word that is not one of them; the rest is the trainer's.
PASS_THROUGH: dict[str, Any] = {"ignore_unknown_options": True, "allow_interspersed_args": False}
OUTPUT = click.Option(
    ["--output"], type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format."
)


def trainer_arguments() -> click.Argument:
    """Return the parameter that takes the trainer's arguments unchanged."""
    return click.Argument(["trainer_args"], nargs=-1, type=click.UNPROCESSED)


def own_arguments(words: Sequence[str]) -> tuple[str, ...] | None:
    """Return the trainer's arguments of `run …` or `plan …`; None for another command or for help."""
    if not words or words[0] not in COMMANDS:
        return None
    name, *rest = words
    params: list[click.Parameter] = [trainer_arguments(), *([OUTPUT] if name == "plan" else [])]
    settings = {**PASS_THROUGH, "help_option_names": [*HELP_OPTIONS]}
    command = click.Command(name, params=params, context_settings=settings)
    args: tuple[str, ...] = command.make_context(name, [*rest], resilient_parsing=True).params["trainer_args"]
    helps = {*HELP_OPTIONS}
    return args if helps & {*args} or not helps & {*rest} else None
