"""`stoker slice`: engines that share a device take turns."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import uuid
from pathlib import Path

import click

from stoker.commands.group import PATH, reported, seconds
from stoker.contract.exits import ExitCode, RunError

# How long a command that cannot work waits in a pod for the guard: the kubelet starts the engine's container, and the
# guard in it, only after it has seen this command run.
_POD_SECONDS = 60.0
_FOLDER = click.option("--folder", required=True, type=PATH, help="Folder that `run` and `guard` share.")


@click.group(
    "slice",
    epilog="\b\nExamples:\n  stoker slice run gpu-0 --folder /slice --engine http://127.0.0.1:8000\n"
    "  stoker slice guard --folder /slice -- vllm serve /models/qwen",
)
def slice_group() -> None:
    """Let several engines take turns at one device."""


@slice_group.command(
    "run",
    epilog="\b\nExamples:\n  stoker slice run gpu-0 --folder /slice --engine http://127.0.0.1:8000\n"
    "  stoker slice run gpu-0 --folder /slice --engine http://127.0.0.1:8000 --sleep-level 0   # on CPUs\n"
    "  stoker slice run gpu-0 --folder /slice --park-command 'offload.sh out' --use-command 'offload.sh in'",
)
@click.argument("lease")
@_FOLDER
@click.option("--engine", help="This pod's vLLM, such as http://127.0.0.1:8000.")
@click.option(
    "--sleep-level",
    type=click.IntRange(0, 2),
    default=1,
    show_default=True,
    help="How vLLM sleeps: 1 keeps its weights in host memory, 2 drops them, 0 only pauses and frees no memory.",
)
@click.option("--config", type=PATH, help="vLLM's configuration, to refuse settings that it cannot combine with turns.")
@click.option("--park-command", help="Command that parks an engine other than vLLM; exits with 0 when it is parked.")
@click.option("--use-command", help="Command that resumes that engine; exits with 0 when it runs.")
@click.option(
    "--by-load",
    is_flag=True,
    help="Use the device only while there are requests. vLLM needs --enable-server-load-tracking.",
)
@click.option(
    "--idle-seconds",
    type=click.FloatRange(min=0),
    default=0.5,
    show_default=True,
    help="With --by-load: seconds without requests after which the engine is idle.",
)
@seconds("--quantum", 30.0, "Seconds that an engine keeps the device while others wait.")
@seconds(
    "--lease-seconds",
    10.0,
    "Seconds without a renewal after which an engine loses the device. Use the same for all engines.",
)
@seconds(
    "--hook-seconds",
    60.0,
    "Seconds that the engine may take to park, to resume or to load something before the guard kills it.",
)
@seconds("--start-seconds", 1800.0, "Seconds that vLLM may take to start.")
@click.option("--journal", type=PATH, help="File that gets a line of JSON for each switch.")
@click.option("--name", help="Name of this engine in the Lease; by default the host's name.")
@click.option("--api", help="Address of the API server; by default that of the pod's cluster.")
@click.option("--namespace", help="Namespace of the Lease; by default the pod's.")
@click.option("--account", type=PATH, help="Folder with token, ca.crt and namespace; by default the pod's account.")
@reported
def slice_run_command(
    lease: str,
    folder: Path,
    engine: str | None,
    sleep_level: int,
    config: Path | None,
    park_command: str | None,
    use_command: str | None,
    by_load: bool,
    idle_seconds: float,
    quantum: float,
    lease_seconds: float,
    hook_seconds: float,
    start_seconds: float,
    journal: Path | None,
    name: str | None,
    api: str | None,
    namespace: str | None,
    account: Path | None,
) -> None:
    """Take turns at the device that the Lease LEASE stands for.

    The command parks its engine while another engine holds the device. Start the engine with `stoker slice guard`: it
    kills an engine whose turn is over even if this command cannot.
    """
    from stoker.serve.slices import hooks as engines
    from stoker.serve.slices.leases import ACCOUNT, Leases
    from stoker.serve.slices.permits import Permits, telling_the_guard
    from stoker.serve.slices.reloads import Reloads
    from stoker.serve.slices.sharing import Journal, Sharing
    from stoker.serve.slices.turns import Rules, Turns

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with telling_the_guard(folder, _POD_SECONDS if "KUBERNETES_SERVICE_HOST" in os.environ else 0.0, stop):
        rules = Rules.within(lease_seconds, quantum)
        hooks: engines.Hooks
        if engine is not None and park_command is None and use_command is None:
            weights = engines.check_level(sleep_level, config)
            load_seconds = rules.renew if by_load else None
            hooks = engines.VllmHooks(engine, sleep_level, hook_seconds, start_seconds, load_seconds, weights=weights)
        elif engine is None and park_command and use_command and not by_load:
            if engines.check_level(0, config):  # commands put their engine to sleep as they like
                raise RunError(ExitCode.CONFIG, f"{config} has worker-extension-cls: {engines.COMMANDS_LOAD_NOTHING}")
            hooks = engines.CommandHooks(park_command, use_command, hook_seconds, os.environ)
        else:
            raise RunError(
                ExitCode.USAGE,
                "name the engine: --engine for vLLM, else --park-command and --use-command (without --by-load)",
            )
        leases = Leases.of_the_pod(os.environ, api, namespace, account or ACCOUNT, rules.renew)
        if not folder.is_dir():
            raise RunError(
                ExitCode.CONFIG, f"--folder {folder} is not a folder: mount one that the engine's guard sees too"
            )
        # A process that was started again must not be taken for the one before it.
        me = f"{name or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        turns = Turns(me, rules)
        permits, reloads, notes = Permits(folder), Reloads(folder, hook_seconds), Journal(journal, lease, me)
        Sharing(leases, lease, turns, hooks, permits, reloads, notes, idle_seconds if by_load else None).run(stop)


@slice_group.command(
    "guard",
    epilog="\b\nExamples:\n  stoker slice guard --folder /slice -- vllm serve --config /config/vllm.yaml",
)
@_FOLDER
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@reported
def slice_guard_command(folder: Path, command: tuple[str, ...]) -> int:
    """Start COMMAND when it is its turn, and kill it if it still runs when its turn is over.

    If COMMAND ends by itself, its exit code is used.
    """
    from stoker.serve.slices.guard import PermitGuard

    if not folder.is_dir():
        raise RunError(
            ExitCode.CONFIG, f"--folder {folder} is not a folder: mount one that `stoker slice run` sees too"
        )
    return PermitGuard(folder, command).run()


@slice_group.command("install", epilog="\b\nExamples:\n  stoker slice install --folder /slice")
@_FOLDER
@reported
def slice_install_command(folder: Path) -> None:
    """Copy the guard into the folder, for an engine image that has Python but no stoker.

    There, `python3 FOLDER/guard.py FOLDER COMMAND` is the same as `stoker slice guard`.
    """
    from stoker.serve.slices import guard

    shutil.copyfile(guard.__file__, folder / "guard.py")
    click.echo(folder / "guard.py")
