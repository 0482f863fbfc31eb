"""Compares how Stoker and TRL's real parsers read made-up command lines, variables and config files.

Run with the trainer's Python: `python flag_cases.py COUNT SEED`. Prints, as JSON, how many cases of each kind were
compared and how many both took, and each disagreement. Nothing here knows Stoker's flag tables: cases and what they
mean come from TRL's parsers and the types of its configuration classes.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import enum
import importlib
import io
import json
import math
import random
import re
import sys
import types
import typing
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Union

from stoker.frameworks import command_line
from stoker.frameworks.trl.file_checks import config_problems
from stoker.frameworks.trl.flags import METHODS, flag_table
from stoker.frameworks.trl.lists import read_lists
from stoker.frameworks.trl.read import module_of
from stoker.plan.arguments import (
    CONFIG_FILE,
    Layer,
    Resolution,
    config_words,
    resolve,
    split_args,
    split_env,
    with_lists,
    without_negations,
)

# What no value is by its type, and what one or the other reader may misread.
ODD = (
    *("", " ", "0", "1", "-1", "2", "1.5", "-1.5", "-1e-3", "1e-4", "1e400", "nan", "inf", "1_000", "٣", "0x10", "1."),
    *("none", "None", "NULL", "true", "True", "False", "no", "y", "on", "-x", "--x y", "a b", "a,b", "=", "a=b"),
    *('{"a": 1}', "{broken", "[1]", '["a"]', "steps", "full_shard", "auto_wrap offload", "auto", "9223372036854775809"),
)
IN_FILES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, -1, 1.5, 1e-4, "1e-4", "", "no", "none", "true", "text", [], [1], ["a"], [True]),
    *({}, {"a": 1}, ["a", "b"], ["0.5"], ["underflow_overflow"], [0.5, 1], [-1, 1], {"rope": True}, 10.0, "10", 10**30),
)
# What holds exactly two numbers.
TUPLES = ("reward_clip_range",)
RANGES: tuple[Any, ...] = ([1.5], [0, 1, 2], [0, 0], [0, "1"], [None, 1], [True, 2], [-1e9, 1e9], [[0, 1]])
# Settings that Stoker keeps to itself, and what is no flag in a file.
KEPT = ("resume_from_checkpoint", "enable_jit_checkpoint", "local_rank")
SECTIONS = ("env", "datasets")
# Flags of several values for which a file may hold one word: TRL looks for the word in a list, or makes one of it.
WORD_FOR_LIST = ("lora_target_modules", "loss_type", "debug")
TRUE, FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
REFUSED = object()


class Method:
    """TRL's own parser of a method, and what its types say."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parser: Any = importlib.import_module(module_of(name)).make_parser()
        # As the processes of a run have it.
        self.prepared: Any = importlib.import_module(module_of(name)).make_parser()
        read_lists(self.prepared)
        self.actions = {
            action.dest: action
            for action in self.parser._actions
            if not isinstance(action, argparse._HelpAction | argparse._StoreFalseAction)
        }
        self.hints: dict[str, Any] = {}
        for config in self.parser.dataclass_types:
            self.hints.update(typing.get_type_hints(config))

    def read_written(self, argv: Sequence[str]) -> Any:
        """Return what TRL reads in a process of a run, by name; REFUSED if it ends instead."""
        return _parsed(self.prepared, argv)

    def read(self, words: Sequence[str], file: Mapping[str, Any] | None = None) -> Any:
        """Return what TRL reads, by name; REFUSED if it ends instead."""
        parser = copy.copy(self.parser)
        parser._actions = [copy.copy(action) for action in self.parser._actions]
        if file is not None:
            parser.set_defaults_with_config(**file)
        else:
            parser._actions = self.parser._actions
        return _parsed(parser, words)


def _parsed(parser: Any, words: Sequence[str]) -> Any:
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            found, rest = parser.parse_known_args([*words])
    except (SystemExit, TypeError):
        return REFUSED
    return REFUSED if rest else vars(found)


def main(count: int, seed: int) -> None:
    """Compare `count` cases of each kind for all methods together."""
    rng = random.Random(seed)
    methods = [Method(name) for name in METHODS]
    told: list[str] = []
    seen: Counter[str] = Counter()
    for kind, compare in (("args", compare_args), ("env", compare_variable), ("file", compare_file)):
        for number in range(count):
            method = methods[number % len(methods)]
            outcome, disagreement = compare(method, rng)
            seen[kind] += 1
            seen[f"{kind}: {outcome}"] += 1
            if disagreement:
                told.append(f"{method.name} {disagreement}")
    # Too rare among all flags to be met by chance.
    for method in methods:
        for name in (name for name in TUPLES if name in method.actions):
            cases = [compare_value(method, name, value) for value in (*IN_FILES, *RANGES)]
            told += [f"{method.name} {disagreement}" for _, disagreement in cases if disagreement]
            seen["tuple: both"] += sum(outcome == "both" for outcome, _ in cases)
    print(json.dumps({"seen": seen, "disagreements": told}))


