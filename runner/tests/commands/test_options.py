"""Options of one meaning have one name in all commands, so that a habit from one serves in the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import click
import pytest

from stoker.commands.main import main

# These run in pods: charts and images write their arguments, and no user types them.
IN_PODS = {"adapters", "sampler", "fleet", "slice", "fetch"}
# One name, two meanings: by the command that means something else than its neighbours, and what it means.
OTHERWISE = {
    ("doctor", "--image"): "check as an image build does",
    ("estimate", "--model"): "a folder, because nothing is fetched to estimate",
    ("evaluate", "--model"): "the name that a server knows it by",
    ("estimate", "--runtime"): "files, as for validate",
    ("validate", "--runtime"): "files: a TrainJob names its runtime itself",
    ("local", "--runtime"): "a file, as for validate",
    ("plot", "--to"): "a file: a page or a picture, no folder",
    ("evaluate", "--secret"): "variables of the Job",
    ("export", "--secret"): "variables of the Job",
    ("local", "--secret"): "a file in place of a Secret",
}

# What programs ask: of runs, of results, and of what would run.
FOR_PROGRAMS = {
    *("runs", "status", "logs", "top", "get", "submit", "stop", "resume", "explain", "rl list", "rl logs"),
    *("plot", "export", "evaluate", "plan", "validate", "estimate", "doctor"),
}


def options() -> Iterator[tuple[str, click.Option]]:
    """Return each option of the commands that users type, with the command."""

    def of(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, click.Option]]:
        if isinstance(command, click.Group):
            for name, below in command.commands.items():
                if (*words, name)[0] not in IN_PODS:
                    yield from of(below, (*words, name))
            return
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield " ".join(words), parameter

    return of(main, ())


OPTIONS = list(options())


def value_of(option: click.Option) -> str:
    """Return what an option takes, as its help shows it."""
    if option.is_flag:
        return "a flag"
    return option.make_metavar(click.Context(main)).removesuffix(" RANGE")


def test_the_format_is_chosen_by_output_everywhere() -> None:
    formats = [
        (command, option.opts)
        for command, option in OPTIONS
        if isinstance(option.type, click.Choice) and "json" in option.type.choices
    ]
    assert {command for command, _ in formats} >= FOR_PROGRAMS
    assert [told for told in formats if told[1][0] != "--output"] == []


@pytest.mark.parametrize("said", ["seconds between", "namespace", "context of the kubeconfig", "format.", "base model"])
def test_what_is_told_alike_is_named_alike(said: str) -> None:
    names = defaultdict(list)
    for command, option in OPTIONS:
        if (option.help or "").lower().startswith(said):
            names[tuple(option.opts)].append(command)
    assert len(names) == 1, dict(names)


def test_an_interval_has_the_name_that_it_has_in_pods() -> None:
    updates = [option.opts for _, option in OPTIONS if "between updates" in (option.help or "")]
    assert updates == [["--interval"]]


def test_an_option_takes_the_same_in_all_commands() -> None:
    taken: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for command, option in OPTIONS:
        for name in option.opts:
            if (command, name) not in OTHERWISE:
                taken[name][value_of(option)].append(command)
    assert {name: dict(values) for name, values in taken.items() if len(values) > 1} == {}


def test_each_other_meaning_is_still_there() -> None:
    there = {(command, name) for command, option in OPTIONS for name in option.opts}
    assert OTHERWISE.keys() <= there
