"""Rows as tokens: the same token ids and the same loss masks as TRL's trainers make of them.

A label of -100 takes a token out of the loss: a row's prompt, and what pads a batch. Other texts than conversations end
with the tokenizer's end of text; in a conversation the chat template says what ends an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jinja2 import TemplateError
from torch.utils.data import Dataset

from stoker.contract.exits import ExitCode
from stoker.lab.errors import LabError
from stoker.lab.rows import Row, RowKind, as_rows, is_conversation, kind_of

IGNORED = -100
"""The label of a token that is not learned; PyTorch's and transformers' number for it."""

_SFT = (RowKind.TEXT, RowKind.COMPLETION, RowKind.MESSAGES)


class CausalLMDataset(Dataset[dict[str, torch.Tensor]]):
    """Rows for supervised training: `text`, `prompt` and `completion`, or `messages`.

    Of a prompt with its completion, only the completion is learned. A row's tokens are made when they are asked for.

    Args:
        data: the rows.
        tokenizer: the model's tokenizer.
        max_length: tokens to cut longer rows to.

    Raises:
        LabError: the rows have other columns, or are empty.
    """

    def __init__(self, data: Iterable[Row], tokenizer: Any, max_length: int = 2048) -> None:
        self.data = as_rows(data)
        self.kind = kind_of(self.data, _SFT)
        self.tokenizer = tokenizer
        self.max_length = max_length
        _need_template(tokenizer, self.data, self.kind)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.data)

    def __getitem__(self, idx: int) -> dict[str, torch.Tensor]:
        """Return a row's `input_ids`, `attention_mask` and `labels`."""
        ids, labels = self.tokens(idx)
        ids, labels = ids[: self.max_length], labels[: self.max_length]
        return {
            "input_ids": torch.tensor(ids),
            "attention_mask": torch.ones(len(ids), dtype=torch.long),
            "labels": torch.tensor(labels),
        }

    def tokens(self, idx: int) -> tuple[list[int], list[int]]:
        """Return a whole row's token ids and labels, however long."""
        row = self.data[idx]
        if self.kind is RowKind.TEXT:
            ids = token_ids(self.tokenizer, _ended(row["text"], self.tokenizer))
            return ids, list(ids)
        if self.kind is RowKind.MESSAGES:
            ids = token_ids(self.tokenizer, row["messages"], row)
            return ids, list(ids)
        (ids,), prompt = _with_prompt(self.tokenizer, row, ("completion",))
        return ids, [IGNORED] * prompt + ids[prompt:]


class PreferenceDataset(Dataset[dict[str, list[int]]]):
    """Rows for preference training: `chosen` and `rejected`, with their `prompt` before them.

    The prompt may be left out: it is the part that both begin with.

    Args:
        data: the rows.
        tokenizer: the model's tokenizer.
        max_length: tokens to cut a prompt with its answer to.

    Raises:
        LabError: the rows have other columns, or are empty.
    """

    def __init__(self, data: Iterable[Row], tokenizer: Any, max_length: int = 2048) -> None:
        self.data = as_rows(data)
        self.kind = kind_of(self.data, (RowKind.PREFERENCE,))
        self.tokenizer = tokenizer
        self.max_length = max_length
        _need_template(tokenizer, self.data, self.kind)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.data)

    def __getitem__(self, idx: int) -> dict[str, list[int]]:
        """Return a row's `prompt_ids`, `chosen_ids` and `rejected_ids`."""
        found = self.tokens(idx)
        room = max(self.max_length - len(found["prompt_ids"]), 0)
        return {
            "prompt_ids": found["prompt_ids"][: self.max_length],
            "chosen_ids": found["chosen_ids"][:room],
            "rejected_ids": found["rejected_ids"][:room],
        }

    def tokens(self, idx: int) -> dict[str, list[int]]:
        """Return a whole row's token ids, however long."""
        row = self.data[idx]
        if "prompt" not in row:
            from trl import extract_prompt

            row = extract_prompt(dict(row))
        (chosen, rejected), prompt = _with_prompt(self.tokenizer, row, ("chosen", "rejected"))
        return {"prompt_ids": chosen[:prompt], "chosen_ids": chosen[prompt:], "rejected_ids": rejected[prompt:]}


