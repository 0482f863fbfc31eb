"""Turns an exception of a trainer into the end of the run: exit code, one line, and whether the cause is here."""

from __future__ import annotations

import errno
import os
import re
import shutil
import traceback
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.manifest import EARLIER_OUTPUT, SET_ASIDE
from stoker.contract.secrets import hide
from stoker.plan.interfaces import FlagNames
from stoker.rank.folders import Verdict

# Exception classes by name, because only the trainer imports the packages that define them.
_MISSING = {
    "DatasetNotFoundError",
    "RepositoryNotFoundError",
    "RevisionNotFoundError",
    "GatedRepoError",
    "LocalEntryNotFoundError",
    "OfflineModeIsEnabled",
    "EmptyDatasetError",
    "DataFilesNotFoundError",
    # A folder that is not there is taken for a name on the Hub.
    "HFValidationError",
}
_LOST_PEER = re.compile(
    r"connection (closed by peer|reset by peer|refused|timed out)|broken pipe|socket (timeout|closed)|"
    # gloo, about a node that vanished, and about a connection that another collective closed.
    r"no route to host|host is down|caused pair closure|"
    r"remote process exited|NCCL (remote|communicator was aborted)|"
    r"timed out (after|waiting) \d+ ?(ms|milliseconds|seconds)",
    re.IGNORECASE,
)
# NCCL, about ranks that it takes for ranks of one host.
_SHARED_DEVICE = re.compile(r"duplicate GPU detected|multiple ranks are using the same GPU", re.IGNORECASE)
# transformers and datasets, about a model or data set that is missing or cannot be reached.
_NOT_FOUND = re.compile(
    r"not a local folder and is not a valid model identifier|couldn't connect to|couldn't reach|offline mode|"
    r"does not appear to have a file named|couldn't find any data file|unrecognized model in|"
    r"should have a `model_type` key|no \(supported\) data files found|no file named .* found in|no file with name: |"
    r"no such file or directory: .*\.(safetensors|bin|pth?)\b",
    re.IGNORECASE,
)
# The same packages, about a hub that does not answer; and the variables that tell them not to ask it.
_SILENT = re.compile(r"couldn't connect to|couldn't reach", re.IGNORECASE)
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
_YES = {"1", "ON", "YES", "TRUE"}
_NO_DEVICE_MEMORY = re.compile(
    r"(CUDA|HIP|XPU)( error)?:? out of memory|(CUDA|HIP) failure (\d+ )?'out of memory|"
    r"CU(BLAS|DNN)_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
_NO_HOST_MEMORY = re.compile(r"DefaultCPUAllocator: |cannot allocate memory|std::bad_alloc", re.IGNORECASE)
# safetensors (Rust) and torch (C++) put the operating system's message into their own errors.
_FULL = re.compile(r"no space left on device|StorageFull|disk quota exceeded|os error (28|122)\b", re.IGNORECASE)
# torch's own files (C++), whose writer does not say why it failed; and the bytes that a full disk may have left.
_UNWRITTEN = re.compile(r"inline_container.*unexpected pos|PytorchStreamWriter failed")
_NO_ROOM = 16 * 2**20
# The same messages mean memory for NCCL's segments and the files of torch's data loaders (torch_shm_manager).
_SHARED_MEMORY = re.compile(r"/dev/shm|shared memory|</torch_\d", re.IGNORECASE)
_READ_ONLY = re.compile(r"read-only file system|ReadOnlyFilesystem|os error 30\b", re.IGNORECASE)
_BAD_DATA = {
    "ArrowInvalid",
    "CastError",
    "DatasetGenerationError",
    "DatasetGenerationCastError",
    "UnexpectedSplitsError",
}
# datasets, about a split without rows.
_NO_ROWS = re.compile(r'Instruction ".*" corresponds to no data')
# The same, about a share for tests that leaves a split without rows.
_NO_ROWS_LEFT = re.compile(r"resulting train set will be empty|smaller than the number of samples")
# The same, about a configuration that the data set lacks.
_NO_CONFIGURATION = re.compile(r"BuilderConfig .* not found")


def ending_of(error: BaseException, names: FlagNames, attempt: int = 0, output: Path | None = None) -> Verdict:
    """Return how a run ended, from the exception that the trainer raised.

    Args:
        error: the exception.
        names: how the framework writes the settings that the advice names.
        attempt: of the run, from 0.
        output: where it writes, if it has begun.
    """
    name = type(error).__name__
    text = " ".join(hide(str(error)).split())
    if isinstance(error, RunError):
        return Verdict(error.code, error.message, primary=error.code is not ExitCode.UNAVAILABLE)
    if name == "StopRequested":
        return Verdict(ExitCode.STOPPED, text)
    if isinstance(error, SystemExit):
        return _of_system_exit(error)
    if isinstance(error, KeyboardInterrupt):
        return Verdict(ExitCode.STOPPED, "interrupted")
    if _is_storage(error, {errno.ENOSPC, errno.EDQUOT}, _FULL) or _has_filled(output, error):
        if _SHARED_MEMORY.search(text):
            return Verdict(
                ExitCode.CONFIG,
                "/dev/shm is full: mount an emptyDir with `medium: Memory` and a larger sizeLimit there"
                f"{_or_lower(names.loader_workers)} ({text[:200]})",
            )
        return Verdict(
            ExitCode.CONFIG,
            f"the disk is full: enlarge the volume, remove old files ({SET_ASIDE}…, {EARLIER_OUTPUT}…)"
            f"{_or_lower(names.kept_checkpoints)}; training resumes from the newest checkpoint ({text[:200]})",
        )
    if _is_storage(error, {errno.EROFS}, _READ_ONLY):
        return Verdict(ExitCode.CONFIG, f"the disk is read-only: mount the volume for writing ({text[:200]})")
    if isinstance(error, PermissionError) and error.filename is not None:
        return Verdict(
            ExitCode.CONFIG,
            f"UID {os.geteuid()}, GID {os.getegid()} cannot use {error.filename} ({error.strerror}): give it to GID 0 "
            "with group read and write, or, for a cache, set HF_HOME or HOME to a folder that this user can write to",
        )
    if name == "OutOfMemoryError" or _NO_DEVICE_MEMORY.search(text):
        return Verdict(
            ExitCode.CRASHED,
            f"out of device memory: lower {names.of_memory}, or use LoRA ({text[:200]})",
        )
    if isinstance(error, MemoryError) or _NO_HOST_MEMORY.search(text):
        return Verdict(ExitCode.CRASHED, f"out of host memory: raise the memory limit ({text[:200]})")
    if _is_missing_split(error):
        where = f" in {names.split}" if names.split else ""
        return Verdict(ExitCode.BAD_DATA, f"the data has no split {text}: name an existing split{where}")
    if _is_without_rows(error, text):
        why = f" ({text[:400]})" if text else ""
        return Verdict(
            ExitCode.BAD_DATA, f"the data has no rows{why}: give each split at least one, or remove its file"
        )
    if _NO_ROWS_LEFT.search(text):
        return Verdict(
            ExitCode.BAD_DATA,
            f"the data cannot be split, one part has no rows: {text[:400]}. Add rows, or split less off",
        )
    if _NO_CONFIGURATION.search(text):
        return Verdict(ExitCode.BAD_DATA, f"the data has no such configuration: {text[:400]}. Name one that it has")
    if _named(error) & _BAD_DATA:
        return Verdict(ExitCode.BAD_DATA, f"the data cannot be read as a table: {text[:400]}. Correct its rows")
    if attempt and _is_silence(error, text):
        return Verdict(
            ExitCode.UNAVAILABLE,
            f"the model hub does not answer: {text[:400]}. A restart tries again; to train "
            "without the hub, let initializers fetch model and data",
        )
    if _named(error) & _MISSING or _NOT_FOUND.search(text):
        return Verdict(
            ExitCode.NO_INPUT,
            f"model or data not found: {text[:400]}. Name a folder that is mounted in the pod, or let the TrainJob's "
            "initializer fetch it",
        )
    if _SHARED_DEVICE.search(text):
        return Verdict(
            ExitCode.CONFIG,
            "two ranks of this run share one GPU, and NCCL refuses that within a host: request a whole GPU for each "
            f"process, and no hostNetwork if nodes share a GPU ({text[-200:]})",
        )
    # torch raises RuntimeErrors; a tracker or a server that refuses a connection raises others.
    lost = isinstance(error, RuntimeError) and _LOST_PEER.search(text)
    if lost or _named(error) & {"DistError", "DistNetworkError", "DistBackendError"}:
        return Verdict(ExitCode.UNAVAILABLE, f"lost another rank: {text[:300]}", primary=False)
    if name == "ValueError" and "not used by the HfArgumentParser" in text:
        return Verdict(ExitCode.USAGE, text)
    return Verdict(ExitCode.CRASHED, f"{name}: {text[:600]}")


def _or_lower(flag: str) -> str:
    return f", or lower {flag}" if flag else ""


def _named(error: BaseException) -> set[str]:
    """Return the class names of an error, of its base classes, and of the errors that caused it."""
    names: set[str] = set()
    cause: BaseException | None = error
    while cause is not None:
        names |= {cls.__name__ for cls in type(cause).__mro__}
        cause = cause.__cause__ or cause.__context__
    return names


def _is_silence(error: BaseException, text: str) -> bool:
    """Return whether a model hub did not answer, though it was asked."""
    named = _named(error)
    told_not_to = "OfflineModeIsEnabled" in named or any(os.environ.get(name, "").upper() in _YES for name in _OFFLINE)
    return not told_not_to and ("LocalEntryNotFoundError" in named or bool(_SILENT.search(text)))


def _is_storage(error: BaseException, numbers: set[int], words: re.Pattern[str]) -> bool:
    """Return True if an error, or one of its causes, is about a disk, by its number or its message."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in numbers:
            return True
        if words.search(str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _has_filled(output: Path | None, error: BaseException) -> bool:
    """Return True if torch could not write one of its files, and the disk of a folder has no room."""
    if output is None or not _is_storage(error, set(), _UNWRITTEN):
        return False
    try:
        return shutil.disk_usage(output).free < _NO_ROOM
    except OSError:
        return False


def _is_missing_split(error: BaseException) -> bool:
    # `dataset["test"]` raises a bare KeyError; only its origin identifies it.
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, KeyError) and bool(frames) and Path(frames[-1].filename).name == "dataset_dict.py"


def _is_without_rows(error: BaseException, text: str) -> bool:
    # The reader of JSON Lines ends with a bare StopIteration if the first file is empty.
    frames = traceback.extract_tb(error.__traceback__)
    in_reader = bool(frames) and "packaged_modules" in Path(frames[-1].filename).parts
    return bool(_NO_ROWS.search(text)) or (isinstance(error, StopIteration) and in_reader)


def _of_system_exit(error: SystemExit) -> Verdict:
    if error.code in (None, 0):
        return Verdict(ExitCode.CRASHED, "the trainer exited before the end of training")
    if error.code == 2:
        return Verdict(ExitCode.USAGE, "the trainer refused its arguments (see the log above)")
    if isinstance(error.code, int) and error.code in list(ExitCode):
        return Verdict(ExitCode(error.code), f"the trainer exited with {error.code}")
    return Verdict(ExitCode.CRASHED, f"the trainer exited with {error.code!r}")
