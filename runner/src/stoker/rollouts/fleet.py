"""The samplers of a run: which are there, which version each serves, and which one answers a request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.rollouts.addresses import Address, listed
from stoker.rollouts.connections import LostError, Place
from stoker.rollouts.lookup import places_of
from stoker.rollouts.records import Request, Turn
from stoker.rollouts.replicas import Needs, Replica, chosen
from stoker.rollouts.samplers import (
    AbsentError,
    BusyError,
    FaultError,
    SamplerError,
    SamplerRefusedError,
    Shown,
    UnfitError,
)

T = TypeVar("T")

_POLL_SECONDS = 1.0
_POLL_DOWN_SECONDS = 0.25
_RESOLVE_SECONDS = 2.0
_LOOK_PAUSES = (0.02, 0.25)
_WAIT_SECONDS = 0.5
# A replica that is there and does not say what it serves, so often in a row, is away.
_MISSES = 3
# A replica that is away for so long does not finish what it was asked for.
_AWAY_SECONDS = 30.0
# Answers that no training can use, of whatever replica, until the run ends for it.
_FAULTS = 8
# How the Service of a serving release's replicas ends.
_CONTROL = "-control"
# Groups whose replica is remembered.
_HOMES = 8192


class Fleet:
    """The samplers of a run. Any thread may use it, but requests come from one event loop.

    Args:
        addresses: where they are. A name may stand for several, and is looked up again all the time.
        name: the name of the run's versions, as `stoker.serve.adapters.live.claim` gave it.
        needs: what the run needs of each.
        wait_seconds: how long there may be no sampler at all.
        concurrency: the most requests to one sampler at the same time.
        answer_seconds: how long one answer may take.
        key: of the samplers' API; empty for none.

    Attributes:
        name: the name of the run's versions.
        newest: the newest version that can be asked for. Of adapters 0 is the base model; of whole weights it is
            published as well, and -1 stands for nothing yet.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        name: str,
        needs: Needs,
        *,
        wait_seconds: float = 600.0,
        concurrency: int = 256,
        answer_seconds: float = 1800.0,
        key: str = "",
    ) -> None:
        self.name, self.newest = name, -1 if needs.weights else 0
        self._offered = self.newest  # the newest version that a sampler may have taken
        self._addresses, self._needs, self._key = tuple(addresses), needs, key
        self._wait_seconds, self._concurrency, self._answer_seconds = wait_seconds, concurrency, answer_seconds
        self._replicas: tuple[Replica, ...] = ()
        self._unknown: dict[Address, str] = {}  # addresses that stand for nothing now, and why
        self._followers: dict[Place, asyncio.Task[None]] = {}
        self._resolved = self._closed = False
        self._warned: dict[str, str] = {}
        # Of the loop that the requests come from.
        self._users: asyncio.AbstractEventLoop | None = None
        self._homes: OrderedDict[int, Replica] = OrderedDict()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._answered = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="samplers", daemon=True)
        self._thread.start()

    # What a trainer asks before the first step, and shows.

    def check(self, waiting: Callable[[str], None] = lambda _reason: None) -> None:
        """Wait until a sampler is ready and every one that answers has said what it serves.

        Args:
            waiting: called about once a second with what it waits for.

        Raises:
            RunError: a sampler does not fit the run (78), or none was ready in time (75).
        """
        started = told = time.monotonic()
        while True:
            replicas = self._replicas
            if wrong := [f"sampler {replica.name}: {replica.refused}" for replica in replicas if replica.refused]:
                raise RunError(ExitCode.CONFIG, "\n".join(wrong))
            if self._resolved and any(replica.up for replica in replicas) and all(one.polled for one in replicas):
                return
            now = time.monotonic()
            if now - started > self._wait_seconds:
                raise self._nobody()
            if now - told >= 1:
                told = now
                waiting(f"waiting for samplers: {self._troubles()}")
            time.sleep(0.02)

    def ready(self) -> tuple[str, ...]:
        """Return the names of the samplers that serve the newest version."""
        return tuple(replica.name for replica in self._replicas if replica.serves(self._version(self.newest)))

    def context(self) -> int | None:
        """Return the most tokens, prompt and answer, that every ready sampler takes; None if none says so."""
        lengths = [replica.length for replica in self._replicas if replica.up and replica.length is not None]
        return min(lengths, default=None)

    def size(self) -> int:
        """Return how many samplers are known, ready or not."""
        return len(self._replicas)

    def under_way(self) -> dict[str, int]:
        """Return how many requests each sampler works at, by its name."""
        return {replica.name: replica.in_flight for replica in self._replicas}

    # What the engine asks.

    async def complete(self, request: Request) -> Turn:
        """Return the answer of a sampler. A lost sampler is no error: another one is asked.

        Raises:
            RunError: the samplers refuse the request (78), no sampler has answered anything for too long (75), or none
                answers this request with tokens (70).
        """
        self._users = asyncio.get_running_loop()
        version = self._version(request.version)
        started = time.monotonic()
        since: float | None = None  # when it began to be in vain
        faults, looked = 0, set[Replica]()
        while True:
            now = time.monotonic()
            replica = self._choose(version, request.ordinal, now)
            if replica is None:
                if since is not None and now - max(since, self._answered) > self._wait_seconds:
                    raise self._nobody(version)
                there = any(one.serves(version) and one.works(now) for one in self._replicas)
                since = None if there else now if since is None else since
                await self._news()
                continue
            held = replica.held(self.name)
            if self._needs.weights and held is None:  # it was lost in this very moment
                continue
            replica.in_flight += 1
            try:
                named = replica.base if held is not None else version or replica.base
                written = await replica.data.complete(request, named, self._answer_seconds)
            except BusyError:
                since = None  # it is there
                replica.failed(time.monotonic(), busy=True)
            except AbsentError as error:
                if not version or held is not None:
                    self._later(replica.lost, str(error))
                elif replica not in looked:  # it started anew, and its versions are on their way
                    looked.add(replica)
                    await self._elsewhere(self._look(replica, version))
                else:
                    faults = self._fault(replica, request, error, faults)
            except FaultError as error:
                faults = self._fault(replica, request, error, faults)
            except LostError as error:
                since = time.monotonic() if since is None else since  # until now it was there
                replica.failed(time.monotonic())
                if not error.connected:
                    self._later(replica.lost, str(error))
            except UnfitError as error:  # its key has changed
                since = time.monotonic() if since is None else since  # until now it was there
                replica.failed(time.monotonic())
                self._later(replica.unfit, str(error))
            except SamplerRefusedError as error:
                raise RunError(
                    ExitCode.CONFIG,
                    f"sampler {replica.name} refuses turn {request.turn} of sample {request.index} of group "
                    f"{request.ordinal} ({len(request.prompt_ids)} tokens of prompt, up to {request.max_tokens} of "
                    f"answer): {error}",
                ) from error
            else:
                replica.answered()
                self._answered = time.monotonic()
                # Weights may have changed under the request, at most to what was offered until now.
                oldest, newest = (request.version, None) if held is None else (held, max(held, self._offered))
                return Turn(
                    request.prompt_ids, written.ids, written.logprobs, oldest, written.finish, replica.name,
                    self._answered - started, newest,
                )  # fmt: skip
            finally:
                replica.in_flight -= 1
                self._retire(replica)
                self._wake(1)

    # What the publisher asks.

    def offer(self, version: int) -> None:
        """Note that samplers may take a version from now on, before it can be asked for."""
        self._offered = max(self._offered, version)

    def refusals(self, version: int) -> dict[str, str]:
        """Return why samplers do not serve a version, by their names."""
        name = self._version(version)
        return {
            replica.name: replica.problems[name]
            for replica in self._replicas
            if name in replica.problems and not replica.serves(name)
        }

    def spread(self, version: int, seconds: float, stop: Callable[[], bool] = lambda: False) -> tuple[str, ...]:
        """Wait until every ready sampler serves a version; then requests may name it.

        A sampler that does not serve it in time is asked for newer versions no more until it serves the newest one.

        Args:
            version: the version, which is published.
            seconds: how long one sampler may hold up the others.
            stop: returns True to end the wait.

        Returns:
            the names of the samplers that serve it; none if the wait was ended.

        Raises:
            RunError: every sampler refuses it (78), or no sampler has been ready for too long (75).
        """
        return self._awaited(self._spread(version, seconds), stop) or ()

    def probe(
        self, requests: Sequence[Request], seconds: float, stop: Callable[[], bool] = lambda: False
    ) -> tuple[Turn, ...]:
        """Have each sampler that has exactly the version of requests answer all of them.

        The caller must be the one who offers versions, and offer none meanwhile. Then no other version can have written
        a token of what is returned, also where weights change under requests.

        Args:
            requests: what to ask, all of one version.
            seconds: how long to wait.
            stop: returns True to end the wait.

        Returns:
            the answers that came; none if the wait was ended.
        """
        return self._awaited(self._probe(requests, seconds), stop) or ()

    def remind(self, version: int) -> None:
        """Let the samplers that do not serve a version look again; return at once."""
        name = self._version(version)
        for replica in self._replicas:
            if replica.up and not replica.serves(name):
                asyncio.run_coroutine_threadsafe(self._look(replica, name), self._loop)

    def close(self) -> None:
        """End the thread and all connections."""
        if self._closed:
            return
        self._closed = True
        self._tell_users(self._close_data)
        self._later(self._loop.stop)
        self._thread.join(2)

    # In the loop of the requests.

    def _version(self, version: int) -> str:
        return "" if version <= (-1 if self._needs.weights else 0) else f"{self.name}:{version}"

    def _choose(self, version: str, ordinal: int, now: float) -> Replica | None:
        """Return the replica for a request; None if there is none now."""
        fit = [replica for replica in self._replicas if replica.serves(version)]
        free = [replica for replica in fit if replica.free(now)]
        if not free:
            return None
        home = self._homes.get(ordinal)
        if home in free:
            return home
        found = chosen(free, ordinal)
        if home not in fit:  # else it only has too much to do now
            self._homes[ordinal] = found
            if len(self._homes) > _HOMES:
                self._homes.popitem(last=False)
        return found

    def _fault(self, replica: Replica, request: Request, error: SamplerError, faults: int) -> int:
        replica.failed(time.monotonic())
        if faults + 1 >= _FAULTS:
            raise RunError(
                ExitCode.CRASHED,
                f"no sampler answers sample {request.index} of group {request.ordinal} with tokens; the last of "
                f"{_FAULTS} tries was at {replica.name}: {error}. See that sampler's log",
            )
        return faults + 1

    async def _news(self) -> None:
        """Wait until something changes, or a while."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        resting = [replica for replica in self._replicas if replica.rests(time.monotonic())]
        try:
            async with asyncio.timeout(0.05 if resting else _WAIT_SECONDS):
                await future
        except TimeoutError:
            with suppress(ValueError):
                self._waiting.remove(future)

    def _wake(self, count: int) -> None:
        while count and self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1

    def _awaited(self, work: Coroutine[Any, Any, T], stop: Callable[[], bool]) -> T | None:
        """Have something done in the fleet's own loop; None if the wait for it was ended."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while True:
            try:
                return future.result(0.2)
            except TimeoutError:
                if future.done() or stop() or self._closed:
                    future.cancel()
                    return None
            except CancelledError:
                return None

    async def _elsewhere(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the fleet's own loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _later(self, work: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the fleet is closed
            self._loop.call_soon_threadsafe(work, *args)

    def _retire(self, replica: Replica) -> None:
        """Close the connections to a replica that is gone, once it has answered what it was asked for."""
        if replica not in self._replicas and not replica.in_flight:
            replica.close("data")

    def _close_data(self) -> None:
        for replica in self._replicas:
            replica.close("data")

    # In the fleet's own loop.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        resolving = self._loop.create_task(self._resolve())
        try:
            self._loop.run_forever()
        finally:
            tasks = [resolving, *asyncio.all_tasks(self._loop)]
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            for replica in self._replicas:
                replica.close("control")
            self._loop.close()

    def _changed(self) -> None:
        """Let requests that wait look again."""
        self._tell_users(self._wake, len(self._waiting))

    def _tell_users(self, work: Callable[..., object], *args: object) -> None:
        """Do something in the loop of the requests, if there is one."""
        if self._users is not None:
            with suppress(RuntimeError):  # it has ended
                self._users.call_soon_threadsafe(work, *args)

    async def _resolve(self) -> None:
        """Keep the replicas those that the addresses stand for. A name that is slow to look up holds up no other."""
        found: dict[Address, dict[Place, str]] = {}
        asked = set[Address]()

        async def follow(address: Address) -> None:
            while True:
                try:
                    found[address] = await places_of(address)
                    why = ""
                except OSError as error:  # those that were known are asked on: the name service may be away
                    why = error.strerror or str(error)
                others = {other: known for other, known in self._unknown.items() if other != address}
                self._unknown = {**others, address: why} if why else others
                there = [places for one in self._addresses if (places := found.get(one))]
                self._keep({place: name for places in there for place, name in places.items()})
                asked.add(address)
                self._resolved = len(asked) == len(self._addresses)
                await asyncio.sleep(_RESOLVE_SECONDS)

        await asyncio.gather(*map(follow, self._addresses))

    def _keep(self, places: dict[Place, str]) -> None:
        """Follow the replicas at these places and no others."""
        known = {replica.place: replica for replica in self._replicas}
        gone = [replica for place, replica in known.items() if place not in places]
        for place, name in places.items():
            if place not in known:
                known[place] = Replica(name, place, self._key, self._concurrency)
                self._followers[place] = self._loop.create_task(self._follow(known[place]))
            known[place].name = name
        self._replicas = tuple(known[place] for place in places)
        for replica in gone:
            say(f"sampler {replica.name} is gone")
            self._followers.pop(replica.place).cancel()
            replica.close("control")
            self._tell_users(self._retire, replica)

    async def _follow(self, replica: Replica) -> None:
        """Ask a replica for what it serves, again and again."""
        up = time.monotonic()
        while True:
            await self._poll(replica)
            now = time.monotonic()
            up = now if replica.up else up
            if now - up > _AWAY_SECONDS and replica.in_flight:
                self._tell_users(replica.close, "data")
            await asyncio.sleep(_POLL_SECONDS if replica.up else _POLL_DOWN_SECONDS)

    async def _poll(self, replica: Replica) -> None:
        try:
            await self._ask(replica)
        finally:
            replica.polled = True

    async def _ask(self, replica: Replica) -> None:
        asked = _next(replica)
        try:
            shown = await replica.control.shown()
            if replica.unjudged(shown):
                await self._judge(replica, shown)
        except UnfitError as error:
            replica.unfit(str(error))
            self._warn(replica)
            return
        except (LostError, SamplerError) as error:
            slow = isinstance(error, BusyError) or (isinstance(error, LostError) and error.connected)
            replica.misses += 1
            if slow and replica.up and replica.misses < _MISSES:  # its machine may only have too much to do
                return
            if replica.up:
                say(f"sampler {replica.name} is away: {error}")
            replica.lost(str(error))
            return
        replica.misses = 0
        was = replica.up
        if replica.seen(shown, asked):
            self._changed()
        if replica.up and not was:
            say(f"sampler {replica.name} is ready")
        self._warn(replica)

    async def _judge(self, replica: Replica, shown: Shown) -> None:
        """Find out whether the run can use a replica. One that watches another folder would never have a version."""
        base = await replica.control.base()
        sees = (await replica.control.look([], folder=self.name)).sees if self._needs.loras else None
        replica.judge(base, shown, self._needs, sees, time.monotonic())

    def _warn(self, replica: Replica) -> None:
        """Say once why a replica is not used."""
        if replica.refused and self._warned.get(replica.name) != replica.refused:
            self._warned[replica.name] = replica.refused
            say(f"sampler {replica.name} is not used: {replica.refused}")

    async def _look(self, replica: Replica, version: str, seconds: float = 5.0) -> bool:
        """Let a replica look for a version; return False if it does not answer at all."""
        asked = _next(replica)
        try:
            shown = await replica.control.look([version] if version else [], seconds)
        except (LostError, SamplerError) as error:
            if isinstance(error, LostError) and not error.connected:
                replica.lost(str(error))
                return False
            return True
        if replica.seen(shown, asked):
            self._changed()
        return True

    async def _spread(self, version: int, seconds: float) -> tuple[str, ...]:
        name, before = self._version(version), self._version(self.newest)
        started = time.monotonic()
        present = [replica for replica in self._replicas if replica.serves(before)]
        await asyncio.gather(*(self._until_loaded(replica, name, started + seconds) for replica in present))
        while True:
            having = [replica for replica in self._replicas if replica.serves(name)]
            if having:
                break
            problems = [f"sampler {one.name}: {one.problems[name]}" for one in self._replicas if name in one.problems]
            if problems and len(problems) == len([one for one in self._replicas if one.up]):
                raise RunError(ExitCode.CONFIG, "\n".join(problems))
            if time.monotonic() - started > max(self._wait_seconds, seconds):
                raise self._nobody(name)
            await asyncio.gather(
                *(self._until_loaded(one, name, time.monotonic() + 1) for one in self._replicas if one.up)
            )
            await asyncio.sleep(_LOOK_PAUSES[-1])
        self.newest = version
        for replica in present:
            if replica.up and replica not in having:
                why = replica.problems.get(name, f"it did not load it in {seconds:g} s")
                say(f"sampler {replica.name} is left alone until it serves {name}: {why}")
        self._changed()
        return tuple(replica.name for replica in having)

    async def _until_loaded(self, replica: Replica, name: str, deadline: float) -> None:
        """Let a replica look until it serves a version, is away, or the deadline has passed."""
        pause, most = _LOOK_PAUSES
        while not replica.serves(name) and (left := deadline - time.monotonic()) > 0:
            if not await self._look(replica, name, left):
                return
            if not replica.serves(name):
                if not replica.up or (self._needs.weights and name in replica.problems):
                    return
                await asyncio.sleep(min(pause, left))
                pause = min(2 * pause, most)

    async def _probe(self, requests: Sequence[Request], seconds: float) -> tuple[Turn, ...]:
        async def ask(replica: Replica, request: Request) -> Turn | None:
            if not replica.held(self.name) == request.version == self._offered:
                return None
            began = time.monotonic()
            try:
                written = await replica.control.complete(request, replica.base, seconds)
            except (LostError, SamplerError):  # it is for the requests of the run to say what is wrong with it
                return None
            version, took = request.version, time.monotonic() - began
            if replica.held(self.name) != version:  # it has started anew
                return None
            return Turn(
                request.prompt_ids, written.ids, written.logprobs, version, written.finish, replica.name, took, version
            )

        asked = [ask(replica, request) for replica in self._replicas if replica.up for request in requests]
        return tuple(turn for turn in await asyncio.gather(*asked) if turn is not None)

    def _nobody(self, version: str = "") -> RunError:
        what = f"no sampler has served {version}" if version else "no sampler was ready"
        return RunError(
            ExitCode.STOPPED,
            f"{what} for {self._wait_seconds:g} s: {self._troubles(version)}; look at the samplers' pods and logs, or "
            "write a larger `--fleet_wait_seconds`",
        )

    def _troubles(self, version: str = "") -> str:
        """Return what is wrong with each sampler."""
        found = [f"{address.host} is not known ({why}{_advice(address)})" for address, why in self._unknown.items()]
        for replica in self._replicas:
            trouble = replica.problem or replica.problems.get(version, "")
            if not trouble and version and version not in replica.loaded:
                trouble = "it does not have the version"
            found.append(f"{replica.name} ({trouble or 'it does not answer'})")
        return listed(found) or "none is known yet"


def _advice(address: Address) -> str:
    """Return what to look at if a name is not known."""
    service = address.host.partition(".")[0]
    if not service.endswith(_CONTROL):
        return ""
    release = service.removesuffix(_CONTROL)
    return f"; the serving release {release} has this Service with rl.enabled alone, in its own namespace"


def _next(replica: Replica) -> int:
    replica.asked += 1
    return replica.asked
