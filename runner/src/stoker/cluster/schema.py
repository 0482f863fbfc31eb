"""Compares a value with a structural schema, as the Kubernetes API server does with a custom resource. Pure.

Structural schemas are a small part of JSON Schema. The API server treats a null field as missing, refuses unknown
fields when a client such as kubectl asks for that, and refuses two entries with the same key in a keyed list.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stoker.contract.exits import ExitCode, RunError

_KINDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
_LARGEST = {"int32": 2**31 - 1, "int64": 2**63 - 1}


def without_nulls(value: Any) -> Any:
    """Return a value without null fields, at any depth. Null entries of lists stay."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


@contextmanager
def shape_errors() -> Iterator[None]:
    """Turn any error about the shape of a resource into a message."""
    try:
        yield
    except KeyError as error:
        raise RunError(ExitCode.USAGE, f"the TrainJob or its runtime lacks the field {error}: add it") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise RunError(
            ExitCode.USAGE,
            f"the TrainJob or its runtime has a field of the wrong type ({error}): "
            "`kubectl apply --dry-run=server` names the field",
        ) from error


def shape_problems(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield one problem for each place where a value does not fit a schema.

    Args:
        value: the value, without nulls (see :func:`without_nulls`).
        schema: a structural schema.
        path: the path of the value, for messages.
    """
    if schema.get("x-kubernetes-int-or-string"):
        yield from _quantity(value, schema, path)
        return
    kind = schema.get("type")
    if kind is not None and not _is(value, kind):
        yield f"{path} is {_said(value)}: it must be {_KINDS[kind]}{_quoted(value, kind)}"
        return
    yield from _bounds(value, schema, path)
    if isinstance(value, list):
        yield from _duplicates(value, schema.get("x-kubernetes-list-map-keys"), path)
        for index, item in enumerate(value):
            yield from shape_problems(item, schema.get("items", {}), f"{path}[{index}]")
    if isinstance(value, dict):
        yield from _fields(value, schema, path)


def _fields(value: Mapping[Any, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    known = schema.get("properties")
    others = schema.get("additionalProperties")
    for name, inner in value.items():
        where = f"{path}.{name}".lstrip(".")
        if known is not None and name in known:
            yield from shape_problems(inner, known[name], where)
        elif isinstance(others, Mapping):
            yield from shape_problems(inner, others, where)
        elif known is not None:
            close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            advice = f"did you mean {close[0]}?" if close else f"its fields are {', '.join(known)}"
            yield f"{path or 'the TrainJob'} has no field {name!r}: {advice}"
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path or 'the TrainJob'} has no {name}: write one"


def _bounds(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, str):
        pattern = schema.get("pattern")
        if "enum" in schema and value not in schema["enum"]:
            yield f"{path} is {value!r}: it must be {' or '.join(schema['enum'])}"
        if pattern is not None and not re.search(pattern, value):
            yield f"{path} is {value!r}: it must match {pattern}"
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            yield f"{path} has {len(value)} characters: write {_range(schema, 'minLength', 'maxLength')}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            yield f"{path} is {value}: write {schema['minimum']} or more"
        if value > _LARGEST.get(schema.get("format", ""), value):
            yield f"{path} is {value}: write {_LARGEST[schema['format']]} or less"
    elif isinstance(value, list) and len(value) > schema.get("maxItems", len(value)):
        yield f"{path} has {len(value)} entries: write {schema['maxItems']} or fewer"


def _range(schema: Mapping[str, Any], least: str, greatest: str) -> str:
    return " to ".join(str(schema[bound]) for bound in (least, greatest) if bound in schema)


def _duplicates(items: list[Any], keys: list[str] | None, path: str) -> Iterator[str]:
    seen: list[Any] = []
    for item in items if keys else ():
        key = {name: item.get(name) for name in keys or ()} if isinstance(item, dict) else None
        if key is not None and key in seen:
            yield f"{path} has two entries with {' and '.join(f'{name} {value!r}' for name, value in key.items())}"
        seen.append(key)


def _quantity(value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    pattern = schema.get("pattern")
    # Also 1.0, which the Kubeflow SDK writes for 1.
    right = _is(value, "integer")
    if not right and not (isinstance(value, str) and (pattern is None or re.search(pattern, value))):
        advice = "write a quantity such as 500m, 2 or 4Gi, in quotes" if pattern else "write a whole number or text"
        yield f"{path} is {_said(value)}: {advice}"


def _is(value: Any, kind: str) -> bool:
    if kind == "boolean" or isinstance(value, bool):
        return kind == "boolean" and isinstance(value, bool)
    if kind in ("integer", "number"):
        return isinstance(value, int) or (isinstance(value, float) and (kind == "number" or value.is_integer()))
    return isinstance(value, {"object": dict, "array": list, "string": str}[kind])


def _quoted(value: Any, kind: str) -> str:
    if kind == "string" and isinstance(value, bool | int | float):
        return f', write "{_said(value)}"'
    return ""


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:60]}…"
