"""YAML as people write it, read without surprises: a key that is there twice is an error, not the last one's."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, ClassVar

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Plain data only, each key once, nothing inside itself."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Read a value.

        Raises:
            yaml.YAMLError: it is an alias of what it lies in, and would have no end.
        """
        event = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = getattr(event, "anchor", None)
        # Anchors are known from their beginning, nodes have an end once they are whole.
        if isinstance(event, yaml.AliasEvent) and anchor in self.anchors and self.anchors[anchor].end_mark is None:
            raise yaml.composer.ComposerError(f"*{anchor} is inside of itself: {event.start_mark}")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping.

        Raises:
            yaml.YAMLError: a key is there twice.
        """
        seen = set()
        for key, _ in node.value:
            # What `<<` merges in may be overridden; that is its purpose.
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name in seen and name is not None and key.tag != _MERGE:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value} is there twice: keep one", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


class _KubernetesLoader(_Loader):
    """Plain values as kubectl, Helm and the API server read them (sigs.k8s.io/yaml 1.6).

    PyYAML takes `1e-4` for text, `1:30` for the number 90 and 2026-11-21 for a date; there they are a number and texts.
    """

    bool_values: ClassVar[dict[str, bool]] = {**yaml.SafeLoader.bool_values, "y": True, "n": False}
    yaml_implicit_resolvers = {  # noqa: RUF012 - declared so by the base class
        first: [(tag, pattern) for tag, pattern in resolvers if tag in ("tag:yaml.org,2002:null", _MERGE)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


for _tag, _pattern, _first in (
    ("bool", r"y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    ("int", r"[-+]?(?:0b_*[01][01_]*|0x_*[0-9a-fA-F][0-9a-fA-F_]*|0o?_*[0-7][0-7_]*|0_*|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9][0-9_]*)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
):
    _KubernetesLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


def read_manifests(text: str) -> list[Any]:
    """Return the documents of a text that is meant for Kubernetes.

    Raises:
        yaml.YAMLError: it is no YAML, or has a key twice.
        ValueError: it holds a number with more digits than Python reads.
        RecursionError: it is nested without end.
    """
    return list(yaml.load_all(text, _KubernetesLoader))


def read_yaml(text: str) -> list[Any]:
    """Return the documents of a YAML text.

    Raises:
        yaml.YAMLError: it is no YAML, or has a key twice.
        ValueError: it holds a date that is none, such as 2026-13-45.
        RecursionError: it is nested without end.
    """
    return list(yaml.load_all(text, _Loader))
