"""Names under which the page answers."""

from __future__ import annotations

import pytest

from stoker.board.hosts import is_known, name_of


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Board.Example.com", "board.example.com"),
        ("board.example.com:8086", "board.example.com"),
        ("[::1]:8086", "::1"),
        ("[::1", ""),
        ("", ""),
    ],
)
def test_a_header_has_a_name(header: str, name: str) -> None:
    assert name_of(header) == name


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("localhost", ["localhost"], True),
        ("a.example.com", ["*.example.com"], True),
        ("example.com", ["*.example.com"], False),
        ("badexample.com", ["*.example.com"], False),
        ("anything", ["*"], True),
        ("", ["localhost"], False),
    ],
)
def test_a_name_is_known(name: str, known: list[str], expected: bool) -> None:
    assert is_known(name, known) is expected
