"""What a run leaves behind: the termination message, the last error, and the output manifest."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from stoker.checkpoints import MANIFEST, newest_step
from stoker.contents import parse_header, read_header
from stoker.exits import ExitCode
from stoker.files import read_json, share_with_group, write_json
from stoker.plan import Plan
from stoker.runfolder import Verdict

LAST_ERROR = "last-error.json"
# Apart from the last error, which a node that only lost its peers may write before the one with the cause looks.
_CRASHES = ".stoker/crashes.json"
# Described in schemas/manifest-v1.json and schemas/last-error-v1.json.
MANIFEST_VERSION = 1
LAST_ERROR_VERSION = 1

_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_WEIGHTS = "adapter_model.safetensors"
# Low-rank weights by their names in a PEFT adapter (peft 0.21), and what embeddings and output heads are called.
_LOW_RANK = re.compile(r"\.(lora|dora)_")
_EMBEDDING = re.compile(r"(^|\.)(embed\w*|lm_head|wte|wpe|word_embeddings|output_layer)\.")

# Up to this size a file is hashed whole; of larger weights the size and the safetensors header are recorded.
_HASHED_BYTES = 256 * 2**20
# Kubernetes keeps at most 4096 bytes of a termination message.
_MESSAGE_BYTES = 4000


def say(text: str) -> None:
    """Print one line of the runner's own, apart from the trainer's output."""
    write_line(sys.stderr, f"[stoker] {text}")


def write_line(stream: TextIO, line: str) -> None:
    """Write a line at once, so that those of several writers do not mix; from when nobody takes them they are dropped.

    A reader that went away, such as `head`, or `tee` at Ctrl-C, a full disk under the log, or a terminal that lacks a
    character is no reason to end a run, nor to keep it waiting for who would have read its output.
    """
    try:
        try:
            stream.write(f"{line}\n")
        except UnicodeEncodeError:
            stream.write(f"{line}\n".encode(stream.encoding, "backslashreplace").decode(stream.encoding))
        stream.flush()
    except OSError:
        # What is still in the buffer would fail again at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write_termination_message(path: Path, text: str) -> None:
    """Write the line that `kubectl describe pod` shows; does nothing where no such file can be written."""
    try:
        # A cut through a character, or a stray byte of a file's name, must not reach the API server.
        cut = text.encode("utf-8", "replace")[:_MESSAGE_BYTES].decode("utf-8", "ignore")
        path.write_text(cut, encoding="utf-8")
    except OSError:
        return


def settle_crash(plan: Plan, verdict: Verdict) -> Verdict:
    """Put a crash of this node on record, and stop the retries of a run that crashes twice with no checkpoint between.

    Returns:
        the verdict; a final one (78) if the attempt before crashed at the same checkpoint.
    """
    if verdict.code is not ExitCode.CRASHED or not verdict.primary:
        return verdict
    path = Path(plan.workspace) / _CRASHES
    step = newest_step(Path(plan.output_dir))
    record = read_json(path)
    # Attempt → the newest checkpoint at its crash. Several nodes may crash at once: each adds to what there was.
    steps = record.get("steps", {}) if isinstance(record, dict) and record.get("job_id") == plan.job_id else {}
    if plan.attempt == 0:
        steps = {}
    try:
        write_json(path, {"job_id": plan.job_id, "steps": {**steps, str(plan.attempt): step}})
    except OSError as problem:
        say(f"{path} could not be written: {problem}")
    if steps.get(str(plan.attempt - 1)) == step:
        return Verdict(
            ExitCode.CONFIG,
            f"crashed twice in a row with no new checkpoint between (newest: step {step}), so it is not tried again: "
            f"{verdict.message}",
        )
    return verdict


def write_last_error(plan: Plan, verdict: Verdict) -> None:
    """Record the failure in the workspace, where it outlives the pod. The node with the cause has the last word."""
    path = Path(plan.output_dir) / LAST_ERROR
    before = read_json(path)
    if not verdict.primary and isinstance(before, dict) and before.get("run_id") == plan.run_id:
        return
    error = {
        "schemaVersion": LAST_ERROR_VERSION,
        "code": int(verdict.code),
        "meaning": verdict.code.meaning,
        "message": verdict.message,
        "time": _now(),
        "node_rank": plan.world.node_rank,
        "attempt": plan.attempt,
        "run_id": plan.run_id,
        "checkpoint_step": newest_step(Path(plan.output_dir)),
    }
    try:
        write_json(path, error)
    except OSError as problem:
        say(f"{path} could not be written: {problem}")


def write_manifest(plan: Plan, result: Mapping[str, Any]) -> dict[str, Any]:
    """Write `stoker.json`, the contract with whoever serves the output; its existence means the run finished.

    Args:
        plan: the run.
        result: what rank 0 reported at its end.

    Returns:
        the manifest.

    Raises:
        OSError: the output folder cannot be written to.
    """
    output = Path(plan.output_dir)
    base = {"name_or_path": plan.base_model[0], "revision": plan.base_model[1]}
    adapter = _complete_adapter_config(output, base["name_or_path"])
    files = [path for path in sorted(output.iterdir()) if _is_output(path)]
    for path in files:
        share_with_group(path)
    manifest: dict[str, Any] = {
        "schemaVersion": MANIFEST_VERSION,
        "status": "finished",
        "time": _now(),
        "framework": plan.framework,
        "method": plan.method,
        "run_id": plan.run_id,
        "attempt": plan.attempt,
        "image_version": plan.image_version,
        "steps": result["steps"],
        "max_steps": result["max_steps"],
        "seconds": result["seconds"],
        "resumed_from": result["resumed_from"],
        "metrics": result["metrics"],
        "world_size": result["world_size"],
        "nodes": plan.world.nnodes,
        "processes_per_node": plan.world.nproc_per_node,
        "versions": result["versions"],
        "fingerprint": plan.fingerprint,
        "budget": plan.budget,
        "settings": plan.recorded_settings,
        "base_model": base,
        "adapter": None if adapter is None else _adapter(adapter, output / _ADAPTER_WEIGHTS),
        "files": [_described(path) for path in files],
    }
    write_json(output / MANIFEST, manifest)
    return manifest


def _complete_adapter_config(output: Path, base_model: object) -> Any | None:
    """Return the adapter's configuration, None without one; name the base model in it where the trainer did not.

    TorchTune 0.6.1 leaves the base model out, without which no server can load the adapter.
    """
    config = read_json(output / _ADAPTER_CONFIG)
    if not isinstance(config, dict):
        return None
    if not config.get("base_model_name_or_path") and base_model:
        config["base_model_name_or_path"] = base_model
        write_json(output / _ADAPTER_CONFIG, config)
    return config


def _adapter(config: Mapping[str, Any], weights: Path) -> dict[str, Any]:
    # Field names of PEFT's adapter_config.json (peft 0.21).
    return {
        "type": config.get("peft_type"),
        "rank": config.get("r"),
        "alpha": config.get("lora_alpha"),
        "target_modules": sorted(config["target_modules"])
        if isinstance(config.get("target_modules"), list)
        else config.get("target_modules"),
        "modules_to_save": config.get("modules_to_save"),
        "changed_embeddings": _changed_embeddings(weights),
        "use_dora": config.get("use_dora", False),
        "use_rslora": config.get("use_rslora", False),
    }


def _changed_embeddings(weights: Path) -> list[str]:
    """Return the tensors of an adapter that stand in for embeddings or the output head, or extend them."""
    try:
        names = parse_header(read_header(weights))
    except (OSError, ValueError):  # another format, which PEFT does not write by default
        return []
    return sorted(name for name in names if _EMBEDDING.search(name) and not _LOW_RANK.search(name))


def _is_output(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and path.name not in (MANIFEST, LAST_ERROR)


def _described(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size <= _HASHED_BYTES:
        with path.open("rb") as stream:
            return {"path": path.name, "bytes": size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
    return {"path": path.name, "bytes": size, "header_sha256": _header_digest(path)}


def _header_digest(path: Path) -> str | None:
    """Return the digest of a safetensors header as it stands in the file; None for another format."""
    return hashlib.sha256(read_header(path)).hexdigest() if path.suffix == ".safetensors" else None


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
