"""Reads how users name their functions: `module:function`, TRL's dotted paths, TRL's own rewards, an address."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.rollouts import verifiers

REWARDS, TOOLS, ENVIRONMENTS = "--reward_funcs", "--tools", "--environment_factory"

# What a bare name stands for: TRL's rewards and ours. What returns a reward is called.
_TRL = "trl.rewards"
_BARE: Mapping[str, tuple[str, Mapping[str, Any] | None]] = {
    "accuracy_reward": (_TRL, None),
    "reasoning_accuracy_reward": (_TRL, None),
    "think_format_reward": (_TRL, None),
    "get_soft_overlong_punishment": (_TRL, {"max_completion_len": 1280, "soft_punish_cache": 256}),
    "get_cosine_scaled_reward": (_TRL, {}),
    "get_repetition_penalty_reward": (_TRL, {}),
    "math_answer": (verifiers.__name__, None),
    "get_math_answer": (verifiers.__name__, {}),
}
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class Named:
    """A function or class as a user named it.

    Attributes:
        flag: where they wrote it.
        text: what they wrote.
        module: its module.
        name: its name in the module, with dots for an attribute of a class.
        arguments: what to call it with; None if it is what was named, not what it returns.
    """

    flag: str
    text: str
    module: str
    name: str
    arguments: Mapping[str, Any] | None = field(default=None)


def is_address(text: str) -> bool:
    """Return whether a reward is a model behind an address, and not a function."""
    return text.startswith(("http://", "https://"))


def named(flag: str, text: str) -> Named:
    """Return what a name stands for. Nothing is imported.

    Raises:
        RunError: it is not written as a name (64).
    """
    path, arguments = _called(flag, text)
    module, colon, name = path.partition(":")
    if not colon and path in _BARE:
        module, given = _BARE[path]
        return Named(flag, text, module, path, given if arguments is None else arguments)
    if not colon:
        module, _, name = path.rpartition(".")
    if not _PATH.fullmatch(module) or not _PATH.fullmatch(name):
        known = f", or one of {', '.join(_BARE)}" if flag == REWARDS else ""
        raise RunError(ExitCode.USAGE, f"{flag} {text} names no function: write module:name{known}")
    return Named(flag, text, module, name, arguments)


def environments_among(texts: Sequence[str]) -> dict[str, str]:
    """Return name → class of environments, each written as `module:Class` or `name=module:Class`.

    The name is empty for one that all rows share.

    Raises:
        RunError: two have the same name, or one of several has none (64).
    """
    found: dict[str, str] = {}
    for text in texts:
        name, sign, path = text.partition("=")
        if not sign or not name.isidentifier():
            name, path = "", text  # the first = may stand among arguments
        if name in found:
            called = f"are both called {name}" if name else "have no name"
            raise RunError(
                ExitCode.USAGE,
                f"{ENVIRONMENTS} {found[name]} and {path} {called}: write name=module:Class, with a name for each",
            )
        found[name] = path
    if "" in found and len(found) > 1:
        raise RunError(
            ExitCode.USAGE, f"{ENVIRONMENTS} {found['']} is one of several: give it a name, as in name={found['']}"
        )
    return found


def unreadable(rewards: Sequence[str], tools: Sequence[str], environments: Sequence[str]) -> Iterator[str]:
    """Yield one problem for each name that is not written as one. Nothing is imported."""
    for flag, texts in ((REWARDS, [text for text in rewards if not is_address(text)]), (TOOLS, tools)):
        for text in texts:
            yield from _told(partial(named, flag, text))
    problems = list(_told(partial(environments_among, environments)))
    yield from problems
    for text in () if problems else environments_among(environments).values():
        yield from _told(partial(named, ENVIRONMENTS, text))


def _told(read: Callable[[], object]) -> Iterator[str]:
    try:
        read()
    except RunError as error:
        yield error.message


def _called(flag: str, text: str) -> tuple[str, dict[str, Any] | None]:
    """Split `path(key=value, …)` into its path and its arguments; None if there are no parentheses."""
    path, parenthesis, rest = text.partition("(")
    if not parenthesis:
        return text, None
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not all(word.arg for word in call.keywords):
            raise ValueError(rest)
        return path, {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise RunError(
            ExitCode.USAGE,
            f"{flag} {text} has arguments that cannot be read: write {path}(name=value,…) with plain values",
        ) from error
