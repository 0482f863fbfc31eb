"""Serves the page until it is stopped."""

from __future__ import annotations

import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.board.looks import Looks
from stoker.board.sources import ResultFolder
from stoker.contract.exits import ExitCode, RunError
from stoker.contract.packages import from_checkout, not_installed
from stoker.contract.words import say
from stoker.runs.client import Client, connect
from stoker.runs.errors import KubeconfigError
from stoker.serve.web import port_errors

# What the extra `stoker[board]` brings.
PACKAGES = ("jinja2", "kubernetes", "starlette", "uvicorn")
_LOCAL = ("localhost", "127.0.0.1", "::1")
# Seconds for answers that are under way when it is stopped, and how many may be at once.
_GRACE, _AT_ONCE = 3, 64


@dataclass(frozen=True, slots=True)
class Board:
    """What to show, and where.

    Attributes:
        namespaces: whose runs; none for that of the kubeconfig or the pod.
        folders: `NAME=PATH` or `PATH` of what runs have left; `NAMESPACE/NAME` says to which runs it belongs, and
            `NAMESPACE/NAME/FOLDER` which folder of the claim is at the path.
        host: address to listen at; empty for all, of both families where the machine has them.
        port: port to listen at; 0 for a free one.
        waits: begin without folders that do not exist yet; the page says which.
        hosts: further names under which browsers reach it; `*` for any.
        root_path: path of the page behind a proxy that has others beside it.
        context: of the kubeconfig; None for its current one.
    """

    namespaces: tuple[str, ...]
    folders: tuple[str, ...]
    host: str
    port: int
    waits: bool = False
    hosts: tuple[str, ...] = ()
    root_path: str = ""
    context: str | None = None


def run(board: Board) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Raises:
        RunError: an option is wrong (64), a folder does not exist (66), a package or the kubeconfig is missing, or the
            port is taken (78).
    """
    try:
        import uvicorn

        from stoker.board.app import application
    except ImportError as error:
        if error.name and error.name.startswith("stoker"):
            raise
        problem = not_installed("this command", from_checkout("board"), error.name)
        raise RunError(ExitCode.CONFIG, problem) from error
    if board.root_path and not board.root_path.startswith("/"):
        raise RunError(ExitCode.USAGE, f"--root-path {board.root_path!r} is not a path: begin it with /")
    for name in board.hosts:
        if "*" in name.removeprefix("*.") and name != "*":
            raise RunError(ExitCode.USAGE, f"--allow-host {name!r} is not a name: write HOST, *.DOMAIN, or * for any")
    root = board.root_path.rstrip("/")
    client, problem = _client(board)
    home = client.namespace if client else ""
    looks = Looks(
        client, board.namespaces or ((home,) if client else ()), sources(board.folders, home, board.waits), problem
    )
    listening = _listen(board)
    # uvicorn ends as the signal would have: this way it is an end like any other.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    config = uvicorn.Config(
        application(looks, (*_LOCAL, *board.hosts), root),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_AT_ONCE,
        timeout_graceful_shutdown=_GRACE,
        lifespan="off",
        ws="none",
    )
    shown = f"[{board.host}]" if ":" in board.host else board.host or "localhost"
    say(f"the page is at http://{shown}:{listening.getsockname()[1]}{root}/")
    uvicorn.Server(config).run(sockets=[listening])


def sources(folders: Sequence[str], home: str, waits: bool = False) -> list[ResultFolder]:
    """Return the folders that are named.

    Args:
        folders: as in `Board`.
        home: the namespace of those that name none.
        waits: as in `Board`.

    Raises:
        RunError: one does not exist (66), or two have the same name (64).
    """
    found: dict[str, ResultFolder] = {}
    for given in folders:
        told, equals, path = given.partition("=")
        where = path if equals else given
        root = Path(where)
        namespace, name, below = _names(told) if equals else ("", root.resolve().name, "")
        if not name or not where:
            raise RunError(ExitCode.USAGE, f"--folder {given!r} names no folder: write PATH or NAME=PATH")
        if name in found:
            raise RunError(ExitCode.USAGE, f"--folder {given}: there is a folder {name} already: write NAME={root}")
        if not waits and not root.is_dir():
            raise RunError(ExitCode.NO_INPUT, f"--folder {given}: there is no folder {root}: correct the path")
        found[name] = ResultFolder(name, namespace or home, root, below)
    return [*found.values()]


def _names(told: str) -> tuple[str, str, str]:
    """Return what `CLAIM`, `NAMESPACE/CLAIM` or `NAMESPACE/CLAIM/FOLDER` says: namespace, claim and folder."""
    first, slash, rest = told.partition("/")
    name, _, below = rest.partition("/")
    return (first, name, below) if slash else ("", first, "")


def _client(board: Board) -> tuple[Client | None, str]:
    """Return the cluster's client, or none and why where folders can be shown without."""
    first = board.namespaces[0] if board.namespaces else None
    try:
        return connect(board.context, first), ""
    except KubeconfigError as error:
        if not board.folders or board.namespaces or board.context:
            raise
        return None, error.message


def _listen(board: Board) -> socket.socket:
    every = not board.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if every or ":" in board.host else socket.AF_INET
    with port_errors(board.host, board.port):
        return socket.create_server((board.host, board.port), family=family, dualstack_ipv6=every)
