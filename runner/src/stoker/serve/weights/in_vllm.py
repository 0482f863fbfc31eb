"""Takes versions of whole weights into a running vLLM. vLLM itself loads this file, by `--worker-extension-cls`.

`stoker sampler` copies it into a folder on vLLM's search path, so any image of vLLM will do. It knows nothing else of
Stoker. Its methods are called by vLLM's `/collective_rpc`; each worker answers for itself, with plain data.

A version is read and checked in a thread, while vLLM generates. Only then is generation paused, and the weights are
loaded as vLLM loads a checkpoint. vLLM for CPUs keeps weights in a packed form alone, so a copy in the checkpoint's
form stays in host memory, to which differences are applied. The memory of the version before stays too, for the next
one: to get new memory takes longer than to read from a good disk.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

# As in stoker.serve.weights.files. The trainer, which writes what is in them, uses the functions below.
_CHECKSUMS, _TENSORS = "weights.json", "weights.safetensors"
SCHEMA_VERSION = 2  # of the file of checksums
# Which elements of a tensor have changed, one bit each, and their new values.
_MASK, _VALUES = "#mask", "#values"
THREADS = min(8, os.cpu_count() or 1)
_READERS = 8  # they wait for the disk, so more than there are processors
_CHUNK = 16 * 2**20
_PIECE = 2**20  # computed while the next ones come from the disk
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

# As files call them: https://github.com/huggingface/safetensors/blob/main/safetensors/src/tensor.rs
TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}

Tensors = dict[str, torch.Tensor]


class WrongWeightsError(Exception):
    """Files that cannot be taken.

    Args:
        folder: theirs.
        problem: what is wrong with them.
    """

    def __init__(self, folder: Path, problem: str) -> None:
        super().__init__(problem)
        self.folder, self.problem = folder, problem


class Shadow:
    """The weights of a worker in the checkpoint's form.

    Attributes:
        name: the version, `RUN:VERSION`, or a model's folder; empty for the weights that vLLM started with.
        digest: of all checksums of a version.
        tensors: by their names in a checkpoint.
        spare: tensors of the version before, whose memory the next one takes.
    """

    def __init__(self) -> None:
        self.name, self.digest = "", ""
        self.tensors: Tensors = {}
        self.spare: Tensors = {}
        self.staged: tuple[str, str, Tensors] | None = None
        self.problem: dict[str, str] | None = None
        self._thread: threading.Thread | None = None

    def stage(self, folders: Sequence[str]) -> None:
        """Begin to read files, one after the other. What was read before and not loaded is forgotten."""
        self._begin(self._read, [*map(Path, folders)])

    def stage_model(self, files: Sequence[str], name: str) -> None:
        """Begin to read a model's files, which nobody changes. Without any, vLLM reads its own model's again."""
        self._begin(self._read_model, [*map(Path, files)], name)

    def _begin(self, read: Callable[..., None], *arguments: Any) -> None:
        before = self._thread

        def begin() -> None:
            if before is not None:
                before.join()  # here, because the caller is the loop that generates
            self.staged = self.problem = None
            read(*arguments)

        self._thread = threading.Thread(target=begin, daemon=True)
        self._thread.start()

    def hold(self, name: str, digest: str, tensors: Tensors, used: Iterable[torch.Tensor] = ()) -> None:
        """Have these weights from now on.

        Args:
            name: of the version or the model.
            digest: of a version; empty for a model, whose files stay where they are, and which no difference follows.
            tensors: its own.
            used: tensors of the engine. What lies in their memory is no spare.
        """
        taken_places = {_place(tensor) for tensor in (*used, *tensors.values())}
        self.spare = {key: one for key, one in self.tensors.items() if _place(one) not in taken_places}
        self.name, self.digest, self.tensors = name, digest, tensors if digest else {}

    def busy(self) -> bool:
        """Return whether files are being read."""
        return self._thread is not None and self._thread.is_alive()

    def _read(self, folders: Sequence[Path]) -> None:
        name, digest, tensors = self.name, self.digest, dict(self.tensors)
        for folder in folders:
            try:
                name, digest, tensors = taken(folder, name, tensors, self.spare)
            except WrongWeightsError as error:
                self.problem = {"file": folder.name, "problem": error.problem}
                break
            except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
                self.problem = {"file": folder.name, "problem": f"{type(error).__name__}: {error}"}
                break
            self.staged = (name, digest, tensors)

    def _read_model(self, files: Sequence[Path], name: str) -> None:
        try:
            self.staged = (name, "", model_tensors(files))
        except Exception as error:  # noqa: BLE001 - a thread has nobody to raise to
            self.problem = {"file": name, "problem": f"{type(error).__name__}: {error}"}


class Weights:
    """Methods that vLLM's workers get."""

    def stoker_held(self) -> dict[str, str]:
        """Return the version that this worker has."""
        shadow = self._stoker_shadow()
        return {"name": shadow.name, "digest": shadow.digest}

    def stoker_restore(self) -> dict[str, str]:
        """Load again what this worker has, where vLLM has dropped it to sleep. Nothing may be generated meanwhile."""
        worker: Any = self
        _reload(worker, self._stoker_shadow().tensors)
        return self.stoker_held()

    def stoker_checksums(self) -> dict[str, str]:
        """Return the checksum of each tensor, computed anew."""
        return checksums(self._stoker_shadow().tensors)

    def stoker_stage(self, folders: list[str]) -> None:
        """Begin to read versions, each the difference to the one before or whole."""
        self._stoker_shadow().stage(folders)

    def stoker_stage_model(self, files: list[str], name: str) -> None:
        """Begin to read a model of the same shape, to be known by a name; vLLM's own without files."""
        self._stoker_shadow().stage_model(files, name)

    def stoker_staged(self) -> dict[str, Any]:
        """Return whether reading has ended, what can be loaded, and what is wrong with the first file that cannot."""
        shadow = self._stoker_shadow()
        if shadow.busy():
            return {"done": False}
        return {"done": True, "name": shadow.staged[0] if shadow.staged else "", **(shadow.problem or {})}

    def stoker_swap(self, name: str) -> dict[str, str]:
        """Load the version that was read, and return the one that this worker then has. Generation must be paused.

        This waits for no disk. Workers that have been told to read something else since load nothing, none of them:
        each is told the same things in the same order.

        Args:
            name: of the version to load.
        """
        shadow = self._stoker_shadow()
        if shadow.busy() or shadow.staged is None or shadow.staged[0] != name:
            return self.stoker_held()
        _, digest, tensors = shadow.staged
        shadow.staged = None
        worker: Any = self
        try:
            _reload(worker, tensors)
        except Exception as error:  # noqa: BLE001 - whatever a model's loader raises
            # Some layers may be new and some gone. If the old weights do not load either, vLLM must end.
            _reload(worker, shadow.tensors)
            if not shadow.tensors:
                shadow.name = shadow.digest = ""
            return {**self.stoker_held(), "problem": f"vLLM cannot load it: {type(error).__name__}: {error}"}
        shadow.hold(name, digest, tensors, worker.get_model().parameters())
        return self.stoker_held()

    def _stoker_shadow(self) -> Shadow:
        found = self.__dict__.get("_stoker")
        if not isinstance(found, Shadow):
            found = self.__dict__["_stoker"] = Shadow()
        return found


