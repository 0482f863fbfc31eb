"""Reads command lines of `stoker` itself: which command it is, and the trainer's arguments of `run` and `plan`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from stoker.contract.exits import ExitCode, RunError

RUN, PLAN = "run", "plan"
# Every other command of `stoker`.
OTHERS = (
    *("validate", "trainjob", "estimate", "doctor", "flags", "recipe", "local", "plot", "adapters", "sampler", "fleet"),
    *("rl", "slice", "tinker", "fetch", "runs", "status", "explain", "top", "logs", "get", "submit", "stop", "resume"),
    *("export", "evaluate", "chat", "board"),
)
HELP_OPTIONS = ("-h", "--help")
VERSION_OPTION = "--version"
# Our options end at the first word that is not one of them; the rest is the trainer's.
PASS_THROUGH: dict[str, Any] = {"ignore_unknown_options": True, "allow_interspersed_args": False}
OUTPUT = click.Option(
    ["--output"], type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format."
)
# A group without a command prints its help (click 8.2 and newer).
HELP_ERRORS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


@dataclass(frozen=True, slots=True)
class OwnCommand:
    """A command line of `stoker` that is about a run.

    Attributes:
        args: the trainer's arguments.
        trains: False if the plan is only printed.
    """

    args: tuple[str, ...]
    trains: bool


def trainer_arguments() -> click.Argument:
    """Return the parameter that takes the trainer's arguments unchanged."""
    return click.Argument(["trainer_args"], nargs=-1, type=click.UNPROCESSED)


def misspelled_option(words: Sequence[str]) -> str:
    """Return what is wrong if the arguments of `stoker plan` begin with an option that it nearly has; else nothing."""
    given = words[0].partition("=")[0] if words else ""
    known = [*OUTPUT.opts, "--help"]
    # A trainer's flag such as --output_dir is farther away.
    close = difflib.get_close_matches(given, known, n=1, cutoff=0.85)
    if not close or given in known:
        return ""
    return f"{given} is not an option of `stoker {PLAN}`: did you mean {close[0]}? Options come before the arguments"


def own_command(words: Sequence[str]) -> OwnCommand | None:
    """Return what the words after `stoker` are about; None if they are about no run: another command, or help.

    Raises:
        RunError: `stoker` refuses the words (64).
    """
    try:
        return _parsed(words)
    except click.UsageError as error:
        told = "the command is missing: write `stoker run`" if isinstance(error, HELP_ERRORS) else told_of(error)
        raise RunError(ExitCode.USAGE, told) from error


def told_of(error: click.UsageError) -> str:
    """Return what click refused, as our errors are written."""
    message = error.format_message().rstrip(".")
    where = f" (see `{error.ctx.command_path} --help`)" if error.ctx else ""
    return f"{message[:1].lower()}{message[1:]}{where}"


def _parsed(words: Sequence[str]) -> OwnCommand | None:
    # The names, options and arguments of `stoker.commands`; nothing here prints or acts.
    commands = [
        *(click.Command(name) for name in OTHERS),
        click.Command(RUN, params=[_ending(*HELP_OPTIONS), trainer_arguments()], callback=_run),
        click.Command(PLAN, params=[_ending(*HELP_OPTIONS), OUTPUT, trainer_arguments()], callback=_plan),
    ]
    for command in commands:
        command.add_help_option = False
        command.context_settings = {**PASS_THROUGH, "allow_extra_args": True}
    options = [_ending(*HELP_OPTIONS), _ending(VERSION_OPTION)]
    group = click.Group("stoker", commands, params=options, add_help_option=False, no_args_is_help=True)
    found = group.main([*words], "stoker", standalone_mode=False)
    return found if isinstance(found, OwnCommand) else None


def _run(trainer_args: tuple[str, ...]) -> OwnCommand:
    return OwnCommand(trainer_args, trains=True)


def _plan(trainer_args: tuple[str, ...], output: str) -> OwnCommand:
    return OwnCommand(trainer_args, trains=False)


def _ending(*names: str) -> click.Option:
    """Return an option that ends the command, such as `--help`."""

    def end(context: click.Context, _: click.Parameter, given: bool) -> None:
        if given:
            context.exit()

    return click.Option(names, is_flag=True, is_eager=True, expose_value=False, callback=end)
