"""What `stoker` made of configurations: played, compared but for words and module names, kept in a file."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner.tests.parity.configurations import Configuration

PLAYER = Path(__file__).with_name("player.py")

Outcome = dict[str, Any]
# What `stoker validate` says since, of what it cannot know.
_NEW_NOTE = ": note: not checked: "
_MODULE = re.compile(r"^stoker(\.\w+)+$")
_WORD = re.compile(r"[A-Za-z_][\w.-]+")
_VARIABLE = re.compile(r"\b(?:STOKER|PET)_\w+")
_FLAG = re.compile(r"^(?:--|~)?([A-Za-z_][\w.-]*)(?==|$)")
_KEY = re.compile(r"^\s*([A-Za-z_][\w.]*):", re.MULTILINE)


def play(source: Path, folder: Path, configurations: Sequence[Configuration]) -> list[Outcome]:
    """Return what the runner of a source tree makes of each configuration.

    Args:
        source: the folder in which the package `stoker` lies.
        folder: an empty folder to work in.
        configurations: what to play.
    """
    for configuration in configurations:
        for name, content in configuration.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    asked = "".join(
        json.dumps({"arguments": c.arguments, "env": c.env, "machine": c.machine}) + "\n" for c in configurations
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", str(PLAYER)],
        cwd=folder,
        env=env,
        input=asked,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    played = [json.loads(line) for line in done.stdout.splitlines()]
    return [normal(*pair) for pair in zip(configurations, played, strict=True)]


def normal(configuration: Configuration, played: Mapping[str, Any]) -> Outcome:
    """Return an outcome without the wording of its messages: of each the user's own words in it are left."""
    said = subjects(configuration)
    out, err = ([line for line in played[stream].splitlines() if _NEW_NOTE not in line] for stream in ("out", "err"))
    outcome: Outcome = {"code": played["code"], "messages": [about(line, said) for line in err]}
    match configuration.arguments[0], played["code"]:
        case "plan", 0:
            outcome["plan"] = _plan(json.loads(played["out"]), said)
        case "flags", _:
            outcome["sha256"] = hashlib.sha256(played["out"].encode()).hexdigest()
        case _:
            outcome["lines"] = [about(line, said) for line in out]
    return outcome


def subjects(configuration: Configuration) -> set[str]:
    """Return the names that a configuration holds: variables, flags and keys, but for everyday words."""
    files = [] if configuration.arguments[0] == "validate" else [*configuration.files.values()]
    names = {name for text in [*configuration.env, *configuration.files.values()] for name in _VARIABLE.findall(text)}
    names |= {name for word in configuration.arguments for name in _FLAG.findall(word)}
    names |= {name for text in files for name in _KEY.findall(text)}
    return {_plain(name) for name in names if {"_", "-", "."} & {*name.strip("_")}}


def _plain(name: str) -> str:
    return name.strip("_.~-").replace("-", "_").lower()


def about(message: str, said: set[str]) -> list[str]:
    """Return which of the user's names are in a message, so that its place in the order shows, not its wording."""
    return sorted({_plain(word) for word in _WORD.findall(message)} & said)


def _plan(plan: dict[str, Any], said: set[str]) -> dict[str, Any]:
    for setting in [*plan["settings"], *plan["world"]["settings"]]:
        setting["reason"] = bool(setting["reason"])
    for check in plan["checks"]:
        check["fix"] = bool(check["fix"])
    plan["notices"] = [about(notice, said) for notice in plan["notices"]]
    for words in (plan["torchrun_argv"], plan["trainer_argv"]):
        words[:] = [_MODULE.sub("stoker.*", word) for word in words]
    plan["module"] = _MODULE.sub("stoker.*", plan["module"])
    return plan


def differences(before: Outcome, after: Outcome) -> list[str]:
    """Return a line for each difference of two outcomes; a message differs where it is about something else."""
    return [*_differences(before, after, ())]


def _differences(before: Any, after: Any, path: tuple[str | int, ...]) -> Iterator[str]:
    where = ".".join(map(str, path))
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if key not in after or key not in before:
                yield f"{where}.{key}: {before.get(key, '(not there)')!r} before, {after.get(key, '(not there)')!r} now"
            else:
                yield from _differences(before[key], after[key], (*path, key))
        if [*before] != [*after] and {*before} == {*after}:
            yield f"{where}: the keys come in another order"
    elif path and path[-1] in ("messages", "notices", "lines"):
        yield from _messages(before, after, where)
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) == len(after):
            for index, pair in enumerate(zip(before, after, strict=True)):
                yield from _differences(*pair, (*path, index))
        else:
            gone, new = (
                [item for item in one if item not in other] for one, other in ((before, after), (after, before))
            )
            yield f"{where}: {len(before)} items before, {len(after)} now: gone {gone}, new {new}"
    elif before != after or type(before) is not type(after):
        yield f"{where}: {before!r} before, {after!r} now"


def _messages(before: list[list[str]], after: list[list[str]], where: str) -> Iterator[str]:
    if len(before) != len(after):
        yield f"{where}: {len(before)} of them before, {len(after)} now: about {before} and {after}"
        return
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if old and not {*old} & {*new}:
            yield f"{where}.{index}: about {old} before, {new} now"


def write(path: Path, recorded: Iterable[tuple[Configuration, Outcome]], about_it: str) -> None:
    """Write configurations with their outcomes, a line each; `about_it` goes to the first line."""
    lines = [
        {"about": about_it},
        *({**asdict(configuration), "outcome": outcome} for configuration, outcome in recorded),
    ]
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def read(path: Path) -> list[tuple[Configuration, Outcome]]:
    """Return the configurations of a record, each with what came of it."""
    _, *lines = (json.loads(line) for line in lzma.decompress(path.read_bytes()).decode().splitlines())
    return [(Configuration(**{k: v for k, v in line.items() if k != "outcome"}), line["outcome"]) for line in lines]
