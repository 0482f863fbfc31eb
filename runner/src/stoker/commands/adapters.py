"""`stoker adapters`: publish, check and serve LoRA adapters with vLLM."""

from __future__ import annotations

from pathlib import Path

import click

from stoker.commands.group import PATH, Commands, reported, seconds


@click.group(
    "adapters",
    cls=Commands,
    epilog="\b\nExamples:\n  stoker adapters publish /workspace/output /adapters support\n"
    "  stoker adapters check /workspace/output --model /models/qwen",
)
def adapters_group() -> None:
    """Publish, check and serve LoRA adapters with vLLM."""


@adapters_group.command(
    "check",
    epilog="\b\nExamples:\n  stoker adapters check /workspace/output --model /models/qwen --max-rank 16",
)
@click.argument("folder", type=PATH)
@click.option("--model", required=True, type=PATH, help="Folder of the server's base model.")
@click.option("--source", default="", help="Where the model came from, e.g. Qwen/Qwen3-0.6B.")
@click.option("--max-rank", default=512, show_default=True, help="Largest rank the server has room for.")
@click.option("--foreign", is_flag=True, help="Accept an adapter without the manifest of a run.")
@reported
def adapters_check_command(folder: Path, model: Path, source: str, max_rank: int, foreign: bool) -> None:
    """Check that a server can serve the adapter in FOLDER. Exit with 78 if it cannot."""
    from stoker.serve.adapters import prepare

    click.echo(prepare.verdict(folder, model, source, max_rank, require_manifest=not foreign))


@adapters_group.command(
    "prepare",
    epilog="\b\nExamples:\n  stoker adapters prepare --settings /settings/adapters.yaml --output /config\n"
    "  vllm serve /models/qwen --config /config/vllm.yaml",
)
@click.option("--settings", required=True, type=PATH, help="Settings of the adapters (YAML).")
@click.option("--output", required=True, type=PATH, help="Folder for vllm.yaml.")
@reported
def adapters_prepare_command(settings: Path, output: Path) -> None:
    """Write vLLM's configuration for the adapters it starts with.

    The command checks them first, and exits with 78 if the server cannot serve one.
    """
    from stoker.serve.adapters import prepare
    from stoker.serve.adapters.settings import load

    prepare.prepare(load(settings), output)


@adapters_group.command(
    "watch",
    epilog="\b\nExamples:\n  stoker adapters watch --settings /settings/adapters.yaml --server http://127.0.0.1:8000",
)
@click.option("--settings", required=True, type=PATH, help="Settings of the adapters (YAML).")
@click.option("--server", default="http://127.0.0.1:8000", show_default=True, help="This replica's vLLM.")
@click.option("--host", default="", help="Address to report at; default: all addresses of this machine.")
@click.option("--port", type=click.IntRange(1, 65535), default=8081, show_default=True, help="Port to report at.")
@seconds("--interval", 1.0, "Seconds between two checks.")
@click.option(
    "--slice",
    "slices",
    type=PATH,
    help="Folder shared with `stoker slice run`, where replicas take turns at a device; loads then wait for a turn.",
)
@reported
def adapters_watch_command(
    settings: Path, server: str, host: str, port: int, interval: float, slices: Path | None
) -> int:
    """Load and unload adapters as they are published and retracted.

    The command watches one replica, and reports its adapters at /readyz, /adapters and /metrics.
    """
    from stoker.serve.adapters import watch
    from stoker.serve.adapters.settings import load

    return watch.run(load(settings), server, (host, port), interval, slices)


@adapters_group.command(
    "publish",
    epilog="\b\nExamples:\n  stoker adapters publish /workspace/output /adapters support\n"
    "  stoker adapters publish /workspace/output /adapters policy --version 120",
)
@click.argument("output", type=PATH)
@click.argument("folder", type=PATH)
@click.argument("name")
@click.option("--version", type=int, help="Number of the version; by default the next one.")
@reported
def adapters_publish_command(output: Path, folder: Path, name: str, version: int | None) -> None:
    """Publish a finished run's adapter as a new version.

    OUTPUT is the run's output folder, FOLDER the servers' folder, NAME the adapter's name. The command prints the
    version's name.
    """
    from stoker.serve.adapters import versions

    click.echo(versions.publish(output, folder, name, version).name)


@adapters_group.command(
    "retract",
    epilog="\b\nExamples:\n  stoker adapters retract /adapters support 3\n"
    "  stoker adapters retract /adapters my-run-a0     # everything that a killed run left",
)
@click.argument("folder", type=PATH)
@click.argument("name")
@click.argument("version", type=int, required=False)
@reported
def adapters_retract_command(folder: Path, name: str, version: int | None) -> None:
    """Remove VERSION of NAME from FOLDER, or all versions. Servers unload them."""
    from stoker.serve.adapters import versions

    if version is None:
        versions.retract_all(folder, name)
    else:
        versions.retract(folder, name, version)
