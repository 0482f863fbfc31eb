"""Rooms that serve every framework name no flag that TRL alone has: they ask the framework how it spells a setting."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lint.files import report
from lint.source import SOURCE, literals, source_files
from stoker.frameworks.torchtune.keys import data
from stoker.frameworks.trl.flags import METHODS, flag_table

NEUTRAL = (
    *("plan", "node", "rank", "runs", "cluster", "contract", "entry", "fetch", "serve"),
    *("commands", "results", "report", "board", "sessions"),
)
# What TRL's trainer is told to read rows for an evaluation.
_READING = (
    *("max_length", "completion_only_loss", "assistant_only_loss", "dataset_text_field", "gradient_checkpointing"),
    *("report_to", "disable_tqdm", "use_cpu"),
)
# file, name → why it may stand there.
ALLOWED = {
    ("cluster/validate.py", "model_name_or_path"): "an argument of `stoker tinker`",
    ("commands/chat.py", "temperature"): "a flag of the command itself, as servers of models name it",
    ("commands/rl.py", "samplers"): "a flag of the command itself",
    ("contract/manifest.py", "use_rslora"): "a key of PEFT's adapter_config.json",
    ("contract/metrics.py", "learning_rate"): "a metric that all frameworks share",
    ("entry/launchers.py", "deepspeed"): "only TRL's trainers are started by accelerate, deepspeed and trl",
    ("node/report.py", "max_steps"): "a field of the manifest",
    ("plan/resolve.py", "samplers"): "only asynchronous GRPO has samplers",
    ("rank/progress.py", "learning_rate"): "a metric that all frameworks share",
    ("rank/worker.py", "max_steps"): "a field of the manifest",
    **{("results/ask.py", name): "an argument of transformers' generate" for name in ("top_k", "top_p")},
    **{("results/evaluate.py", name): "TRL's trainer reads the rows, whatever trained" for name in _READING},
    ("runs/explain.py", "max_staleness"): "only asynchronous GRPO reports how old samples are",
    ("serve/adapters/check.py", "use_rslora"): "a key of PEFT's adapter_config.json",
    ("serve/sampler.py", "lora_r"): "only asynchronous GRPO asks samplers for a rank",
    **{
        ("serve/vllm.py", name): "a field of a request, as servers of models name it"
        for name in ("min_p", "repetition_penalty", "top_k", "top_p")
    },
    ("sessions/command_line.py", "model_name_or_path"): "an argument of `stoker tinker`",
    ("sessions/render.py", "samplers"): "a flag of `stoker rl up`",
}


def words_in(value: Any) -> Iterator[str]:
    """Yield every word in keys and texts of JSON."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from words_in(key)
            yield from words_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from words_in(item)
    elif isinstance(value, str):
        yield from re.findall(r"\w+", value)


def names_of_trl() -> set[str]:
    """Return the flags of TRL's methods that TorchTune does not have."""
    shared = {word for name in ("recipes", "configs", "components") for word in words_in(data(name))}
    return {name for method in METHODS for name in flag_table(method).flags} - shared


def named_in(text: str) -> set[str]:
    """Return the words of a text that may be flags: one without `_` may mean anything, unless it is written as a flag.

    Examples in a help text show a run of some framework.
    """
    if "\b\nExamples:\n" in text:
        return set()
    return {word for word in re.findall(r"\w+", text) if "_" in word} | {*re.findall(r"--(\w+)\b", text)}


def test_the_names_are_those_of_the_table() -> None:
    names = names_of_trl()
    assert {"per_device_train_batch_size", "max_steps", "eval_strategy", "dataset_train_split", "packing"} <= names
    assert not {"gradient_accumulation_steps", "output_dir"} & names, "TorchTune has them, too"


def test_neutral_rooms_name_no_flag_of_trl() -> None:
    names = names_of_trl()
    found = [
        (str(path.relative_to(SOURCE / "stoker")), line, name)
        for room in NEUTRAL
        for path in source_files(room)
        for line, text in literals(path)
        for name in sorted(named_in(text) & names)
    ]
    report(
        [f"{path}:{line}: {name}" for path, line, name in found if (path, name) not in ALLOWED],
        "Use the plan's flag_names, or flag_names_of(framework). A word that is no flag goes into ALLOWED.",
    )
    assert {*ALLOWED} == {(path, name) for path, _, name in found}, "what no string names any more leaves the list"
