"""Checkpoints: finds the newest complete one, decides whether a run may resume from it, and whether a run has finished.

A checkpoint is complete when it has a seal: a file written last, after every rank has saved. The seal lists all other
files with their sizes and has the run's fingerprint. It depends on no trainer's file names.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import exists, read_json, share_with_group, write_json
from stoker.contract.manifest import EARLIER_OUTPUT, MANIFEST, SET_ASIDE
from stoker.contract.metrics import METRICS
from stoker.contract.weights import damage_found_in
from stoker.rank.same_run import refuse_other_run

SEAL = "stoker-checkpoint.json"
# One file in the workspace for each output folder, because jobs may share a workspace.
_STARTED_ANEW = ".stoker/started-anew-{}.json"
_CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")
# Errors that mean "there is no such file". With any other error nobody knows.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder.

    Attributes:
        path: the folder.
        step: the step it was saved at.
        record: what its seal says of the run it belongs to; None if it has no seal.
        flaw: why it cannot be used; empty if it is complete.
        error: why it could not be checked; it may still be complete.
    """

    path: Path
    step: int
    record: Mapping[str, Any] | None
    flaw: str
    error: OSError | None = None


def seal(
    folder: Path,
    step: int,
    fingerprint: Mapping[str, Any],
    fixed: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Mark a checkpoint as complete, and share it with the group. Call after every rank has written its part.

    A resume compares what is given here: call it with `**job.plan.record`.

    Args:
        folder: the checkpoint.
        step: the step it was saved at.
        fingerprint: the plan's fingerprint.
        fixed: the plan's fixed settings.
        settings: the settings that the manifest records too.

    Raises:
        OSError: the folder cannot be written to.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SEAL]
    for path in files:
        share_with_group(path)
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    record = {"fingerprint": fingerprint, "fixed": fixed or {}, "settings": settings or {}}
    write_json(folder / SEAL, {"step": step, **record, "files": sizes})


def read_checkpoints(output_dir: Path) -> list[Checkpoint]:
    """Return all checkpoints of a run, newest first, each with its flaw; none if the folder does not exist.

    Raises:
        OSError: the folder cannot be read.
    """
    try:
        folders = list(output_dir.iterdir())
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return []
    steps = ((int(match[1]), p) for p in folders if p.is_dir() and (match := _CHECKPOINT.match(p.name)))
    return [_read(path, step) for step, path in sorted(steps, reverse=True)]


def _read(path: Path, step: int) -> Checkpoint:
    try:
        return _inspected(path, step)
    except OSError as error:
        return Checkpoint(path, step, None, f"it cannot be read ({error.strerror})", error)


def _inspected(path: Path, step: int) -> Checkpoint:
    """Return a checkpoint with its flaw.

    Raises:
        OSError: one of its files exists, but cannot be read.
    """
    try:
        data = json.loads((path / SEAL).read_bytes())
    except (FileNotFoundError, ValueError):
        return Checkpoint(path, step, None, "the save did not finish")
    if not isinstance(data, dict) or not all(isinstance(data.get(key), dict) for key in ("files", "fingerprint")):
        return Checkpoint(path, step, None, f"{SEAL} was not written by stoker")
    for name, size in data["files"].items():
        found = _size(path, name)
        if found is None:
            return Checkpoint(path, step, data, f"{name} is missing")
        if found != size:
            return Checkpoint(path, step, data, f"{name} has {found} bytes, not {size}")
        damage = damage_found_in(path / name)
        if damage:
            return Checkpoint(path, step, data, f"{name} is damaged: {damage}")
    return Checkpoint(path, step, data, "")


def _size(folder: Path, name: str) -> int | None:
    """Return a file's size in bytes, None if it does not exist."""
    try:
        return (folder / name).stat().st_size
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return None


