"""Finds variables of a TrainJob that no runtime makes right. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stoker.contract.variables import ARG_PREFIX, unknown_variables
from stoker.frameworks import known_frameworks
from stoker.plan.arguments import FlagTable, Layer, Resolution, resolve, split_env
from stoker.plan.resolve import RESUME_CHOICES, SHARDING_CHOICES, flag_of_variable

SHARDING = "STOKER_SHARDING"
_CHOICES = {"STOKER_RESUME": RESUME_CHOICES, SHARDING: SHARDING_CHOICES}


def variable_problems(env: Mapping[str, str]) -> Iterator[str]:
    """Yield one problem for each variable that Stoker does not know, or whose value it does not know."""
    # Trainer's rules are about PET_….
    yield from unknown_variables(name for name, value in env.items() if value and not name.startswith("PET_"))
    for name, choices in _CHOICES.items():
        if env.get(name) and env[name] not in choices:
            yield f"{name} is {env[name]!r}: it must be one of {', '.join(choices)}"


def unable_to_shard(framework: str, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem if a framework cannot shard as a variable says.

    Args:
        framework: its label.
        env: the variables.
    """
    sharding = env.get(SHARDING)
    if sharding not in SHARDING_CHOICES:
        return
    known = known_frameworks().get(framework)
    if known is None:
        yield f"{SHARDING} is {sharding!r}, but Stoker does not launch {framework}: drop it, and tell the trainer"
    elif sharding not in known.shardings:
        yield f"{SHARDING} is {sharding!r}, but {framework} can only do {' or '.join(known.shardings)}: drop it"


def with_own(own: Mapping[str, str], env: Mapping[str, str] | None) -> dict[str, str]:
    """Return the variables of a config with those that are given beside it.

    Args:
        own: the variables that the config stands for.
        env: those beside it.

    Raises:
        ValueError: one line for each variable that both set, to different values.
    """
    given = {**(env or {})}
    problems = [
        f"{name} is {given[name]!r}, but the config says {value!r}: write one of them"
        for name, value in own.items()
        if given.get(name, value) != value
    ]
    if problems:
        raise ValueError("\n".join(problems))
    return {**own, **given}


def flag_settings(env: Mapping[str, str], table: FlagTable) -> Resolution:
    """Return the trainer's flags among variables, with one problem for each that the trainer lacks or refuses."""
    given = {flag_of_variable(name): text for name, text in env.items() if name.startswith(ARG_PREFIX) and text}
    words = {
        name: split_env(text, table.flags[name]) if name in table.flags else (text,) for name, text in given.items()
    }
    return resolve(table, [Layer("env", words, label=ARG_PREFIX + "{FLAG}")])