def compare_args(method: Method, rng: random.Random) -> tuple[str, str | None]:
    """Compare the reading of one command line."""
    words = command_line_of(method, rng)
    given, problems = split_args(words)
    table = flag_table(method.name)
    resolution = resolve(table, [Layer("args", with_lists(without_negations(given, table), table))])
    refused = [*problems, *resolution.problems]
    own, plain = method.read(words), method.read(*plainly(method, words))
    ours = any(stands_alone(method, name) or is_listed(method, name) for name, _, _ in groups(words))
    if own is not REFUSED and not same(own, plain) and not ours and not excused(method, words):
        return "both", f"{words}: this comparison itself misreads it"
    return verdict(method, words, refused, resolution, plain, excused(method, words))


def compare_variable(method: Method, rng: random.Random) -> tuple[str, str | None]:
    """Compare the reading of one `STOKER_ARG_…` variable."""
    name = rng.choice([*method.actions])
    text = value_of(method.actions[name], rng) if rng.random() < 0.6 else rng.choice([word for word in ODD if word])
    table = flag_table(method.name)
    words = split_env(text, table.flags[name])
    resolution = resolve(table, [Layer("TrainJob env", {name: words})])
    many = method.actions[name].nargs == "+"
    if many and text.startswith("["):
        with contextlib.suppress(ValueError):
            words = tuple(str(item) for item in json.loads(text))
    elif many:
        words = tuple(word for word in re.split(r"[,\s]+", text) if word)
    elif is_listed(method, name):
        words = tuple(several(text))
    line = [f"--{name}={words[0]}"] if not many and len(words) == 1 else [f"--{name}", *words]
    plain = method.read(*plainly(method, line))
    return verdict(method, [f"{name}={text!r}"], resolution.problems, resolution, plain, excused(method, line))


def compare_file(method: Method, rng: random.Random) -> tuple[str, str | None]:
    """Compare the reading of one key of a config file."""
    name = rng.choice([name for name in method.actions if name not in SECTIONS])
    action = method.actions[name]
    return compare_value(method, name, rng.choice(IN_FILES) if rng.random() < 0.6 else value_of(action, rng))


def compare_value(method: Method, name: str, value: Any) -> tuple[str, str | None]:
    """Compare the reading of one key of a config file with one value."""
    if value is None:
        return "null", None
    table = flag_table(method.name)
    resolution = resolve(table, [Layer(CONFIG_FILE, {name: config_words(value)})])
    refused = [*resolution.problems, *config_problems({name: value}, table, "--config f")]
    read = method.read([], {name: value})
    got = REFUSED if read is REFUSED else read[name]
    fits = got is not REFUSED and is_of(method, name, got)
    case = f"file {name}: {value!r}"
    if refused:
        lax = fits and not stricter_in_file(method, name, value, got)
        return "stoker refuses", f"{case}: stoker refuses ({refused[0]}), TRL reads {got!r}" if lax else None
    if not fits:
        return "TRL refuses", f"{case}: stoker takes it, TRL {'ends' if got is REFUSED else f'reads {got!r}'}"
    said = meant(method, name, resolution, got)
    wrong = not same({name: said}, {name: got})
    return "both", f"{case}: stoker reads {said!r}, TRL {got!r}" if wrong else None


def verdict(
    method: Method, words: Sequence[str], refused: Sequence[str], resolution: Resolution, plain: Any, strict: bool
) -> tuple[str, str | None]:
    """Return what became of a case, and how Stoker and TRL disagree about it."""
    if refused:
        lax = plain is not REFUSED and not strict
        return "stoker refuses", f"{words}: stoker refuses ({refused[0]}), TRL does not" if lax else None
    settings = {setting.name: setting for setting in resolution.settings}
    argv = command_line.argv_of(command_line.for_command_line(settings, flag_table(method.name)), None)
    got = method.read_written(argv)
    if got is REFUSED:
        return "TRL refuses", f"{words}: stoker takes it and writes {argv}, which TRL refuses"
    if plain is REFUSED:
        return "TRL refuses", f"{words}: stoker takes it and writes {argv}, TRL refuses it as it was written"
    return "both", None if same(got, plain) else f"{words}: stoker writes {argv}, which TRL reads otherwise"


