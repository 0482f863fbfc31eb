"""Commands park an engine and let it go on; one that cannot is told, with what it has started."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from runner.tests.serve.slices.processes import wait_for

from stoker.contract.exits import RunError
from stoker.serve.slices.hooks import CommandHooks, HookError


def shell(script: str) -> str:
    """Return the command that runs a script of the shell."""
    return f"sh -c {shlex.quote(script)}"


def yes() -> bool:
    return True


def test_each_command_runs_with_the_environment(tmp_path: Path) -> None:
    write = 'echo {} "$WHO" >> "$FILE"'
    environ = {**os.environ, "FILE": str(tmp_path / "told"), "WHO": "gpu-0"}
    hooks = CommandHooks(shell(write.format("park")), shell(write.format("use")), 60, environ)
    hooks.park()
    hooks.use(yes)
    hooks.park()
    assert (tmp_path / "told").read_text().splitlines() == ["park gpu-0", "use gpu-0", "park gpu-0"]


def test_a_command_that_is_not_there_is_told_for_good() -> None:
    hooks = CommandHooks("/nowhere/park --now", "/nowhere/use", 60, {})
    with pytest.raises(RunError, match=r"`/nowhere/park --now` cannot be started: No such file") as refused:
        hooks.park()
    assert refused.value.code == 78
    with pytest.raises(RunError, match=r"`/nowhere/use` cannot be started: No such file"):
        hooks.use(yes)


def test_a_command_that_fails_is_told_with_its_code() -> None:
    hooks = CommandHooks(shell("exit 3"), shell("kill -9 $$"), 60, {**os.environ})
    with pytest.raises(HookError, match="exit 3'` ended with 3"):
        hooks.park()
    with pytest.raises(HookError, match=r"kill -9 \$\$'` ended with -9"):
        hooks.use(yes)


def test_a_command_that_takes_too_long_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    # Whoever has the pipe open lives: the shell, and what it waits for.
    os.mkfifo(tmp_path / "pipe")
    lives = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    script = f"exec > {shlex.quote(str(tmp_path / 'pipe'))}; echo begun; sleep 600 & wait"
    hooks = CommandHooks(shell(script), "true", 2, {**os.environ})
    try:
        with pytest.raises(HookError, match="took longer than 2 s"):
            hooks.park()
        assert os.read(lives, 100) == b"begun\n"

        def are_gone() -> bool:
            try:
                return os.read(lives, 100) == b""
            except BlockingIOError:
                return False

        wait_for(are_gone, "what the command has started goes on", seconds=120)
    finally:
        os.close(lives)
