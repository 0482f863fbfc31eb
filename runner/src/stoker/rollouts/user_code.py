"""Starts and asks the process that runs users' rewards, tools and environments."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.rollouts import frames
from stoker.rollouts.background import in_background
from stoker.rollouts.failures import UserCodeError, UserCodeLostError
from stoker.rollouts.isolation import environment, memory_limit
from stoker.rollouts.link import Link

# A process that dies twice within so many groups would die again.
_GROUPS_BETWEEN_DEATHS = 100
# How long the process may need to say that it is alive, on a busy machine.
_PING_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Functions:
    """What a user named, as they wrote it.

    Attributes:
        rewards: reward functions.
        tools: tools of all rows.
        environments: name → class; the name is empty for one that all rows share.
    """

    rewards: Sequence[str] = ()
    tools: Sequence[str] = ()
    environments: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.rewards or self.tools or self.environments)


@dataclass(frozen=True, slots=True)
class Limits:
    """What users' code may take.

    Attributes:
        episode_seconds: for all that tools and the environment do in one episode.
        start_seconds: to import it.
        memory_bytes: of the process; None for half of what the container may use, `inf` for no limit.
    """

    episode_seconds: float = 600.0
    start_seconds: float = 600.0
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was imported.

    Attributes:
        rewards: names of the reward functions, then of the environments that judge themselves.
        tools: name of the environment → its tools as the chat template takes them; the name is empty if there is no
            environment, or one for all rows.
    """

    rewards: tuple[str, ...]
    tools: Mapping[str, list[dict[str, Any]]]

    @property
    def has_tools(self) -> bool:
        """Return whether the policy may call anything: an environment may have no tools."""
        return any(self.tools.values())


class UserCode:
    """The process of users' code. It is started here and then asked from one event loop.

    Args:
        functions: what it runs.
        columns: what messages call some data → the names of its columns; None if they are not known.
        limits: what it may take.
        python: the interpreter.

    Attributes:
        life: how often it was started.
    """

    def __init__(
        self,
        functions: Functions,
        columns: Mapping[str, Collection[str]] | None = None,
        limits: Limits | None = None,
        python: str = sys.executable,
    ) -> None:
        self.functions = functions
        self.limits = limits or Limits()
        self.life = 0
        self._columns = columns
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._stopped = False
        self._link: Link | None = None
        self._reviving: asyncio.Lock | None = None
        self._groups = 0
        self._last_death: int | None = None

    def start(self) -> Loaded:
        """Start the process and import what it runs; blocks until that is done. The caller's thread must live on.

        Raises:
            RunError: something cannot be used (64, 65, 66, 78).
        """
        loaded = self._hello(self._spawn())
        self.life += 1
        return loaded

    async def ask(self, do: str, seconds: float, limit: str, /, **request: Any) -> Any:
        """Have the process do something.

        Args:
            do: what, see `Host.do`.
            seconds: how long each function may take.
            limit: that limit in words.
            request: the rest of the request.

        Raises:
            UserCodeError: a function failed, or stopped the process from answering.
            UserCodeLostError: the process is gone.
        """
        link = self._linked()
        try:
            future = link.send({"do": do, "seconds": seconds, "limit": limit, **request})
        except TypeError as error:
            advice = "leave out the column, or keep texts and numbers in it"
            raise UserCodeError("the data", f"cannot be handed over ({error})", advice=advice) from error
        while True:
            done, _ = await asyncio.wait([future], timeout=seconds + 1)
            if done:
                return future.result()
            # It has a clock of its own, but cannot look at it while a function holds its event loop.
            if not (await asyncio.wait([link.send({"do": "ping"})], timeout=_PING_SECONDS))[0]:
                link.show_stacks()
                what = str(request.get("name") or (self.functions.rewards or [do])[0])
                problem, advice = (
                    f"took longer than {limit} and let nothing else run",
                    "the traceback above shows the blocking call: await it",
                )
                raise UserCodeError(what, problem, advice=advice)

    def close(self, episodes: Sequence[int]) -> None:
        """Let environments be used again. A process that is gone has none."""
        if self._link is not None and episodes:
            self._link.send({"do": "close", "episodes": list(episodes)})

    def group_written(self) -> None:
        """Count a group."""
        self._groups += 1

    async def revive(self, life: int) -> None:
        """Start the process again after its death, unless somebody did.

        Args:
            life: the one that ended.

        Raises:
            RunError: it died before, too recently (65).
        """
        self._reviving = self._reviving or asyncio.Lock()
        async with self._reviving:
            if self._stopped:
                raise RunError(ExitCode.STOPPED, "the rewards and environments were stopped")
            if self.life != life:
                return
            ended = self._ended()
            if self._last_death is not None and self._groups - self._last_death < _GROUPS_BETWEEN_DEATHS:
                raise RunError(
                    ExitCode.BAD_DATA,
                    f"the process of rewards and environments {ended} twice within {_GROUPS_BETWEEN_DEATHS} groups: "
                    "let its functions use less memory and never end their process, or give the pod more memory",
                )
            self._last_death = self._groups
            say(f"the process of rewards and environments {ended}; it starts again, and its episodes run again")
            self._drop()
            process = self._spawn()
            await in_background(partial(self._hello, process))
            self.life += 1

    def stop(self) -> None:
        """End the process and what it started, at once; from any thread."""
        self._stopped = True
        self._drop()
        process, self._process = self._process, None
        if process is not None:
            _kill(process)

    def _spawn(self) -> subprocess.Popen[bytes]:
        # The kernel ends it with the thread that starts it here.
        memory = memory_limit() if self.limits.memory_bytes is None else self.limits.memory_bytes
        process = subprocess.Popen(
            [self._python, "-m", "stoker.rollouts.child", str(os.getpid()), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(os.environ),
            start_new_session=True,
        )
        self._process = process
        self._ready = False
        return process

    def _hello(self, process: subprocess.Popen[bytes]) -> Loaded:
        """Have a new process import what it runs."""
        assert process.stdin is not None
        assert process.stdout is not None
        request = {
            "rewards": list(self.functions.rewards),
            "tools": list(self.functions.tools),
            "environments": dict(self.functions.environments),
            "columns": {data: list(names) for data, names in (self._columns or {}).items()},
        }
        try:
            process.stdin.write(frames.packed(request))
            process.stdin.flush()
            answer = frames.received_now(process.stdout.fileno(), self.limits.start_seconds)
        except BrokenPipeError:
            answer = None
        except TimeoutError:
            self.stop()
            raise RunError(
                ExitCode.CONFIG,
                f"rewards and environments were not imported after {self.limits.start_seconds:g} s: let their modules "
                "do less when they are imported",
            ) from None
        if answer is None:
            ended = self._ended()
            self.stop()
            raise RunError(
                ExitCode.CONFIG,
                f"the process that imports rewards and environments {ended}: let their modules use less memory, or "
                "give the pod more",
            )
        if "refused" in answer:
            self.stop()
            code, message = answer["refused"]
            raise RunError(ExitCode(code), message)
        self._ready = True
        return Loaded(tuple(answer["loaded"]["rewards"]), answer["loaded"]["tools"])

    def _linked(self) -> Link:
        if self._link is None:
            if self._process is None or not self._ready:
                raise UserCodeLostError(self.life)
            self._link = Link(self._process, self.life)
        self._link.check_loop()
        return self._link

    def _drop(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ended(self) -> str:
        """Return how the process ended, to follow its name in a sentence."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        _kill(self._process)
        if code is None:
            return "stopped answering"
        if code == -signal.SIGKILL:
            return "was killed (most likely, memory ran out)"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End a process and those it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
