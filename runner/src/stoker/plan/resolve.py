"""Makes the plan of a run from facts, a framework, a command line and the content of its config file. Pure.

One :class:`RunError` lists all problems.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.grace import END_SECONDS
from stoker.contract.samplers import ADDRESSES, IDLE_SECONDS, OF_THE_JOB
from stoker.contract.secrets import HIDDEN
from stoker.contract.variables import (
    ARG_PREFIX,
    DISABLE_PROGRESS,
    GRACE_PERIOD,
    GRACE_PERIOD_UNTOLD,
    PROGRESS_SECONDS,
    unknown_variables,
    webhook_problem,
)
from stoker.plan.arguments import (
    CONFIG_FILE,
    FlagTable,
    Layer,
    Setting,
    resolve,
    split_env,
    translated,
    with_lists,
    without_negations,
)
from stoker.plan.estimate import Memory, estimate, misfit
from stoker.plan.facts import Facts, whole_number
from stoker.plan.inputs import Input, ModelFolder
from stoker.plan.interfaces import (
    Asked,
    Command,
    ConfigFile,
    Machine,
    Options,
    TrainingFramework,
    Words,
    estimator_of,
)
from stoker.plan.plan import Check, Plan
from stoker.plan.shared_memory import shared_memory_problems
from stoker.plan.temporary_folder import temporary_folder_problems
from stoker.plan.world import World, resolve_world

RESUME_CHOICES = ("auto", "never", "require")
SHARDING_CHOICES = ("none", "full")
_RUNTIME_SETS_IT = "the runtime sets it, do not override it"

_LAST_PORT = 65535

# The id names a folder in the workspace.
_RUN_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the user and the runtime ask of a container.

    Attributes:
        facts: the facts of the container.
        framework: the training framework.
        command: the trainer's command line.
        world: a launcher's options about the world, by torchrun's names.
        runtime: the runtime's flags in the env.
        runtime_method: the method that the runtime chose its flags for; None if it names none.
        trainjob: the TrainJob's flags in the env.
        config: what `--config` or STOKER_ARG_CONFIG names; None without one.
        config_file: the file to read before making the plan; None without one.
    """

    facts: Facts
    framework: TrainingFramework
    command: Command
    world: Mapping[str, str]
    runtime: Words
    runtime_method: str | None
    trainjob: Words
    config: str | None
    config_file: str | None


def read_request(
    facts: Facts, framework: TrainingFramework, args: Sequence[str], world: Mapping[str, str] | None = None
) -> RunRequest:
    """Read the arguments and the environment of a container.

    Args:
        facts: the facts of the container.
        framework: the training framework.
        args: the trainer's arguments; the first may be the method's module (`trl.scripts.sft`).
        world: a launcher's options about the world, by torchrun's names.

    Raises:
        RunError: the env contradicts itself; 64 for arguments, 78 for configuration.
    """
    command = framework.read(args)
    defaults = _runtime_defaults(facts)
    runtime, trainjob = _env_words(facts, defaults)
    runtime_method = defaults.get("STOKER_METHOD")
    config = command.config
    if framework.has_configs:
        named = [words[0] for words in (runtime.pop("config", None), trainjob.pop("config", None)) if words]
        config = config or (named[-1] if named else None)
    path = None if config is None else framework.read_config(config, None).path
    return RunRequest(facts, framework, command, world or {}, runtime, runtime_method, trainjob, config, path)


