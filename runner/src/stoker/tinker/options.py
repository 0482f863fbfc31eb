"""What `stoker tinker` is told: flags, and variables of the pod. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.samplers import ADDRESSES, API_KEY, IDLE_SECONDS, SamplerRequest
from stoker.contract.variables import ARG_PREFIX, workspace_of

KEY_PREFIX = "tml-"
"""How a key begins: the client refuses others."""

RUNTIME = "trl-tinker"
# What requests to the samplers call the base model.
_BASE = "base"
_SHORTEST_KEY = 20
_HANG = "STOKER_HANG_TIMEOUT_SECONDS"
_TYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class TinkerFlag:
    """A flag of `stoker tinker`.

    Attributes:
        name: without dashes.
        help: what it is.
        default: its value where nobody gives one; None if the pod decides.
        kind: its type.
    """

    name: str
    help: str
    default: str | int | float | None = None
    kind: Any = str


FLAGS = (
    TinkerFlag("model_name_or_path", "Folder or Hub id of the base model."),
    TinkerFlag("base_model", "What clients call it; by default where it was fetched from, else --model_name_or_path."),
    TinkerFlag("output_dir", "Folder for checkpoints; by default output in the workspace."),
    TinkerFlag("samplers", f"Addresses of vLLM servers, with commas between them; by default {ADDRESSES}."),
    TinkerFlag("adapters", "Folder of published versions that they watch; by default adapters in the workspace."),
    TinkerFlag("key_file", f"File with the key that clients set as TINKER_API_KEY; by default {API_KEY}."),
    TinkerFlag("samplers_key_file", f"File with the samplers' key; by default {API_KEY}."),
    TinkerFlag("run", "Name of the published versions.", "tinker"),
    TinkerFlag("host", "Address to listen on; empty for all.", ""),
    TinkerFlag("port", "Port to listen on.", 8000, click.IntRange(0, 65535)),
    TinkerFlag("dtype", "Type of the base model's weights.", "auto", click.Choice(_TYPES)),
    TinkerFlag("max_models", "LoRA models at the same time.", 16, click.IntRange(min=1)),
    TinkerFlag("max_rank", "Largest rank of a LoRA model.", 32, click.IntRange(min=1)),
    TinkerFlag("versions", "Versions that the samplers hold in memory at the same time.", 8, click.IntRange(min=1)),
    TinkerFlag("batch_tokens", "Tokens per batch, padding included.", 8192, click.IntRange(min=1)),
    TinkerFlag(
        "answer_seconds",
        "Seconds that samplers may take to answer, to load a version, or to return after a loss.",
        600,
        click.IntRange(min=1),
    ),
    TinkerFlag(
        "idle_seconds", f"Seconds without a request before it ends with 0; 0: never. By default {IDLE_SECONDS}, else 0."
    ),
)


@dataclass(frozen=True, slots=True)
class TinkerOptions:
    """What an endpoint is started with.

    Attributes:
        model: folder or Hub id of the base model.
        base_model: what clients call it; empty to look where it was fetched from.
        output_dir: for checkpoints.
        samplers: addresses, as written.
        adapters: folder of published versions.
        key_file: file with the clients' key; None if it is in the environment.
        samplers_key_file: file with the samplers' key; None if it is in the environment, or they have none.
        run: name of the published versions.
        host: to listen on.
        port: to listen on.
        dtype: of the base model's weights.
        max_models: LoRA models at the same time.
        max_rank: of a LoRA model.
        versions: that the samplers hold in memory.
        batch_tokens: computed at once.
        answer_seconds: that samplers may take.
        idle_seconds: after which it ends; 0 for never.
        hang_seconds: that one request may take to train; 0 for no limit.
        asks_samplers: its samplers are of the same TrainJob and wait for what to serve.
    """

    model: str
    base_model: str
    output_dir: Path
    samplers: str
    adapters: Path
    key_file: Path | None
    samplers_key_file: Path | None
    run: str
    host: str
    port: int
    dtype: str
    max_models: int
    max_rank: int
    versions: int
    batch_tokens: int
    answer_seconds: int
    idle_seconds: float
    hang_seconds: int
    asks_samplers: bool

    def request(self) -> SamplerRequest:
        """Return what the samplers of the same TrainJob are to serve."""
        return SamplerRequest(
            model=self.model,
            name=_BASE,
            adapters=str(self.adapters),
            length=None,
            rank=self.max_rank,
            versions=self.versions,
            dtype=self.dtype,
        )

    def to_json(self) -> dict[str, Any]:
        """Return them for `stoker plan --output json`."""
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}


def parameters() -> list[click.Parameter]:
    """Return the flags for click; each may also come from `STOKER_ARG_<FLAG>`."""
    return [
        click.Option(
            [f"--{flag.name}"],
            type=flag.kind,
            default=flag.default,
            show_default=flag.default is not None,
            help=flag.help,
        )
        for flag in FLAGS
    ]


def options_of(words: Sequence[str], environ: Mapping[str, str]) -> TinkerOptions:
    """Return what a command line and a pod's environment say.

    Args:
        words: after `stoker tinker`.
        environ: the pod's; a flag on the command line wins over its variable.

    Raises:
        RunError: a flag is wrong or missing (64), or the pod lacks something (78). All problems at once.
    """
    known = {f"{ARG_PREFIX}{flag.name.upper()}": flag.name for flag in FLAGS}
    given = {name: value for name, value in sorted(environ.items()) if name.startswith(ARG_PREFIX)}
    foreign = [
        f"{name} is not a flag of `stoker tinker`: drop it, or write one of {', '.join(sorted(known))}"
        for name in given
        if name not in known
    ]
    if foreign:
        raise RunError(ExitCode.USAGE, "\n".join(foreign))
    told = [f"--{known[name]}={value}" for name, value in given.items()]
    command = click.Command("stoker tinker", params=parameters(), add_help_option=False)
    try:
        values = command.make_context("stoker tinker", [*told, *words]).params
    except click.UsageError as error:
        message = error.format_message().rstrip(".")
        raise RunError(
            ExitCode.USAGE, f"{message[:1].lower()}{message[1:]}: `stoker tinker --help` shows the flags"
        ) from error
    return _options(values, environ)


def checked_key(text: str) -> str:
    """Return a key that the client accepts and nobody guesses.

    Raises:
        ValueError: it is not one.
    """
    key = text.strip()
    if not key.startswith(KEY_PREFIX) or len(key) < _SHORTEST_KEY or not (key.isascii() and key.isprintable()):
        raise ValueError(
            f"the key must begin with {KEY_PREFIX!r}, as the client asks, and have {_SHORTEST_KEY} characters or "
            f"more: make one with `echo {KEY_PREFIX}$(openssl rand -hex 32)`"
        )
    return key


def text_of(options: TinkerOptions) -> str:
    """Return what an endpoint does, for `stoker plan`."""
    idle = (
        f"ends after {options.idle_seconds:g} s without a request" if options.idle_seconds else "never ends by itself"
    )
    rows = [
        ("model", f"{options.model}, called {options.base_model or 'what it was fetched from'}"),
        ("models", f"up to {options.max_models} LoRA models of rank {options.max_rank} or less"),
        ("samplers", options.samplers),
        ("versions", f"{options.adapters}, {options.versions} in the samplers' memory"),
        ("checkpoints", str(options.output_dir / "checkpoints")),
        ("port", f"{options.port}, {idle}"),
    ]
    return "\n".join(["endpoint for the tinker client", *(f"  {name:<12}{value}" for name, value in rows)])


def _options(values: Mapping[str, Any], environ: Mapping[str, str]) -> TinkerOptions:
    workspace = workspace_of(environ)
    samplers = values["samplers"] or environ.get(ADDRESSES, "")
    problems = [*_problems(values, environ, samplers)]
    if problems:
        code = min((code for code, _ in problems), key=(ExitCode.CONFIG, ExitCode.USAGE).index)
        raise RunError(code, "\n".join(text for _, text in problems))
    return TinkerOptions(
        model=values["model_name_or_path"],
        base_model=values["base_model"] or "",
        output_dir=Path(values["output_dir"] or workspace / "output"),
        samplers=samplers,
        adapters=Path(values["adapters"] or workspace / "adapters"),
        key_file=Path(values["key_file"]) if values["key_file"] else None,
        samplers_key_file=Path(values["samplers_key_file"]) if values["samplers_key_file"] else None,
        run=values["run"],
        host=values["host"],
        port=values["port"],
        dtype=values["dtype"],
        max_models=values["max_models"],
        max_rank=values["max_rank"],
        versions=values["versions"],
        batch_tokens=values["batch_tokens"],
        answer_seconds=values["answer_seconds"],
        idle_seconds=float(values["idle_seconds"] or environ.get(IDLE_SECONDS) or 0),
        hang_seconds=int(environ.get(_HANG) or 1200),
        asks_samplers=not values["samplers"],
    )


def _problems(values: Mapping[str, Any], environ: Mapping[str, str], samplers: str) -> Iterator[tuple[ExitCode, str]]:
    if not values["model_name_or_path"]:
        yield ExitCode.USAGE, "--model_name_or_path is missing: name the folder or Hub id of the base model"
    if not samplers:
        yield (
            ExitCode.USAGE,
            f"--samplers is missing, and {ADDRESSES} is not set: name vLLM servers, or use the runtime {RUNTIME}",
        )
    for name, text in (
        ("--idle_seconds", values["idle_seconds"]),
        (IDLE_SECONDS, environ.get(IDLE_SECONDS)),
        (_HANG, environ.get(_HANG)),
    ):
        if text and not str(text).isdecimal():
            yield ExitCode.USAGE, f"{name} is {text!r}: write whole seconds, or 0 for no limit"
    nodes = environ.get("PET_NNODES", "1")
    if nodes != "1":
        yield ExitCode.CONFIG, f"the endpoint trains in one pod, and the TrainJob has {nodes} nodes: write numNodes: 1"
    if values["key_file"]:
        return
    if not environ.get(API_KEY):
        why = f"the endpoint has no key, because {API_KEY} is not set"
        session = f"start it as a session, `stoker rl up NAME --runtime {RUNTIME}`"
        yield ExitCode.CONFIG, f"{why}: {session}, or name a file with --key_file"
        return
    try:
        checked_key(environ[API_KEY])
    except ValueError as error:
        yield ExitCode.CONFIG, f"{API_KEY}: {error}"


def fetched_from(record: str) -> str:
    """Return what clients call a model that was fetched from the Hub; empty for any other.

    Args:
        record: content of the file that `stoker fetch` leaves.
    """
    try:
        uri = str(json.loads(record)["uri"])
    except (ValueError, LookupError, TypeError):
        return ""
    if not uri.startswith("hf://"):
        return ""
    return "/".join(uri.removeprefix("hf://").partition("@")[0].split("/")[:2])
