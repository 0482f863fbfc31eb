"""`stoker estimate`: whether a model fits on the devices, before anything is downloaded or started."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from click.core import ParameterSource

from stoker.commands.group import PATH, reported
from stoker.contract.exits import ExitCode, RunError
from stoker.entry.own_command import OUTPUT, PASS_THROUGH, trainer_arguments

_MODEL = "/workspace/model"
_LEAST = 1 << 30


@click.command(
    "estimate",
    params=[
        click.Option(["--devices"], type=click.IntRange(1), default=1, show_default=True, help="Devices of a node."),
        click.Option(["--nodes"], type=click.IntRange(1), default=1, show_default=True, help="Number of nodes."),
        click.Option(["--device-memory"], metavar="SIZE", help="Memory of a device, such as 80Gi."),
        click.Option(["--method"], default="sft", show_default=True, help="Training method of TRL."),
        click.Option(
            ["--sharding"],
            type=click.Choice(["none", "full"]),
            default="none",
            show_default=True,
            help="Same as STOKER_SHARDING.",
        ),
        click.Option(["--runtime", "runtimes"], multiple=True, type=PATH, help="With TRAINJOB: file with runtimes."),
        click.Option(
            ["--model", "config"], type=PATH, metavar="FOLDER", help="With TRAINJOB: config.json of its model."
        ),
        click.Option(
            ["--measured"],
            type=PATH,
            metavar="OUTPUT",
            help="With TRAINJOB: output folder of a finished run, to estimate tokens and time from its speed.",
        ),
        OUTPUT,
        click.Argument(["model"], metavar="MODEL|TRAINJOB", type=PATH),
        trainer_arguments(),
    ],
    context_settings=PASS_THROUGH,
    epilog="\b\nExamples:\n"
    "  stoker estimate --device-memory 80Gi Qwen3-8B/config.json\n"
    "  stoker estimate --device-memory 80Gi --model Qwen3-8B --measured earlier/output trainjob.yaml\n"
    "  stoker estimate --devices 8 --device-memory 80Gi --sharding full /models/llama-70b --use_peft --lora_r 32\n"
    "\b\nExit codes:\n"
    "   0  it fits, or --device-memory is not given\n"
    "  64  wrong arguments, or a family of models that is not known\n"
    "  65  the measured run does not tell its speed\n"
    "  66  there is no config.json\n"
    "  78  it does not fit\n",
)
@reported
def estimate_command(
    devices: int,
    nodes: int,
    device_memory: str | None,
    method: str,
    sharding: str,
    runtimes: tuple[Path, ...],
    config: Path | None,
    measured: Path | None,
    output: str,
    model: Path,
    trainer_args: tuple[str, ...],
) -> int:
    """Estimate the memory that weights, gradients and optimizer of MODEL need on each device.

    MODEL is a config.json or a folder with one. TRAINER_ARGS are TRL's flags, such as --use_peft; `stoker plan` counts
    in the same way. The output lists what is not counted, such as activations. Options of this command come first.

    TRAINJOB is a file (*.yaml, *.json) with a TrainJob, which sets devices, method and flags itself. The command reads
    its runtime from the cluster, or from --runtime. With --measured, it estimates tokens and time from a finished run
    on the same data, model and kind of devices, assuming that speed grows with the number of processes.
    """
    from stoker.commands import describe
    from stoker.frameworks import TRL
    from stoker.node.read_inputs import read_model
    from stoker.plan.facts import Facts
    from stoker.plan.model_shape import FAMILIES
    from stoker.plan.resolve import read_request, resolve_plan

    device_bytes = None if device_memory is None else _bytes_of(device_memory)
    if model.suffix in (".yaml", ".yml", ".json") and model.name != "config.json":
        source = click.get_current_context().get_parameter_source
        names = ("devices", "nodes", "method", "sharding")
        if given := [f"--{name}" for name in names if source(name) is not ParameterSource.DEFAULT]:
            raise RunError(
                ExitCode.USAGE,
                f"{' and '.join(given)}: {model} is a TrainJob, which says this itself. Write it there, or name a "
                "model's folder",
            )
        return _of_trainjob(model, runtimes, config, measured, device_bytes, output, trainer_args)
    if runtimes or config or measured:
        raise RunError(
            ExitCode.USAGE, "--runtime, --model and --measured are for a TrainJob: name its file (*.yaml, *.json)"
        )
    folder = model.parent if model.name == "config.json" else model
    if not (folder / "config.json").is_file():
        raise RunError(ExitCode.NO_INPUT, f"{folder} has no config.json: name the model's folder, or its config.json")
    read = read_model(folder)
    if read.shape is None:
        raise RunError(
            ExitCode.USAGE,
            f"the weights of {folder} cannot be told from its config.json: only models that are not quantized, of the "
            f"families {', '.join(FAMILIES)}",
        )
    env = {
        "PET_NNODES": str(nodes),
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "localhost",
        "PET_NPROC_PER_NODE": "auto",
        "STOKER_RUN_ID": "estimate",
        "STOKER_ACCELERATOR": "nvidia",
        "STOKER_METHOD": method,
        "STOKER_SHARDING": sharding,
        "STOKER_ARG_MODEL_NAME_OR_PATH": _MODEL,
        "STOKER_ARG_DATASET_NAME": "/workspace/dataset",
    }
    facts = Facts(env, tuple(f"nvidia{index}" for index in range(devices)))
    ways = resolve_plan(read_request(facts, TRL(), trainer_args), model=read).ways
    if not ways:
        raise RunError(
            ExitCode.USAGE, "these flags keep weights outside the devices, where this command does not count"
        )
    fits = device_bytes is None or ways[0][1].total <= device_bytes
    if output == "json":
        found = [{"write": write, **asdict(memory), "total": memory.total} for write, memory in ways]
        click.echo(json.dumps({"device": device_bytes, "fits": fits, "ways": found}, indent=2))
    else:
        click.echo(describe.estimate_text(read.shape, ways, device_bytes))
    return ExitCode.FINISHED if fits else ExitCode.CONFIG


def _bytes_of(device_memory: str) -> int:
    """Return the memory of a device.

    Raises:
        RunError: it is not a quantity, or so small that its unit must be missing (64).
    """
    from stoker.cluster.pods import quantity

    found = round(quantity(device_memory))
    if found < _LEAST:
        raise RunError(
            ExitCode.USAGE, f"--device-memory {device_memory} is {found} bytes: write a unit too, such as 80Gi"
        )
    return found


def _of_trainjob(
    path: Path,
    runtimes: tuple[Path, ...],
    config: Path | None,
    measured: Path | None,
    device_bytes: int | None,
    output: str,
    trainer_args: tuple[str, ...],
) -> int:
    from stoker.cluster.forecast import described, peak_bytes, plan_of
    from stoker.cluster.resources import RUNTIME_KINDS, of_kind, read_resources, runtime_of, trainjobs_of
    from stoker.commands import describe
    from stoker.node.read_inputs import read_model
    from stoker.plan.model_shape import FAMILIES
    from stoker.report.measured import read_measured

    if trainer_args:
        raise RunError(
            ExitCode.USAGE,
            f"{' '.join(trainer_args)} stands after {path}: write options before the file, and flags of the "
            "trainer into the TrainJob",
        )
    resources = read_resources(path)
    job, *others = trainjobs_of(resources, path)
    if others:
        raise RunError(ExitCode.USAGE, f"{path} has {len(others) + 1} TrainJobs: keep one")
    if config is None:
        raise RunError(
            ExitCode.USAGE, f"the model of {path} is not on this machine: name a folder with its config.json by --model"
        )
    folder = config.parent if config.name == "config.json" else config
    if not (folder / "config.json").is_file():
        raise RunError(ExitCode.NO_INPUT, f"{folder} has no config.json: name the model's folder, or its config.json")
    shape = read_model(folder).shape
    known = of_kind([*resources, *(one for file in runtimes for one in read_resources(file))], *RUNTIME_KINDS)
    plan = plan_of(job, runtime_of(job, known), folder)
    if plan.accelerator == "cpu":
        raise RunError(
            ExitCode.USAGE,
            f"{path} trains on CPUs, and only the memory of devices is counted: name a runtime with devices",
        )
    if shape is None or not plan.ways:
        raise RunError(
            ExitCode.USAGE,
            f"the memory of {path} cannot be counted: only models that are not quantized, of the families "
            f"{', '.join(FAMILIES)}, on devices that hold their weights; for others, run a few steps and read "
            "peak_memory_gib in metrics.jsonl",
        )
    earlier = None if measured is None else read_measured(measured)
    # What was measured has activations too, and what they need is not counted here.
    peak = None if earlier is None else peak_bytes(plan, earlier)
    fits = device_bytes is None or max(plan.ways[0][1].total, peak or 0) <= device_bytes
    told = described(plan, earlier)
    if output == "json":
        ways = [{"write": write, **asdict(memory), "total": memory.total} for write, memory in plan.ways]
        found = {"device": device_bytes, "fits": fits, "ways": ways, "processes": plan.world.size, **told}
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo(describe.estimate_text(shape, plan.ways, device_bytes))
        if measured is not None:
            too_much = peak is not None and device_bytes is not None and peak > device_bytes
            click.echo(describe.forecast_text(told, plan.world.size, too_much))
    return ExitCode.FINISHED if fits else ExitCode.CONFIG
