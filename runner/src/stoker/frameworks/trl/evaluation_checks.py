"""Finds settings that need evaluations, or other evaluations than those that are set. Pure.

The rules are those of transformers 5 (`TrainingArguments.__post_init__`), which finds them in the processes of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from stoker.frameworks.command_line import evaluates
from stoker.frameworks.trl.schedules import BY_METRICS
from stoker.plan.arguments import FlagTable, Setting, is_true

# transformers multiplies fractions by it, because a division of fractions has no exact rest.
_WHOLE = 1_000_000


def evaluation_problems(
    table: FlagTable, settings: Mapping[str, Setting], number: Callable[[str], float | None]
) -> Iterator[str]:
    """Yield one problem for each setting that these evaluations do not fit.

    Args:
        table: the method's flags, with the trainer's defaults.
        settings: the merged settings.
        number: returns a flag's value or default; None if it is not a number.
    """
    if "load_best_model_at_end" in settings and is_true(settings["load_best_model_at_end"].value):
        yield from _best_model(table, settings, number)
    if "eval_on_start" in settings and is_true(settings["eval_on_start"].value) and not evaluates(settings):
        yield "--eval_on_start needs evaluations: add --eval_strategy steps"
    schedule = _word("lr_scheduler_type", table, settings)
    if schedule in BY_METRICS and not evaluates(settings):
        yield f"--lr_scheduler_type {schedule} needs evaluations to look at: add --eval_strategy steps"


def _best_model(
    table: FlagTable, settings: Mapping[str, Setting], number: Callable[[str], float | None]
) -> Iterator[str]:
    """Yield a problem if the best model may have no checkpoint."""
    if not evaluates(settings):
        yield "--load_best_model_at_end needs evaluations to find the best model: add --eval_strategy steps"
        return
    evaluating, saving = _word("eval_strategy", table, settings), _word("save_strategy", table, settings)
    if saving == "best":
        return
    if evaluating != saving:
        yield (
            f"--load_best_model_at_end needs a checkpoint of each evaluation, but --eval_strategy is {evaluating} and "
            f"--save_strategy is {saving}: add --save_strategy {evaluating}"
        )
        return
    # Without its own number, transformers evaluates as often as it logs.
    steps, saved = number("eval_steps") or number("logging_steps"), number("save_steps")
    if evaluating == "steps" and steps and saved and not _divides(steps, saved):
        yield (
            f"--load_best_model_at_end needs an evaluation of each checkpoint, but --save_steps is {saved:g} and "
            f"--eval_steps is {steps:g}: make --save_steps a multiple of --eval_steps"
        )


def _divides(steps: float, saved: float) -> bool:
    if (steps < 1) != (saved < 1):
        return False
    return (saved * _WHOLE) % (steps * _WHOLE) == 0 if steps < 1 else saved % steps == 0


def _word(name: str, table: FlagTable, settings: Mapping[str, Setting]) -> str:
    """Return a flag's word, or its default."""
    if name in settings:
        return str(settings[name].value)
    return str(table.flags[name].default) if name in table.flags else ""
