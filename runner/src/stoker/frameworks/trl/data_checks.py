"""Checks that data set, TRL method and model fit together. Pure.

The columns are those that TRL 1.16's trainers read (docs/source/dataset_formats.md, each trainer's `_prepare_dataset`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stoker.contract.exits import ExitCode
from stoker.frameworks.trl.dataset_formats import COLUMNS, FLAG, formats_of
from stoker.frameworks.trl.mappings import mapping_in
from stoker.plan.arguments import NONE, Setting
from stoker.plan.inputs import DatasetColumns, ModelFolder
from stoker.rollouts.verifiers import ANSWERS

_PAIRS = (("chosen", "rejected"),)
# Method → the sets of columns that it can train on.
_NEEDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "sft": (("text",), ("messages",), ("prompt", "completion"), ("conversations",), ("input_ids",)),
    "dpo": _PAIRS,
    "orpo": _PAIRS,
    "kto": (("prompt", "completion", "label"), *_PAIRS),
    "reward": (*_PAIRS, ("chosen_ids", "rejected_ids"), ("chosen_input_ids", "rejected_input_ids")),
    "grpo": (("prompt",),),
    "grpo_async": (("prompt",),),
    "rloo": (("prompt",),),
    "distillation": (("prompt",),),
}
# Columns that may hold a conversation (trl.data_utils.is_conversational, is_conversational_from_value).
_CONVERSATIONS = ("messages", "prompt", "chosen", "rejected", "completion", "conversations")
# TRL's rewards that read the content of a message, and those that compare with a solution.
_REWARDS_OF_MESSAGES = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")
_REWARDS_OF_ANSWERS = ("math_answer", "get_math_answer")
_REWARDS_OF_SOLUTIONS = ("accuracy_reward", "reasoning_accuracy_reward")
_WRITE_MESSAGES = 'write prompts as [{"role": "user", "content": …}]'
_LENGTHS = ("max_length", "max_completion_length")
# Options of the model that give it other positions than its config.json says.
_POSITIONS = ("max_position_embeddings", "rope_parameters", "rope_scaling")

Problem = tuple[ExitCode, str]


def data_problems(
    method: str, settings: Mapping[str, Setting], data: DatasetColumns | None, model: ModelFolder | None
) -> Iterator[Problem]:
    """Yield why the run cannot train on this data with this model.

    Args:
        method: the training method.
        settings: the run's flags.
        data: the data set's columns, if known.
        model: the model folder, if known.
    """
    if data is not None:
        if data.problem is not None:
            yield ExitCode.BAD_DATA, f"the data set {data.path} {data.problem}"
        else:
            yield from _wrong_columns(method, settings, data)
            yield from _wrong_rewards(settings, data)
            yield from _unseen_tools(settings, data)
            yield from _no_template(method, settings, data, model)
    if model is not None and model.positions is not None:
        yield from _too_long(settings, model, model.positions)


def _needs(method: str, settings: Mapping[str, Setting]) -> tuple[tuple[str, ...], ...]:
    written = settings.get(FLAG)
    if written is not None:
        return COLUMNS[str(written.value)][method]
    if method == "grpo_async" and settings.get("environment_factory"):
        return ((),)  # an environment makes the prompts
    field = settings.get("dataset_text_field")
    if method != "sft" or field is None:
        return _NEEDS[method]
    return tuple((str(field.value),) if needed == ("text",) else needed for needed in _NEEDS[method])


def _wrong_columns(method: str, settings: Mapping[str, Setting], data: DatasetColumns) -> Iterator[Problem]:
    needs = _needs(method, settings)
    if any({*needed} <= data.columns.keys() for needed in needs):
        return
    others = [m for m, n in _NEEDS.items() if m != method and any({*needed} <= data.columns.keys() for needed in n)]
    hint = f", or choose a method that uses these ({', '.join(others)})" if others else ""
    hint += "".join(f", or write --{FLAG} {name}" for name in formats_of(method, data.columns))
    asked = f"{method} with --{FLAG} {settings[FLAG].value}" if FLAG in settings else method
    wanted = ", or ".join(" and ".join(needed) for needed in needs if not needed[0].endswith("_ids"))
    yield (
        ExitCode.BAD_DATA,
        (
            f"the data set {data.path} has the columns {', '.join(data.columns)}, but {asked} needs {wanted}: "
            f"rename the columns{hint}"
        ),
    )


def _wrong_rewards(settings: Mapping[str, Setting], data: DatasetColumns) -> Iterator[Problem]:
    rewards = settings.get("reward_funcs")
    names = rewards.value if rewards is not None and isinstance(rewards.value, tuple) else ()
    for name in names:
        if name in _REWARDS_OF_MESSAGES and data.columns.get("prompt") == "text":
            yield (
                ExitCode.BAD_DATA,
                (
                    f"--reward_funcs {name} reads messages, but the column prompt of {data.path} holds text: "
                    f"{_WRITE_MESSAGES}, or choose another reward"
                ),
            )
        if name in _REWARDS_OF_SOLUTIONS and "prompt" in data.columns and "solution" not in data.columns:
            yield (
                ExitCode.BAD_DATA,
                (
                    f"--reward_funcs {name} needs the column solution, but {data.path} only has "
                    f"{', '.join(data.columns)}: add the column, or choose another reward"
                ),
            )
        judges = name.partition("(")[0] in _REWARDS_OF_ANSWERS
        if judges and "prompt" in data.columns and not {*ANSWERS} & data.columns.keys():
            yield (
                ExitCode.BAD_DATA,
                (
                    f"--reward_funcs {name} needs the right answer in the column {' or '.join(ANSWERS)}, but "
                    f"{data.path} only has {', '.join(data.columns)}: rename the column, or choose another reward"
                ),
            )


def _unseen_tools(settings: Mapping[str, Setting], data: DatasetColumns) -> Iterator[Problem]:
    if settings.get("tools") and data.columns.get("prompt") == "text":
        yield (
            ExitCode.BAD_DATA,
            (
                f"--tools needs messages, but the column prompt of {data.path} holds text, which cannot show tools: "
                f"{_WRITE_MESSAGES}, or leave out --tools"
            ),
        )


def _no_template(
    method: str, settings: Mapping[str, Setting], data: DatasetColumns, model: ModelFolder | None
) -> Iterator[Problem]:
    if model is None or model.has_chat_template is not False or "chat_template_path" in settings:
        return
    used = {name for needed in _needs(method, settings) for name in (*needed, "prompt")}
    if FLAG in settings:
        found, holds = [name for name in data.columns if name in used], "becomes"
    else:
        found = [name for name in _CONVERSATIONS if name in used and data.columns.get(name) == "messages"]
        holds = "holds"
    if found:
        option = (
            "name one with --chat_template_path" if method in ("sft", "reward") else "use an instruction-tuned model"
        )
        yield (
            ExitCode.BAD_DATA,
            (
                f"the column {found[0]} of {data.path} {holds} messages, but the model {model.path} has no chat "
                f"template: add a chat_template.jinja to the model, or {option}"
            ),
        )


def _too_long(settings: Mapping[str, Setting], model: ModelFolder, positions: int) -> Iterator[Problem]:
    if {*_POSITIONS} & mapping_in(settings, "model_init_kwargs").keys():
        return
    for flag in _LENGTHS:
        setting = settings.get(flag)
        if setting is None or isinstance(setting.value, tuple) or setting.value == NONE:
            continue
        if int(setting.value) > positions:
            yield (
                ExitCode.CONFIG,
                (
                    f"--{flag} {setting.value} ({setting.source}) is too long for the model {model.path}, which has "
                    f"{positions} positions (max_position_embeddings in its config.json): write {positions} or less"
                ),
            )
