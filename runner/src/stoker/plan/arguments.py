"""Trainer flags: parse each layer, check it against the flag table, and merge the layers.

Pure: the flag table is data (generated from the trainer's real parsers), so nothing here imports a trainer.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

# The booleans that HfArgumentParser accepts (transformers/hf_argparser.py: string_to_bool).
_TRUE = ("true", "t", "yes", "y", "1")
_FALSE = ("false", "f", "no", "n", "0")
# The source of the settings that a `--config` file holds.
CONFIG_FILE = "config file"
# Words that argparse reads as values although they begin with a dash.
_NEGATIVE = re.compile(r"^-\d+$|^-\d*\.\d+$")
# torch keeps counts in 64-bit integers.
_GREATEST = 2.0**63
_DIGITS = re.compile(r"^[-+]?[0-9]+(\.0*)?$")
_FLOAT = re.compile(r"^[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$")
# Nobody writes a longer number on purpose.
_LONGEST_NUMBER = 40
# A name in a list, not a pattern of names.
_NAME = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
# The value of a setting that its trainer reads as None, and how else it may be written (case does not matter).
NONE = "none"
_NONES = (NONE, "null")
# Type of a flag that no text can set → what a `--config` file holds for it.
IN_FILES = {"dict": "a mapping", "tuple": "a list", "list": "a list"}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of a trainer's command line.

    Attributes:
        name: the flag without dashes, its words joined by `_`.
        type: `bool`, `int`, `float`, `str`, or `json` (a mapping as JSON). Only a `--config` file can hold a `dict`,
            `tuple` or `list`, and only Python code an `object`.
        many: True if it takes several values.
        choices: the allowed values; empty if every value is allowed.
        default: the trainer's own default, as text.
        help: the trainer's own help text.
        alone: True if it may also stand without a value, which turns it on. Every `bool` may.
        none: True if the trainer reads `none` as no value at all.
        listed: True if it takes one value or a list of them. TRL reads the list from a `--config` file only; elsewhere
            it is several words for Stoker, and one word of JSON for the trainer.
    """

    name: str
    type: str
    many: bool = False
    choices: tuple[str, ...] = ()
    default: str | None = None
    help: str = ""
    alone: bool = False
    none: bool = False
    listed: bool = False


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The flags of one method in one trainer version, and what replaced the flags that are gone.

    Attributes:
        trainer: the trainer and version of this table, for example `trl 1.16.0`.
        method: the method, for example `sft`.
        flags: every flag by name.
        renamed: old name → current name.
        removed: old name → what to do instead.
        reserved: flags the runner sets itself → what to write instead.
        deprecated: flags that still work → what to write instead.
        methods_with: returns the other methods of this trainer that have a flag.
        config: the trainer's own config, whose values the flags override; None without one.
        notices: what a user should know about how the config was chosen.
        translated: old name → current name of a flag that was renamed and nothing else: the old name works too, except
            in a `--config` file, which the trainer reads itself.
    """

    trainer: str
    method: str
    flags: Mapping[str, Flag]
    renamed: Mapping[str, str] = field(default_factory=dict)
    removed: Mapping[str, str] = field(default_factory=dict)
    reserved: Mapping[str, str] = field(default_factory=dict)
    deprecated: Mapping[str, str] = field(default_factory=dict)
    methods_with: Callable[[str], Sequence[str]] = lambda name: ()
    config: str | None = None
    notices: tuple[str, ...] = ()
    translated: Mapping[str, str] = field(default_factory=dict)

    def spell(self, name: str) -> str:
        """Return how a flag is written on the trainer's command line."""
        return f"--{name}"

    def refusal(self, name: str) -> str | None:
        """Return why a flag of that name is refused, and what to write instead; None if it is accepted."""
        if name in self.reserved:
            return f"--{name} is reserved for stoker: {self.reserved[name]}"
        if name in self.flags:
            return None
        if not name:
            return "a flag needs a name: write --<flag>, or STOKER_ARG_<FLAG> for a variable"
        head, *rest = name.split(maxsplit=1) or [""]
        if rest and head in self.flags:
            return f"{name!r} is one word: write the flag and its value as two words, --{head} and {rest[0]!r}"
        if name == "config":
            return "only the arguments can name a config file: write --config <file> there"
        where = f"{self.trainer} ({self.method})"
        if self.renamed.get(name) in self.flags:
            return f"--{name} is called --{self.renamed[name]} in {where}: write --{self.renamed[name]}"
        if name in self.removed:
            return f"--{name} no longer exists in {where}: {self.removed[name]}"
        others = self.methods_with(self.renamed.get(name, name))
        if others:
            renamed = f"is now --{self.renamed[name]}, " if name in self.renamed else "is "
            has_it = f"--{name} {renamed}a flag of {', '.join(others)}"
            return f"{has_it}, not of {where}: leave it out, or choose another method"
        longer = [known for known in self.flags if known.startswith(name)]
        if longer:
            return f"--{name} is an abbreviation, which {where} may misread: write --{min(longer, key=len)}"
        close = difflib.get_close_matches(name, self.flags, n=1)
        advice = f"did you mean --{close[0]}?" if close else f"`stoker flags {self.method}` lists its flags"
        return f"--{name} is not a flag of {where}: {advice}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One resolved value and where it came from.

    Attributes:
        name: flag or fact, for example `learning_rate`.
        value: its value as text; a tuple for a flag that takes several values.
        source: the layer that won, for example `args`, `TrainJob env`, `runtime` or `recipe`.
        reason: why that layer set it; empty if the source explains it.
    """

    name: str
    value: str | tuple[str, ...]
    source: str
    reason: str = ""

    def to_argv(self) -> list[str]:
        """Return the words that give this setting to the trainer."""
        if isinstance(self.value, tuple):
            return [f"--{self.name}", *self.value]
        # argparse reads a word that begins with a dash as a flag, except after an equals sign.
        return [f"--{self.name}={self.value}"] if self.value.startswith("-") else [f"--{self.name}", self.value]

    def for_trainer(self, flag: Flag | None) -> Setting:
        """Return the setting in the trainer's own words.

        A flag that may stand alone has no word for on and off: it stands alone, or its value is empty. A list for a
        flag that takes one word is JSON.
        """
        if flag is not None and flag.listed and isinstance(self.value, tuple):
            return replace(self, value=json.dumps(self.value))
        if flag is None or not flag.alone or self.value not in ("true", "false"):
            return self
        return replace(self, value=() if self.value == "true" else "")


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one origin, before the layers are merged.

    Attributes:
        source: the origin's name, as `stoker plan` prints it.
        values: flag → its words, not yet checked.
        foreign: what to do with a flag that the method does not have: `refuse` or `drop` (with a notice).
        label: how a message names a flag of this layer; `{flag}` and `{FLAG}` are replaced.
        reasons: flag → why this layer sets it.
    """

    source: str
    values: Mapping[str, tuple[str, ...]]
    foreign: str = "refuse"
    label: str = "--{flag}"
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolution:
    """The settings that won, the problems and the notices."""

    settings: tuple[Setting, ...]
    problems: tuple[str, ...]
    notices: tuple[str, ...]


