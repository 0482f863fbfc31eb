"""`stoker fleet`: calls that change a server, for all replicas of a release at once."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.commands.group import PATH, reported


@click.command(
    "fleet",
    epilog="\b\nExamples:\n  stoker fleet --folder /claims/adapters/adapters/.fleet-chat \\\n"
    "    --ready chat-replicas:8090 --known chat-control:8090",
)
@click.option("--folder", required=True, type=PATH, help="Folder of the fleet's state, which every replica reads.")
@click.option("--ready", required=True, help="HOST:PORT that resolves to the replicas that requests reach.")
@click.option("--known", required=True, help="HOST:PORT that resolves to all replicas, including those still starting.")
@click.option("--key-file", type=PATH, help="File with the key of the replicas' API.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to answer at.")
@click.option("--port", type=click.IntRange(1, 65535), default=8084, show_default=True, help="Port to answer at.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds that a call may take.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    show_default=True,
    help="Seconds between two checks of the replicas.",
)
@reported
def fleet_command(
    folder: Path,
    ready: str,
    known: str,
    key_file: Path | None,
    host: str,
    port: int,
    timeout: float,
    interval: float,
) -> None:
    """Apply calls that change a server to all replicas of a release.

    The paths are vLLM's: load and unload an adapter, load weights, pause, resume, drop caches. A call is answered with
    200 when every ready replica has done it, else with 502, and then every replica has the state before. /fleet shows
    the state.
    """
    from stoker.serve.fleet import serve

    fleet = serve.FleetService(folder, ready, known, key_file, timeout, interval)
    serve.run(fleet, (host, port))