def resolve_plan(
    request: RunRequest,
    content: Mapping[str, Any] | None = None,
    model: ModelFolder | None = None,
    former: Mapping[str, Any] | None = None,
) -> Plan:
    """Make the plan of a run.

    Args:
        request: what the user and the runtime ask for.
        content: the content of the config file; None without one, or if it cannot be read yet.
        model: the model folder; None if it is not on this machine, or was not read yet.
        former: the fixed settings of the checkpoint or output that the run would go on from; None if there is none.

    Raises:
        RunError: the run cannot work; 64 for arguments, 78 for configuration. Lists all problems.
    """
    facts, framework, command = request.facts, request.framework, request.command
    method = _method(framework, facts, command)
    request, dropped = _without_bound_flags(request, method)
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
        # The command line comes last: of a flag and its `--no_<flag>`, the last counts.
        {**{name: words for name, words in weaker.items() if name not in command.values}, **command.values},
        by_command=command.method is not None,
        sharding=facts.get("STOKER_SHARDING") or "",
        machine=Machine(
            facts.cuda_generation,
            facts.device_bytes,
            facts.kernel_packages,
            facts.torch,
            # Not the cores of the machine: they may differ between nodes, and the plan must not.
            whole_number(facts.get("STOKER_CPU_REQUEST") or ""),
            facts.shm_bytes,
            world.nproc_per_node,
        ),
        shape=None if model is None else model.shape,
        former=former,
    )
    options = framework.options(asked)
    table = options.table
    given = with_lists(without_negations(command.values, table), table)
    asked = replace(asked, method=options.method, values=translated({**weaker, **given}, table))
    resolution = resolve(table, _layers(request, options, config, given))
    named = {setting.name: setting for setting in resolution.settings}
    # An unread file may set any flag, so none counts as missing.
    unread = request.config_file is not None and content is None
    usage = [
        *command.problems,
        *unknown_variables(name for name, value in facts.env.items() if value),
        *resolution.problems,
        *framework.check_settings(asked, table, named, tuple(table.flags) if unread else config.keys),
    ]
    if usage:
        secret = [word for flag in framework.secrets for word in asked.values.get(flag, ())]
        raise RunError(ExitCode.USAGE, _without("\n".join(usage), secret))

    identity = {name: Setting(name, value, CONFIG_FILE) for name, value in config.identity.items()}
    decision = framework.decide(asked, table, {**named, **identity})
    ways = () if model is None else _ways(framework, asked, table, named, model)
    configuration = [
        *world.problems,
        *shared_memory_problems(facts, world.nproc_per_node, decision.loader_workers),
        *temporary_folder_problems(facts, decision.loader_workers),
    ]
    resume = facts.get("STOKER_RESUME") or "auto"
    if resume not in RESUME_CHOICES:
        configuration.append(f"STOKER_RESUME is {resume!r}: it must be one of {', '.join(RESUME_CHOICES)}")
    if decision.samplers is not None and not facts.get(ADDRESSES):
        configuration.append(
            f"--samplers {OF_THE_JOB} is for a runtime with samplers, and this one sets no {ADDRESSES}: choose such a "
            "runtime, or write the addresses of the samplers"
        )
    configuration += _sharding_problems(framework, asked.sharding)
    configuration += filter(None, [misfit(ways, facts.device_bytes), webhook_problem(facts.env)])
    run_id = _run_id(facts, world, configuration)
    grace = _seconds(facts, GRACE_PERIOD, GRACE_PERIOD_UNTOLD, configuration)
    rendezvous = _seconds(facts, "STOKER_RENDEZVOUS_TIMEOUT_SECONDS", 1800, configuration)
    if facts.get("STOKER_RESTART_ATTEMPT") and whole_number(facts.env["STOKER_RESTART_ATTEMPT"]) is None:
        configuration.append(f"STOKER_RESTART_ATTEMPT must be a whole number; {_RUNTIME_SETS_IT}")
    hang = _seconds(facts, "STOKER_HANG_TIMEOUT_SECONDS", 1200, configuration, least=0)
    idle = _seconds(facts, IDLE_SECONDS, 0, configuration, least=0)
    if idle and not facts.get(ADDRESSES):
        configuration.append(
            f"{IDLE_SECONDS} is for a runtime with samplers, and this one sets no {ADDRESSES}: drop it, or choose such "
            "a runtime"
        )
    # Rank 0 reads it.
    _seconds(facts, PROGRESS_SECONDS, 10, configuration)
    metrics_port = _port(facts, "STOKER_METRICS_PORT", configuration)
    output_dir = str(named["output_dir"].value)
    configuration += _misplaced_folders(facts, decision.inputs, output_dir)
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
        # A trainer sets its config file's variables after torch is loaded, which is too late for most of them.
        env={**_process_env(facts, world), **config.variables},
        grace_seconds=grace,
        rendezvous_seconds=rendezvous,
        hang_seconds=hang,
        termination_log=str(facts.termination_log),
        notices=(
            *world.notices,
            *table.notices,
            *_dropped(dropped, request, table, named),
            *resolution.notices,
            *_outside(facts, world, output_dir),
            *_unsaved(grace),
        ),
        config_env=tuple(config.variables),
        trainer_argv=decision.argv,
        training=framework.training,
        packages=framework.packages,
        packages_needed=decision.packages_needed,
        accounts_needed=decision.accounts_needed,
        secrets=framework.secrets,
        flag_names=framework.flag_names,
        dataset=decision.dataset,
        model=decision.model,
        unseen=tuple(f"the {source.what} {source.value}" for source in decision.inputs if source.value[:1] != "/"),
        ways=ways,
        device_bytes=facts.device_bytes,
        fixed=decision.fixed,
        free=framework.free_settings,
        per_node=framework.node_settings,
        samplers=decision.samplers,
        idle_seconds=idle,
        metrics_port=metrics_port,
    )


