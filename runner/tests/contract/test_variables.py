"""A misspelt variable is refused, with the name that was meant."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stoker
from stoker.contract import variables
from stoker.contract.variables import KNOWN, unknown_variables

SOURCES = [path for path in Path(stoker.__file__).parent.rglob("*.py") if path.name != "variables.py"]


def test_known_names_and_flags_are_no_problem() -> None:
    assert unknown_variables([*KNOWN, "STOKER_ARG_ANYTHING", "PET_NNODES", "HOME"]) == []


def test_a_typing_error_is_named_with_what_was_meant() -> None:
    assert unknown_variables(["STOKER_METHD"]) == [
        "STOKER_METHD is not a variable that stoker reads: did you mean STOKER_METHOD?"
    ]


def test_a_flag_without_its_prefix_is_told_how_to_write_one() -> None:
    (problem,) = unknown_variables(["STOKER_LEARNING_RATE"])
    assert "STOKER_ARG_<FLAG>" in problem


@pytest.mark.parametrize(
    "name", ["STOKER_SERVICE_HOST", "STOKER_PORT", "STOKER_UI_SERVICE_PORT_HTTP", "STOKER_PORT_80_TCP_ADDR"]
)
def test_what_kubernetes_writes_for_a_service_is_no_problem(name: str) -> None:
    assert unknown_variables([name]) == []


def test_the_list_holds_what_the_code_reads_and_nothing_else() -> None:
    read = {name for path in SOURCES for name in re.findall(r'"(STOKER_[A-Z_]+)"', path.read_text())}
    read |= {*re.findall(r'environ\.get\("(STOKER_[A-Z_]+)"', Path(variables.__file__).read_text())}
    words = {word for path in SOURCES for word in re.findall(r"\b[A-Z_]+\b", path.read_text())}
    read |= {value for name, value in vars(variables).items() if name in words and value in [*KNOWN]}
    assert {name for name in read if not name.startswith("STOKER_ARG_")} == KNOWN.keys() - {"STOKER_RUNTIME"}, (
        "STOKER_RUNTIME is for people who read `stoker doctor`; any other name is read somewhere"
    )
