"""Decides a run. Pure: facts, a framework, a command line and its config file's content go in, a plan comes out.

What is wrong ends in one :class:`RunError` that lists every problem.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.variables import ARG_PREFIX, unknown_variables
from stoker.plan.arguments import FlagTable, Layer, Setting, resolve, split_env, without_negations
from stoker.plan.facts import Facts, whole_number
from stoker.plan.framework import Asked, Command, ConfigFile, TrainingFramework, Words
from stoker.plan.inputs import Input
from stoker.plan.plan import Check, Plan
from stoker.plan.shared_memory import shared_memory_problems
from stoker.plan.world import World, resolve_world

RESUME_CHOICES = ("auto", "never", "require")

_CONFIG_FILE = "config file"

# The id names a folder in the workspace whose siblings of older attempts are cleared away.
_RUN_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a container was asked for, read once.

    Attributes:
        facts: what the container was told and sees.
        framework: what is to train.
        command: the command line, read.
        world: what a launcher's options said of the world, by torchrun's names.
        runtime: the runtime's flags in the env.
        trainjob: the TrainJob's flags in the env.
        config: what names the config; None without one.
        config_file: the file to read before the plan is made; None where there is none.
    """

    facts: Facts
    framework: TrainingFramework
    command: Command
    world: Mapping[str, str]
    runtime: Words
    trainjob: Words
    config: str | None
    config_file: str | None


def read_request(
    facts: Facts, framework: TrainingFramework, args: Sequence[str], world: Mapping[str, str] | None = None
) -> RunRequest:
    """Read what a container was asked for.

    Args:
        facts: what the container was told and sees.
        framework: what is to train.
        args: the trainer's arguments, the method's module perhaps first (`trl.scripts.sft`).
        world: what a launcher's options said of the world, by torchrun's names.

    Raises:
        RunError: the env contradicts itself; 64 for arguments, 78 for configuration.
    """
    command = framework.read(args)
    runtime, trainjob = _env_words(facts)
    config = command.config
    if framework.has_configs:
        named = [words[0] for words in (runtime.pop("config", None), trainjob.pop("config", None)) if words]
        config = config or (named[-1] if named else None)
    path = None if config is None else framework.read_config(config, None).path
    return RunRequest(facts, framework, command, world or {}, runtime, trainjob, config, path)