def command_line_of(method: Method, rng: random.Random) -> list[str]:
    """Make a command line of one to four flags, most of them right."""
    words: list[str] = []
    for _ in range(rng.randint(1, 4)):
        name = rng.choice([*method.actions])
        action = method.actions[name]
        spelled = name.replace("_", "-") if rng.random() < 0.2 else name
        chance = rng.random()
        if chance < 0.03:
            spelled = spelled[: rng.randint(1, len(spelled))]
        elif chance < 0.08:
            words.append(f"--no_{name}" if rng.random() < 0.5 else f"--no-{name.replace('_', '-')}")
            continue
        number = rng.choice([1, 1, 2, 3]) if action.nargs == "+" else 1
        values = [value_of(action, rng) if rng.random() < 0.75 else rng.choice(ODD) for _ in range(number)]
        chance = rng.random()
        if chance < (0.4 if action.nargs == "?" else 0.05):
            words.append(f"--{spelled}")
        elif chance < 0.55 and number == 1:
            words.append(f"--{spelled}={values[0]}")
        else:
            words += [f"--{spelled}", *values]
    if rng.random() < 0.02:
        words.insert(rng.randint(0, len(words)), rng.choice(ODD))
    return words


def value_of(action: argparse.Action, rng: random.Random) -> str:
    """Return a word that should be right for a flag."""
    name = getattr(action.type, "__name__", "")
    if action.choices:
        return str(rng.choice([*action.choices]))
    if name == "string_to_bool":
        word = rng.choice([*TRUE, *FALSE])
        return rng.choice([word, word.upper(), word.capitalize()])
    if name == "int":
        return rng.choice(["1", "8", "128", "+3", "-1", "none"])
    if name == "float":
        return rng.choice(["1", "0.5", "2e-4", "1E-3", ".5", "5.", "-0.1", "-1e-3", "null"])
    if hasattr(action.type, "__members__"):
        return str(rng.choice([*typing.cast(Any, action.type)]).value)
    return rng.choice(["text", "/a/b", "two words", '{"a": 1}', "true", "1:30", "x=y", "none"])