def _content(file: Path) -> bytes:
    """Return a file's content; empty, which is not JSON, if there is no such file.

    Raises:
        OSError: it exists, but cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return b""


def newest_step(output_dir: Path) -> int:
    """Return the step of the newest complete checkpoint, 0 if there is none or the folder cannot be read."""
    try:
        return next((c.step for c in read_checkpoints(output_dir) if not c.flaw), 0)
    except OSError:
        return 0


def starts_anew(workspace: Path, output_dir: Path, resume: str, job_id: str, attempt: int) -> bool:
    """Return whether this attempt must ignore everything from earlier runs (`STOKER_RESUME=never`).

    A job starts anew once; its restarts resume from its own checkpoints. A file in the workspace records the id of the
    job that started anew. Without an id, only the first attempt starts anew.

    Raises:
        OSError: the record exists, but cannot be read.
    """
    if resume != "never":
        return False
    if not job_id:
        return attempt == 0
    try:
        record = json.loads(_content(_anew_record(workspace, output_dir)))
    except ValueError:
        return True
    return not isinstance(record, dict) or record.get("job_id") != job_id


def record_anew(workspace: Path, output_dir: Path, job_id: str) -> None:
    """Record that a job has started anew. Call after checkpoints of earlier runs are set aside.

    Raises:
        OSError: the workspace cannot be written to.
    """
    write_json(_anew_record(workspace, output_dir), {"job_id": job_id})


def _anew_record(workspace: Path, output_dir: Path) -> Path:
    return workspace / _STARTED_ANEW.format(hashlib.sha256(os.fsencode(output_dir)).hexdigest()[:12])


def choose(
    output_dir: Path,
    record: Mapping[str, Any],
    resume: str,
    anew: bool,
    sources: Mapping[str, str] | None = None,
) -> tuple[Checkpoint | None, list[tuple[Path, str]]]:
    """Choose the checkpoint to resume from. Only reads; renames nothing.

    Args:
        output_dir: the run's output folder.
        record: the record of the run about to start.
        resume: `auto`, `never` or `require`.
        anew: True to start at step 0 in any case (see :func:`starts_anew`).
        sources: setting → the layer that set it.

    Returns:
        the checkpoint to resume from (None: start at step 0), and the folders to set aside, each with the reason.

    Raises:
        RunError: the newest complete checkpoint belongs to another run, or `require` found none (78).
        OSError: a checkpoint cannot be read, and may be the newest complete one.
    """
    checkpoints = read_checkpoints(output_dir)
    if anew:
        return None, [(c.path, "STOKER_RESUME=never") for c in checkpoints]
    aside = []
    for checkpoint in checkpoints:
        if checkpoint.error is not None:
            raise checkpoint.error
        if checkpoint.flaw:
            aside.append((checkpoint.path, checkpoint.flaw))
            continue
        refuse_other_run(f"checkpoint {checkpoint.path}", checkpoint.record or {}, record, sources)
        return checkpoint, aside
    if resume == "require":
        raise nothing_to_resume(str(output_dir))
    return None, aside


def can_resume(output_dir: Path) -> bool:
    """Return whether an output folder has a complete checkpoint, or one that cannot be read, or a finished run.

    Raises:
        OSError: the folder cannot be read.
    """
    return exists(output_dir / MANIFEST) or any(
        one.error is not None or not one.flaw for one in read_checkpoints(output_dir)
    )


def former_settings(output_dir: Path) -> Mapping[str, Any] | None:
    """Return the fixed settings of the newest complete checkpoint, else of the finished output; None without either.

    A runner that recorded none has left an empty mapping.

    Raises:
        OSError: the folder or the manifest cannot be read, or a checkpoint that may be the newest complete one.
    """
    for checkpoint in read_checkpoints(output_dir):
        if checkpoint.error is not None:
            raise checkpoint.error
        if not checkpoint.flaw:
            return _fixed(checkpoint.record)
    try:
        return _fixed(json.loads(_content(output_dir / MANIFEST)))
    except (ValueError, RecursionError):
        return None


def _fixed(record: object) -> Mapping[str, Any] | None:
    if not isinstance(record, Mapping):
        return None
    fixed = record.get("fixed")
    return fixed if isinstance(fixed, Mapping) else {}


def nothing_to_resume(output_dir: str) -> RunError:
    """Return the error of a run that must resume, and has no complete checkpoint."""
    return RunError(
        ExitCode.CONFIG,
        f"STOKER_RESUME=require, but {output_dir} has no complete checkpoint: "
        "set it to auto to start at step 0, or mount the volume of the run to resume",
    )


def set_aside(path: Path) -> Path:
    """Rename a checkpoint so that no trainer loads it, and return its new path.

    Raises:
        OSError: it cannot be renamed.
    """
    return path.rename(_free_name(path.parent, f"{SET_ASIDE}{path.name}-"))


def retire_output(output_dir: Path) -> None:
    """Move the output of an earlier finished run, as its manifest lists it, into a new folder; nothing is lost.

    Does nothing if no run has finished. The manifest moves first, because its existence means "finished". The metrics
    are copied, because a run with more steps goes on with them. Call only after every node has planned: plans follow
    what the manifest says.

    Raises:
        OSError: the folder cannot be written to.
    """
    manifest = read_json(output_dir / MANIFEST)
    if not (output_dir / MANIFEST).exists():
        return
    folder = _free_name(output_dir, EARLIER_OUTPUT)
    folder.mkdir()
    (output_dir / MANIFEST).rename(folder / MANIFEST)
    listed = manifest.get("files") if isinstance(manifest, dict) else ()
    names = [entry.get("path") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    # Compared with the files that exist, because a user may have edited the manifest.
    for path in [path for path in output_dir.iterdir() if path.name in names and path.is_file()]:
        if path.name == METRICS:
            shutil.copy2(path, folder / path.name)
        else:
            path.rename(folder / path.name)


def _free_name(folder: Path, beginning: str) -> Path:
    number = 1
    while (target := folder / f"{beginning}{number}").exists():
        number += 1
    return target


def finished_manifest(
    output_dir: Path, record: Mapping[str, Any], budget: Mapping[str, float], sources: Mapping[str, str] | None = None
) -> Any | None:
    """Return the manifest of this run if it has already finished, None if there is more to train.

    There is more to train if the budget is larger, or in another unit: ten steps say nothing about three epochs.

    Args:
        output_dir: the run's output folder.
        record: the record of the run about to start.
        budget: how much it is to train, by unit.
        sources: setting → the layer that set it.

    Raises:
        RunError: the folder has the finished output of another run (78).
        OSError: the manifest exists, but cannot be read.
    """
    try:
        manifest = json.loads(_content(output_dir / MANIFEST))
    except ValueError:
        return None
    if not isinstance(manifest, dict) or not all(isinstance(manifest.get(k), dict) for k in ("fingerprint", "budget")):
        raise RunError(
            ExitCode.CONFIG,
            f"{output_dir / MANIFEST} was not written by stoker: give this run its own output_dir, or remove the file",
        )
    refuse_other_run(f"the finished output in {output_dir}", manifest, record, sources)
    done = {unit: count for unit, count in manifest["budget"].items() if isinstance(count, int | float)}
    return manifest if all(done.get(unit, -1) >= wanted for unit, wanted in budget.items()) else None
