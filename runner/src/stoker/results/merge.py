"""Merges an adapter into its base model, and writes a folder that any server can load."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json
from stoker.contract.manifest import MANIFEST, write_manifest
from stoker.contract.words import say
from stoker.results.folder import AdapterBase, Result
from stoker.results.load import load

# Fields of a manifest that describe one folder.
_OF_THE_FOLDER = ("schemaVersion", "status", "time", "adapter", "files")


def merge(result: Result, base: AdapterBase, target: Path) -> None:
    """Merge an adapter into its base model.

    Args:
        result: the adapter.
        base: its base model.
        target: the folder to write; it must be missing or empty, and appears complete. If it holds this adapter,
            merged before, nothing is done.

    Raises:
        RunError: the folder is not free (78), or the adapter cannot be loaded.
        OSError: the folder cannot be written to.
    """
    told = {name: value for name, value in result.manifest.items() if name not in _OF_THE_FOLDER}
    told["merged_adapter"] = result.manifest["adapter"]
    before = read_json(target / MANIFEST)
    if isinstance(before, dict) and told == {name: before[name] for name in before if name not in _OF_THE_FOLDER}:
        say(f"{target} already holds {result.path}, merged")
        return
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(ExitCode.CONFIG, f"{target} exists and is not an empty folder: name a new one")
    target = target.absolute()  # so that `.` has a name
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    say(f"merging {result.path} into {base.name}")
    model, tokenizer = load(result, base, on_device=False)
    try:
        # A tensor that is not finite ends this, instead of an export that answers nonsense.
        merged = model.merge_and_unload(safe_merge=True)
        merged.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        write_manifest(draft, told)
        draft.replace(target)
    except ValueError as error:
        raise RunError(ExitCode.BAD_DATA, f"{result.path} cannot be merged: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
