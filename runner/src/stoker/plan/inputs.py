"""The models and data sets of a run, and what Stoker knows about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stoker.plan.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class Input:
    """A model or data set that a run reads.

    Attributes:
        value: its folder, file or Hub id.
        what: what messages call it, for example `model`.
        initializer: the field of a TrainJob that fetches it; empty if none does.
        flag: the flag that names it, as the user writes it.
    """

    value: str
    what: str
    initializer: str
    flag: str


@dataclass(frozen=True, slots=True)
class DatasetColumns:
    """A data set's columns.

    Attributes:
        path: the file with the columns, or the folder.
        columns: column → `text`, `messages` or `other`.
        problem: why the folder cannot be read as a data set; None if it can, as far as Stoker knows.
    """

    path: str
    columns: Mapping[str, str]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What a model folder says about the model.

    Attributes:
        path: the folder.
        positions: the longest sequence the model supports; None if unknown.
        has_chat_template: whether the tokenizer has a chat template; None without a tokenizer.
        shape: its weights; None if they cannot be told from its configuration.
    """

    path: str
    positions: int | None
    has_chat_template: bool | None
    shape: ModelShape | None = None
