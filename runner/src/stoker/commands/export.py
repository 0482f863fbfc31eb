"""`stoker export`: a run's result as others take it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from stoker.commands.group import PATH, formatted, reported
from stoker.commands.job_options import JobOptions, image_for, job_options, print_job, taken
from stoker.contract.exits import ExitCode, RunError

_WORKSPACE = Path("/workspace")
# Stoker's image that has llama.cpp's converter.
_CONVERTS = "lab"
_OUTPUT, _EXPORTED = _WORKSPACE / "output", _WORKSPACE / "exported"


@click.command(
    "export",
    epilog="\b\nExamples:\n"
    "  stoker export output --base Qwen/Qwen3-0.6B --to merged\n"
    "  stoker export merged --push hf://me/my-model\n"
    "  stoker export output --as-it-is --push s3://models/my-adapter\n"
    "  stoker export merged --push oci://registry.example.com/models/mine:1\n"
    "  stoker export --job first-run --push s3://models/mine --secret s3 | kubectl apply -f -\n"
    "  stoker export --job first-run --gguf gguf/model.gguf | kubectl apply -f -\n"
    "\b\nExit codes:\n"
    "   0  all of it is done\n"
    "  64  wrong arguments, or nothing to merge\n"
    "  65  the files are not those that the run left\n"
    "  66  not a finished run's result, or the base model is missing\n"
    "  69  the other side does not answer\n"
    "  78  another base model, no rights, or a missing package or converter\n",
)
@click.argument("output", type=PATH, required=False)
@click.option("--base", default="", metavar="MODEL", help="Base model: a folder or a Hub name; by default the run's.")
@click.option("--to", "target", type=PATH, metavar="FOLDER", help="Folder for the merged model.")
@click.option("--as-it-is", is_flag=True, help="Do not merge: export the adapter itself.")
@click.option("--gguf", type=PATH, metavar="FILE", help="Also write a GGUF file, with llama.cpp's converter.")
@click.option(
    "--push",
    "uri",
    metavar="URI",
    help="Upload it to hf://ORG/NAME, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or oci://REGISTRY/NAME:TAG.",
)
@click.option("--public", is_flag=True, help="With --push hf://: make a new repository public.")
@formatted("form")
@job_options
@reported
def export_command(
    output: Path | None,
    base: str,
    target: Path | None,
    as_it_is: bool,
    gguf: Path | None,
    uri: str | None,
    public: bool,
    form: str,
    **words: Any,
) -> None:
    """Merge a run's adapter into its base model, and upload the result.

    OUTPUT is the output folder of a finished run, or a model that this command made. The manifest is copied along.
    """
    from stoker.results.folder import base_of, read_result
    from stoker.results.gguf import convert, converter
    from stoker.results.push import check_target, push

    if words["gpu"]:
        raise RunError(ExitCode.USAGE, "--gpu is for `stoker evaluate`: export merges on the CPU, so drop it")
    options = taken(words)
    if options is not None:
        _print(options, output, base, target, uri, as_it_is=as_it_is, gguf=gguf, public=public)
        return
    if output is None:
        raise RunError(
            ExitCode.USAGE, "OUTPUT is missing: name the output folder of a finished run, or a Job with --job"
        )
    result = read_result(output)
    if target is not None and (as_it_is or not result.is_adapter):
        why = (
            "--as-it-is merges nothing: drop --to"
            if as_it_is
            else "its run trained the whole model, so there is nothing to merge: drop --to, or make the Job with "
            "--as-it-is"
        )
        raise RunError(ExitCode.USAGE, f"{result.path}: {why}; --push and --gguf take it as it is")
    if result.is_adapter and target is None and not as_it_is:
        raise RunError(
            ExitCode.USAGE, f"{result.path} is an adapter: name a folder to merge it into with --to, or add --as-it-is"
        )
    if gguf is not None and result.is_adapter and as_it_is:
        raise RunError(ExitCode.USAGE, "--gguf needs a whole model: merge the adapter with --to, not --as-it-is")
    if not (target or gguf or uri):
        raise RunError(ExitCode.USAGE, "nothing to do: add --push URI or --gguf FILE")
    if uri is not None:
        check_target(uri)
    script = None if gguf is None else converter()

    def tell(what: str, where: Path | str) -> None:
        click.echo(json.dumps({what: str(where)}) if form == "json" else f"{what}: {where}")

    if target is not None:
        from stoker.results.merge import merge

        merge(result, base_of(result, base), target)
        tell("written", target)
        result = read_result(target)
    if uri is not None:
        push(result.path, result.files, uri, public=public)
        tell("pushed", uri)
    if gguf is not None and script is not None:
        convert(script, result.path, gguf)
        tell("written", gguf)


def _on_claim(gguf: Path, options: JobOptions) -> Path:
    """Return where a Job writes the file.

    Raises:
        RunError: that is not on the claim (64), or the image is known to have no converter (78).
    """
    from stoker.cluster.images import packages_of

    target = Path(os.path.normpath(_WORKSPACE / gguf))
    if _WORKSPACE not in target.parents:
        raise RunError(
            ExitCode.USAGE,
            f"--gguf {gguf} is not on the run's claim: name a file in its workspace, such as gguf/model.gguf",
        )
    image = image_for(options, _CONVERTS)
    if packages_of(image) is not None and image.rpartition("/")[2].partition(":")[0] != _CONVERTS:
        raise RunError(
            ExitCode.CONFIG,
            f"--gguf needs llama.cpp's converter, which {image} does not have: leave out --image, which takes Stoker's "
            f"image {_CONVERTS}, or name an image that has it",
        )
    return target


def _print(
    options: JobOptions,
    output: Path | None,
    base: str,
    target: Path | None,
    uri: str | None,
    *,
    as_it_is: bool,
    gguf: Path | None,
    public: bool,
) -> None:
    from stoker.results.push import check_target

    source = str(output or _OUTPUT)
    merged = source if as_it_is else str(target or _EXPORTED)
    as_is = ["--as-it-is"] if as_it_is else []
    steps: list[tuple[str, str, list[str]]] = []
    if not as_it_is:
        named = ["--base", base] if base else []
        steps.append(("merge", "trl", ["stoker", "export", source, "--to", merged, *named]))
    if uri is not None:
        check_target(uri)
        to_all = ["--public"] if public else []
        steps.append(("push", "fetch", ["stoker", "export", merged, "--push", uri, *as_is, *to_all]))
    if gguf is not None:
        steps.append(("gguf", _CONVERTS, ["stoker", "export", merged, *as_is, "--gguf", str(_on_claim(gguf, options))]))
    if not steps:
        raise RunError(ExitCode.USAGE, "nothing to do: add --push URI or --gguf FILE, or drop --as-it-is")
    print_job("export", steps, options)
