"""`stoker` as a user calls it, within the process of a test."""

from __future__ import annotations

from click.testing import CliRunner, Result
from runner.tests.samples import POD

from stoker.commands.main import main
from stoker.contract.variables import KNOWN


def invoke(*arguments: str, env: dict[str, str] | None = None) -> Result:
    """Run `stoker` without what the environment tells of a run, but with what `env` tells."""
    # None removes what the machine that runs the tests may have set.
    told: dict[str, str | None] = dict.fromkeys([*KNOWN, *POD])
    return CliRunner().invoke(main, arguments, env={**told, **(env or {})}, prog_name="stoker")


def stoker(*arguments: str, code: int = 0) -> Result:
    """Run `stoker` in this environment; it must end with this exit code."""
    result = CliRunner().invoke(main, arguments, prog_name="stoker")
    assert result.exit_code == code, f"{result.output}{result.stderr}"
    return result
