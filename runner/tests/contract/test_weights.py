"""Files of a checkpoint are known to be damaged without being loaded."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest
from runner.tests.samples import write_tensors

from stoker.contract.weights import damage_of


def test_whole_files_have_no_damage(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors")
    (tmp_path / "state.json").write_text("{}")
    with zipfile.ZipFile(tmp_path / "optimizer.pt", "w") as archive:
        archive.writestr("data.pkl", b"x" * 1000)
    (tmp_path / "old.bin").write_bytes(b"\x80\x02old pickle")
    (tmp_path / "notes.txt").write_text("")
    assert [damage_of(path) for path in sorted(tmp_path.iterdir())] == [""] * 5


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it ends inside its header"),
        (b"\xff" * 64, "an impossible length"),
        (struct.pack("<Q", 4) + b"oops" + bytes(20), "not JSON"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 8) + b'{"w":{}}', "does not say where its tensors are"),
    ],
)
def test_a_broken_safetensors_header_is_seen(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert says in damage_of(path)


def test_a_cut_safetensors_file_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    whole = write_tensors(path)
    path.write_bytes(path.read_bytes()[:-1])
    assert damage_of(path) == f"it has {whole - 1} bytes, its header says {whole}"


def test_a_cut_or_zeroed_torch_archive_and_a_broken_json_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "optimizer.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"x" * 1000)
    path.write_bytes(path.read_bytes()[:600])
    assert damage_of(path) == "the archive is cut off"
    path.write_bytes(bytes(600))
    assert damage_of(path) == "it is empty"
    state = tmp_path / "trainer_state.json"
    state.write_text('{"step": ')
    assert damage_of(state)