class CausalLMCollator:
    """Makes a batch of rows of a :class:`CausalLMDataset`: padded on the right, with no loss on what pads.

    Args:
        tokenizer: the model's tokenizer, which says what pads.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.pad_token_id = pad_token_id(tokenizer)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return `input_ids`, `attention_mask` and `labels`."""
        from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

        listed = [{name: _listed(example[name]) for name in ("input_ids", "labels")} for example in examples]
        made: dict[str, torch.Tensor] = DataCollatorForLanguageModeling(self.pad_token_id)(listed)
        return made


class PreferenceCollator:
    """Makes a batch of rows of a :class:`PreferenceDataset`: all chosen answers, then all rejected ones.

    Args:
        tokenizer: the model's tokenizer, which says what pads.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.pad_token_id = pad_token_id(tokenizer)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return `input_ids`, `attention_mask` and `completion_mask`."""
        from trl.trainer.dpo_trainer import DataCollatorForPreference

        made: dict[str, torch.Tensor] = DataCollatorForPreference(self.pad_token_id)([dict(row) for row in examples])
        return made


def pad_token_id(tokenizer: Any) -> int:
    """Return the token that pads: the tokenizer's own, else its end of text, as in TRL."""
    found = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    if found is None:
        raise LabError("the tokenizer has neither a pad token nor an end of text: set tokenizer.pad_token")
    return int(found)


def end_token_ids(model: Any, tokenizer: Any) -> list[int]:
    """Return the tokens that end an answer: those that the model comes with, else the tokenizer's end of text."""
    found = model.generation_config.eos_token_id
    found = tokenizer.eos_token_id if found is None else found
    return found if isinstance(found, list) else [] if found is None else [found]


def _with_prompt(tokenizer: Any, row: Row, names: Sequence[str]) -> tuple[list[list[int]], int]:
    """Return the tokens of the prompt with each of its answers, and where the answers begin.

    They begin where the tokens of the prompt alone and of the whole part: a token may span the border.
    """
    conversation = is_conversation(row["prompt"])
    prompt = token_ids(tokenizer, row["prompt"], row, add_generation_prompt=True)
    wholes = []
    for name in names:
        answer = row[name] if conversation else _ended(row[name], tokenizer)
        wholes.append(token_ids(tokenizer, row["prompt"] + answer, row))
    return wholes, min(_common(prompt, whole) for whole in wholes)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def token_ids(tokenizer: Any, said: Any, row: Row | None = None, **more: Any) -> list[int]:
    """Return the token ids of a text or of messages.

    Raises:
        LabError: the chat template refuses the messages.
    """
    if not is_conversation(said):
        return list(tokenizer(text=said)["input_ids"])
    row = row or {}
    tools = row.get("tools")
    settings = row.get("chat_template_kwargs") or {}
    options = {"tools": json.loads(tools) if isinstance(tools, str) else tools, **settings}
    with chat_template():
        made = tokenizer.apply_chat_template(said, tokenize=True, return_dict=True, **options, **more)
    return list(made["input_ids"])


@contextmanager
def chat_template(model: str = "the model", other: str = "set tokenizer.chat_template") -> Iterator[None]:
    """Say of a conversation that a chat template refuses what to write instead.

    Args:
        model: whose template it is.
        other: how to take another template.

    Raises:
        LabError: the template refuses.
    """
    try:
        yield
    except TemplateError as error:
        raise LabError(
            f"the chat template of {model} refuses a conversation ({error}): change its roles or their order, or "
            f"{other}",
            ExitCode.BAD_DATA,
        ) from error


def _ended(text: str, tokenizer: Any) -> str:
    end = tokenizer.eos_token
    return text if text.endswith(end) else text + str(end)


def _listed(ids: Any) -> list[int]:
    return list(ids.tolist() if isinstance(ids, torch.Tensor) else ids)


def _need_template(tokenizer: Any, rows: Sequence[Row], kind: RowKind) -> None:
    """Refuse conversations where the tokenizer cannot write them down, and texts that it cannot end."""
    if is_conversation(rows[0][kind.value[-1]]):
        if not tokenizer.chat_template:
            raise LabError(
                f"{kind.value[-1]} holds messages, but the tokenizer has no chat template: use an instruction-tuned "
                "model, set tokenizer.chat_template, or write text",
                ExitCode.BAD_DATA,
            )
    elif tokenizer.eos_token is None:
        raise LabError("the tokenizer has no end of text, so no answer would ever end: set tokenizer.eos_token")
