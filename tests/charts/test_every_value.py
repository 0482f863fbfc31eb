"""Whatever a value is left without, a chart says in plain words what is wrong, or renders its default."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml

from charts.generate import is_group
from charts.helm import CHARTS, ROOT, STOKER_BOARD, TRAINING_RUNTIMES, VLLM_SERVING, run, template_arguments
from charts.refusals import ends_with_the_fix

if TYPE_CHECKING:
    from collections.abc import Iterator

BASES = {
    TRAINING_RUNTIMES: TRAINING_RUNTIMES / "ci" / "policies-values.yaml",
    VLLM_SERVING: VLLM_SERVING / "ci" / "full-values.yaml",
    STOKER_BOARD: STOKER_BOARD / "ci" / "full-values.yaml",
}
"""Values under which most others matter."""

ENTRIES = {"runtimes": "trl-grpo-async", "accelerators": "nvidia"}
"""Maps that users fill, and an entry that the charts have."""

TRACE = re.compile(r"nil pointer|error calling|can't evaluate|executing \"|wrong type|<nil>|\.(tpl|yaml|txt):\d+")
"""Go's words about templates, which help nobody who writes values."""


class Value(NamedTuple):
    """A value or a group of values in values.yaml."""

    chart: Path
    path: str
    default: Any
    schema: dict[str, Any]