def _unsaved(grace: int) -> Iterator[str]:
    """Yield a notice if a grace period, in seconds, is too short for a checkpoint."""
    if grace <= END_SECONDS:
        yield (
            f"{GRACE_PERIOD} is {grace}, and ending the processes takes {END_SECONDS} s of it, so a stop saves no "
            f"checkpoint: give the pods {GRACE_PERIOD_UNTOLD} s or more (terminationGracePeriodSeconds)"
        )


def _ways(
    framework: TrainingFramework, asked: Asked, table: FlagTable, named: Mapping[str, Setting], model: ModelFolder
) -> tuple[tuple[str, Memory], ...]:
    """Return the memory of the run and of the other ways to train its model, each with what to write."""
    if asked.accelerator == "cpu" or model.shape is None:
        return ()
    ways = estimator_of(framework).ways(asked, table, named, model.shape)
    return tuple((way.write, estimate(model.shape, way.training)) for way in ways)


def _without_bound_flags(request: RunRequest, method: str) -> tuple[RunRequest, Words]:
    """Return the request without the flags that the runtime chose for another method, and these flags."""
    chosen_for = request.runtime_method
    if chosen_for == method or chosen_for not in request.framework.methods:
        return request, {}
    bound = request.framework.bound_flags(chosen_for, method)
    dropped = {flag: words for flag, words in request.runtime.items() if flag in bound}
    kept = {flag: words for flag, words in request.runtime.items() if flag not in bound}
    return replace(request, runtime=kept), dropped


def _dropped(flags: Words, request: RunRequest, table: FlagTable, named: Mapping[str, Setting]) -> Iterator[str]:
    for flag in flags:
        if flag not in named and flag in table.flags:
            variable, default = f"{variable_of(flag)}={' '.join(flags[flag])}", table.flags[flag].default
            yield (
                f"dropped the runtime default {variable}, which is for {request.runtime_method}: {table.method} gets "
                f"its own default{f', {default}' if default else ''}, unless you write {table.spell(flag)} in args"
            )


def _without(message: str, secrets: Sequence[str]) -> str:
    """Return a message about settings without the values of secret flags, which it quotes."""
    for text in (" ".join(secrets), *secrets):
        message = message.replace(repr(text), HIDDEN) if text else message
    return message


def _outside(facts: Facts, world: World, output_dir: str) -> list[str]:
    if world.nnodes == 1 or PurePosixPath(normpath(output_dir)).is_relative_to(normpath(facts.workspace)):
        return []
    return [f"output_dir {output_dir} is outside the workspace {facts.workspace}: all pods must share its volume too"]


