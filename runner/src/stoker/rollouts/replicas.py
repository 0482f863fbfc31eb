"""One replica of the samplers: what is known of it, how busy it is, and which replica a group is given to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stoker.rollouts.connections import Connections, Place
from stoker.rollouts.samplers import Base, Sampler, Shown
from stoker.serve.adapters.check import is_hub_name
from stoker.serve.adapters.fingerprint import difference

_BACKOFF = (0.1, 5.0)
# A replica with more than this many times the mean of requests is left alone.
_SPILL = 1.5
# How long a shared file system may take to show a new folder.
_LAG_SECONDS = 30.0
_BLIND = (
    "it does not see the versions of this run: let --adapters be the folder that published.claim and published.path of "
    "its release name"
)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run needs of every sampler.

    Attributes:
        source: where its base model comes from, such as `Qwen/Qwen3-0.6B`; a path says nothing.
        revision: its revision there; empty if not known.
        fingerprint: of its base model (see `stoker.serve.adapters.fingerprint`); empty if not known.
        prompt: tokens of its longest prompt.
        row: where that prompt is, such as `row 5 of the data set`; empty if not known.
        answer: tokens of its longest answer.
        loras: versions that requests may name at the same time; 0 if it publishes none.
        rank: of its adapters.
        weights: it trains all weights, which samplers take in place.
    """

    source: str = ""
    revision: str = ""
    fingerprint: str = ""
    prompt: int = 0
    answer: int = 0
    loras: int = 0
    rank: int = 0
    row: str = ""
    weights: bool = False