def _reload(worker: Any, tensors: Tensors) -> None:
    """Load weights into the model; those that vLLM started with if there are none."""
    worker.reload_weights(**({"weights_iterator": iter(tensors.items())} if tensors else {}))
    # vLLM for CPUs packs a head that shares its weights with the embeddings when it starts, and does not do so again.
    for module in worker.get_model().modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and isinstance(weight, torch.Tensor) and weight.numel():
            module.quant_method.process_weights_after_loading(module)


def model_tensors(files: Sequence[Path]) -> Tensors:
    """Return the tensors of a model's files as parts of these files, once the machine has all of these in memory.

    Raises:
        OSError: a file cannot be read.
        SafetensorError: a file is damaged.
    """
    from safetensors.torch import load_file

    found: Tensors = {}
    chunk = bytearray(_CHUNK)
    for file in files:
        with file.open("rb", buffering=0) as stream:  # so that loading waits for no disk
            while stream.readinto(chunk):
                pass
        found |= load_file(file)
    return found


def taken(folder: Path, name: str, tensors: Tensors, spare: Tensors | None = None) -> tuple[str, str, Tensors]:
    """Return the name, the digest and the tensors of a version, from its files and the version before.

    Args:
        folder: its files.
        name: of the version before; empty if there is none.
        tensors: of the version before, which stay as they are.
        spare: tensors whose memory may be taken; those that are taken are removed.

    Raises:
        WrongWeightsError: the files are damaged, of another format, or follow on another version.
    """
    from safetensors import SafetensorError

    try:
        listed = json.loads((folder / _CHECKSUMS).read_text())
        if (found := listed["schemaVersion"]) != SCHEMA_VERSION:
            raise WrongWeightsError(
                folder,
                f"{_CHECKSUMS} has schemaVersion {found!r}, but this sampler reads {SCHEMA_VERSION}: run trainer and "
                "samplers with the same version of Stoker",
            )
        earlier, wanted = listed["earlier"], listed["checksums"]
        if earlier and earlier != name:
            raise WrongWeightsError(folder, f"it is the difference to {earlier}, not to {name or 'the base model'}")
        spare = {} if spare is None else spare
        given, read = _read(folder / _TENSORS, spare)
        new = _applied(given, tensors if earlier else {}, spare)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
        raise WrongWeightsError(folder, f"it is damaged ({type(error).__name__}: {error})") from error
    if set(new) != set(wanted):
        raise WrongWeightsError(folder, f"it has {len(new)} tensors, its {_CHECKSUMS} {len(wanted)}")
    computed = {tensor: read[tensor] for tensor in new if tensor in read}
    computed |= checksums({tensor: new[tensor] for tensor in new if tensor not in read})
    if wrong := sorted(tensor for tensor, checksum in wanted.items() if computed[tensor] != checksum):
        raise WrongWeightsError(folder, f"{len(wrong)} of its {len(wanted)} tensors are not the trainer's: {wrong[0]}")
    return listed["name"], digest_of(computed), new


