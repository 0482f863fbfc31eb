"""`stoker sampler`: what a sampler pod does before its vLLM starts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from stoker.commands.group import PATH, reported


@click.command(
    "sampler",
    epilog="\b\nExamples:\n  stoker sampler --output /config     # in a sampler pod of a TrainJob; then:\n"
    "  vllm serve --config /config/vllm.yaml\n"
    "  stoker adapters watch --settings /config/adapters.yaml\n\n"
    "  stoker sampler --output /tmp/config --vllm vllm-env/bin/vllm     # without Kubernetes: all of it",
)
@click.option("--output", required=True, type=PATH, help="Folder for vllm.yaml and adapters.yaml.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=1800.0,
    show_default=True,
    help="Seconds to wait for the trainer.",
)
@click.option("--vllm", help="Also start this vLLM and the watcher of its adapters, and serve until stopped.")
@click.option("--port", default=8000, show_default=True, help="Port of that vLLM, on loopback.")
@click.option("--watch-port", default=8081, show_default=True, help="Port of that watcher, on loopback.")
@click.argument("vllm_args", nargs=-1, type=click.UNPROCESSED)
@reported
def sampler_command(
    output: Path, wait: float, vllm: str | None, port: int, watch_port: int, vllm_args: tuple[str, ...]
) -> None:
    """Write vLLM's configuration for the samplers of a run.

    The command waits until the run's trainer has written into the workspace what to serve, and exits with 75 if that
    takes too long. VLLM_ARGS are more flags for --vllm; write -- before them.
    """
    from stoker.serve import sampler
    from stoker.serve.sampler_process import SamplerProcess

    stop = sampler.prepare(os.environ, output, wait)
    if vllm is not None:
        SamplerProcess(vllm, output, port, watch_port, vllm_args, os.environ).run(stop)


def sampler_plan(output: str) -> str:
    """Return what this sampler pod serves and why, for `stoker plan`.

    Args:
        output: `text` or `json`.

    Raises:
        RunError: the trainer has not said what to serve (75), or vLLM cannot serve it (78).
    """
    from stoker.serve import sampler

    request = sampler.wait_for_request(os.environ, 0)
    flags = sampler.flags_of(request)
    if output == "json":
        settings = sampler.adapter_settings(request)
        data = {"role": "sampler", "vllm": {flag.name: flag.value for flag in flags}, "adapters": settings}
        return json.dumps(data, indent=2)
    width = max(len(flag.name) for flag in flags)
    values = max(len(str(flag.value)) for flag in flags)
    return "\n".join(
        [
            f"sampler of {request.name}, versions in {request.adapters}",
            "",
            "vLLM's flags",
            *(f"  {flag.name:<{width}}  {flag.value!s:<{values}}  {flag.reason}" for flag in flags),
        ]
    )
