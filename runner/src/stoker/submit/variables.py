"""Finds variables of a TrainJob that no runtime makes right. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stoker.contract.variables import ARG_PREFIX, unknown_variables
from stoker.plan.arguments import FlagTable, Layer, Resolution, resolve, split_env
from stoker.plan.resolve import RESUME_CHOICES, SHARDING_CHOICES, flag_of_variable

_CHOICES = {"STOKER_RESUME": RESUME_CHOICES, "STOKER_SHARDING": SHARDING_CHOICES}


def variable_problems(env: Mapping[str, str]) -> Iterator[str]:
    """Yield one problem for each variable that Stoker does not know, or whose value it does not know."""
    # Trainer's rules are about PET_….
    yield from unknown_variables(name for name, value in env.items() if value and not name.startswith("PET_"))
    for name, choices in _CHOICES.items():
        if env.get(name) and env[name] not in choices:
            yield f"{name} is {env[name]!r}: it must be one of {', '.join(choices)}"


def flag_settings(env: Mapping[str, str], table: FlagTable) -> Resolution:
    """Return the trainer's flags among variables, with one problem for each that the trainer lacks or refuses."""
    given = {flag_of_variable(name): text for name, text in env.items() if name.startswith(ARG_PREFIX) and text}
    words = {
        name: split_env(text, table.flags[name]) if name in table.flags else (text,) for name, text in given.items()
    }
    return resolve(table, [Layer("env", words, label=ARG_PREFIX + "{FLAG}")])