def groups(words: Sequence[str]) -> Iterator[tuple[str, str | None, list[str]]]:
    """Yield each flag's name, what follows its equals sign, and the words after it; a stray word has no name."""
    found: list[tuple[str, str | None, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            found.append((name.replace("-", "_"), value if equals else None, []))
        elif found:
            found[-1][2].append(word)
        else:
            found.append(("", None, [word]))
    yield from found


def plainly(method: Method, words: Sequence[str]) -> tuple[list[str], dict[str, list[str]] | None]:
    """Return a command line in TRL's plainest words, and the lists that TRL reads from a file only; None without one.

    Stoker takes more than TRL in what has only one meaning: a boolean without a value is true, `--no_…` turns any
    boolean off, one value may begin with a dash, a flag that may stand alone knows the words true and false, and one
    that takes a text or a list takes several words.
    """
    plain: dict[str, list[str]] = {}
    lists: dict[str, list[str]] = {}
    for name, value, more in groups(words):
        positive = name.removeprefix("no_")
        action = method.actions.get(name)
        single = value if value is not None and not more else more[0] if value is None and len(more) == 1 else None
        listed: list[str] = []
        if is_listed(method, name):
            given = [*([] if value is None else [value]), *more]
            listed = several(given[0]) if len(given) == 1 else given
            single = listed[0] if len(listed) == 1 else single
        lists.pop(name, None)
        if action is None and is_bool(method, positive) and value is None and not more:
            name, line = positive, [f"--{positive}=false"]
        elif action is not None and is_bool(method, name) and value is None and not more:
            line = [f"--{name}=true"]
        elif action is not None and stands_alone(method, name) and (single or "").lower() in (*TRUE, *FALSE):
            line = [f"--{name}" if (single or "").lower() in TRUE else f"--{name}="]
        elif len(listed) > 1:
            lists[name], line = listed, []
        elif single is not None and (action is None or action.nargs != "+" or value is not None):
            line = [f"--{name}={single}"]
        else:
            line = [f"--{name}" + ("" if value is None else f"={value}"), *more] if name else more
        plain.pop(name, None)
        plain[name] = line
    return [word for line in plain.values() for word in line], lists or None


def several(text: str) -> list[str]:
    """Return the names in a text: a JSON list, or names separated by commas or spaces; any other text is one."""
    if text.lstrip().startswith("["):
        with contextlib.suppress(ValueError):
            return [str(item) for item in json.loads(text)]
    names = [name for name in re.split(r"[,\s]+", text) if name]
    return names if names and all(re.fullmatch(r"\w[\w.-]*", name, re.ASCII) for name in names) else [text]


def is_listed(method: Method, name: str) -> bool:
    """Return whether a flag takes one word on a command line, and a list in a file."""
    action = method.actions.get(name)
    parts = typing.get_args(method.hints.get(name))
    return action is not None and action.nargs != "+" and any(typing.get_origin(part) is list for part in parts)


def is_bool(method: Method, name: str) -> bool:
    """Return whether TRL reads a flag as true or false."""
    return getattr(getattr(method.actions.get(name), "type", None), "__name__", "") == "string_to_bool"


def stands_alone(method: Method, name: str) -> bool:
    """Return whether a flag other than a boolean may stand without a value."""
    return name in method.actions and method.actions[name].nargs == "?" and not is_bool(method, name)


def excused(method: Method, words: Sequence[str]) -> bool:
    """Return whether Stoker may refuse a command line that TRL would take, for a reason that the documents give."""
    for name, value, more in groups(words):
        action = method.actions.get(name)
        if action is None or name in KEPT:
            return True  # an abbreviation, or what Stoker sets itself
        values = [*([] if value is None else [value]), *more]
        kind = getattr(action.type, "__name__", "")
        if kind in ("int", "float") and any(is_unusual(word, kind) for word in values):
            return True
        if kind == "tuple" or name == "datasets":
            return True  # TRL makes letters of any text; a mixture of data sets belongs into a file
        if action.nargs == "+" and any(word.startswith("-") for word in values):
            return True
        if value is not None and more:
            return True
    return False


def is_unusual(word: str, kind: str) -> bool:
    """Return whether Python reads a number that nobody writes on purpose, or that torch cannot hold."""
    if "_" in word or not word.isascii() or word != word.strip():
        return True
    try:
        number = int(word) if kind == "int" else float(word)
    except ValueError:
        return False
    return not math.isfinite(number) or abs(number) > 2**63


def same(one: Mapping[str, Any], other: Any) -> bool:
    """Return whether two readings agree, also in the types of their values."""
    return other is not REFUSED and all(
        repr(one[name]) == repr(other[name]) or (type(one[name]) is float and one[name] == other[name]) for name in one
    )


def is_of(method: Method, name: str, value: Any) -> bool:
    """Return whether a value has the type that TRL's configuration class declares."""
    if is_bool(method, name):
        return isinstance(value, bool) or value in (0, 1)
    action = method.actions[name]
    if name in WORD_FOR_LIST and action.nargs == "+" and isinstance(value, str):
        return True
    if action.choices and value not in [*action.choices]:
        return False
    if stands_alone(method, name) and isinstance(value, bool):
        return True
    return fits(method.hints[name], value) or (name == "scale_rewards" and isinstance(value, bool))


def fits(hint: Any, value: Any) -> bool:
    """Return whether a value has a type, as a type checker sees it."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(part, value) for part in inner)
    if origin is Literal:
        return any(value is choice or (value == choice and type(value) is type(choice)) for choice in inner)
    if origin is list:
        return isinstance(value, list) and all(fits(inner[0], item) for item in value)
    if origin is tuple:
        return isinstance(value, list | tuple) and len(value) == len(inner) and all(map(fits, inner, value))
    if origin is dict:
        return isinstance(value, dict) and all(fits(inner[1], item) for item in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(hint, enum.EnumType):
        return value in [item.value for item in typing.cast(Any, hint)]
    return isinstance(value, hint) if isinstance(hint, type) else value is None


def stricter_in_file(method: Method, name: str, value: Any, got: Any) -> bool:
    """Return whether Stoker may refuse a value of a file that TRL would take, for a reason that the documents give."""
    if name in KEPT or excused(method, [f"--{name}", *map(str, value if isinstance(value, list) else [value])]):
        return True
    if value == "" or got == []:
        return True
    if stands_alone(method, name) and isinstance(value, str) and value.lower() in (*TRUE, *FALSE):
        return True  # TRL reads it as the name of a mode, which it is not
    # A list for what is one value on a command line.
    return isinstance(value, list) and method.actions[name].nargs != "+"


def meant(method: Method, name: str, resolution: Resolution, got: Any) -> Any:
    """Return the value that Stoker has read of a file, in the type of TRL's value where they say the same."""
    (setting,) = resolution.settings
    value = setting.value
    if is_bool(method, name) or isinstance(got, bool):
        return type(got)(str(value).lower() == "true")
    if got is None:
        return None if value == "none" else value
    if isinstance(got, list | tuple):
        # A list of one text is that text, in Stoker.
        return [
            type(item)(word) for item, word in zip(got, value if isinstance(value, tuple) else [value], strict=True)
        ]
    if isinstance(value, tuple) and len(value) == 1:
        (value,) = value
    return json.loads(str(value)) if isinstance(got, dict) else type(got)(value)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
