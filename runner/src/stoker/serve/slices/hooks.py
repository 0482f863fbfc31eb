"""How an engine is parked, and how it gets its device back."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import yaml

from stoker.contract.exits import ExitCode, RunError
from stoker.serve.vllm import Server, ServerError

_ASK_SECONDS = 0.2
_LORA = "vLLM cannot wake up from sleep level 2 with LoRA: write --sleep-level 1"

COMMANDS_LOAD_NOTHING = (
    "a run that trains all weights needs vLLM, because commands cannot load weights: "
    "write --engine ADDRESS instead of --park-command and --use-command"
)
"""Why commands go with LoRA alone."""


class HookError(Exception):
    """An engine did not do as it was told, or nobody knows whether it did."""


class Hooks(Protocol):
    """What an engine is told."""

    def park(self) -> None:
        """Stop using the device, and keep what is under way.

        Raises:
            HookError: the engine did not.
        """

    def use(self, may: Callable[[], bool]) -> None:
        """Go on, where the engine has been parked or started.

        Args:
            may: whether it is worth while to wait for the engine.

        Raises:
            HookError: the engine did not.
            RunError: it never will (78).
        """

    def reload(self, name: str) -> list[dict[str, Any]]:
        """Pause, load the weights that were read, and go on.

        Args:
            name: of the version to load; nothing is loaded if it is not what was read.

        Returns:
            what each worker says of it.

        Raises:
            HookError: the engine did not: it must end, because its weights may be half loaded.
            RunError: it never will (78).
        """

    def load(self) -> int | None:
        """Return how many requests there are; None if nobody knows."""


class VllmHooks:
    """Parks vLLM.

    Args:
        address: of this pod's vLLM.
        level: sleep level; 0 pauses alone, where vLLM cannot sleep.
        seconds: how long vLLM may take to park, to go on, or to load weights.
        start_seconds: how long it may take to start.
        load_seconds: how long it may take to say its load; None: it is not asked.
        weights: it serves a run that trains all weights, of which its workers keep what they have.
    """

    def __init__(
        self,
        address: str,
        level: int,
        seconds: float,
        start_seconds: float,
        load_seconds: float | None,
        *,
        weights: bool = False,
    ) -> None:
        self._server, self._level, self._start_seconds = Server(address, seconds), level, start_seconds
        self._restore = "stoker_restore" if weights else "reload_weights"
        self._load_server = None if load_seconds is None else Server(address, load_seconds)

    def park(self) -> None:
        """Pause vLLM, or put it to sleep."""
        with _told():
            if self._level == 0:
                self._server.pause()
            else:
                self._server.sleep(self._level)

    def use(self, may: Callable[[], bool]) -> None:
        """Wake vLLM up, or wait for it to start."""
        self._wait(may)
        with _told():
            if self._level == 2 and any(adapter for _, adapter in self._server.models().values()):
                raise RunError(ExitCode.CONFIG, f"this server has an adapter: {_LORA}")
            if self._level and self._server.is_sleeping():
                if self._level == 2:
                    self._server.wake_up("weights")
                    self._server.workers(self._restore)
                    self._server.wake_up("kv_cache")
                else:
                    self._server.wake_up()
            self._server.resume()

    def reload(self, name: str) -> list[dict[str, Any]]:
        """Have vLLM's workers load what they read. vLLM stays paused if that fails."""
        with _told():
            self._server.pause()
            found = self._server.workers("stoker_swap", name=name)
            self._server.resume()
        return found

    def load(self) -> int | None:
        """Return how many requests vLLM has."""
        if self._load_server is None:
            return None
        try:
            return self._load_server.load_now()
        except ServerError:
            return None

    def _wait(self, may: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._start_seconds
        while True:
            try:
                self._server.models()
            except ServerError as error:
                if time.monotonic() >= deadline:
                    raise HookError(f"vLLM has not started in {self._start_seconds:g} s: {error}") from error
                if not may():
                    raise HookError(f"the turn was over before vLLM answered: {error}") from error
                time.sleep(_ASK_SECONDS)
            else:
                return


class CommandHooks:
    """Parks an engine with commands.

    Args:
        park: parks it, and exits with 0 when it is parked.
        use: lets it go on, and exits with 0 when it does.
        seconds: how long each may take.
        environ: the environment of both.
    """

    def __init__(self, park: str, use: str, seconds: float, environ: Mapping[str, str]) -> None:
        self._park, self._use = shlex.split(park), shlex.split(use)
        self._seconds, self._environ = seconds, {**environ}

    def park(self) -> None:
        """Run the command that parks."""
        self._run(self._park)

    def use(self, may: Callable[[], bool]) -> None:
        """Run the command that lets it go on."""
        self._run(self._use)

    def reload(self, name: str) -> list[dict[str, Any]]:
        """Refuse: only vLLM takes weights in place."""
        raise RunError(ExitCode.CONFIG, f"the watcher asks for {name}: {COMMANDS_LOAD_NOTHING}")

    def load(self) -> int | None:
        """Return None: a command has no requests."""
        return None

    def _run(self, command: list[str]) -> None:
        name = shlex.join(command)
        try:
            process = subprocess.Popen(command, env=self._environ, start_new_session=True)
        except OSError as error:
            raise RunError(ExitCode.CONFIG, f"`{name}` cannot be started: {error.strerror}") from error
        try:
            code = process.wait(self._seconds)
        except subprocess.TimeoutExpired as error:
            # What it has started must not let the engine go on later.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise HookError(f"`{name}` took longer than {self._seconds:g} s") from error
        if code:
            raise HookError(f"`{name}` ended with {code}")


@contextmanager
def _told() -> Iterator[None]:
    """Turn an error of vLLM into a HookError."""
    try:
        yield
    except ServerError as error:
        advice = ""
        if error.status == 404:
            advice = ": start vLLM with VLLM_SERVER_DEV_MODE=1, and with --enable-sleep-mode unless the level is 0"
        raise HookError(f"{error}{advice}") from error


def check_level(level: int, config: Path | None) -> bool:
    """Check that vLLM can wake up from a sleep level.

    Args:
        level: the level.
        config: vLLM's configuration, as `stoker sampler` writes it.

    Returns:
        whether the run trains all weights.

    Raises:
        RunError: it cannot, or the configuration cannot be read (78).
    """
    if config is None:
        return False
    try:
        content = yaml.safe_load(config.read_text()) or {}
        lora = bool(content.get("enable-lora") or content.get("enable_lora"))
        weights = bool(content.get("worker-extension-cls"))
    except (OSError, AttributeError, ValueError, yaml.YAMLError) as error:
        raise RunError(ExitCode.CONFIG, f"--config {config} is not a vLLM configuration: {error}") from error
    if level == 2 and lora:
        raise RunError(ExitCode.CONFIG, f"{config} has enable-lora: {_LORA}")
    return weights