def _layers(request: RunRequest, options: Options, config: ConfigFile, given: Words) -> list[Layer]:
    """Return the layers of settings, weakest first."""
    return [
        Layer(
            "recipe",
            {name: (value,) for name, (value, _) in options.recipe.items()},
            foreign="drop",
            reasons={name: why for name, (_, why) in options.recipe.items()},
        ),
        *_env_layers(options.table, request.runtime, request.trainjob),
        Layer(CONFIG_FILE, config.values, label=f"key {{flag}} of {request.config}"),
        Layer("args", given, label=options.table.spell("{flag}")),
    ]


def _sharding_problems(framework: TrainingFramework, sharding: str) -> list[str]:
    if not sharding or sharding in framework.shardings:
        return []
    if sharding not in SHARDING_CHOICES:
        return [f"STOKER_SHARDING is {sharding!r}: it must be one of {', '.join(SHARDING_CHOICES)}"]
    able = " or ".join(framework.shardings)
    return [f"STOKER_SHARDING is {sharding!r}, but {framework.name} can only do {able}: leave it out"]


def _misplaced_folders(facts: Facts, inputs: Sequence[Input], output_dir: str) -> list[str]:
    """Return a problem for each relative path, and for each input that the run would overwrite or rename."""
    problems = []
    if not facts.workspace.is_absolute():
        problems.append(f"STOKER_WORKSPACE is {str(facts.workspace)!r}: write an absolute path such as /workspace")
    elif not output_dir.startswith("/"):
        problems.append(f"output_dir is {output_dir!r}: write an absolute path such as {facts.workspace}/output")
    problems += [
        f"the {source.what} {source.value} is inside output_dir {output_dir}, where this run writes files and renames "
        f"old ones: choose another output_dir, or move the {source.what}"
        for source in inputs
        if source.value.startswith("/") and PurePosixPath(normpath(source.value)).is_relative_to(normpath(output_dir))
    ]
    return problems


def _method(framework: TrainingFramework, facts: Facts, command: Command) -> str:
    method = command.method or facts.get("STOKER_METHOD")
    if method is None:
        missing = (
            f"the method is missing: set STOKER_METHOD to one of {', '.join(framework.methods)}, "
            f"or begin the arguments with {framework.trainer_module(framework.methods[0])}"
        )
        raise RunError(ExitCode.USAGE, "\n".join(command.problems or [missing]))
    if method not in framework.methods:
        gone = framework.methods_gone.get(method)
        close = difflib.get_close_matches(method.lower(), framework.methods, n=1)
        advice = gone or (f"did you mean {close[0]}?" if close else f"choose one of {', '.join(framework.methods)}")
        raise RunError(ExitCode.USAGE, f"{method!r} is not a method of {framework.name}: {advice}")
    return method


def _runtime_defaults(facts: Facts) -> dict[str, Any]:
    """Return the runtime's variables, as it lists them itself."""
    try:
        defaults = json.loads(facts.get("STOKER_RUNTIME_DEFAULTS") or "{}")
    except (ValueError, RecursionError):
        defaults = None
    if not isinstance(defaults, dict):
        raise RunError(ExitCode.CONFIG, f"STOKER_RUNTIME_DEFAULTS must be a JSON object; {_RUNTIME_SETS_IT}")
    return defaults


