"""Whole weights of a fleet's replicas: a folder with the same model, trained on, which each replica loads in place."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from stoker.contract.exits import RunError
from stoker.contract.words import say
from stoker.serve.adapters.files import BaseModel, read_base_model, weight_files
from stoker.serve.fleet.desired import Desired
from stoker.serve.vllm import Server
from stoker.serve.weights import workers

NO_WEIGHTS = "it serves adapters, and vLLM cannot load whole weights beside them: leave lora.maxRank and adapters out"
# What workers hold that do not hold the same. No fleet wants it, so all of them load anew.
_DIFFERENT = "several folders"


def written(folder: Path) -> int:
    """Return when a model's weights were last written, in nanoseconds since the epoch.

    Raises:
        OSError: they cannot be read.
        ValueError: the folder has none in safetensors.
    """
    try:
        files = weight_files(folder)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("the index of its weights has another form than transformers writes") from error
    if not files:
        raise ValueError("it has no model.safetensors: save the model with save_pretrained")
    return max(file.stat().st_mtime_ns for file in files)


class ReplicaWeights:
    """The weights of one replica.

    Args:
        server: the replica's vLLM.
        model: its base model.

    Attributes:
        held: folder of the weights that it serves; empty for the model's own.
    """

    def __init__(self, server: Server, model: BaseModel) -> None:
        self._server, self._model = server, model
        self.held = ""

    def restarted(self) -> None:
        """Ask a server that is new, or that somebody else has worked with, what it has.

        Raises:
            ServerError: it does not answer.
        """
        self.held = workers.held(self._server, _DIFFERENT)

    def take(self, wanted: Desired, wants: Callable[[str], bool]) -> str:
        """Load the weights that a fleet wants if the replica does not have them; return why it cannot, else nothing.

        Args:
            wanted: the desired state.
            wants: returns whether the fleet still wants the weights of a folder: reading may take minutes.

        Raises:
            ServerError: vLLM does not answer.
        """
        if wanted.weights == self.held:
            return ""
        path = Path(wanted.weights)
        problem = self._unfit(path, wanted.written) if wanted.weights else ""
        return problem or self._load(wanted, weight_files(path) if wanted.weights else [], wants)

    def _unfit(self, path: Path, when: int) -> str:
        """Return why the weights in a folder are not for this model; empty if they are."""
        try:
            if written(path) != when:
                return f"the weights in {path} have changed since they were named: write each version to its own folder"
            found = read_base_model(path)
        except (OSError, ValueError) as error:
            return f"the weights in {path} cannot be read: {error}"
        except RunError as error:
            return error.message
        if found.tensors != self._model.tensors:
            differs = sorted({*found.tensors.items()} ^ {*self._model.tensors.items()})[0][0]
            return f"the model in {path} is another than {self._model.source or self._model.path}: see {differs}"
        return ""

    def _load(self, wanted: Desired, files: list[Path], wants: Callable[[str], bool]) -> str:
        path = wanted.weights
        name = path or "the model's own weights"
        self._server.workers("stoker_stage_model", files=[*map(str, files)], name=path)
        if problems := [str(one["problem"]) for one in workers.staged(self._server) if "problem" in one]:
            return f"{name}: {problems[0]}"
        if not wants(path):
            say(f"{name} read, but not loaded: no longer wanted")
            return ""
        began = time.monotonic()
        found = workers.swapped(self._server, path, resume=not wanted.paused)
        self.held = workers.agreed(found, _DIFFERENT)
        if problems := [str(one["problem"]) for one in found if "problem" in one]:
            return f"{name}: {problems[0]}"
        say(f"{name} loaded; generation paused for {time.monotonic() - began:.3f} s")
        return ""
