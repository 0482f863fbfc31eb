"""Decides how a node's part of a run ended, from what its processes left. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.contract.exits import ExitCode
from stoker.rank.folders import RankStatus, Verdict, most_telling


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known after the launcher of a node has ended.

    Attributes:
        processes: number of ranks planned for the node.
        statuses: the last status of each rank.
        failures: `rank`, `exitcode` and `pid` of the processes that the launcher saw fail, in that order.
        returncode: the launcher's exit code, negative for a signal.
        stopped: True if the node was asked to stop.
        peer: why this node ended its processes: another node's failure, or a hang; None if they ended alone.
        shortage: a sentence about kills at the memory limit; empty without kills, None if the kernel does not count.
    """

    processes: int
    statuses: Sequence[RankStatus]
    failures: Sequence[Mapping[str, Any]] = ()
    returncode: int | None = None
    stopped: bool = False
    peer: Verdict | None = None
    shortage: str | None = None


def all_ended(processes: int, statuses: Sequence[RankStatus]) -> bool:
    """Return True if every rank of the node has reported its end."""
    return len(statuses) == processes and all(status.phase == "ended" for status in statuses)


def judge(seen: Evidence) -> Verdict:
    """Return how this node's part ended: its ranks' verdicts first, then a peer's, a stop, and the launcher's."""
    ended = [Verdict(ExitCode(s.code), s.message, s.primary) for s in seen.statuses if s.code]
    # The ranks decide: if all have finished, a later failure of the launcher changes nothing.
    if all_ended(seen.processes, seen.statuses) and not ended:
        return Verdict(ExitCode.FINISHED, "finished")
    if ended and most_telling(ended).primary:
        return _explained(most_telling(ended), seen.shortage)
    killed = _killed(seen)
    if seen.peer is not None:
        # A peer that lost this node to the memory limit may speak before this node's launcher has ended.
        echo = seen.shortage and seen.peer.code is ExitCode.UNAVAILABLE
        return _explained(killed, seen.shortage) if killed is not None and echo else seen.peer
    if seen.stopped:
        return Verdict(
            ExitCode.STOPPED,
            "stopped before every process reported a saved checkpoint: the newest complete checkpoint counts",
        )
    if killed is not None:
        return _explained(killed, seen.shortage)
    if ended:
        return most_telling(ended)
    if seen.returncode == ExitCode.UNAVAILABLE:
        return Verdict(ExitCode.UNAVAILABLE, "the nodes did not find each other in time (see the log)", primary=False)
    return _explained(
        Verdict(ExitCode.CRASHED, f"the launcher ended with {seen.returncode} (see the log)"), seen.shortage
    )


def _explained(verdict: Verdict, shortage: str | None) -> Verdict:
    """Name the kernel's kill as the cause of a crash: the launcher only saw that the process was gone."""
    if not shortage or verdict.code is not ExitCode.CRASHED:
        return verdict
    return Verdict(verdict.code, f"{shortage} ({verdict.message})")


def _killed(seen: Evidence) -> Verdict | None:
    """Return the verdict on a rank that died without a status; None if the launcher saw none."""
    spoken = {status.rank for status in seen.statuses if status.code is not None}
    for failure in seen.failures:
        code = failure["exitcode"]
        # When one rank fails, the launcher ends the others with SIGTERM.
        if failure["rank"] in spoken or code == -signal.SIGTERM:
            continue
        return Verdict(ExitCode.CRASHED, f"rank {failure['rank']} {_death(code, seen.shortage)}")
    return None


def _death(code: int, shortage: str | None) -> str:
    if code == -signal.SIGKILL and shortage == "":
        return (
            "was killed (SIGKILL), but not at this container's memory limit: the node may be out of memory "
            "(see `kubectl describe node`), or somebody killed the process"
        )
    if code == -signal.SIGKILL and shortage is None:
        return "was killed (SIGKILL), probably because it was out of memory: raise the memory limit"
    if code < 0:
        # Most real-time signals have no name.
        named = -code in list(signal.Signals)
        return f"died of {signal.Signals(-code).name if named else f'signal {-code}'} (see the log)"
    return f"exited with {code} (see the log)"