def _env_words(
    facts: Facts, defaults: Mapping[str, Any]
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Return the runtime's and the TrainJob's flags; in a pod both are in one env."""
    runtime: dict[str, tuple[str, ...]] = {}
    trainjob: dict[str, tuple[str, ...]] = {}
    for variable, text in facts.env.items():
        if variable.startswith(ARG_PREFIX) and text:
            target = runtime if defaults.get(variable) == text else trainjob
            flag = flag_of_variable(variable)
            if flag in target:
                raise RunError(ExitCode.USAGE, f"{variable} and another variable both set {flag}: keep one")
            target[flag] = (text,)
    return runtime, trainjob


def _env_layers(table: FlagTable, runtime: Words, trainjob: Words) -> list[Layer]:
    def split(words: Words) -> dict[str, tuple[str, ...]]:
        flags = table.flags
        return {name: split_env(text, flags[name]) if name in flags else (text,) for name, (text,) in words.items()}

    label = ARG_PREFIX + "{FLAG}"
    return [
        Layer("runtime", split(runtime), foreign="drop", label=label),
        Layer("TrainJob env", split(trainjob), label=label),
    ]


def flag_of_variable(variable: str) -> str:
    """Return the flag a `STOKER_ARG_…` variable sets; the leftmost `__` is a dot."""
    return variable.removeprefix(ARG_PREFIX).lower().replace("__", ".", 1)


def variable_of(flag: str) -> str:
    """Return the `STOKER_ARG_…` variable that sets a flag."""
    return ARG_PREFIX + flag.upper().replace(".", "__", 1)


def _process_env(facts: Facts, world: World) -> dict[str, str]:
    env = {
        DISABLE_PROGRESS: "TRUE",
        "PYTHONUNBUFFERED": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    if facts.accelerator == "cpu" and facts.get("OMP_NUM_THREADS") is None:
        # By default each process starts a thread for every core of the node, whatever the pod's share is.
        share = whole_number(facts.get("STOKER_CPU_REQUEST") or "") or facts.cpus
        env["OMP_NUM_THREADS"] = str(max(1, share // world.nproc_per_node))
    return env


def _run_id(facts: Facts, world: World, problems: list[str]) -> str:
    run_id = facts.get("STOKER_RUN_ID")
    if run_id is None:
        if world.nnodes > 1:
            problems.append(
                "STOKER_RUN_ID is not set, but this run has several nodes, which use it to share how they ended: "
                "set it to a value that is the same in all pods of an attempt and differs between attempts, "
                "such as the pod label batch.kubernetes.io/controller-uid"
            )
        return "local"
    if not _RUN_ID.match(run_id):
        problems.append(f"STOKER_RUN_ID is {run_id!r}: write only letters, digits, '.', '_' and '-'")
    return run_id


def _seconds(facts: Facts, name: str, default: int, problems: list[str], least: int = 1) -> int:
    text = facts.get(name)
    if text is None:
        return default
    seconds = whole_number(text)
    if seconds is None or seconds < least:
        problems.append(f"{name} is {text!r}: write a whole number of seconds, {least} or more")
        return default
    return seconds


def _port(facts: Facts, name: str, problems: list[str]) -> int:
    text = facts.get(name)
    port = 0 if text is None else whole_number(text)
    if port is None or port > _LAST_PORT:
        problems.append(f"{name} is {text!r}: write the number of a port, or 0 for none")
        return 0
    return port


def input_check(source: Input) -> Check:
    """Return the check of a model or data set that is a path."""
    fetched = f" ({source.initializer} of the TrainJob does that)" if source.initializer else ""
    fix = f"put it there{fetched}, mount it, or set another one with {source.flag}"
    return Check("exists", source.value, source.what, ExitCode.NO_INPUT, fix)


def _checks(facts: Facts, inputs: Sequence[Input], config_path: str | None, output_dir: str) -> tuple[Check, ...]:
    checks = [
        Check(
            "writable",
            path,
            what,
            ExitCode.CONFIG,
            f"this process runs as UID {facts.uid}, GID {facts.gid}: make the volume's folder writable for GID 0, "
            "set fsGroup, or choose a storage class whose volumes this pod can write to",
        )
        for path, what in ((str(facts.workspace), "workspace"), (output_dir, "output folder"))
    ]
    for source in inputs:
        if source.value.startswith("/"):
            checks.append(input_check(source))
    if config_path is not None:
        fix = "mount it, or correct the path in --config"
        checks.append(Check("exists", config_path, CONFIG_FILE, ExitCode.NO_INPUT, fix))
    return tuple(checks)
