"""Whatever a user writes, a plan is refused in one message, or agrees with its own checks and with argparse."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner.tests.samples import POD, resolve

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.variables import ARG_PREFIX, KNOWN, LAUNCHER
from stoker.frameworks import get_framework
from stoker.plan.arguments import NONE, Flag, FlagTable, is_true
from stoker.plan.facts import Facts
from stoker.plan.plan import Plan
from stoker.plan.world import ACCELERATORS, resolve_world

TRL = get_framework("trl")
NAMES = sorted({name for method in TRL.methods for name in TRL.flag_table(method).flags})

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
numbers = st.one_of(st.integers(), st.floats(), st.integers(0, 12)).map(str)
values = st.one_of(
    texts, numbers, st.sampled_from(["true", "no", "-1", "--packing", "[1]", '["a"]', "a,b", "1e-4", "none", "NULL"])
)
flags = st.one_of(st.sampled_from(NAMES), texts)
args = st.lists(
    st.one_of(texts, values, flags.map("--{}".format), st.tuples(flags, values).map("--{0[0]}={0[1]}".format)),
    max_size=8,
)
variables = st.dictionaries(
    st.one_of(
        st.sampled_from([*KNOWN, *LAUNCHER]), st.sampled_from(NAMES).map(lambda name: ARG_PREFIX + name.upper()), texts
    ),
    values,
    max_size=5,
)
documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts, st.dates()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
configs = st.none() | st.dictionaries(st.one_of(flags, st.sampled_from(["env", "datasets"])), documents, max_size=4)
facts = st.builds(
    Facts,
    env=variables.map(lambda env: {**POD, **env}),
    devices=st.lists(st.sampled_from(["nvidia0", "nvidia1"]), unique=True).map(tuple),
    cpus=st.integers(1, 64),
)
quickly = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def kind_of(flag: Flag) -> Callable[[str], Any]:
    """Return what reads one word of a flag; the word `none` stays where it stands for no value."""
    kind: Callable[[str], Any] = {"int": int, "float": float}.get(flag.type, str)
    return lambda word: word if flag.none and word == NONE else kind(word)


def parser_of(table: FlagTable) -> argparse.ArgumentParser:
    """Return a parser that reads what TRL's own reads: HfArgumentParser's rules for the table's flags."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--config")
    for flag in table.flags.values():
        options: dict[str, Any] = {"nargs": "+"} if flag.many else {}
        if flag.type == "bool" or flag.alone:
            options = {"nargs": "?", "const": "true"}
        parser.add_argument(f"--{flag.name}", type=kind_of(flag), choices=flag.choices or None, default=None, **options)
    return parser


PARSERS = {method: parser_of(TRL.flag_table(method)) for method in TRL.methods}


def meant(flag: Flag, value: str | tuple[str, ...]) -> Any:
    """Return what a setting stands for once it is parsed."""
    if flag.alone and value == "false":
        return ""
    kind = kind_of(flag)
    return [kind(word) for word in value] if isinstance(value, tuple) else kind(value)


def expect_consistent(plan: Plan, found: Facts) -> None:
    """Fail if a plan contradicts itself, its facts, or how the trainer reads its command line."""
    world = plan.world
    assert world.problems == ()
    assert 0 <= world.node_rank < world.nnodes
    assert found.accelerator == "cpu" or world.nproc_per_node <= len(found.devices)
    assert plan.output_dir.startswith("/")
    assert all(value > 0 for value in plan.budget.values())
    json.dumps(plan.to_json())
    table = TRL.flag_table(plan.method)
    named = {setting.name: setting for setting in plan.settings}
    assert len(named) == len(plan.settings)
    assert all(table.refusal(name) is None for name in named)
    assert not (
        is_true(named["bf16"].value) and is_true(named["fp16"].value) if {"bf16", "fp16"} <= {*named} else False
    )
    parsed = vars(PARSERS[plan.method].parse_args([*plan.trainer_argv]))
    for setting in plan.settings:
        if setting.source != "config file":
            assert parsed[setting.name] == meant(table.flags[setting.name], setting.value)
    given = {name for name, value in parsed.items() if value is not None} - {"config"}
    assert given <= named.keys()


@quickly
@given(facts, args, configs, st.sampled_from(TRL.methods))
def test_anything_is_refused_in_a_message_or_planned_without_a_contradiction(
    found: Facts, words: list[str], config: dict[str, Any] | None, method: str
) -> None:
    named = ["--config", "/c.yaml"] if config is not None else []
    try:
        plan = resolve(found, (f"trl.scripts.{method}", *named, *words), config=config)
    except RunError as error:
        refusal: RunError | None = error
    else:
        refusal = None
        expect_consistent(plan, found)
    if refusal is not None:
        assert refusal.code in (ExitCode.USAGE, ExitCode.CONFIG)
        assert refusal.message.strip()


@quickly
@given(
    st.sampled_from(TRL.methods).flatmap(
        lambda method: st.tuples(
            st.just(method),
            st.dictionaries(st.sampled_from(sorted(TRL.flag_table(method).flags)), values, min_size=1, max_size=3),
        )
    )
)
def test_a_value_that_is_taken_reaches_the_trainer_as_it_was_written(asked: tuple[str, dict[str, str]]) -> None:
    method, told = asked
    env = {**POD, **{ARG_PREFIX + name.upper(): value for name, value in told.items()}}
    found = Facts(env=env, cpus=4)
    try:
        plan = resolve(found, (f"trl.scripts.{method}",))
    except RunError:
        return
    expect_consistent(plan, found)


@quickly
@given(facts, st.dictionaries(st.sampled_from(["nnodes", "nproc_per_node", "node_rank", "master_addr"]), values))
def test_a_world_without_problems_adds_up(found: Facts, options: dict[str, str]) -> None:
    world = resolve_world(found, options)
    if not world.problems:
        assert world.size == world.nnodes * world.nproc_per_node >= 1
        assert world.node_rank < world.nnodes
        assert found.accelerator in ACCELERATORS
        assert len(world.peers()) in (0, world.nnodes) if world.nnodes < 1000 else True
