"""YAML as people write it, read without surprises: a key that is there twice is an error, not the last one's."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Plain data only, each key once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping.

        Raises:
            yaml.YAMLError: a key is there twice.
        """
        seen = set()
        for key, _ in node.value:
            # What `<<` merges in may be overridden; that is its purpose.
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name in seen and name is not None and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value} is there twice: keep one", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> list[Any]:
    """Return the documents of a YAML text.

    Raises:
        yaml.YAMLError: it is no YAML, or has a key twice.
        ValueError: it holds a date that is none, such as 2026-13-45.
        RecursionError: it is nested without end.
    """
    return list(yaml.load_all(text, _Loader))
