"""What a run asks of its samplers: the trainer writes it into the workspace, every sampler pod reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.files import read_json, write_json
from stoker.contract.variables import key_in

# The word that `--samplers` has for the samplers of the same TrainJob.
OF_THE_JOB = "role"
# The variable with their addresses, which the runtime sets in the nodes' pods.
ADDRESSES = "STOKER_SAMPLERS"
# The variable with the key of their API.
API_KEY = "STOKER_SAMPLERS_API_KEY"
# The variable with the seconds without a request to them after which the run ends.
IDLE_SECONDS = "STOKER_IDLE_SECONDS"

Traffic = Mapping[str, tuple[float, float]]
"""Of each sampler that answers: the requests that have ended, and those under way."""


@dataclass(frozen=True, slots=True)
class SamplerRequest:
    """What every sampler of a run serves.

    Attributes:
        model: folder of the base model, as the pods see it.
        name: what requests call the base model.
        adapters: folder in which the run publishes its versions.
        length: tokens of the longest prompt and answer together; None for the most that a sampler's memory holds.
        rank: the largest rank of an adapter; None if the run trains the whole model.
        versions: how many versions requests may name at the same time.
        dtype: the type of the weights, in vLLM's words.
        source: where the model came from, such as `Qwen/Qwen3-0.6B`; empty if not known.
        revision: its revision there; empty if not known.
    """

    model: str
    name: str
    adapters: str
    length: int | None
    rank: int | None
    versions: int
    dtype: str = "auto"
    source: str = ""
    revision: str = ""

    def write(self, path: Path) -> None:
        """Write the request for the samplers.

        Raises:
            OSError: the workspace cannot be written to.
        """
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> SamplerRequest | None:
        """Return the request in a file; None while there is none.

        Raises:
            RunError: the file has other fields, because the images are of different versions (78).
        """
        data = read_json(path)
        if data is None:
            return None
        return cls(**_expected(data, path))


def _expected(data: Any, path: Path) -> Mapping[str, Any]:
    known = {one.name for one in fields(SamplerRequest)}
    if not isinstance(data, dict) or not set(data) <= known or not {"model", "name", "adapters"} <= set(data):
        raise RunError(
            ExitCode.CONFIG,
            f"{path} was written by another version of Stoker: use images of one release for trainers and samplers",
        )
    return data


def api_key(environ: Mapping[str, str]) -> str:
    """Return the key of the samplers' API; empty if there is none.

    Raises:
        RunError: it cannot be a key (78).
    """
    return key_in(API_KEY, environ, "the key api-key of its Secret")


def request_path(workspace: Path, job_id: str, attempt: int) -> Path:
    """Return the file with the request of one attempt of a job."""
    return workspace / ".stoker" / "samplers" / f"{job_id or 'job'}-{attempt}.json"
