"""The script that serves tinker clients refuses as the commands do."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.contract.exits import ExitCode
from stoker.scripts.tinker_server import main

NEEDED = ("--model_name_or_path", "m", "--samplers", "http://samplers:8000", "--output_dir", "o", "--adapters", "a")


def test_unknown_flags_are_64(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*NEEDED, "--key_file", str(tmp_path / "key"), "--models", "3"])
    assert ended.value.code == ExitCode.USAGE
    assert capsys.readouterr().err.startswith(
        "stoker: error: unrecognized arguments: --models 3; see python -m stoker."
    )


def test_a_key_that_cannot_be_read_is_78(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*NEEDED, "--key_file", str(tmp_path / "key")]) == ExitCode.CONFIG
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"stoker: error: {tmp_path}/key cannot be read (No such file or directory): ")
