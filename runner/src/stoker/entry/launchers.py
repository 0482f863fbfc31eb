"""Translates other start commands into one launch. Pure.

A command that trains with a framework's own module becomes `stoker run`. Everything else (a user's own script,
`--help`, other subcommands) goes to the real command.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.frameworks import known_frameworks


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line that trains with a framework's module.

    Attributes:
        args: the trainer's arguments, its module first.
        world: the launcher's options about the world, by torchrun's names.
    """

    args: tuple[str, ...]
    world: Mapping[str, str]


# accelerate counts the processes of all nodes together; torchrun has no option for that.
_TOTAL = "total"
# Options about the world → torchrun's name.
_TORCHRUN = {
    "nnodes": "nnodes",
    "nproc_per_node": "nproc_per_node",
    "node_rank": "node_rank",
    "master_addr": "master_addr",
    "master_port": "master_port",
}
_ACCELERATE = {
    "num_machines": "nnodes",
    "machine_rank": "node_rank",
    "main_process_ip": "master_addr",
    "main_process_port": "master_port",
    "num_processes": _TOTAL,
}
# Commands of `trl` that do not train.
_NOT_TRAINING = ("env", "vllm-serve")
# Options of `trl` that name a file of accelerate's.
_TRL_LAUNCH = ("--accelerate_config", "--config_file")
# Options that change nothing here.
_IMPLIED = {"m", "module", "multi_gpu"}
# Options without a value (torch 2.13 and accelerate 1.15; a test compares them with the real parsers). Any other option
# takes the next word as its value. The first word that is left is what the command line starts.
VALUELESS = {
    "torchrun": frozenset({"h", "help", "m", "module", "no_python", "run_path", "standalone", "virtual_local_rank"}),
    "accelerate launch": frozenset(
        {
            *("h", "help", "m", "module", "no_python", "q", "quiet", "debug", "cpu", "multi_gpu", "same_network"),
            *("tpu", "tpu_cluster", "no_tpu_cluster", "tpu_use_sudo", "downcast_bf16", "enable_cpu_affinity"),
            *("use_deepspeed", "use_fsdp", "use_megatron_lm", "use_parallelism_config"),
            *("dynamo_use_dynamic", "dynamo_use_fullgraph", "dynamo_use_regional_compilation"),
            "fp8_use_autocast_during_eval",
        }
    ),
}


