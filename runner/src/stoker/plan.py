"""The plan of a run: everything decided, nothing done. Pure; printed by `stoker plan`.

Facts, framework, command line and `--config` file go in; a frozen :class:`Plan` comes out, or a :class:`RunError`
that lists every problem at once.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Any

from stoker.arguments import FlagTable, Layer, Setting, resolve, split_env, without_negations
from stoker.exits import ExitCode, RunError
from stoker.facts import ARG_PREFIX, Facts, whole_number
from stoker.frameworks import Framework, get_framework
from stoker.frameworks.base import Asked, Command, Input
from stoker.shared_memory import shared_memory_problems
from stoker.variables import unknown_variables
from stoker.world import World, resolve_world

RESUME_CHOICES = ("auto", "never", "require")

_CONFIG_FILE = "config file"

# In the place of a value that nobody may read in a log.
HIDDEN = "(not shown)"
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|(API|ACCESS|PRIVATE|ACCOUNT)_?KEY|CREDENTIAL|_(PAT|PWD|DSN)$", re.IGNORECASE
)
# Addresses of proxies and databases, with who asks and the password.
_SECRET_IN_ADDRESS = re.compile(r"://[^/\s]*:[^/\s]*@")

# The id names a folder in the workspace whose siblings of older attempts are cleared away.
_RUN_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asked for.

    Attributes:
        args: the trainer's arguments, the method's module perhaps first (`trl.scripts.sft`).
        world: what a launcher's options said of the world, by torchrun's names.
        config: the content of the user's `--config` file; None without one, or where it cannot be read yet.
    """

    args: tuple[str, ...] = ()
    world: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Something that must hold before the trainer starts.

    Attributes:
        kind: `writable` or `exists`.
        path: the file or folder it is about.
        what: what that path is to the user, e.g. `model`.
        code: the exit code if it does not hold.
        fix: what to do then.
    """

    kind: str
    path: str
    what: str
    code: ExitCode
    fix: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A run, decided.

    Attributes:
        framework: the framework's name.
        method: the training method.
        module: the trainer's Python module.
        world: the processes and where they meet.
        settings: the trainer's flags, each with its origin.
        config: what `--config` names, handed to the trainer as it is; None without one.
        workspace: folder shared by all pods.
        output_dir: folder of checkpoints, the model and the manifest.
        resume: `auto`, `never` or `require`.
        job_id: id of the job over all its attempts; empty if nobody gave one.
        run_id: id of this attempt, the same on all nodes.
        attempt: restarts before this attempt.
        image_version: tag of the image.
        accelerator: accelerator profile of the runtime.
        fingerprint: what a checkpoint must share to be resumed from.
        base_model: the model that is trained and its revision, as far as they are named.
        budget: how much training was asked for, under the name of its unit (`steps` or `epochs`).
        checks: what must hold before the start.
        env: variables added for the trainer's processes.
        grace_seconds: time between SIGTERM and SIGKILL.
        rendezvous_seconds: how long to wait for the other nodes.
        hang_seconds: how long a step may take before the run counts as hung; 0 for ever.
        termination_log: file for the one-line reason of the ending.
        notices: what a user should know.
        config_env: those of `env` that the `--config` file sets.
    """

    framework: str
    method: str
    module: str
    world: World
    settings: tuple[Setting, ...]
    config: str | None
    workspace: str
    output_dir: str
    resume: str
    job_id: str
    run_id: str
    attempt: int
    image_version: str
    accelerator: str
    fingerprint: Mapping[str, Any]
    base_model: tuple[str | None, str | None]
    budget: Mapping[str, float]
    checks: tuple[Check, ...]
    env: Mapping[str, str]
    grace_seconds: int
    rendezvous_seconds: int
    hang_seconds: int
    termination_log: str
    notices: tuple[str, ...]
    config_env: tuple[str, ...] = ()

    @property
    def shown_env(self) -> dict[str, str]:
        """What `env` adds, for people to read: a value that is secret, by its name or for a password in it, is not."""
        return {
            name: HIDDEN if _SECRET.search(name) or _SECRET_IN_ADDRESS.search(value) else value
            for name, value in self.env.items()
        }

    @property
    def shown_settings(self) -> tuple[Setting, ...]:
        """The settings, for people to read: values of flags that are secret are left out."""
        secrets = get_framework(self.framework).secrets
        return tuple(replace(s, value=HIDDEN) if s.name in secrets else s for s in self.settings)

    @property
    def recorded_settings(self) -> dict[str, str | list[str]]:
        """The same by name, as the manifest keeps them."""
        return {s.name: list(s.value) if isinstance(s.value, tuple) else s.value for s in self.shown_settings}

    @property
    def trainer_argv(self) -> list[str]:
        """The trainer's command line, without its module. What the `--config` file says, the trainer reads there."""
        return self._argv_of(self.settings)

    def _argv_of(self, settings: Sequence[Setting]) -> list[str]:
        given = (setting for setting in settings if setting.source != _CONFIG_FILE)
        return get_framework(self.framework).to_argv(given, self.config)

    @property
    def torchrun_argv(self) -> list[str]:
        """The arguments of torchrun on this node, up to the module each process runs."""
        world = self.world
        return [
            f"--nnodes={world.nnodes}",
            f"--nproc-per-node={world.nproc_per_node}",
            f"--node-rank={world.node_rank}",
            f"--master-addr={world.master_addr}",
            f"--master-port={world.master_port}",
            "--rdzv-backend=static",
            f"--rdzv-conf=timeout={self.rendezvous_seconds}",
            "--max-restarts=0",
            "--module",
            "stoker.worker",
        ]

    @property
    def hash(self) -> str:
        """A digest of all that the nodes of a run must agree on."""
        agreed = {
            "framework": self.framework,
            "method": self.method,
            "nnodes": self.world.nnodes,
            "nproc_per_node": self.world.nproc_per_node,
            "settings": [(setting.name, setting.value) for setting in self.settings],
            "fingerprint": self.fingerprint,
            "resume": self.resume,
            "run_id": self.run_id,
        }
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON-ready data (`stoker plan --output json`)."""
        data = asdict(self)
        data["world"] = {
            "size": self.world.size,
            **{name: data["world"][name] for name in ("nnodes", "nproc_per_node", "node_rank")},
            **{name: data["world"][name] for name in ("master_addr", "master_port", "settings")},
        }
        return {
            "hash": self.hash,
            **data,
            "settings": [asdict(setting) for setting in self.shown_settings],
            "env": self.shown_env,
            "trainer_argv": self._argv_of(self.shown_settings),
            "torchrun_argv": self.torchrun_argv,
        }


def resolve_plan(facts: Facts, request: Request) -> Plan:
    """Decide a run.

    Args:
        facts: what the container was told and sees.
        request: what the command line asked for.

    Raises:
        RunError: the run cannot be what was asked; 64 for arguments, 78 for configuration. Lists every problem.
    """
    framework = framework_of(facts)
    command = framework.read(request.args)
    method = _method(framework, facts, command)
    world = resolve_world(facts, request.world)
    given = dict(command.values)
    runtime, user = _env_words(facts)
    named_config = _config_of(framework, command, runtime, user)
    config_path = None if named_config is None else framework.config_file(named_config)
    config = dict(request.config or {})
    from_config = framework.config_values(config)
    values = {**runtime, **user, **from_config, **given}
    asked = Asked(method, facts.accelerator, str(facts.workspace), world.size, named_config, request.config, values)
    if command.method is not None:
        method = framework.method_meant(asked)
        asked = replace(asked, method=method)
    table = framework.table_for(asked)
    given = without_negations(given, table)
    asked = replace(asked, values={**runtime, **user, **from_config, **given})
    usage = [*command.problems, *unknown_variables(name for name, value in facts.env.items() if value)]
    own = framework.recipe(asked, table)
    layers = [
        Layer(
            "recipe",
            {name: (value,) for name, (value, _) in own.items()},
            foreign="drop",
            reasons={name: why for name, (_, why) in own.items()},
        ),
        *_env_layers(table, runtime, user),
        Layer(_CONFIG_FILE, from_config, label=f"key {{flag}} of {named_config}"),
        Layer("args", given, label=table.spell("{flag}")),
    ]
    resolution = resolve(table, layers)
    named = {setting.name: setting for setting in resolution.settings}
    usage += resolution.problems
    # A file that was not read may say anything, so nothing is called missing then.
    unread = config_path is not None and request.config is None
    usage += framework.problems(table, named, tuple(table.flags if unread else (k for k, v in config.items() if v)))
    usage += framework.contradictions(asked, table, named)
    if usage:
        raise RunError(ExitCode.USAGE, "\n".join(usage))

    configuration = [*world.problems, *shared_memory_problems(facts, world.nproc_per_node, named)]
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
    inputs = framework.inputs(table, named)
    configuration += _within_output(inputs, output_dir)
    if configuration:
        raise RunError(ExitCode.CONFIG, "\n".join(configuration))
    if config.get("datasets") is not None:
        # A mixture is no flag, but another mixture is other data.
        mixture = json.dumps(config["datasets"], sort_keys=True, default=str)
        named["datasets"] = Setting("datasets", mixture, _CONFIG_FILE)

    config_env = framework.variables(config)

    return Plan(
        framework=framework.name,
        method=method,
        module=framework.trainer_module(method, world.size),
        world=world,
        settings=resolution.settings,
        config=table.config or named_config,
        workspace=str(facts.workspace),
        output_dir=output_dir,
        resume=resume,
        job_id=facts.job_id,
        run_id=run_id,
        attempt=facts.attempt,
        image_version=facts.image_version,
        accelerator=facts.accelerator,
        fingerprint=framework.fingerprint(table, named, world.size),
        budget=framework.budget(table, named),
        base_model=framework.base_model(table, named),
        checks=_checks(facts, inputs, config_path, output_dir),
        # TRL sets a file's variables too, but once torch is loaded, which is too late for most.
        env={**_process_env(facts, world), **config_env},
        grace_seconds=grace,
        rendezvous_seconds=rendezvous,
        hang_seconds=hang,
        termination_log=str(facts.termination_log),
        notices=(*world.notices, *table.notices, *resolution.notices, *_outside(facts, world, output_dir)),
        config_env=tuple(config_env),
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


def framework_of(facts: Facts) -> Framework:
    """Return the framework that a container is to run.

    Raises:
        RunError: the runner does not know it (78).
    """
    return get_framework(facts.get("STOKER_FRAMEWORK") or "trl")


def config_file_of(facts: Facts, args: Sequence[str]) -> str | None:
    """Return the `--config` file that a container is to read, so that it can be read before the plan is made."""
    framework = framework_of(facts)
    config = _config_of(framework, framework.read(args), *_env_words(facts))
    return None if config is None else framework.config_file(config)


def _config_of(framework: Framework, command: Command, *env: dict[str, tuple[str, ...]]) -> str | None:
    """Return what names the config: the command line, else a variable where the framework's configs have names."""
    told = [words[0] for layer in env if framework.has_configs and (words := layer.pop("config", None))]
    return command.config or (told[-1] if told else None)


def _method(framework: Framework, facts: Facts, command: Command) -> str:
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
