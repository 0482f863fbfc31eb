"""Decides which files of a source are fetched, and where they go. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from stoker.contract.exits import ExitCode, RunError
from stoker.fetch.request import FetchRequest


@dataclass(frozen=True, slots=True)
class File:
    """A file of a source.

    Attributes:
        path: its path below the source's place; after the selection, below the target.
        remote: its name in the source.
        size: bytes.
        tag: identifies this content in the source (an ETag, a hash, a time); other content has another tag.
        digest: `sha256:…`, `md5:…` or `git:…` (a Git blob's SHA-1) of the content; empty if the source has none.
    """

    path: str
    remote: str
    size: int
    tag: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is fetched and what is skipped.

    Attributes:
        files: files to fetch, with their paths in the target.
        ignored: skipped paths → why.
    """

    files: tuple[File, ...]
    ignored: dict[str, str]

    @property
    def bytes(self) -> int:
        """Size of all files to fetch."""
        return sum(file.size for file in self.files)


# Copies of the weights for other frameworks. No trainer here reads them.
_OTHER_FRAMEWORKS = {
    "*.msgpack": "weights for Flax",
    "*.h5": "weights for TensorFlow",
    "*.ot": "weights for Rust",
    "*.tflite": "weights for TensorFlow Lite",
    "*.mlmodel": "weights for Core ML",
    "*.mlpackage/*": "weights for Core ML",
    "*.onnx": "weights for ONNX",
    "*.onnx_data": "weights for ONNX",
    "openvino_*": "weights for OpenVINO",
}
# Skipped only beside safetensors, which hold the same weights and cannot run code when they are read.
_OTHER_COPIES = {
    "*.bin": "pickled weights beside safetensors",
    "*.pt": "pickled weights beside safetensors",
    "*.pth": "pickled weights beside safetensors",
    "*.ckpt": "pickled weights beside safetensors",
    "*.gguf": "quantized weights beside safetensors",
}
# The same weights in the makers' own layout, beside those that Transformers reads.
_CONSOLIDATED = {"consolidated*.safetensors": "a second copy of the weights"}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
_HOUSEKEEPING = {".gitattributes": "a file for Git", "*/.gitattributes": "a file for Git"}
# Records in the target what it holds. Trainers and the `datasets` library ignore names that begin with a dot.
RECORD = ".stoker-fetch.json"


def defaults(kind: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the patterns to skip if IGNORE_PATTERNS is not set → why.

    Everything else is kept: the tokenizer in any format, `chat_template.jinja`, configurations and code.
    """
    if kind != "model":
        return dict(_HOUSEKEEPING)
    patterns = {**_HOUSEKEEPING, **_OTHER_FRAMEWORKS}
    names = [PurePosixPath(path).name for path in paths]
    if any(name.endswith(".safetensors") for name in names):
        patterns |= _OTHER_COPIES
    if any(fnmatchcase(name, "model*.safetensors") for name in names):
        patterns |= _CONSOLIDATED
    return patterns


def select(request: FetchRequest, files: Sequence[File]) -> Selection:
    """Choose the files of a request.

    Args:
        request: what was asked for.
        files: all files of the source.

    Raises:
        RunError: no file or no weights of a model are left (66), or a file's name points outside the target (65).
    """
    below = [file for file in files if _is_below(file.path, request.path)]
    if not below:
        raise RunError(ExitCode.NO_INPUT, f"{request.uri} has no files: correct the path in {request.fields.uri}")
    if request.ignore is None:
        patterns = defaults(request.kind, [file.path for file in below])
    else:
        patterns = dict.fromkeys(request.ignore, "IGNORE_PATTERNS")
    chosen, ignored = [], {}
    for file in below:
        reason = next((f"{why} ({pattern})" for pattern, why in patterns.items() if _matches(file.path, pattern)), None)
        target = _target_path(request, file.path)
        if reason is not None:
            ignored[file.path] = reason
        elif target == RECORD:  # of a folder that was itself fetched; the target gets a new one
            ignored[file.path] = f"the record of an earlier fetch ({RECORD})"
        elif _leads_out(target):
            raise RunError(
                ExitCode.BAD_DATA,
                f"{file.remote!r} of {request.uri} points outside the target folder: "
                "rename it in the source, or skip it with IGNORE_PATTERNS",
            )
        else:
            chosen.append(replace(file, path=target))
    if not chosen:
        raise RunError(ExitCode.NO_INPUT, f"IGNORE_PATTERNS skips every file of {request.uri}: remove some patterns")
    if request.kind == "model" and not _has_weights(chosen):
        foreign = sorted(path for path in ignored if any(_matches(path, pattern) for pattern in _OTHER_FRAMEWORKS))
        lost = sorted(path for path in ignored if path.endswith(_WEIGHTS) and path not in foreign)
        if lost:
            raise RunError(
                ExitCode.NO_INPUT,
                f"IGNORE_PATTERNS skips all weights of {request.uri}: {lost[0]} matches {ignored[lost[0]]}; "
                f"set IGNORE_PATTERNS in {request.fields.variables} to what may be skipped",
            )
        if foreign:
            raise RunError(
                ExitCode.NO_INPUT,
                f"{request.uri} only has weights for other frameworks ({foreign[0]}), which are not read here: "
                f"name a model with safetensors in {request.fields.uri}",
            )
    return Selection(tuple(sorted(chosen, key=lambda file: file.path)), ignored)


def _has_weights(files: Sequence[File]) -> bool:
    return any(file.path.endswith(_WEIGHTS) for file in files)


def _is_below(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(f"{folder}/")


def _leads_out(path: str) -> bool:
    # An object's key may be any text, and a hub or mirror may answer anything.
    return path.startswith("/") or ".." in path.split("/") or "\0" in path


def _matches(path: str, pattern: str) -> bool:
    # As huggingface_hub reads them: patterns match the whole path, and a folder includes its content.
    return fnmatchcase(path, f"{pattern}*" if pattern.endswith("/") else pattern)


def _target_path(request: FetchRequest, path: str) -> str:
    """Return where a file goes below the target.

    A data set of the Hub keeps its layout, since the Kubeflow SDK passes `/workspace/dataset/<folder>` to trainers. For
    everything else, the requested folder becomes the target.
    """
    if not request.path or (request.scheme == "hf" and request.kind == "dataset"):
        return path
    return PurePosixPath(path).name if path == request.path else path.removeprefix(f"{request.path}/")
