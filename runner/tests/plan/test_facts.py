"""What a container was told is read as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.plan.facts import Facts, read_facts, whole_number


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


def test_devices_are_those_of_the_runtimes_profile(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert read_facts({}, dev=tmp_path).devices == ("nvidia0",)
    assert read_facts({"STOKER_ACCELERATOR": "cpu"}, dev=tmp_path).devices == ()


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


@pytest.mark.parametrize(("version", "numbers"), [("2.13.0+cu130", (2, 13)), ("2.14.0.dev20261101", (2, 14)), ("", ())])
def test_the_version_of_torch_is_two_numbers(
    monkeypatch: pytest.MonkeyPatch, version: str, numbers: tuple[int, ...]
) -> None:
    monkeypatch.setattr("stoker.plan.facts._version_of", lambda name: version if name == "torch" else "")
    assert read_facts({}).torch == numbers
