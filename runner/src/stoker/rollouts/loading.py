"""Imports what users named, in the process that runs it, and refuses what could not be called."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import report_traceback
from stoker.rollouts.failures import said_by
from stoker.rollouts.names import Named

# What a reward function gets beside the columns, as TRL hands it over.
_GIVEN = ("prompts", "completions", "completion_ids", "environments", "log_extra", "log_metric")
# What it never gets, though the data may have columns of these names: they are of each sample. And what to use instead.
OF_SAMPLES = {"prompt": "prompts", "completion": "completions"}
# The methods of an environment that are no tools.
_OWN_METHODS = ("reset", "get_reward")


def load(named: Named) -> Any:
    """Import what a name stands for.

    Raises:
        RunError: it is not there (64, 66), or its module fails (78).
    """
    spelled = f"{named.flag} {named.text}"
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as TRL's script does
    try:
        found: Any = importlib.import_module(named.module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{named.module}.".startswith(f"{error.name}."):
            raise _broken(spelled, named.module, error) from error
        raise RunError(
            ExitCode.NO_INPUT,
            f"{spelled} cannot be imported: there is no module {error.name}; add its folder to PYTHONPATH, or install "
            "it in the image",
        ) from error
    except BaseException as error:
        raise _broken(spelled, named.module, error) from error
    for part in named.name.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, [name for name in dir(found) if not name.startswith("_")], n=1)
            advice = f"did you mean {close[0]}?" if close else "write the name of a function in it"
            raise RunError(ExitCode.USAGE, f"{spelled} is not there: {named.module} has no {part}; {advice}")
        found = getattr(found, part)
    if named.arguments is None:
        return found
    try:
        return found(**named.arguments)
    except Exception as error:
        report_traceback()
        raise RunError(
            ExitCode.USAGE, f"{spelled} cannot be called like this ({said_by(error)}): change its arguments"
        ) from error


def reward_function(named: Named, columns: Mapping[str, Collection[str]]) -> Callable[..., Any]:
    """Import a reward function.

    Args:
        named: its name.
        columns: what messages call some data → the names of its columns.

    Raises:
        RunError: it is not there, cannot be called, or needs what it would not get.
    """
    function = load(named)
    spelled = f"{named.flag} {named.text}"
    if not callable(function):
        raise RunError(ExitCode.USAGE, f"{spelled} is a {type(function).__name__}: name a function")
    if inspect.isclass(function):
        raise RunError(ExitCode.USAGE, f"{spelled} is a class: write {named.text}() for an instance that can be called")
    needed = [
        parameter.name
        for parameter in _parameters(function)
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    if "trainer_state" in needed:
        raise RunError(
            ExitCode.CONFIG,
            f"{spelled} needs trainer_state, which is not known where samples are judged: give it a default",
        )
    for name in (name for name in OF_SAMPLES if name in needed):
        raise RunError(
            ExitCode.CONFIG,
            f"{spelled} needs {name}, which no reward function gets: name the argument {OF_SAMPLES[name]}, a list with "
            "one for each sample",
        )
    for data, names in columns.items():
        for name in (name for name in needed if name not in _GIVEN and name not in names):
            raise RunError(
                ExitCode.BAD_DATA,
                f"{spelled} needs the column {name}, but {data} only has values in {', '.join(sorted(names))}: add the "
                "column, give the argument a default if it may be empty, or choose another reward",
            )
    checked: Callable[..., Any] = function
    return checked


def accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments that a function takes: all of them if it has `**kwargs`."""
    parameters = _parameters(function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return arguments
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in arguments.items() if name in names}


def tool_functions(named: Named) -> list[Callable[..., Any]]:
    """Import a tool, or a list of tools.

    Raises:
        RunError: it is not there, or no function.
    """
    found = load(named)
    tools = list(found) if isinstance(found, list | tuple) else [found]
    for tool in tools:
        if not inspect.isroutine(tool):
            raise RunError(
                ExitCode.USAGE,
                f"{named.flag} {named.text} is a {type(tool).__name__}: name a function, or a list of functions",
            )
    return tools


def environment_factory(named: Named) -> Callable[[], Any]:
    """Import an environment's class, or a function that makes one.

    Raises:
        RunError: it is not there, makes none, or its environment has no `reset`.
    """
    factory = load(named)
    spelled = f"{named.flag} {named.text}"
    if not callable(factory):
        raise RunError(ExitCode.USAGE, f"{spelled} is a {type(factory).__name__}: name a class")
    made: Callable[[], Any] = factory
    return made


def tools_of(environment: Any) -> list[Callable[..., Any]]:
    """Return the methods of an environment that the policy may call: the public ones, as in TRL."""
    names = [name for name, _ in inspect.getmembers(type(environment), predicate=inspect.isfunction)]
    return [getattr(environment, name) for name in names if name not in _OWN_METHODS and not name.startswith("_")]


def schemas(flag: str, tools: Sequence[Callable[..., Any]]) -> list[dict[str, Any]]:
    """Return what the chat template is told of tools, parsed from their docstrings and types as TRL parses them.

    Raises:
        RunError: a tool's docstring or types cannot be read (78).
    """
    if not tools:
        return []
    from transformers.utils import get_json_schema

    found = []
    for tool in tools:
        try:
            found.append(get_json_schema(tool))
        except Exception as error:
            raise RunError(
                ExitCode.CONFIG,
                f"{flag}: the tool {tool.__name__} cannot be described to the model ({said_by(error)}): give each "
                "argument a type, and a line in a Google-style docstring (`Args:`)",
            ) from error
    return found


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call gives a coroutine, for functions, partials and instances, as TRL decides it."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name in metrics and messages, as TRL names it."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built in C
        return []


def _broken(spelled: str, module: str, error: BaseException) -> RunError:
    report_traceback()
    return RunError(
        ExitCode.CONFIG,
        f"{spelled} cannot be imported: {module} raised {said_by(error)}; its traceback is above",
    )
