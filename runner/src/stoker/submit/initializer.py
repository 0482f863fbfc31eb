"""Where a TrainJob's initializers put model and data.

It reads any object with the attributes of the Kubeflow SDK's `Initializer`, so it does not import the SDK.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlparse

from stoker.contract.repositories import repository_in

MODEL = "/workspace/model"
DATASET = "/workspace/dataset"


class Stored(Protocol):
    """Something in a storage, such as the SDK's `HuggingFaceModelInitializer`."""

    @property
    def storage_uri(self) -> str:
        """Its address, e.g. `hf://Qwen/Qwen3-0.6B`."""


class Initialized(Protocol):
    """What a TrainJob's initializers fetch, such as the SDK's `Initializer`."""

    @property
    def model(self) -> Stored | None:
        """The model, None if it is not fetched."""

    @property
    def dataset(self) -> Stored | None:
        """The data set, None if it is not fetched."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model or a data set in a storage.

    Attributes:
        storage_uri: its address, e.g. `hf://trl-lib/Capybara`.
        secret: Secret in the TrainJob's namespace, whose keys become variables of the initializer; empty for none.
    """

    storage_uri: str
    secret: str = ""


@dataclass(frozen=True, slots=True)
class Initializer:
    """What a TrainJob's initializers fetch. It replaces the SDK's `Initializer` where the SDK is not installed."""

    dataset: Source | None = None
    model: Source | None = None


def hub_subpath(storage_uri: str) -> str:
    """Return the part of a Hub address after owner and name, e.g. `data/x.json`; empty if there is none.

    `hf://` may be missing, as in the SDK (kubeflow 0.5.0: get_args_using_torchtune_config).
    """
    address = storage_uri if storage_uri.startswith("hf://") else f"hf://{storage_uri}"
    return "/".join(urlparse(address).path.strip("/").split("/")[1:])


def dataset_folder(dataset: Stored) -> str:
    """Return the folder in the workspace where a trainer finds a fetched data set.

    The initializer keeps a repository's folders and fetches only what the address names. For a file or a pattern, this
    is the folder that contains it.

    Raises:
        RunError: an address of the Hub names no repository (64).
    """
    uri = dataset.storage_uri
    subpath = ""
    if "://" not in uri or uri.startswith("hf://"):
        _, subpath, _ = repository_in("dataset", uri if "://" in uri else f"hf://{uri}", "the data set's address")
    folders = subpath.split("/") if subpath else []
    if folders and ("." in folders[-1] or "*" in folders[-1]):
        folders.pop()
    return "/".join([DATASET, *folders])
