"""Checkpoints: which is the newest complete one, whether a run may go on from it, and what "finished" means.

A checkpoint is complete once its seal is there: a file written last, after every rank has saved, that names all
other files with their sizes and carries the run's fingerprint. Knowing no trainer's file names, it fits them all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json, share_with_group, write_json
from stoker.contract.manifest import MANIFEST
from stoker.contract.weights import damage_found_in

SEAL = "stoker-checkpoint.json"
# In the workspace, one for each output folder: jobs that share a workspace tell theirs apart by it.
_STARTED_ANEW = ".stoker/started-anew-{}.json"
_CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")
# What the system says of a file that is not there. Anything else says that nobody could look.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint folder.

    Attributes:
        path: the folder.
        step: the step it was saved at.
        fingerprint: the run it belongs to; None if it has no seal.
        flaw: why it cannot be used; empty if it is complete.
        error: what kept it from being looked at, in which case it may well be complete.
    """

    path: Path
    step: int
    fingerprint: Mapping[str, Any] | None
    flaw: str
    error: OSError | None = None


def seal(folder: Path, step: int, fingerprint: Mapping[str, Any]) -> None:
    """Declare a checkpoint complete, and share it with the group. Call once every rank has written its part.

    Raises:
        OSError: the folder cannot be written to.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != SEAL]
    for path in files:
        share_with_group(path)
    sizes = {str(path.relative_to(folder)): path.stat().st_size for path in files}
    write_json(folder / SEAL, {"step": step, "fingerprint": fingerprint, "files": sizes})


def read_checkpoints(output_dir: Path) -> list[Checkpoint]:
    """Return all checkpoints of a run, newest first, each with its flaw; none where there is no such folder.

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
        OSError: a file of it is there, but cannot be read.
    """
    try:
        data = json.loads((path / SEAL).read_bytes())
    except (FileNotFoundError, ValueError):
        return Checkpoint(path, step, None, "it was not saved to its end")
    if not isinstance(data, dict) or not all(isinstance(data.get(key), dict) for key in ("files", "fingerprint")):
        return Checkpoint(path, step, None, f"{SEAL} is not what this program writes")
    for name, size in data["files"].items():
        found = _size(path, name)
        if found is None:
            return Checkpoint(path, step, data["fingerprint"], f"{name} is missing")
        if found != size:
            return Checkpoint(path, step, data["fingerprint"], f"{name} has {found} bytes, not {size}")
        damage = damage_found_in(path / name)
        if damage:
            return Checkpoint(path, step, data["fingerprint"], f"{name} is damaged: {damage}")
    return Checkpoint(path, step, data["fingerprint"], "")


def _size(folder: Path, name: str) -> int | None:
    """Return a file's size in bytes, None where there is no such file."""
    try:
        return (folder / name).stat().st_size
    except ValueError:  # a name that no file can have
        return None
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return None


def newest_step(output_dir: Path) -> int:
    """Return the step of the newest complete checkpoint that can be read, 0 without one."""
    try:
        return next((c.step for c in read_checkpoints(output_dir) if not c.flaw), 0)
    except OSError:
        return 0


def starts_anew(workspace: Path, output_dir: Path, resume: str, job_id: str, attempt: int) -> bool:
    """Return whether this attempt must ignore all that earlier runs left (`STOKER_RESUME=never`).

    A job starts anew once; its restarts go on from its own checkpoints. Whether it did is on record under its id;
    where nobody gave it one, the first attempt is the one that does.

    Raises:
        OSError: the record is there, but cannot be read.
    """
    if resume != "never":
        return False
    if not job_id:
        return attempt == 0
    try:
        record = json.loads(_anew_record(workspace, output_dir).read_bytes())
    except (FileNotFoundError, ValueError):
        return True
    return not isinstance(record, dict) or record.get("job_id") != job_id


def record_anew(workspace: Path, output_dir: Path, job_id: str) -> None:
    """Put on record that a job has started anew. Call once nothing of earlier runs can be taken for its own.

    Raises:
        OSError: the workspace cannot be written to.
    """
    write_json(_anew_record(workspace, output_dir), {"job_id": job_id})


def _anew_record(workspace: Path, output_dir: Path) -> Path:
    return workspace / _STARTED_ANEW.format(hashlib.sha256(os.fsencode(output_dir)).hexdigest()[:12])


