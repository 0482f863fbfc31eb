"""`stoker evaluate`: how good a run's result is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from stoker.commands.group import PATH, formatted, reported
from stoker.commands.job_options import image_for, job_options, print_job, taken
from stoker.contract.exits import ExitCode, RunError

if TYPE_CHECKING:
    from stoker.results.folder import Result

_OUTPUT = "/workspace/output"
# Our image with lm-evaluation-harness.
_TASKS = "lab"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@click.command(
    "evaluate",
    epilog="\b\nExamples:\n"
    "  stoker evaluate output --data held-out.jsonl\n"
    "  stoker evaluate output --tasks arc_easy,hellaswag --limit 200\n"
    "  stoker evaluate output --data held-out.jsonl --server http://localhost:8000 --model support\n"
    "  stoker evaluate --job first-run --data /workspace/dataset --split test | kubectl apply -f -\n"
    "\b\nExit codes:\n"
    "   0  measured\n"
    "  64  wrong arguments, or an unknown task\n"
    "  65  the rows, or the files of the result, are not as they should be\n"
    "  66  no result, base model or data there\n"
    "  69  the server does not answer\n"
    "  78  another base model, a missing package, too little device memory, or rows longer than the server's context\n",
)
@click.argument("output", type=PATH, required=False)
@click.option("--base", default="", metavar="MODEL", help="Base model: a folder or a Hub name; by default the run's.")
@click.option("--data", metavar="DATA", help="Rows not used in training: a file, a folder or a Hub name.")
@click.option("--split", default="test", show_default=True, help="Split of the data; ignored for a file.")
@click.option("--tasks", metavar="NAMES", help="Tasks of lm-evaluation-harness, separated by commas.")
@click.option("--include-path", type=PATH, metavar="FOLDER", help="Folder with tasks of your own.")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of rows, and of samples per task.")
@click.option("--batch-size", type=click.IntRange(1), default=4, show_default=True, help="Rows at a time.")
@click.option("--server", metavar="URL", help="Ask this server instead of loading the result.")
@click.option("--model", metavar="NAME", help="With --server: name of the model or adapter there.")
@formatted("form")
@job_options
@reported
def evaluate_command(output: Path | None, **words: Any) -> None:
    """Measure a run's result: loss and perplexity of held-out rows, and tasks of lm-evaluation-harness.

    OUTPUT is the output folder of a finished run. The numbers go into evaluation.json and report.html there.
    """
    options, form = taken(words), words.pop("form")
    if not (words["data"] or words["tasks"]):
        raise RunError(ExitCode.USAGE, "nothing to measure: add --data DATA, --tasks NAMES, or both")
    if bool(words["server"]) != bool(words["model"]):
        raise RunError(ExitCode.USAGE, "--server and --model belong together: name the address, and the model there")
    if options is not None:
        if urlsplit(words["server"] or "").hostname in _LOOPBACK:
            raise RunError(
                ExitCode.USAGE,
                f"--server {words['server']} is the Job's own pod, where no server runs: write an address inside the "
                "cluster, such as http://SERVICE.NAMESPACE:8000",
            )
        kind = _TASKS if words["tasks"] else "trl"
        if words["tasks"]:
            _check_image(image_for(options, kind))
        flags = [word for name, value in words.items() if value for word in (f"--{name.replace('_', '-')}", str(value))]
        print_job("evaluate", [("evaluate", kind, ["stoker", "evaluate", str(output or _OUTPUT), *flags])], options)
        return
    if output is None:
        raise RunError(
            ExitCode.USAGE, "OUTPUT is missing: name the output folder of a finished run, or a Job with --job"
        )
    evaluation = _measure(output, words)
    click.echo(json.dumps(evaluation, indent=2) if form == "json" else "\n".join(_lines(evaluation)))


def _check_image(image: str) -> None:
    """Refuse an image that has no lm-evaluation-harness, before a pod finds out.

    Raises:
        RunError: it is known to have none (78).
    """
    from stoker.cluster.images import has_package, packages_of

    packages = packages_of(image)
    if packages is not None and not has_package(packages, "lm_eval"):
        raise RunError(
            ExitCode.CONFIG,
            f"--tasks needs the Python package lm_eval, which {image} does not have: leave out --image, which takes "
            f"Stoker's image {_TASKS}, or name an image that has it",
        )


def _measure(output: Path, words: dict[str, Any]) -> dict[str, Any]:
    from stoker.results.evaluate import Rows, held_out, held_out_on_server, read_rows
    from stoker.results.folder import base_of, read_result
    from stoker.results.harness import OpenAIServer, Tasks, fetch_data, manager_of, on_model, on_server
    from stoker.results.load import device_memory, has_tokenizer, load, tokenizer_of, tokenizer_source
    from stoker.results.record import record

    result = read_result(output)
    # A server has the base model, and only the rows' tokens are made here.
    needs_base = result.is_adapter and not (words["server"] and has_tokenizer(result))
    base = base_of(result, words["base"]) if needs_base else None
    if result.is_classifier:
        raise RunError(ExitCode.USAGE, f"{result.path} is a reward model, which scores texts and does not write them")
    names = [name.strip() for name in (words["tasks"] or "").split(",") if name.strip()]
    tasks = Tasks(names, words["include_path"], words["limit"], words["batch_size"])
    # What can be refused is refused before a model is loaded.
    manager = manager_of(tasks) if names else None
    if names:
        fetch_data(tasks, manager)
    rows = None
    if words["data"]:
        rows = _as_trained(result, read_rows(Rows(words["data"], words["split"], words["limit"])), words["data"])
    measured: dict[str, Any] = {"of": words["model"] or "result", "base_model": None if base is None else base.name}
    if words["limit"]:
        measured["limit"] = words["limit"]
    url, name = (words["server"] or "").rstrip("/").removesuffix("/v1"), words["model"]
    with device_memory("end what else uses it"):
        model, tokenizer = (None, tokenizer_of(result, base)) if url else load(result, base)
    with device_memory("lower --batch-size"):
        if rows is not None:
            found = (
                held_out_on_server(result, tokenizer, url, name, rows)
                if url
                else held_out(result, model, tokenizer, rows, words["batch_size"])
            )
            measured["held_out"] = {"data": words["data"], "split": words["split"], **found}
        if names:
            measured["tasks"] = (
                on_server(tasks, manager, OpenAIServer(url, name, *tokenizer_source(result, base)))
                if url
                else on_model(tasks, manager, model, tokenizer)
            )
    return record(result, measured)


def _as_trained(result: Result, rows: Any, where: str) -> Any:
    """Return rows as TRL reads them, if they are laid out as those that the run trained on.

    Raises:
        RunError: a row is of another format (65).
    """
    from stoker.frameworks.trl.dataset_formats import FLAG, formats_of
    from stoker.results.packages import needing

    name = (result.manifest.get("settings") or {}).get(FLAG)
    if name not in formats_of("sft", dict.fromkeys(rows.column_names)):
        return rows
    with needing("local"):
        from stoker.frameworks.trl.dataset_conversion import converted_rows
    return converted_rows(rows, name, "sft", where)


def _lines(evaluation: dict[str, Any]) -> list[str]:
    parts = dict(evaluation.get("tasks", {}))
    if held := evaluation.get("held_out"):
        parts = {held["data"]: held, **parts}
    rows = [
        (name, metric, f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, metrics in parts.items()
        for metric, value in metrics.items()
        if isinstance(value, int | float)
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)] if rows else [0, 0]
    return [f"{name:<{widths[0]}}  {metric:<{widths[1]}}  {value}" for name, metric, value in rows]