def _read(file: Path, spare: Tensors) -> tuple[Tensors, dict[str, str]]:
    """Return the tensors of a file, in other memory because the file will be removed; and their checksums.

    Several threads read, one tensor each, and compute its checksum piece by piece while others wait for the disk.
    Reading a mapped file page by page would use a part of what the disk can do. So does asking safetensors for tensors,
    each of which has the system read ahead from its first page.

    Raises:
        OSError: it cannot be read.
        SafetensorError: it is damaged.
    """
    from safetensors import safe_open

    with safe_open(file, "pt"):  # reads the header, and compares it with the file's size
        pass
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)

    def read(name: str) -> tuple[torch.Tensor, str]:
        tensor = _room(name, header[name]["shape"], TYPES[header[name]["dtype"]], spare)
        left, found = memoryview(tensor.reshape(-1).view(torch.uint8).numpy()), _checksum_of_nothing(tensor)
        with file.open("rb", buffering=0) as stream:
            stream.seek(8 + length + header[name]["data_offsets"][0])
            while left:
                if not (count := stream.readinto(left[:_PIECE])):
                    raise OSError(f"it ends in the middle of {name}")
                found = zlib.crc32(left[:count], found)
                left = left[count:]
        return tensor, f"{found:08x}"

    with ThreadPoolExecutor(_READERS) as threads:
        found = dict(zip(header, threads.map(read, header), strict=True))
    return {name: tensor for name, (tensor, _) in found.items()}, {name: of for name, (_, of) in found.items()}


def _room(name: str, shape: Sequence[int], dtype: torch.dtype, spare: Tensors) -> torch.Tensor:
    """Return a tensor with any values, in memory that is spare or new."""
    found = spare.pop(name, None)
    if found is not None and (found.shape, found.dtype) == (torch.Size(shape), dtype) and found.is_contiguous():
        return found
    return torch.empty(tuple(shape), dtype=dtype)


def _place(tensor: torch.Tensor) -> int:
    """Return where a tensor's memory begins."""
    return int(tensor.untyped_storage().data_ptr())


def _applied(given: Tensors, before: Tensors, spare: Tensors) -> Tensors:
    changed = [key.removesuffix(_MASK) for key in given if key.endswith(_MASK)]

    def apply(name: str) -> torch.Tensor:
        old = before[name]
        new = _room(name, old.shape, old.dtype, spare).copy_(old)
        new.view(-1).masked_scatter_(_bits(given[name + _MASK], new.numel()), given[name + _VALUES])
        return new

    whole = {name: tensor for name, tensor in given.items() if "#" not in name}
    with ThreadPoolExecutor(THREADS) as threads:
        return {**before, **whole, **dict(zip(changed, threads.map(apply, changed), strict=True))}


def _bits(mask: torch.Tensor, count: int) -> torch.Tensor:
    """Return the bits of a mask, each as a boolean."""
    import numpy as np

    return torch.from_numpy(np.unpackbits(mask.numpy(), count=count)).view(torch.bool)


def change(before: torch.Tensor, after: torch.Tensor) -> tuple[Tensors, int]:
    """Return what a file has of a changed tensor, by what follows its name there, and how many elements have changed.

    A bit for each element and the values of those that have changed, or all values if that is less.
    """
    import numpy as np

    old, new = (tensor.reshape(-1).view(_INTEGERS[tensor.element_size()]) for tensor in (before, after))
    bits = old != new  # of their bytes: NaN equals itself, and 0 is not -0
    values = after.reshape(-1)[bits]
    changed = values.numel()
    if changed == 0:
        return {}, 0
    if changed * after.element_size() + after.numel() / 8 >= after.numel() * after.element_size():
        return {"": after}, changed
    return {_MASK: torch.from_numpy(np.packbits(bits.numpy())), _VALUES: values}, changed


def checksums(tensors: Tensors) -> dict[str, str]:
    """Return the checksum of each tensor."""
    with ThreadPoolExecutor(THREADS) as threads:
        return dict(zip(tensors, threads.map(checksum, tensors.values()), strict=True))


def checksum(tensor: torch.Tensor) -> str:
    """Return the checksum of a tensor's bytes, type and shape.

    A CRC finds damage and another version, and nobody else can write here. A cryptographic hash would take several
    times as long as the disk.
    """
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{zlib.crc32(memoryview(data), _checksum_of_nothing(tensor)):08x}"


def _checksum_of_nothing(tensor: torch.Tensor) -> int:
    """Return where the checksum of a tensor's bytes begins: its type and shape."""
    return zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())


def digest_of(found: dict[str, str]) -> str:
    """Return one digest of the checksums of all tensors."""
    return hashlib.blake2b(json.dumps(found, sort_keys=True).encode(), digest_size=16).hexdigest()
