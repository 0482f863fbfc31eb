"""What all commands share: exit codes for what click refuses, and errors as one message."""

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

P = ParamSpec("P")


class Commands(click.Group):
    """The commands; what click itself refuses ends with our exit code for wrong arguments."""

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
        error.show()
        raise click.exceptions.Exit(ExitCode.USAGE) from error


# Whether it can be read is for who reads it, who has a code of ours for it.
PATH = click.Path(path_type=Path, readable=False)


def reported(command: Callable[P, int | None]) -> Callable[P, NoReturn]:
    """Turn a command's return value, RunError or OSError into the process's exit code and one message."""

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> NoReturn:
        try:
            sys.exit(command(*args, **kwargs) or 0)
        except RunError as error:
            for line in error.message.splitlines():
                click.echo(f"stoker: {line}", err=True)
            sys.exit(error.code)
        except BrokenPipeError:  # `| head`, which click ends quietly
            raise
        except OSError as error:
            where = error.filename or "what this command writes to"
            click.echo(
                f"stoker: {where} cannot be used ({error.strerror}): it must be there, have room, and be for UID "
                f"{os.geteuid()}, GID {os.getegid()}",
                err=True,
            )
            sys.exit(ExitCode.NO_INPUT if isinstance(error, FileNotFoundError) else ExitCode.CONFIG)
        except KeyboardInterrupt:
            click.echo("stoker: interrupted", err=True)
            sys.exit(ExitCode.STOPPED)

    return wrapper
