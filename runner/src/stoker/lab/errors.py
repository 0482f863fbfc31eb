"""The one error of this package: something that its user can fix."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.contract.exits import ExitCode, RunError


class LabError(RunError, ValueError):
    """What is wrong, where, and what to write instead; one line for each problem.

    It is a ValueError, as Python code expects of a wrong argument, and has the exit code of a run that ends so.
    """

    def __init__(self, message: str, code: ExitCode = ExitCode.CONFIG) -> None:
        super().__init__(code, message)


def closed(what: str, *, again: str = "adapter=FOLDER") -> LabError:
    """Return what to say to a use of something after its end.

    Args:
        what: its kind, such as `policy`.
        again: what brings its adapter back into a new one; empty if it had none in this process.
    """
    rest = f", with {again} to go on from what save_lora wrote" if again else ""
    return LabError(f"this {what} is closed: make a new one{rest}")


def refuse(problems: Iterable[str], code: ExitCode = ExitCode.CONFIG) -> None:
    """Raise all problems at once, if there are any.

    Raises:
        LabError: there is a problem.
    """
    found = list(problems)
    if found:
        raise LabError("\n".join(found), code)
