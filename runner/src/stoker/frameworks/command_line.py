"""Command lines whose flags begin with dashes, as in TRL and other trainers that use transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stoker.plan.arguments import CONFIG_FILE, FlagTable, Setting, above_zero, config_words, split_args
from stoker.plan.interfaces import Command, Dataset, FlagNames, Words

# The names that transformers uses.
FLAG_NAMES = FlagNames(
    batch_size="--per_device_train_batch_size",
    length="--max_length",
    loader_workers="--dataloader_num_workers",
    kept_checkpoints="--save_total_limit",
    split="--dataset_train_split",
    evaluated_split="--dataset_test_split",
    evaluation="--eval_strategy",
)
# The rows that a process trains in a step are the product of these.
_ROWS = ("per_device_train_batch_size", "gradient_accumulation_steps")


def read_command(
    args: Sequence[str], methods: Sequence[str], method_of: Callable[[str], str | None], start: Callable[[str], str]
) -> Command:
    """Read a command line of flags with dashes; its first word may be the trainer's module.

    Args:
        args: the words.
        methods: the training methods of the framework.
        method_of: returns the method that a word names, None if it names none.
        start: returns the first word of a method's command line.
    """
    method = method_of(args[0]) if args else None
    words = args[1:] if method is not None else args
    values, problems = split_args(words)
    # Users also write `trl sft …`, `-m trl.scripts.sft …` or `sft …`: tell them how to name the method.
    stray = words[: next((at for at, word in enumerate(words) if word.startswith("--")), len(words))]
    named = (word if word in methods else method_of(word) for word in stray)
    meant = next((found for found in named if found in methods), None)
    if method is None and meant is not None:
        problems = [f"{' '.join(stray)!r} does not name the method: begin the arguments with {start(meant)}"]
    config = values.pop("config", None)
    if config is not None and len(config) != 1:
        problems.append("--config takes one file: write --config /workspace/config.yaml")
        config = None
    return Command(method, config[0] if config else None, values, tuple(problems))


def config_flags(content: Mapping[str, Any]) -> Words:
    """Return the flags that a `--config` file sets, each with its words."""
    return {key: config_words(value) for key, value in content.items() if value is not None}


def keys_with_values(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of a config file whose value is neither empty, zero nor false."""
    return tuple(key for key, value in content.items() if value)


def for_command_line(settings: Mapping[str, Setting], table: FlagTable) -> list[Setting]:
    """Return what the command line must give, in the trainer's words: a trainer reads its `--config` file itself."""
    return [
        setting.for_trainer(table.flags.get(setting.name))
        for setting in settings.values()
        if setting.source != CONFIG_FILE
    ]


def argv_of(settings: Iterable[Setting], config: str | None) -> list[str]:
    """Return the command line that gives these settings to a trainer."""
    return [*(["--config", config] if config else []), *(word for setting in settings for word in setting.to_argv())]


def evaluates(settings: Mapping[str, Setting]) -> bool:
    """Return whether a run evaluates while it trains."""
    return "eval_strategy" in settings and settings["eval_strategy"].value != "no"


def local_dataset(settings: Mapping[str, Setting]) -> Dataset | None:
    """Return the data set to inspect, which TRL's flags name; None if it is not a path."""

    def text(flag: str) -> str | None:
        return str(settings[flag].value) if flag in settings else None

    path = text("dataset_name")
    if path is None or not path.startswith("/"):
        return None
    evaluated = (text("dataset_test_split") or "test") if evaluates(settings) else None
    return Dataset(path, text("dataset_config"), text("dataset_train_split") or "train", evaluated)


def local_model(settings: Mapping[str, Setting]) -> str | None:
    """Return the model folder to inspect; None if the model is not a path."""
    setting = settings.get("model_name_or_path")
    return str(setting.value) if setting is not None and str(setting.value).startswith("/") else None


def loader_workers(settings: Mapping[str, Setting]) -> int:
    """Return the number of data loading processes per training process."""
    setting = settings.get("dataloader_num_workers")
    return int(str(setting.value)) if setting is not None and str(setting.value).isdecimal() else 0


def rows_per_step(table: FlagTable, settings: Mapping[str, Any]) -> float | None:
    """Return how many rows a process trains in a step; None if nobody knows.

    Args:
        table: the method's flags, which tell the defaults.
        settings: a run's settings, as its manifest keeps them.
    """
    rows = 1.0
    for name in _ROWS:
        number = above_zero(settings.get(name, table.flags[name].default if name in table.flags else None))
        if number is None:
            return None
        rows *= number
    return rows