def every_value(chart: Path) -> list[Value]:
    """Return all values of a chart and their groups; of a map that users fill, those of one entry."""

    def below(group: dict[str, Any], schema: dict[str, Any], prefix: str) -> Iterator[Value]:
        for name, default in group.items():
            part = schema["properties"][name]
            yield Value(chart, prefix + name, default, part)
            if is_group(prefix + name, default):
                yield from below(default, part, f"{prefix}{name}.")
            elif name in ENTRIES and not prefix:
                yield from of_entry(resolved(resolved(part)["additionalProperties"]), f"{name}.{ENTRIES[name]}.")

    def of_entry(part: dict[str, Any], prefix: str) -> Iterator[Value]:
        for name, one in part.get("properties", {}).items():
            found = resolved(one)
            yield Value(chart, prefix + name, example(found), found)
            yield from of_entry(found, f"{prefix}{name}.")

    def resolved(part: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in part:
            return part
        return resolved(reduce(getitem, part["$ref"].removeprefix("#/").split("/"), schema))

    schema = json.loads((chart / "values.schema.json").read_text())
    return list(below(yaml.safe_load((chart / "values.yaml").read_text()), schema, ""))


def example(schema: dict[str, Any]) -> Any:
    """Return a value of the type that a schema asks for."""
    types = schema.get("type", "enum")
    examples = {"object": {}, "array": [], "string": "x", "integer": 1, "boolean": True}
    return schema["enum"][0] if types == "enum" else examples[types if isinstance(types, str) else types[0]]


def means_something(value: Value, setting: Any) -> bool:
    """Return whether the schema of a value names null or the empty text: its description says what they mean."""
    if setting is None:
        return "null" in value.schema.get("type", ()) and not isinstance(value.default, dict)
    return setting == "" and re.search(value.schema.get("pattern", "."), "") is not None


def wrong(default: Any) -> Any:
    """Return what people write for a value when they mistake its type."""
    match default:
        case bool():
            return "false"
        case int():
            return "1"
        case str():
            return 0.31
        case _:
            return "text"


def empty(default: Any) -> Any:
    """Return the empty map or list, or else the empty text."""
    return type(default)() if isinstance(default, dict | list) else ""


@pytest.fixture(scope="module", params=["4", pytest.param("3", marks=pytest.mark.full)], ids=lambda v: f"helm{v}")
def helm(request: pytest.FixtureRequest) -> str:
    """One of the two Helms that are in use; Helm 3 is full because it takes minutes to build."""
    if request.param == "4":
        return "helm"
    built = subprocess.run([ROOT / "tools/build", "helm3"], check=True, stdout=subprocess.PIPE, text=True)
    return str(Path(built.stdout.strip()) / "helm")


@cache
def rendered(helm: str, chart: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """Return what Helm says to settings."""
    # Helm 3 by itself takes the cluster for one that is older than the charts support.
    return run(helm, *template_arguments(chart, settings=settings), "--kube-version", "1.34.0")


def base_without(value: Value) -> list[str]:
    """Return settings of the base that leave a value alone."""
    base = yaml.safe_load(BASES[value.chart].read_text())
    *groups, name = value.path.split(".")
    where = base
    for group in groups:
        where = where.get(group, {})
    where.pop(name, None)
    return [f"{path}={json.dumps(setting)}" for path, setting in base.items()]


def in_plain_words(refusal: str) -> bool:
    """Return whether a refusal is about values alone, and ends with the fix."""
    message = re.sub(r"execution error at \(\S+\): ", "", refusal)
    return TRACE.search(message) is None and ends_with_the_fix(refusal)


EVERY = [value for chart in CHARTS for value in every_value(chart)]
# For `make test`, and for Helm 3; the rest is for `make test-full`.
ALWAYS = EVERY[::5]
TRIED = [("4", value) for value in EVERY] + [("3", value) for value in ALWAYS]


@pytest.mark.parametrize(
    ("helm", "value"),
    [
        pytest.param(
            version, v, id=f"helm{version}-{v.chart.name}-{v.path}",
            marks=() if version == "4" and v in ALWAYS else pytest.mark.full,
        )
        for version, v in TRIED
    ],
    indirect=["helm"],
)  # fmt: skip
def test_what_is_left_empty_is_refused_in_plain_words_or_as_if_it_were_not_there(value: Value, helm: str) -> None:
    base = base_without(value)
    default = rendered(helm, value.chart, *base).stdout
    for setting in [setting for setting in (None, empty(value.default)) if setting != value.default]:
        done = rendered(helm, value.chart, *base, f"{value.path}={json.dumps(setting)}")
        if done.returncode != 0:
            assert in_plain_words(done.stderr), done.stderr
        elif not means_something(value, setting):
            assert done.stdout == default, f"{value.path}={json.dumps(setting)}"


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: str(chart.name))
def test_a_wrong_type_is_refused_with_the_name_of_its_value(chart: Path, helm: str) -> None:
    """Helm names all values that it refuses, so those that are not inside each other are tried at once."""
    values = [value for value in EVERY if value.chart == chart]
    for depth in {value.path.count(".") for value in values}:
        tried = [value for value in values if value.path.count(".") == depth]
        refusal = rendered(helm, chart, *(f"{value.path}={json.dumps(wrong(value.default))}" for value in tried)).stderr
        assert in_plain_words(refusal), refusal
        assert [v.path for v in tried if f"- at '/{v.path.replace('.', '/')}'" not in refusal] == []


def with_values(copy: Path, values: dict[str, Any], *files: Path) -> subprocess.CompletedProcess[str]:
    """Render a chart's copy with others in the place of its values, as `helm upgrade --reuse-values` does."""
    (copy / "values.yaml").write_text(json.dumps(values))
    return run("helm", *template_arguments(copy, files))


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: str(chart.name))
def test_reused_values_lack_nothing_in_silence(chart: Path, tmp_path: Path) -> None:
    """Those of a version before are refused by the name of what it lacked, unless the default of that is nothing."""
    copy = tmp_path / chart.name
    shutil.copytree(chart, copy)  # links in it become the files they lead to
    values = yaml.safe_load((chart / "values.yaml").read_text())
    outer = [value for value in every_value(chart) if "." not in value.path]
    needed = {one.path: one.default for one in outer if one.default and "null" not in one.schema.get("type", ())}
    refusal = with_values(copy, {name: default for name, default in values.items() if name not in needed}).stderr
    assert in_plain_words(refusal), refusal
    assert [name for name in needed if f"'{name}'" not in refusal] == []
    least = chart / "ci/default-values.yaml"
    older = with_values(copy, needed, least)
    assert older.returncode == 0, older.stderr
    assert older.stdout == with_values(copy, values, least).stdout