class Replica:
    """One replica. The fleet's own thread changes what is known, the loop of the requests how busy it is.

    Args:
        name: what messages call it.
        place: where it listens.
        key: of its API.
        concurrency: the most requests at the same time.

    Attributes:
        up: it takes requests.
        problem: why it takes none.
        refused: why the run cannot use it, whatever it does; empty if it can.
        base: what requests call its base model; empty until it is known.
        length: the most tokens that it takes, prompt and answer; None if not known.
        loaded: names of the versions that it serves.
        problems: why it does not serve a version, by name.
        in_flight: requests under way.
    """

    def __init__(self, name: str, place: Place, key: str, concurrency: int) -> None:
        self.name, self.place = name, place
        watcher = place if place.watcher is None else replace(place, port=place.watcher, tls=False)
        self._connections = {
            "control": (Connections(place, key), Connections(watcher, key)),
            "data": (Connections(place, key), Connections(watcher, key)),
        }
        self.control, self.data = (Sampler(*self._connections[kind]) for kind in ("control", "data"))
        self.up, self.problem, self.refused = False, "it was not asked yet", ""
        self.base, self.loaded, self.problems = "", frozenset[str](), dict[str, str]()
        self.length: int | None = None
        self.asked = 0  # how often it was asked what it serves
        self.misses = 0  # how often it has not said so since it last did
        self.polled = False  # it has answered, or has been found not to
        self.in_flight = 0
        self._judged: Mapping[str, Any] = {}  # what it said of its base model then
        self._blind_since: float | None = None  # when it did not see the run's versions for the first time
        self._answered = 0  # which of these answers is the newest
        self._concurrency = self._limit = float(concurrency)
        self._failures = 0
        self._rest_until = 0.0
        self._busy = False  # it rests because it had too much to do

    def seen(self, shown: Shown, asked: int) -> bool:
        """Take what it says of itself, unless a later question was answered before; return whether that is new."""
        if asked < self._answered:
            return False
        before = (self.up, self.loaded)
        self._answered = asked
        self.loaded, self.problems = shown.loaded, dict(shown.problems)
        self.up = shown.ready and not self.refused and bool(self.base)
        waits = "it does not see the run's folder yet" if self._blind_since else "its model does not answer yet"
        self.problem = self.refused or ("" if shown.ready and self.base else waits)
        return before != (self.up, self.loaded)

    def lost(self, problem: str) -> None:
        """Note that it does not answer. Another one may answer there the next time."""
        self.up, self.problem, self.base, self.refused = False, problem, "", ""

    def unfit(self, problem: str) -> None:
        """Note that the run cannot ask it. That may change: it is judged anew all the time."""
        self.lost(problem)
        self.refused = problem

    def unjudged(self, shown: Shown) -> bool:
        """Return whether it is to be judged: anew if it has become another one, and as long as it is refused."""
        return shown.ready and (not self.base or bool(self.refused) or shown.server != self._judged)

    def judge(self, base: Base, shown: Shown, needs: Needs, sees: bool | None, now: float) -> None:
        """Find out whether the run can use it.

        Args:
            base: its base model.
            shown: what it says of itself.
            needs: what the run needs.
            sees: whether it sees the folder of the run's versions; None if that is not known.
            now: a time in seconds.
        """
        self.base, self.length = base.name, base.length
        self.refused, self._judged = misfit(base, shown, needs), shown.server
        if sees is not False:
            self._blind_since = None
        elif self._blind_since is None:
            self._blind_since = now
        if self._blind_since is not None and not self.refused:
            self.base = ""  # it is judged anew
            if now - self._blind_since >= _LAG_SECONDS:
                self.refused = _BLIND

    def serves(self, version: str) -> bool:
        """Return whether it can be asked for a version; an empty name stands for the base model.

        One whose weights change in place has one version at a time, and answers for the earlier ones of that run.
        """
        if not self.up or not version or version in self.loaded:
            return self.up
        run, _, number = version.rpartition(":")
        held = self.held(run)
        return held is not None and held >= int(number)

    def held(self, run: str) -> int | None:
        """Return the version of a run that its weights are; None if they are none of it, or do not change in place."""
        if not self._judged.get("weights"):
            return None
        return max((int(name.rpartition(":")[2]) for name in self.loaded if name.startswith(f"{run}:")), default=None)

    def rests(self, now: float) -> bool:
        """Return whether it failed just now."""
        return now < self._rest_until

    def works(self, now: float) -> bool:
        """Return whether it answers requests, though it may have too much to do for another one."""
        return self._busy or not self.rests(now)

    def free(self, now: float) -> bool:
        """Return whether it may get another request."""
        return not self.rests(now) and self.in_flight < int(self._limit)

    def answered(self) -> None:
        """Note a request that it answered."""
        self._failures = 0
        self._limit = min(self._concurrency, self._limit + 1 / self._limit)

    def failed(self, now: float, *, busy: bool = False) -> None:
        """Note a request that it did not answer. It rests, longer with each failure; those under way count once."""
        if self.rests(now):
            return
        least, most = _BACKOFF
        self._busy = busy
        self._rest_until = now + min(most, least * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        if busy:
            self._limit = max(1.0, self._limit / 2)

    def close(self, which: str) -> None:
        """Close its connections of one kind, `control` or `data`, in the loop that they belong to."""
        for connections in self._connections[which]:
            connections.close()


def misfit(base: Base, shown: Shown, needs: Needs) -> str:
    """Return why a run cannot use a sampler, and what to do; empty if it can."""
    server = shown.server
    source, revision = str(server.get("source") or ""), str(server.get("revision") or "")
    same = "give trainer and samplers the same model"
    if is_hub_name(needs.source) and is_hub_name(source):
        if needs.source.lower() != source.lower():
            return f"it serves {source}, but the run trains {needs.source}: {same}"
        if needs.revision and revision and needs.revision != revision:
            return f"it serves revision {revision} of {source}, but the run trains {needs.revision}: {same}"
    if differs := difference(needs.fingerprint, str(server.get("fingerprint") or "")):
        return f"it serves another base model ({base.name}: {differs}): {same}"
    if base.length is not None and base.length < needs.prompt + needs.answer:
        where = f" ({needs.row})" if needs.row else ""
        return (
            f"it takes {base.length} tokens, but the longest prompt{where} has {needs.prompt} and an answer up to "
            f"{needs.answer}: give the samplers more memory, or raise their max-model-len; or lower "
            "--max_completion_length, or shorten the prompts"
        )
    if needs.weights and not server.get("weights"):
        return (
            "it serves adapters, but the run trains all weights: start it with `stoker sampler` for this run, "
            "or train an adapter (--use_peft)"
        )
    if needs.rank and server.get("weights"):
        return "it takes whole weights, but the run trains an adapter: start it with `stoker sampler` for this run"
    rank, loras = server.get("max_rank"), server.get("max_loras")
    if isinstance(rank, int) and rank < needs.rank:
        return (
            f"it takes adapters up to rank {rank}, but the run's have {needs.rank}: "
            "raise lora.maxRank, or lower --lora_r"
        )
    if isinstance(loras, int) and loras < needs.loras:
        return (
            f"it has room for {loras} adapters at a time, but the run needs {needs.loras}: "
            "raise lora.maxLoras, or lower --max_staleness"
        )
    return ""


def chosen(replicas: Sequence[Replica], ordinal: int) -> Replica:
    """Return the replica of a group among those that are free: rendezvous hashing, past those that are overloaded.

    All samples of a group share a prompt, which its replica then computes once. Only the groups of a replica that goes
    away move.
    """
    mean = sum(replica.in_flight for replica in replicas) / len(replicas)
    order = sorted(replicas, key=lambda replica: weight(ordinal, replica.name), reverse=True)
    return next(replica for replica in order if replica.in_flight <= _SPILL * mean)


def weight(ordinal: int, name: str) -> bytes:
    """Return how much a replica wants a group."""
    return hashlib.blake2b(f"{ordinal} {name}".encode(), digest_size=8).digest()
