"""What all commands share: our exit codes and our error lines, also for what click refuses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import click

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import report_error, say
from stoker.entry.own_command import HELP_ERRORS, told_of

P = ParamSpec("P")


class Commands(click.Group):
    """The commands. What click refuses ends with our exit code for wrong arguments."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the group's own options."""
        with _usage_code():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Parse and run a command."""
        with _usage_code():
            return super().invoke(ctx)


@contextmanager
def _usage_code() -> Iterator[None]:
    try:
        yield
    except click.UsageError as error:
        if isinstance(error, HELP_ERRORS):
            error.show()
        else:
            report_error(told_of(error))
        raise click.exceptions.Exit(ExitCode.USAGE) from error


# The command that reads the path reports an unreadable one, with our exit code.
PATH = click.Path(path_type=Path, readable=False)


def formatted(name: str = "output") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option that chooses between lines for people and JSON for programs.

    Args:
        name: of the command's parameter.
    """
    return click.option(
        "--output", name, type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format."
    )


def seconds(flag: str, default: float, told: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option of a time, more than 0 seconds."""
    above_zero = click.FloatRange(min=0, min_open=True)
    return click.option(flag, type=above_zero, default=default, show_default=True, help=told)


def _file_in_way(error: OSError) -> Path | None:
    """Return the file that stands where a folder is needed, if that is what is wrong."""
    if not isinstance(error, FileExistsError | NotADirectoryError) or not isinstance(error.filename, str):
        return None
    path = Path(error.filename)
    return next((one for one in (path, *path.parents) if one.is_file()), None)


def reported(command: Callable[P, int | None]) -> Callable[P, NoReturn]:
    """Turn a command's return value, RunError or OSError into an exit code and error lines."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> NoReturn:
        try:
            sys.exit(command(*args, **kwargs) or 0)
        except RunError as error:
            report_error(error.message)
            sys.exit(error.code)
        except BrokenPipeError:  # `| head`: click ends quietly
            raise
        except OSError as error:
            if (file := _file_in_way(error)) is not None:
                report_error(f"{file} is a file: name a folder")
                sys.exit(ExitCode.USAGE)
            report_error(
                f"{error.filename or 'the output of this command'} cannot be used ({error.strerror}): it must exist, "
                f"have free space, and be open to UID {os.geteuid()}, GID {os.getegid()}"
                if error.strerror
                else " ".join(str(error).split())  # of a library, not of the system
            )
            sys.exit(ExitCode.NO_INPUT if isinstance(error, FileNotFoundError) else ExitCode.CONFIG)
        except KeyboardInterrupt:
            say("interrupted")
            sys.exit(ExitCode.STOPPED)

    return wrapper
