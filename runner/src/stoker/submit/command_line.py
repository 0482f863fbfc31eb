"""Turns the words of `stoker trainjob` into a config: a method with flags, or an object in a user's Python file."""

from __future__ import annotations

import copy
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks.trl.framework import TRL
from stoker.plan.arguments import split_args, split_env
from stoker.submit.base import LLMBackend
from stoker.submit.initializer import DATASET, MODEL, Initializer, Source
from stoker.submit.trainjob import trainjob
from stoker.submit.trl import TRLConfig


@dataclass(frozen=True, slots=True)
class TrainJobOptions:
    """The words of the command line.

    Attributes:
        subject: a method, or `FILE.py:NAME`.
        name: the TrainJob's name.
        runtime: the runtime's name; None takes the framework's default runtime.
        namespace: the TrainJob's namespace; None leaves that to kubectl.
        model: address, folder or Hub id of the model; None leaves that to the config and the runtime.
        dataset: address, folder or Hub id of the data; None leaves that to the config and the runtime.
        secret: Secret for the initializers; empty for none.
        nodes: number of pods.
        settings: `FLAG=VALUE` of the trainer.
        env: `NAME=VALUE` of the container.
        resources: `NAME=AMOUNT` of each pod.
        adapter: `lora`, `qlora` or empty.
        sharding: `none`, `full`, or None to leave that to the runtime.
    """

    subject: str
    name: str
    runtime: str | None = None
    namespace: str | None = None
    model: str | None = None
    dataset: str | None = None
    secret: str = ""
    nodes: int | None = None
    settings: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    adapter: str = ""
    sharding: Literal["none", "full"] | None = None


def trainjob_of(options: TrainJobOptions) -> dict[str, Any]:
    """Return the TrainJob.

    Raises:
        RunError: the words are wrong (64), or the file is missing (66).
    """
    config = _from_file(options) if ".py" in options.subject else _from_method(options)
    if options.nodes is not None:
        config.num_nodes = options.nodes
    if options.resources:
        config.resources_per_node = _pairs("--resources", options.resources)
    fetched = Initializer(
        dataset=Source(options.dataset, options.secret) if options.dataset and "://" in options.dataset else None,
        model=Source(options.model, options.secret) if options.model and "://" in options.model else None,
    )
    try:
        return trainjob(
            config,
            options.name,
            runtime=options.runtime,
            initializer=fetched if fetched.model or fetched.dataset else None,
            env=_pairs("--env", options.env),
            namespace=options.namespace,
        )
    except ValueError as error:
        raise RunError(ExitCode.USAGE, str(error)) from error


def missing_sources(made: Mapping[str, Any]) -> Iterator[str]:
    """Yield a notice for the model and for the data set, if nothing names it and the runtime is TRL's general one."""
    spec = made["spec"]
    if spec["runtimeRef"]["name"] != TRLConfig.generic_runtime:
        return  # it may bring its own
    given, _ = split_args(spec["trainer"].get("args", []))
    told = {entry["name"] for entry in spec["trainer"].get("env", [])}
    for part, flag, folder in (("model", "model_name_or_path", MODEL), ("dataset", "dataset_name", DATASET)):
        named = any(name in given or f"STOKER_ARG_{name.upper()}" in told for name in (flag, "config"))
        if not named and part not in spec.get("initializer", {}):
            yield (
                f"notice: no {part} is named, so the run starts only where the workspace already holds {folder}: "
                f"add --{part} hf://ORG/NAME"
            )


def _from_method(options: TrainJobOptions) -> LLMBackend:
    if options.subject not in TRL.methods:
        raise RunError(
            ExitCode.USAGE,
            f"{options.subject!r} is not a method or a config: choose one of {', '.join(TRL.methods)}, "
            "or write FILE.py:NAME for a config in a Python file",
        )
    table = TRL().flag_table(options.subject)
    flags: dict[str, Any] = {}
    for name, text in _pairs("--set", options.settings).items():
        flag = table.flags.get(name.replace("-", "_"))
        words = split_env(text, flag) if flag else (text,)
        flags[name.replace("-", "_")] = list(words) if (flag and flag.many) or len(words) > 1 else text
    for name, option, used in (
        ("model_name_or_path", "--model", options.model),
        ("dataset_name", "--dataset", options.dataset),
        ("use_peft", f"--{options.adapter}", options.adapter),
        ("load_in_4bit", "--qlora", options.adapter == "qlora"),
    ):
        if used and name in flags:
            raise RunError(
                ExitCode.USAGE, f"{option} and --set {name}={flags[name]} set the same flag: write one of them"
            )
    if options.adapter == "qlora":
        flags["load_in_4bit"] = True
    return TRLConfig(
        method=options.subject,
        # Addresses go to the initializers.
        model_name_or_path=options.model if options.model and "://" not in options.model else None,
        dataset_name=options.dataset if options.dataset and "://" not in options.dataset else None,
        use_peft=True if options.adapter else None,
        sharding=options.sharding,
        extra_args=flags or None,
    )


def _from_file(options: TrainJobOptions) -> LLMBackend:
    path, _, attribute = options.subject.rpartition(":")
    if not path.endswith(".py") or not attribute.isidentifier():
        raise RunError(
            ExitCode.USAGE, f"{options.subject!r} is not a config: write FILE.py:NAME, such as run.py:config"
        )
    for option, value in (
        ("--set", options.settings),
        ("--lora or --qlora", options.adapter),
        ("--sharding", options.sharding),
        *(("--model", place) for place in (options.model,) if place and "://" not in place),
        *(("--dataset", place) for place in (options.dataset,) if place and "://" not in place),
    ):
        if value:
            raise RunError(ExitCode.USAGE, f"{option} only goes with a method: set it in the config in {path}")
    found = _names_of(Path(path)).get(attribute)
    if not isinstance(found, LLMBackend):
        kind = "nothing" if found is None else f"a {type(found).__name__}"
        raise RunError(
            ExitCode.USAGE, f"{attribute} in {path} is {kind}: it must be a config, such as {attribute} = TRLConfig(…)"
        )
    return copy.copy(found)


def _names_of(path: Path) -> dict[str, Any]:
    """Run a user's Python file and return what it defines.

    Raises:
        RunError: the file is missing (66) or fails (64).
    """
    if not path.is_file():
        raise RunError(ExitCode.NO_INPUT, f"{path} is not a file: correct the path")
    before = [*sys.path]
    sys.path.insert(0, str(path.resolve().parent))  # like `python FILE.py`, which imports files beside it
    try:
        return runpy.run_path(str(path))
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise RunError(ExitCode.USAGE, f"{path}{where}: {type(error).__name__}: {error}") from error
    finally:
        sys.path[:] = before


def _pairs(option: str, words: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise RunError(ExitCode.USAGE, f"{option} {word!r} has no `=`: write {option} NAME=VALUE")
        pairs[name] = value
    return pairs
