"""Tasks of lm-evaluation-harness, on a result or on a server that has it. Imports `lm_eval` when it is called."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.results.packages import needing


@dataclass(frozen=True, slots=True)
class Tasks:
    """Which tasks.

    Attributes:
        names: their names.
        include: a folder with tasks of one's own; None for those of the package.
        limit: the first so many samples of each; None for all.
        batch_size: samples at a time.
    """

    names: Sequence[str]
    include: Path | None = None
    limit: int | None = None
    batch_size: int = 8


@dataclass(frozen=True, slots=True)
class OpenAIServer:
    """A server with OpenAI's API.

    Attributes:
        url: its address, without `/v1`.
        model: what it calls the model or adapter.
        tokenizer: folder or name of the model's tokenizer.
        revision: of the tokenizer on the Hub.
    """

    url: str
    model: str
    tokenizer: str
    revision: str


def manager_of(tasks: Tasks) -> Any:
    """Return what knows the tasks.

    Raises:
        RunError: a task is unknown (64), its folder is missing (66), or the package is (78).
    """
    if tasks.include is not None and not tasks.include.is_dir():
        raise RunError(ExitCode.NO_INPUT, f"--include-path {tasks.include} is not a folder with tasks (*.yaml)")
    with needing("evaluate"):
        from lm_eval.tasks import TaskManager
    if tasks.include is not None:
        # To read the thousands of tasks of the package takes a minute, and one's own are often enough.
        manager = TaskManager(include_path=str(tasks.include), include_defaults=False)
        if {*tasks.names} <= {*manager.all_tasks}:
            return manager
    manager = TaskManager(include_path=None if tasks.include is None else str(tasks.include))
    known = list(manager.all_tasks)
    for name in tasks.names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else "`lm_eval ls tasks` lists all"
            raise RunError(ExitCode.USAGE, f"--tasks: lm-evaluation-harness has no task {name!r}: {advice}")
    return manager


def fetch_data(tasks: Tasks, manager: Any) -> None:
    """Load the data of all tasks, before a model is.

    Raises:
        RunError: it cannot be had, or a task's file is wrong (66).
    """
    from lm_eval.tasks import get_task_dict

    for name in tasks.names:
        try:
            get_task_dict([name], manager)
        except Exception as error:
            # A file of tasks can hold anything, and the Hub's clients raise types of their own.
            raise RunError(
                ExitCode.NO_INPUT,
                f"--tasks: {name} cannot be loaded ({type(error).__name__}: {' '.join(str(error).split())[:200]}): "
                "tasks of the package fetch their data from the Hub (HF_ENDPOINT names a mirror); without it, name a "
                "folder with tasks and data of your own with --include-path",
            ) from error


def on_model(tasks: Tasks, manager: Any, model: Any, tokenizer: Any) -> dict[str, dict[str, float | None]]:
    """Return what each task measures of a model, by task and metric."""
    with needing("evaluate"):
        from lm_eval.models.huggingface import HFLM
    return _run(tasks, manager, HFLM(pretrained=model, tokenizer=tokenizer, batch_size=tasks.batch_size))


def on_server(tasks: Tasks, manager: Any, server: OpenAIServer) -> dict[str, dict[str, float | None]]:
    """Return what each task measures of a server; its key is in OPENAI_API_KEY."""
    with needing("evaluate"):
        from lm_eval.models.openai_completions import LocalCompletionsAPI
    model = LocalCompletionsAPI(
        base_url=f"{server.url.rstrip('/')}/v1/completions",
        model=server.model,
        tokenizer=server.tokenizer,
        revision=server.revision,
        tokenizer_backend="huggingface",
        batch_size=tasks.batch_size,
    )
    try:
        return _run(tasks, manager, model)
    except RunError:
        raise
    except Exception as error:
        # Clients of several libraries raise types of their own.
        raise RunError(
            ExitCode.UNAVAILABLE,
            f"{server.url} does not answer as {server.model} "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]}): check --server and "
            "--model; a key belongs into OPENAI_API_KEY",
        ) from error


def _run(tasks: Tasks, manager: Any, model: Any) -> dict[str, dict[str, float | None]]:
    import lm_eval

    found = lm_eval.simple_evaluate(
        model=model,
        tasks=list(tasks.names),
        limit=tasks.limit,
        task_manager=manager,
        log_samples=False,
        bootstrap_iters=1000,
    )
    return {name: numbers_of(metrics) for name, metrics in found["results"].items()}


def numbers_of(metrics: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers among a task's metrics; `acc,none` is the metric `acc` without a filter."""
    return {
        name.removesuffix(",none"): float(value) if math.isfinite(value) else None
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
