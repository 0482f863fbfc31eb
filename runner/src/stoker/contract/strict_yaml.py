"""YAML that people write, read strictly: plain data only, and a key that stands twice is an error."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

MERGE_TAG = "tag:yaml.org,2002:merge"


class StrictLoader(yaml.SafeLoader):
    """Reads plain data, and refuses a repeated key or an alias inside its own anchor."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Read a value.

        Raises:
            yaml.YAMLError: the value is an alias of a node that contains it.
        """
        event = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = getattr(event, "anchor", None)
        # A node gets its end mark once it is complete.
        if isinstance(event, yaml.AliasEvent) and anchor in self.anchors and self.anchors[anchor].end_mark is None:
            raise yaml.composer.ComposerError(f"*{anchor} contains itself: {event.start_mark}")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping.

        Raises:
            yaml.YAMLError: a key stands twice.
        """
        seen = set()
        for key, _ in node.value:
            # `<<` merges in keys on purpose, so other keys may override them.
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else None
            if name in seen and name is not None and key.tag != MERGE_TAG:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value} appears twice: keep one", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep)


def read_yaml(text: str) -> list[Any]:
    """Return the documents of a YAML text.

    Raises:
        yaml.YAMLError: the text is not YAML, or has a key twice.
        ValueError: the text has an impossible date, such as 2026-13-45.
    """
    return list(yaml.load_all(text, StrictLoader))
