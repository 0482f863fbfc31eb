"""YAML that people write, read strictly: plain data only, and a key that stands twice is an error."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

# What PyYAML's parser finds → what to write instead.
_ADVICE = {
    "mapping values are not allowed": "put a text that holds ': ' in quotes, or correct the indentation",
    "cannot start any token": "put the text in quotes, and indent with spaces",
    "could not find expected ':'": "write `key: value`, with a space after the colon",
    "but found '-'": "indent the items of one list alike, and below their key",
    "expected <block end>": "indent the keys of one mapping alike",
    "expected ',' or": "write a comma, or close the bracket",
    "found unexpected end of stream": "close the quote or the bracket",
    "found undefined alias": "define it with & first, or put the text in quotes",
    "could not determine a constructor": "leave out the tag that begins with !",
}
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
            problem = f"*{anchor} contains itself: write its content instead"
            mark: Any = event.start_mark  # of PyYAML's parser or of libyaml's
            raise yaml.composer.ComposerError(None, None, problem, mark)
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


def read_yaml(text: str, loader: type[StrictLoader] = StrictLoader) -> list[Any]:
    """Return the documents of a YAML text.

    Args:
        text: what to read.
        loader: how to read its values.

    Raises:
        yaml.YAMLError: the text is not YAML, has a key twice, or a value does not fit its tag.
        ValueError: the text has an impossible date, such as 2026-13-45.
    """
    try:
        return list(yaml.load_all(text, loader))
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        # PyYAML's own answers to `!!int` without a number and `!!bool` of another word.
        raise yaml.YAMLError("a value does not fit its tag, such as `!!int`: drop the tag") from error


def not_yaml(path: Path, error: Exception) -> str:
    """Return one line about a text that is not YAML: the place, the problem and what to write instead.

    Args:
        path: the file, as the user named it.
        error: what the reader raised.
    """
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return f"{path} is not YAML: {' '.join(str(error).split())}"
    problem = " ".join((error.problem or "").split())
    advice = next((f": {advice}" for found, advice in _ADVICE.items() if found in problem), "")
    return f"{path}:{mark.line + 1}:{mark.column + 1} is not YAML: {problem}{advice}"
