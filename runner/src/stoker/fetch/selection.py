"""Which files of a source are fetched, and where they go. Pure."""

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
        path: where it lies below the source's place; after the selection, below the target.
        remote: what the source calls it.
        size: bytes.
        tag: names this content in the source (an ETag, a hash, a time); another content has another tag.
        digest: `sha256:…`, `md5:…` or `git:…` (a Git blob's SHA-1) of the content; empty if the source tells none.
    """

    path: str
    remote: str
    size: int
    tag: str
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is fetched and what is left.

    Attributes:
        files: to be fetched, with their paths in the target.
        ignored: paths that are left out → why.
    """

    files: tuple[File, ...]
    ignored: dict[str, str]

    @property
    def bytes(self) -> int:
        """Size of all files to fetch."""
        return sum(file.size for file in self.files)


# Copies of the weights for other frameworks, which no trainer here reads.
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
# Left out only beside safetensors, which hold the same and cannot run code when they are read.
_OTHER_COPIES = {
    "*.bin": "pickled weights beside safetensors",
    "*.pt": "pickled weights beside safetensors",
    "*.pth": "pickled weights beside safetensors",
    "*.ckpt": "pickled weights beside safetensors",
    "*.gguf": "quantized weights beside safetensors",
}
# The weights once more in the makers' own layout, beside those that Transformers reads.
_CONSOLIDATED = {"consolidated*.safetensors": "the weights a second time"}
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
_HOUSEKEEPING = {".gitattributes": "Git's own", "*/.gitattributes": "Git's own"}
# Says in the target what it holds. Trainers and the `datasets` library pass over names that begin with a dot.
RECORD = ".stoker-fetch.json"


def defaults(kind: str, paths: Sequence[str]) -> dict[str, str]:
    """Return the patterns that are ignored unless IGNORE_PATTERNS is set → why.

    Everything else is kept: the tokenizer in whatever format, `chat_template.jinja`, configurations and code.
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
    """Choose the files that a request is about.

    Args:
        request: what was asked for.
        files: all files of the source.

    Raises:
        RunError: nothing is left of it (66), or a file's name leads out of the target (65).
    """
    below = [file for file in files if _is_below(file.path, request.path)]
    if not below:
        raise RunError(ExitCode.NO_INPUT, f"{request.uri} holds no file: correct the path in storageUri")
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
        elif target == RECORD:  # of a folder that was itself fetched; the target gets one of its own
            ignored[file.path] = f"the record of an earlier fetch ({RECORD})"
        elif _leads_out(target):
            raise RunError(
                ExitCode.BAD_DATA,
                f"{file.remote!r} of {request.uri} has a name that leads out of the folder it would be fetched into: "
                "rename it there, or leave it out by IGNORE_PATTERNS",
            )
        else:
            chosen.append(replace(file, path=target))
    if not chosen:
        raise RunError(ExitCode.NO_INPUT, f"IGNORE_PATTERNS leaves no file of {request.uri}: name fewer patterns")
    if request.kind == "model" and not _has_weights(chosen):
        lost = sorted(path for path in ignored if path.endswith(_WEIGHTS))
        if lost:
            raise RunError(
                ExitCode.NO_INPUT,
                f"IGNORE_PATTERNS leaves no weights of {request.uri}: {lost[0]} matches {ignored[lost[0]]}; "
                "set IGNORE_PATTERNS in the TrainJob's spec.initializer.model.env to what may be left out",
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
    # As huggingface_hub reads them: on the whole path, a folder with all it holds.
    return fnmatchcase(path, f"{pattern}*" if pattern.endswith("/") else pattern)


def _target_path(request: FetchRequest, path: str) -> str:
    """Return where a file goes below the target.

    A data set of the hub keeps its layout, since the Kubeflow SDK's trainers are told `/workspace/dataset/<folder>`;
    of all else the folder that was asked for becomes the target.
    """
    if not request.path or (request.scheme == "hf" and request.kind == "dataset"):
        return path
    return PurePosixPath(path).name if path == request.path else path.removeprefix(f"{request.path}/")