def resolve_plan(request: RunRequest, content: Mapping[str, Any] | None = None) -> Plan:
    """Decide a run.

    Args:
        request: what the container was asked for.
        content: what its config file holds; None without one, or where it cannot be read yet.

    Raises:
        RunError: the run cannot be what was asked; 64 for arguments, 78 for configuration. Lists every problem.
    """
    facts, framework, command = request.facts, request.framework, request.command
    method = _method(framework, facts, command)
    world = resolve_world(facts, request.world)
    config = ConfigFile() if request.config is None else framework.read_config(request.config, content)
    weaker = {**request.runtime, **request.trainjob, **config.values}
    asked = Asked(
        method,
        facts.accelerator,
        str(facts.workspace),
        world.size,
        request.config,
        content,
        # What the command line says comes last: of a flag and its `--no_` twin the last one counts.
        {**{name: words for name, words in weaker.items() if name not in command.values}, **command.values},
        by_command=command.method is not None,
    )
    options = framework.options(asked)
    table = options.table
    given = without_negations(command.values, table)
    asked = replace(asked, method=options.method, values={**weaker, **given})
    usage = [*command.problems, *unknown_variables(name for name, value in facts.env.items() if value)]
    layers = [
        Layer(
            "recipe",
            {name: (value,) for name, (value, _) in options.recipe.items()},
            foreign="drop",
            reasons={name: why for name, (_, why) in options.recipe.items()},
        ),
        *_env_layers(table, request.runtime, request.trainjob),
        Layer(_CONFIG_FILE, config.values, label=f"key {{flag}} of {request.config}"),
        Layer("args", given, label=table.spell("{flag}")),
    ]
    resolution = resolve(table, layers)
    named = {setting.name: setting for setting in resolution.settings}
    usage += resolution.problems
    # A file that was not read may say anything, so nothing is called missing then.
    unread = request.config_file is not None and content is None
    usage += framework.check_settings(asked, table, named, tuple(table.flags) if unread else config.keys)
    if usage:
        raise RunError(ExitCode.USAGE, "\n".join(usage))

    identity = {name: Setting(name, value, _CONFIG_FILE) for name, value in config.identity.items()}
    decision = framework.decide(asked, table, {**named, **identity})
    configuration = [
        *world.problems,
        *shared_memory_problems(facts, world.nproc_per_node, decision.loader_workers),
    ]
    resume = facts.get("STOKER_RESUME") or "auto"
    if resume not in RESUME_CHOICES:
        configuration.append(f"STOKER_RESUME is {resume!r}: it must be one of {', '.join(RESUME_CHOICES)}")
    run_id = _run_id(facts, world, configuration)
    grace = _seconds(facts, "STOKER_GRACE_PERIOD_SECONDS", 30, configuration)
    rendezvous = _seconds(facts, "STOKER_RENDEZVOUS_TIMEOUT_SECONDS", 1800, configuration)
    if facts.get("STOKER_RESTART_ATTEMPT") and whole_number(facts.env["STOKER_RESTART_ATTEMPT"]) is None:
        configuration.append("STOKER_RESTART_ATTEMPT is no whole number: it is the runtime's, leave it be")
    hang = _seconds(facts, "STOKER_HANG_TIMEOUT_SECONDS", 1200, configuration, least=0)
    output_dir = str(named["output_dir"].value)
    if not facts.workspace.is_absolute():
        configuration.append(f"STOKER_WORKSPACE is {str(facts.workspace)!r}: write an absolute path, e.g. /workspace")
    elif not output_dir.startswith("/"):
        configuration.append(f"output_dir is {output_dir!r}: write an absolute path, e.g. {facts.workspace}/output")
    configuration += _within_output(decision.inputs, output_dir)
    if configuration:
        raise RunError(ExitCode.CONFIG, "\n".join(configuration))

    return Plan(
        framework=framework.name,
        method=asked.method,
        module=decision.module,
        world=world,
        settings=resolution.settings,
        config=table.config or request.config,
        workspace=str(facts.workspace),
        output_dir=output_dir,
        resume=resume,
        job_id=facts.job_id,
        run_id=run_id,
        attempt=facts.attempt,
        image_version=facts.image_version,
        accelerator=facts.accelerator,
        fingerprint=decision.fingerprint,
        budget=decision.budget,
        base_model=decision.base_model,
        checks=_checks(facts, decision.inputs, request.config_file, output_dir),
        # A trainer that sets a file's variables itself does so once torch is loaded, which is too late for most.
        env={**_process_env(facts, world), **config.variables},
        grace_seconds=grace,
        rendezvous_seconds=rendezvous,
        hang_seconds=hang,
        termination_log=str(facts.termination_log),
        notices=(*world.notices, *table.notices, *resolution.notices, *_outside(facts, world, output_dir)),
        config_env=tuple(config.variables),
        trainer_argv=decision.argv,
        training=framework.training,
        packages=framework.packages,
        packages_needed=decision.packages_needed,
        secrets=framework.secrets,
        flag_names=framework.flag_names,
        dataset=decision.dataset,
        model=decision.model,
    )


def _outside(facts: Facts, world: World, output_dir: str) -> list[str]:
    if world.nnodes == 1 or PurePosixPath(normpath(output_dir)).is_relative_to(normpath(facts.workspace)):
        return []
    return [f"output_dir {output_dir} lies outside the workspace {facts.workspace}: all pods must share its volume too"]


def _within_output(inputs: Sequence[Input], output_dir: str) -> list[str]:
    """Return a problem for each input that lies where the output goes: it would be overwritten, or set aside."""
    return [
        f"the {source.what} {source.value} lies in output_dir {output_dir}, where this run writes and sets aside what "
        f"it finds: give the run an output_dir of its own, or move the {source.what}"
        for source in inputs
        if source.value.startswith("/") and PurePosixPath(normpath(source.value)).is_relative_to(normpath(output_dir))
    ]


def _method(framework: TrainingFramework, facts: Facts, command: Command) -> str:
    method = command.method or facts.get("STOKER_METHOD")
    if method is None:
        told = (
            f"no method is named: set STOKER_METHOD to one of {', '.join(framework.methods)}, "
            f"or begin the arguments with {framework.trainer_module(framework.methods[0])}"
        )
        raise RunError(ExitCode.USAGE, "\n".join(command.problems or [told]))
    if method not in framework.methods:
        gone = framework.methods_gone.get(method)
        close = difflib.get_close_matches(method.lower(), framework.methods, n=1)
        advice = gone or (f"did you mean {close[0]}?" if close else f"choose one of {', '.join(framework.methods)}")
        raise RunError(ExitCode.USAGE, f"{method!r} is not a method of {framework.name}: {advice}")
    return method


