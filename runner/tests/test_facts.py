"""What a container was told is read as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.facts import Facts, read_facts, whole_number


def test_only_variables_of_the_runner_are_kept() -> None:
    facts = read_facts({"PET_NNODES": "2", "STOKER_METHOD": "sft", "HOSTNAME": "a", "SECRET": "x", "PATH": "/bin"})
    assert dict(facts.env) == {"PET_NNODES": "2", "STOKER_METHOD": "sft", "HOSTNAME": "a"}


def test_empty_means_unset() -> None:
    assert Facts(env={"STOKER_METHOD": ""}).get("STOKER_METHOD") is None


def test_defaults_outside_an_image() -> None:
    facts = Facts()
    assert str(facts.workspace) == "/workspace"
    assert facts.image_version == "unversioned"
    assert facts.accelerator == "cpu"


@pytest.mark.parametrize(
    ("nodes", "visible", "expected"),
    [
        (["nvidia0", "nvidia1", "nvidiactl"], None, ("nvidia0", "nvidia1")),
        (["nvidia0", "nvidia1"], "1", ("1",)),
        (["nvidia0", "nvidia1"], "", ()),
        (["nvidia0", "nvidia1"], "-1", ()),
        (["nvidia0"], "MIG-a,MIG-b", ("MIG-a", "MIG-b")),
        ([], "0,1", ()),
    ],
    ids=["device nodes", "narrowed to one", "narrowed to none", "hidden by -1", "MIG instances of one card", "no card"],
)
def test_visible_devices(tmp_path: Path, nodes: list[str], visible: str | None, expected: tuple[str, ...]) -> None:
    for name in nodes:
        (tmp_path / name).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert read_facts(environ, dev=tmp_path).devices == expected


def test_devices_tell_the_accelerator_where_the_runtime_does_not() -> None:
    assert Facts(devices=("nvidia0",)).accelerator == "nvidia"
    assert Facts(env={"STOKER_ACCELERATOR": "cpu"}, devices=("nvidia0",)).accelerator == "cpu"


def test_a_container_without_shared_memory_says_so(tmp_path: Path) -> None:
    assert read_facts({}, dev=tmp_path).shm_bytes is None


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("12", 12), ("", None), ("-1", None), ("+1", None)])
def test_whole_numbers(text: str, number: int | None) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize(
    "text", ["²", "٣", "1.0", "0x1", "9" * 5000], ids=["square", "arabic", "dot", "hex", "endless"]
)
def test_what_only_looks_like_a_number_is_none(text: str) -> None:
    assert whole_number(text) is None


def test_an_attempt_that_is_no_number_is_the_first() -> None:
    assert Facts(env={"STOKER_RESTART_ATTEMPT": "²"}).attempt == 0
    assert Facts(env={"STOKER_RESTART_ATTEMPT": "3"}).attempt == 3