def choose(
    output_dir: Path, fingerprint: Mapping[str, Any], resume: str, anew: bool
) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Choose the checkpoint to go on from. Pure reading: nothing is renamed here.

    Args:
        output_dir: the run's output folder.
        fingerprint: the run about to start.
        resume: `auto`, `never` or `require`.
        anew: True to start at step 0 whatever there is (see :func:`starts_anew`).

    Returns:
        the folder to resume from (None: start at step 0), and the folders to set aside, each with the reason.

    Raises:
        RunError: the newest complete checkpoint is another run's, or `require` found none (78).
        OSError: one that is newer than the newest complete one cannot be read: it may be the one to go on from.
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
        refuse_other_run(f"checkpoint {checkpoint.path}", checkpoint.fingerprint or {}, fingerprint)
        return checkpoint.path, aside
    if resume == "require":
        raise RunError(
            ExitCode.CONFIG,
            f"STOKER_RESUME=require, but {output_dir} holds no complete checkpoint: "
            "set it to auto to start at step 0, or mount the volume of the run to resume",
        )
    return None, aside


def set_aside(path: Path) -> Path:
    """Rename a checkpoint so that no trainer takes it for one, and return its new name.

    Raises:
        OSError: it cannot be renamed.
    """
    return path.rename(_free_name(path.parent, f"set-aside-{path.name}"))


def retire_output(output_dir: Path) -> None:
    """Move what an earlier finished run left, as its manifest lists it, into a folder of its own; nothing is lost.

    Does nothing where no run has finished. The manifest goes first: its existence says "finished".

    Raises:
        OSError: the folder cannot be written to.
    """
    manifest = read_json(output_dir / MANIFEST)
    if not (output_dir / MANIFEST).exists():
        return
    folder = _free_name(output_dir, "earlier-output")
    folder.mkdir()
    (output_dir / MANIFEST).rename(folder / MANIFEST)
    listed = manifest.get("files") if isinstance(manifest, dict) else ()
    names = [entry.get("path") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    # By what lies there: a manifest that somebody has edited names nothing else.
    for path in [path for path in output_dir.iterdir() if path.name in names and path.is_file()]:
        path.rename(folder / path.name)


def _free_name(folder: Path, stem: str) -> Path:
    number = 1
    while (target := folder / f"{stem}-{number}").exists():
        number += 1
    return target


def refuse_other_run(what: str, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Raise if two fingerprints differ.

    Raises:
        RunError: they do; names each difference (78).
    """
    differences = _differences(theirs, ours)
    if differences:
        raise RunError(
            ExitCode.CONFIG,
            f"{what} is of another run: {'; '.join(differences)}. "
            "Give this run its own workspace or output_dir, or set STOKER_RESUME=never to start anew",
        )


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any], prefix: str = "") -> list[str]:
    found: list[str] = []
    for key in sorted({*theirs, *ours}):
        old, new = theirs.get(key), ours.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _differences(old, new, f"{prefix}{key}.")
        elif _plain(old) != _plain(new):
            found.append(f"{prefix}{key} was {_plain(old)}, now {_plain(new)}")
    return found


def _plain(value: Any) -> Any:
    # JSON has no tuples: what was written as one is read back as a list.
    return list(value) if isinstance(value, tuple) else value


def finished_manifest(output_dir: Path, fingerprint: Mapping[str, Any], budget: Mapping[str, float]) -> Any | None:
    """Return the manifest of this very run if it has finished already, None if there is training to do.

    A larger budget means there is, and so does one in another unit: ten steps say nothing about three epochs.

    Raises:
        RunError: the folder holds another run's finished output (78).
        OSError: the manifest is there, but cannot be read.
    """
    try:
        manifest = json.loads((output_dir / MANIFEST).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    if not isinstance(manifest, dict) or not all(isinstance(manifest.get(k), dict) for k in ("fingerprint", "budget")):
        raise RunError(
            ExitCode.CONFIG,
            f"{output_dir / MANIFEST} is not what this program writes: give this run its own output_dir, or remove it",
        )
    refuse_other_run(f"the finished output in {output_dir}", manifest["fingerprint"], fingerprint)
    done = {unit: count for unit, count in manifest["budget"].items() if isinstance(count, int | float)}
    return manifest if all(done.get(unit, -1) >= wanted for unit, wanted in budget.items()) else None


def changed_settings(manifest: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Return what a finished run was told otherwise than now, such as `learning_rate was 2e-4, now 1e-4`.

    Nothing where its manifest does not say: those of older runners have no settings.
    """
    before = manifest.get("settings")
    return _differences(before, settings) if isinstance(before, Mapping) else []