def _env_words(facts: Facts) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Return the runtime's and the TrainJob's flags: in a pod they are one env, told apart by the runtime's record."""
    try:
        defaults = json.loads(facts.get("STOKER_RUNTIME_DEFAULTS") or "{}")
    except (ValueError, RecursionError):
        defaults = None
    if not isinstance(defaults, dict):
        raise RunError(ExitCode.CONFIG, "STOKER_RUNTIME_DEFAULTS is no JSON object: it is the runtime's, leave it be")
    runtime: dict[str, tuple[str, ...]] = {}
    user: dict[str, tuple[str, ...]] = {}
    for variable, text in facts.env.items():
        if variable.startswith(ARG_PREFIX) and text:
            target = runtime if defaults.get(variable) == text else user
            flag = flag_of_variable(variable)
            if flag in target:
                raise RunError(ExitCode.USAGE, f"{variable} sets {flag}, which another variable sets too: keep one")
            target[flag] = (text,)
    return runtime, user


def _env_layers(
    table: FlagTable, runtime: Mapping[str, tuple[str, ...]], user: Mapping[str, tuple[str, ...]]
) -> list[Layer]:
    def split(words: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        flags = table.flags
        return {name: split_env(text, flags[name]) if name in flags else (text,) for name, (text,) in words.items()}

    label = ARG_PREFIX + "{FLAG}"
    return [
        Layer("runtime", split(runtime), foreign="drop", label=label),
        Layer("TrainJob env", split(user), label=label),
    ]


def flag_of_variable(variable: str) -> str:
    """Return the flag a `STOKER_ARG_…` variable sets; the leftmost `__` is a dot."""
    return variable.removeprefix(ARG_PREFIX).lower().replace("__", ".", 1)


def _process_env(facts: Facts, world: World) -> dict[str, str]:
    env = {
        # One writer of progress: the callback that transformers would add on its own is switched off.
        "DISABLE_KUBEFLOW_INTEGRATION": "TRUE",
        "PYTHONUNBUFFERED": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    if facts.accelerator == "cpu" and facts.get("OMP_NUM_THREADS") is None:
        # Left alone, each process starts a thread for every core of the node, whatever share of it the pod has.
        share = whole_number(facts.get("STOKER_CPU_REQUEST") or "") or facts.cpus
        env["OMP_NUM_THREADS"] = str(max(1, share // world.nproc_per_node))
    return env


def _run_id(facts: Facts, world: World, problems: list[str]) -> str:
    run_id = facts.get("STOKER_RUN_ID")
    if run_id is None:
        if world.nnodes > 1:
            problems.append(
                "STOKER_RUN_ID is not set in a run of several nodes, which tell each other under it how they ended: "
                "give it a value that all pods of an attempt share and the next attempt does not, "
                "such as the pod label batch.kubernetes.io/controller-uid"
            )
        return "local"
    if not _RUN_ID.match(run_id):
        problems.append(f"STOKER_RUN_ID is {run_id!r}: it must consist of letters, digits, '.', '_' and '-'")
    return run_id


def _seconds(facts: Facts, name: str, default: int, problems: list[str], least: int = 1) -> int:
    text = facts.get(name)
    if text is None:
        return default
    seconds = whole_number(text)
    if seconds is None or seconds < least:
        problems.append(f"{name} is {text!r}: it must be a whole number of seconds, {least} or more")
        return default
    return seconds


def _checks(facts: Facts, inputs: Sequence[Input], config_path: str | None, output_dir: str) -> tuple[Check, ...]:
    checks = [
        Check(
            "writable",
            path,
            what,
            ExitCode.CONFIG,
            f"this process runs as UID {facts.uid}, GID {facts.gid}: give the volume's folder to GID 0 with group "
            "write, or set fsGroup, or choose a storage class whose volumes such a pod can write to",
        )
        for path, what in ((str(facts.workspace), "workspace"), (output_dir, "output folder"))
    ]
    for source in inputs:
        if source.value.startswith("/"):
            fetched = f" ({source.initializer} of the TrainJob does)" if source.initializer else ""
            fix = f"put it there{fetched}, mount it, or give another in {source.flag}"
            checks.append(Check("exists", source.value, source.what, ExitCode.NO_INPUT, fix))
    if config_path is not None:
        fix = "mount it, or correct the path in --config"
        checks.append(Check("exists", config_path, "config file", ExitCode.NO_INPUT, fix))
    return tuple(checks)