def split_args(words: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Split a trainer's command line into flags and their words.

    Args:
        words: for example `["--learning_rate", "2e-4", "--packing"]`; `--flag=value` and `--flag-name` work too.

    Returns:
        flag → its words (of a flag given twice, the last, as in argparse), and a list of problems.
    """
    flags: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    name: str | None = None
    for word in words:
        if word == "--":
            problems.append("'--' is not a flag: write trainer arguments as --flag value")
        elif word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            name = flag.replace("-", "_")
            # A repeated flag moves to its last position, because `--no_<flag>` may stand between the two.
            flags.pop(name, None)
            flags[name] = (value,) if equals else ()
        elif name is None:
            problems.append(f"{word!r} is not a flag: write trainer arguments as --flag value")
        else:
            flags[name] = (*flags[name], word)
    return flags, problems


def split_env(text: str, flag: Flag) -> tuple[str, ...]:
    """Split the text of a `STOKER_ARG_…` variable by the flag's type.

    A flag that takes several values reads a JSON list, or words separated by spaces or commas. One that takes a value
    or a list does so for names only: a pattern with commas is one value. Any other flag takes the text as it is, so
    that `no` and `1:30` stay strings.
    """
    if not flag.many and not flag.listed:
        return (text,)
    if text.lstrip().startswith("["):
        try:
            return tuple(str(item) for item in json.loads(text))
        except (ValueError, RecursionError):
            return (text,)
    words = tuple(text.replace(",", " ").split())
    is_list = flag.many or (words and all(_NAME.match(word) for word in words))
    return words if is_list else (text,)


def with_lists(values: Mapping[str, tuple[str, ...]], table: FlagTable) -> dict[str, tuple[str, ...]]:
    """Return a command line's flags with a list that is one word, such as `a,b`, as the words in it."""
    return {
        name: split_env(words[0], table.flags[name]) if len(words) == 1 and _is_listed(name, table) else words
        for name, words in values.items()
    }


def _is_listed(name: str, table: FlagTable) -> bool:
    return name in table.flags and table.flags[name].listed


def config_words(value: Any) -> tuple[str, ...]:
    """Return a value of a `--config` file as words of a command line."""
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    if isinstance(value, dict):
        return (json.dumps(value, default=str),)
    return (str(value),)


def resolve(table: FlagTable, layers: Iterable[Layer]) -> Resolution:
    """Merge the layers and check the values of each.

    Args:
        table: the method's flags.
        layers: weakest first.
    """
    winners: dict[str, Setting] = {}
    problems: list[str] = []
    notices: list[str] = []
    for layer in layers:
        for name, words in layer.values.items():
            name, words = _without_negation(name, words, table)
            label = layer.label.replace("{flag}", name).replace("{FLAG}", name.upper().replace(".", "__"))
            current = table.translated.get(name)
            if current is not None and layer.source != CONFIG_FILE:
                if current in layer.values:
                    problems.append(
                        f"{label} and {table.spell(current)} are the same flag (both given by {layer.source}): "
                        f"write {table.spell(current)} alone"
                    )
                    continue
                notices.append(f"{label} is read as {table.spell(current)}, its name in {table.trainer}")
                name = current
            refusal = table.refusal(name)
            if refusal is not None:
                if layer.foreign == "drop":
                    notices.append(f"dropped the {layer.source} default {label}: {table.method} has no such flag")
                else:
                    problems.append(f"{refusal} (given as {label} by {layer.source})")
                continue
            flag = table.flags[name]
            wrong = wrong_value(flag, words, in_file=layer.source == CONFIG_FILE)
            if wrong is not None:
                problems.append(f"{label} {wrong} (given by {layer.source})")
                continue
            if name in table.deprecated and layer.source != "recipe":
                trainer = table.trainer.split()[0]
                notices.append(f"a later {trainer} will drop {label}: write {table.deprecated[name]}")
            winners[name] = Setting(name, _value(flag, words), layer.source, layer.reasons.get(name, ""))
    return Resolution(tuple(winners[name] for name in sorted(winners)), tuple(problems), tuple(notices))


def wrong_value(flag: Flag, words: Sequence[str], in_file: bool = False) -> str | None:
    """Return what is wrong with a flag's words, as the end of a sentence; None if nothing is.

    Args:
        flag: the flag.
        words: what was written.
        in_file: True if it was written in a `--config` file.
    """
    if is_none(flag, words) or (in_file and flag.type in IN_FILES):
        return None
    if flag.type == "object":
        return "takes an object that only Python code can make: leave it out"
    if flag.type in IN_FILES:
        return f"takes {IN_FILES[flag.type]}, which no argument or variable can hold: write it in a --config file"
    if not words:
        return None if flag.type == "bool" or flag.alone else f"needs a value: write --{flag.name} <{flag.type}>"
    if len(words) > 1 and not flag.many and not flag.listed:
        return f"takes one value, got {len(words)}: {' '.join(words)!r}"
    for word in words:
        if flag.choices and word not in flag.choices:
            close = difflib.get_close_matches(word, flag.choices, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            if word in ("True", "False"):
                hint = " (YAML reads words such as no and on as false and true: put them in quotes)"
            return f"must be one of {', '.join(flag.choices)}, not {word!r}{hint}"
        if flag.type == "bool" and not is_boolean(word):
            return f"must be true or false, not {word!r}"
        if flag.type in ("int", "float") and not _is_number(word, flag.type):
            kind = "a whole number" if flag.type == "int" else "a number"
            bound = " below 2^63" if (_DIGITS if flag.type == "int" else _FLOAT).match(word) else ""
            return f"must be {kind}{bound}, not {_short(word)}"
        if flag.many and word.startswith("-") and not _NEGATIVE.match(word):
            return f"takes values that do not begin with a dash, not {word!r}"
    return None


def above_zero(value: object) -> float | None:
    """Return a value as a number; None if it is none, or not above zero."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if number > 0 else None


def is_true(value: str | tuple[str, ...]) -> bool:
    """Return whether a checked boolean setting is on."""
    return isinstance(value, str) and value.lower() in _TRUE


def is_boolean(word: str) -> bool:
    """Return whether a word says true or false."""
    return word.lower() in _TRUE + _FALSE


def is_none(flag: Flag, words: Sequence[str]) -> bool:
    """Return whether the trainer reads these words of a flag as no value at all."""
    return flag.none and len(words) == 1 and words[0].lower() in _NONES


def without_negations(values: Mapping[str, tuple[str, ...]], table: FlagTable) -> dict[str, tuple[str, ...]]:
    """Return a command line's flags with `--no_<flag>` read as `<flag>` off; the last of the two counts."""
    return dict(_without_negation(name, words, table) for name, words in values.items())


def translated(values: Mapping[str, tuple[str, ...]], table: FlagTable) -> dict[str, tuple[str, ...]]:
    """Return flags by their current names; of the two names of a flag, the last counts."""
    return {table.translated.get(name, name): words for name, words in values.items()}


def _without_negation(name: str, words: tuple[str, ...], table: FlagTable) -> tuple[str, tuple[str, ...]]:
    # HfArgumentParser adds `--no_<flag>` for every boolean that is on by default.
    positive = name.removeprefix("no_")
    if name not in table.flags and positive != name and not words:
        flag = table.flags.get(positive)
        if flag is not None and flag.type == "bool":
            return positive, ("false",)
    return name, words


def _value(flag: Flag, words: tuple[str, ...]) -> str | tuple[str, ...]:
    if is_none(flag, words):
        return NONE
    word = words[0].lower() if words else "true"
    if flag.type == "bool" or (flag.alone and is_boolean(word)):
        return "true" if word in _TRUE else "false"
    return words[0] if len(words) == 1 and not flag.many else tuple(words)


def _is_number(word: str, kind: str) -> bool:
    # Python also reads 1_000, nan, inf and the digits of every script.
    if "_" in word or not word.isascii() or len(word) > _LONGEST_NUMBER:
        return False
    try:
        number = int(word) if kind == "int" else float(word)
    except ValueError:
        return False
    return math.isfinite(number) and abs(number) <= _GREATEST


def _short(word: str) -> str:
    return repr(word if len(word) <= _LONGEST_NUMBER else f"{word[:_LONGEST_NUMBER]}…")
