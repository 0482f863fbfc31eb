"""Before the server starts: checks the adapters it starts with, and writes vLLM's configuration for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import write_json
from stoker.contract.manifest import ADAPTER_CONFIG, MANIFEST
from stoker.contract.words import say
from stoker.serve.adapters import check
from stoker.serve.adapters.files import Adapter, BaseModel, read_adapter, read_base_model
from stoker.serve.adapters.settings import Declared, Settings
from stoker.serve.weights import workers


def prepare(settings: Settings, output: Path) -> dict[str, Any]:
    """Check a server's adapters and write `vllm.yaml` into `output`, for vLLM's --config.

    Args:
        settings: what the adapters are.
        output: folder to write to. Adapters whose configuration must be rewritten get a folder in it.

    Returns:
        the configuration.

    Raises:
        RunError: an adapter cannot be served (78) or is missing (66); one line for each problem.
    """
    model = _model(settings)
    found = [(one, _read(one)) for one in settings.adapters]
    limit = room(settings, [adapter for _, adapter in found])
    refused = [
        f"adapter {one.name} ({one.path}): {problem}"
        for one, adapter in found
        for problem in check.problems(adapter, model, limit, require_manifest=settings.require_manifest)
    ]
    if refused:
        raise RunError(ExitCode.CONFIG, "\n".join(refused))
    config: dict[str, Any] = {}
    if found or settings.changes or (settings.others and settings.max_rank):
        config = {
            "enable-lora": True,
            "max-lora-rank": limit,
            "max-loras": settings.max_loras,
            "max-cpu-loras": max(settings.max_cpu_loras, settings.max_loras),
        }
    if found:
        config["lora-modules"] = [
            json.dumps({"name": one.name, "path": str(view(adapter, model, output / "adapters" / one.name)),
                        "base_model_name": settings.model_name})
            for one, adapter in found
        ]  # fmt: skip
    output.mkdir(parents=True, exist_ok=True)
    if settings.takes_weights:
        config["worker-extension-cls"] = workers.CLASS
        workers.place_code(output)
    (output / "vllm.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    for one, adapter in found:
        say(f"adapter {one.name}: rank {check.rank_of(adapter)}, {len(adapter.tensors)} tensors, from {one.path}")
    return config


def room(settings: Settings, adapters: list[Adapter]) -> int:
    """Return the value of vLLM's --max-lora-rank: from the settings, else from the adapters.

    Raises:
        RunError: 78, adapters come later and the settings give no largest rank, or vLLM serves no such rank.
    """
    if settings.max_rank is None and settings.changes:
        raise RunError(
            ExitCode.CONFIG,
            "lora.maxRank is missing: set it to the largest rank of the adapters that will be published",
        )
    asked = settings.max_rank or max((check.rank_of(adapter) for adapter in adapters), default=1)
    limit = check.snapped(max(asked, 1))
    if limit is None:
        raise RunError(ExitCode.CONFIG, f"rank {asked} is too large: vLLM serves ranks up to {check.ALLOWED_RANKS[-1]}")
    return limit


def view(adapter: Adapter, model: BaseModel, folder: Path) -> Path:
    """Return an adapter's folder with the server's base model in its configuration.

    A trainer that read its model from a volume recorded that path. If nothing has to change, this is the adapter's own
    folder. Otherwise it is a folder with links and a rewritten configuration. The adapter's folder is never changed.

    Raises:
        OSError: the folder cannot be written to.
    """
    if adapter.config.get("base_model_name_or_path") == str(model.path):
        return adapter.path
    folder.mkdir(parents=True, exist_ok=True)
    for file in adapter.path.iterdir():
        link = folder / file.name
        if file.is_file() and file.name not in (ADAPTER_CONFIG, MANIFEST):
            link.unlink(missing_ok=True)
            link.symlink_to(file)
    write_json(folder / ADAPTER_CONFIG, {**adapter.config, "base_model_name_or_path": str(model.path)})
    return folder


def _model(settings: Settings) -> BaseModel:
    try:
        return read_base_model(settings.model, settings.source, settings.revision)
    except RunError as error:
        advice = f": correct {settings.model_value}" if settings.model_value else ""
        raise RunError(error.code, f"{error.message}{advice}") from error


def _read(one: Declared) -> Adapter:
    try:
        return read_adapter(one.path)
    except OSError as error:
        what = error.filename or one.path
        raise RunError(
            ExitCode.NO_INPUT,
            f"adapter {one.name}: {what} cannot be read ({error.strerror}): correct its claim and path in adapters",
        ) from error


def verdict(folder: Path, model: Path, source: str, max_rank: int, *, require_manifest: bool) -> str:
    """Return one line about an adapter that a server with a base model can serve.

    Raises:
        RunError: the server cannot serve it (78), or it is missing (66).
    """
    try:
        adapter = read_adapter(folder)
    except OSError as error:
        raise RunError(ExitCode.NO_INPUT, f"{error.filename or folder} cannot be read ({error.strerror})") from error
    found = check.problems(adapter, read_base_model(model, source), max_rank, require_manifest=require_manifest)
    if found:
        raise RunError(ExitCode.CONFIG, "\n".join(f"{folder}: {problem}" for problem in found))
    return f"{folder} can be served: rank {check.rank_of(adapter)}, {len(adapter.tensors)} tensors"
