"""The models and data sets of a run, and what is known of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Input:
    """A model or data set that a run reads.

    Attributes:
        value: its folder, file or Hub id.
        what: what it is to the user, e.g. `model`.
        initializer: the field of a TrainJob that fetches it; empty if none does.
        flag: how the flag that names it is written.
    """

    value: str
    what: str
    initializer: str
    flag: str


@dataclass(frozen=True, slots=True)
class DatasetColumns:
    """A data set's columns.

    Attributes:
        path: the file they were read from, or the folder.
        columns: column → `text`, `messages` or `other`.
        problem: why the folder cannot be read as a data set; None if nothing is known against it.
    """

    path: str
    columns: Mapping[str, str]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What a model folder says.

    Attributes:
        path: the folder.
        positions: the longest sequence it was made for; None if it does not say.
        has_chat_template: False if there is a tokenizer without one; None if there is no tokenizer to tell.
    """

    path: str
    positions: int | None
    has_chat_template: bool | None