def translate(command: str, argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Launch | None:
    """Return the launch that a command line asks for; None if the real command should run.

    Args:
        command: `torchrun`, `trl`, `accelerate` or `tune`.
        argv: its arguments.
        environ: its environment; that of this process by default.

    Raises:
        RunError: it trains with a framework's module, but has an option that stoker does not support (64).
    """
    environ = os.environ if environ is None else environ
    if command == "torchrun":
        return _launcher("torchrun", argv, _TORCHRUN, environ)
    if command == "accelerate" and argv[:1] == ["launch"]:
        return _launcher("accelerate launch", argv[1:], _ACCELERATE, environ)
    if command == "trl" and argv and not {"-h", "--help"} & set(argv):
        return _trl(argv, environ)
    if command == "tune" and argv[:1] == ["run"]:
        return _tune(argv[1:])
    return None


def _launcher(
    name: str, argv: Sequence[str], world_options: Mapping[str, str], environ: Mapping[str, str]
) -> Launch | None:
    options, started = _split(argv, VALUELESS[name])
    if not started or not _is_trainer_module(_as_module(started[0])) or {"-h", "--help"} & {*argv}:
        return None
    world = {world_options[_option(word)]: value for word, value in options if _option(word) in world_options}
    refused = [word for word, _ in options if _option(word) not in {*world_options, *_IMPLIED}]
    if refused:
        raise _unsupported(
            name,
            refused,
            ". Precision and sharding are trainer flags (--bf16, --fsdp, --deepspeed): write them after the module",
        )
    return Launch((_as_module(started[0]), *started[1:]), _by_node(name, world, environ))


def _split(argv: Sequence[str], valueless: frozenset[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split a launcher's words into its options with their values (empty: none), and what it starts."""
    words = list(argv)
    options = []
    while words and words[0].startswith("-"):
        word, equals, value = words.pop(0).partition("=")
        if not equals and _option(word) not in valueless and words:
            value = words.pop(0)
        options.append((word, value))
    return options, words


def _option(word: str) -> str:
    return word.lstrip("-").replace("-", "_")


def _by_node(name: str, world: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options about the world with accelerate's number of all processes as that of one node."""
    found = dict(world)
    total = found.pop(_TOTAL, None)
    if total is not None:
        found["nproc_per_node"] = _per_node(name, total, found.get("nnodes") or environ.get("PET_NNODES") or "1")
    return found


def _per_node(name: str, total: str, nodes: str) -> str:
    if not total.isdecimal() or not nodes.isdecimal() or int(nodes) == 0 or int(total) % int(nodes):
        raise RunError(
            ExitCode.USAGE,
            f"{name}: --num_processes {total} cannot be split evenly over {nodes} nodes: write a multiple of {nodes}",
        )
    return str(int(total) // int(nodes))


def _trl(argv: Sequence[str], environ: Mapping[str, str]) -> Launch | None:
    method, *rest = argv
    framework = known_frameworks()["trl"]
    if method not in framework.methods:
        gone = framework.methods_gone.get(method.replace("-", "_"))
        if gone is None or method in _NOT_TRAINING:
            return None
        raise RunError(ExitCode.USAGE, f"trl: this version has no command {method!r}: {gone}")
    refused = [word for word in _TRL_LAUNCH if word in {given.partition("=")[0] for given in rest}]
    if refused:
        raise _unsupported("trl", refused, ". Sharding is a trainer flag (--fsdp, --deepspeed)")
    world, flags = _launch_options(rest)
    return Launch((framework.trainer_module(method), *flags), _by_node("trl", world, environ))


def _launch_options(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split what follows `trl sft` into accelerate's options about the world, by torchrun's names, and the rest."""
    world, rest, left = {}, [], list(words)
    while left:
        word, equals, value = left.pop(0).partition("=")
        if word.startswith("--") and _option(word) in _ACCELERATE and (equals or left):
            world[_ACCELERATE[_option(word)]] = value if equals else left.pop(0)
        else:
            rest.append(f"{word}{equals}{value}")
    return world, rest


def _tune(argv: Sequence[str]) -> Launch | None:
    """Return the launch of `tune run [torchrun's options] recipe --config …`, also when Kubeflow Trainer rewrote it."""
    options, started = _split(argv, VALUELESS["torchrun"])
    if not started or known_frameworks()["torchtune"].read([started[0]]).method is None or {"-h", "--help"} & {*argv}:
        return None
    world = {_TORCHRUN[_option(word)]: value for word, value in options if _option(word) in _TORCHRUN}
    refused = [word for word, _ in options if _option(word) not in {*_TORCHRUN, "rdzv_endpoint", "standalone"}]
    if refused:
        raise _unsupported("tune run", refused)
    endpoint = next((value for word, value in options if _option(word) == "rdzv_endpoint"), "")
    host, _, port = endpoint.partition(":")
    # Upstream's runtimes write localhost for any number of nodes; then the address comes from the pod's env.
    if host and host not in ("localhost", "127.0.0.1"):
        world |= {"master_addr": host, **({"master_port": port} if port else {})}
    return Launch(tuple(started), world)


def _unsupported(launcher: str, options: Sequence[str], advice: str = "") -> RunError:
    return RunError(
        ExitCode.USAGE,
        f"{launcher}: stoker does not support {', '.join(options)}: drop {'it' if len(options) == 1 else 'them'}. "
        f"The TrainJob sets the number of nodes and processes (numNodes, numProcPerNode){advice}",
    )


def _is_trainer_module(word: str) -> bool:
    return any(framework.read([word]).method is not None for framework in known_frameworks().values())


def _as_module(word: str) -> str:
    """Return the module of a training script's path, such as `trl.scripts.sft`; any other word unchanged."""
    parts = Path(word).with_suffix("").parts if word.endswith(".py") else ()
    return ".".join(parts[-3:]) if parts[-3:-1] in (("trl", "scripts"), ("stoker", "scripts")) else word
