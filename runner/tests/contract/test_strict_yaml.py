"""A text that is not YAML is refused in one line: the place, the problem, and what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from stoker.contract.strict_yaml import not_yaml, read_yaml

JOB = Path("job.yaml")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "a: b: c",
            "job.yaml:1:5 is not YAML: mapping values are not allowed here: put a text that holds ': ' in quotes",
        ),
        (
            "kind: TrainJob\nspec:\n\ttrainer: {}",
            "job.yaml:3:1 is not YAML: found character '\\t' that cannot start any",
        ),
        ("a: 1\nb", "job.yaml:2:2 is not YAML: could not find expected ':': write `key: value`"),
        ("a: [1, 2\nb: 3", "job.yaml:2:2 is not YAML: expected ',' or ']', but got ':': write a comma, or close the"),
        ('a: "b', "job.yaml:1:6 is not YAML: found unexpected end of stream: close the quote or the bracket"),
        ("a: *b", "job.yaml:1:4 is not YAML: found undefined alias 'b': define it with & first"),
        ("a: &a [*a]", "job.yaml:1:8 is not YAML: *a contains itself: write its content instead"),
        ("a: !x 1", "job.yaml:1:4 is not YAML: could not determine a constructor for the tag '!x': leave out the tag"),
        ("a: 1\na: 2", "job.yaml:2:1 is not YAML: key a appears twice: keep one"),
        ("a:\n- 1\n b: 2", "job.yaml:3:"),
        ("a: 2026-13-45", "job.yaml is not YAML: month must be in 1..12"),
    ],
)
def test_the_place_the_problem_and_what_to_write_are_one_line(text: str, line: str) -> None:
    with pytest.raises((yaml.YAMLError, ValueError)) as refused:
        read_yaml(text)
    said = not_yaml(JOB, refused.value)
    assert said.startswith(line)
    assert "\n" not in said
