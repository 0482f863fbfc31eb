"""Folders through which the processes of one attempt communicate: in the shared workspace, and inside one pod.

Every node sees `<workspace>/.stoker/runs/<run id>/`, which has each node's verdict. A folder inside the pod has what
only its own processes need: the plan, the stop flag, and one status file per rank.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stoker.contract.exits import PRECEDENCE, ExitCode
from stoker.contract.files import read_json, write_json
from stoker.contract.secrets import hide
from stoker.rank.pulse import Beat

# How long folders of other attempts are kept: they may belong to jobs that still run.
_KEPT_SECONDS = 7 * 24 * 3600
_VERDICTS = "node-*.json"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a node's part of the run ended.

    Attributes:
        code: the exit code.
        message: one line a human understands.
        primary: True if the cause is on this node; False if it only lost its peers.
    """

    code: ExitCode
    message: str
    primary: bool = True


@dataclass(frozen=True, slots=True)
class RankStatus:
    """The last status of one training process.

    Attributes:
        rank: its rank in the whole run.
        pid: its process id.
        phase: `starting`, `training` or `ended`.
        code: its exit code; None until it ends.
        message: why it ended.
        primary: False if it ended only because others did.
        result: the result of the finished training (rank 0): steps, loss, versions.
    """

    rank: int
    pid: int
    phase: str
    code: int | None = None
    message: str = ""
    primary: bool = True
    result: dict[str, Any] = field(default_factory=dict)


class SharedFolder:
    """The run's folder in the workspace, the same on every node.

    Args:
        workspace: the shared workspace.
        run_id: id of this attempt.
        node_rank: this node's rank.
    """

    def __init__(self, workspace: Path, run_id: str, node_rank: int) -> None:
        self.path = workspace / ".stoker" / "runs" / run_id
        self.node_rank = node_rank
        self._before: dict[str, int] = {}

    def forget_stops(self) -> None:
        """Leave out from now on that nodes were stopped: a run that is resumed has the same attempt as before."""
        for path in _listed(self.path, _VERDICTS):
            data = read_json(path)
            if data is not None and data["code"] == ExitCode.STOPPED:
                with suppress(OSError):  # its node may remove it
                    self._before[path.name] = path.stat().st_mtime_ns

    def publish(self, verdict: Verdict) -> None:
        """Tell the other nodes how this one ended.

        Raises:
            OSError: the workspace cannot be written to.
        """
        data = {"code": int(verdict.code), "message": hide(verdict.message), "primary": verdict.primary}
        write_json(self.path / f"node-{self.node_rank}.json", data)

    def verdicts(self) -> dict[int, Verdict]:
        """Return the other nodes' verdicts so far, by node rank."""
        found = {}
        # Listing the folder makes network filesystems drop a cached "not found".
        for path in _listed(self.path, _VERDICTS):
            rank = int(path.stem.removeprefix("node-"))
            data = read_json(path)
            if rank != self.node_rank and data is not None and not self._was_there(path):
                found[rank] = Verdict(ExitCode(data["code"]), data["message"], data["primary"])
        return found

    def _was_there(self, path: Path) -> bool:
        with suppress(OSError):
            return self._before.get(path.name) == path.stat().st_mtime_ns
        return False

    def publish_beats(self, beats: Mapping[int, Beat]) -> None:
        """Tell the other nodes where the ranks of this one hang.

        Raises:
            OSError: the workspace cannot be written to.
        """
        data = {str(rank): asdict(beat) for rank, beat in beats.items()}
        write_json(self.path / f"beats-{self.node_rank}.json", data)

    def beats(self) -> dict[int, Beat]:
        """Return where the ranks of the other nodes hang, by rank; empty while no node has noticed a hang."""
        told = (
            read_json(path) for path in _listed(self.path, "beats-*.json") if path.stem != f"beats-{self.node_rank}"
        )
        return {int(rank): Beat(**beat) for data in told if data for rank, beat in data.items()}

    def publish_idle(self, why: str) -> None:
        """Tell all nodes that the run is ended because nobody needs it.

        Raises:
            OSError: the workspace cannot be written to.
        """
        write_json(self.path / "idle.json", {"message": why})

    def idle(self) -> str | None:
        """Return why the run was ended as nobody needs it; None if it was not."""
        told = [data for path in _listed(self.path, "idle.json") if (data := read_json(path)) is not None]
        return str(told[0]["message"]) if told else None

    def forget_older_runs(self) -> None:
        """Remove the folders of old attempts."""
        for path in _listed(self.path.parent, "*"):
            # Another node may remove the same folder.
            with suppress(OSError):
                if path != self.path and path.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    shutil.rmtree(path)


class LocalFolder:
    """The pod's own folder: the plan of its processes, the stop flag and their statuses."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def plan(self) -> Path:
        """The file with the plan of the training processes."""
        return self.path / "plan.json"

    @property
    def failures(self) -> Path:
        """The file in which the launcher records how processes failed."""
        return self.path / "failures.json"

    @property
    def stop_flag(self) -> Path:
        """The file whose existence asks the processes to save and stop."""
        return self.path / "stop"

    @property
    def ranks(self) -> Path:
        """The folder with the statuses and pulses of this node's ranks."""
        return self.path / "ranks"

    def write_status(self, status: RankStatus) -> None:
        """Record the status of a rank."""
        write_json(self.ranks / f"{status.rank}.json", asdict(status))

    def statuses(self) -> list[RankStatus]:
        """Return the last status of each rank of this node, ordered by rank."""
        read = (read_json(path) for path in _listed(self.ranks, "*.json"))
        return sorted((RankStatus(**data) for data in read if data is not None), key=lambda status: status.rank)


def most_telling(verdicts: list[Verdict]) -> Verdict:
    """Return the verdict that explains best how a run ended."""
    return min(verdicts, key=lambda verdict: (PRECEDENCE.index(verdict.code), not verdict.primary))


def _listed(folder: Path, pattern: str) -> list[Path]:
    try:
        return [path for path in sorted(folder.glob(pattern)) if not path.name.startswith(".")]
    except OSError:
        return []


@contextmanager
def local_folder() -> Iterator[LocalFolder]:
    """Create the pod's own folder, and remove it at the end."""
    # A dying process may still write into it.
    with tempfile.TemporaryDirectory(prefix="stoker-", ignore_cleanup_errors=True) as path:
        yield LocalFolder(Path(path))
