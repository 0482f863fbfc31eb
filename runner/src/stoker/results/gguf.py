"""Has llama.cpp's own converter write a GGUF file. PyPI does not have the converter; a checkout of llama.cpp does."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError

CONVERTER = "convert_hf_to_gguf.py"


def convert(folder: Path, target: Path) -> None:
    """Write a model as a GGUF file.

    Args:
        folder: the model.
        target: the file.

    Raises:
        RunError: there is no converter (78), which the message has a command for; or it failed (70).
    """
    found = shutil.which(CONVERTER)
    words = [found or CONVERTER, str(folder), "--outfile", str(target), "--outtype", "auto"]
    if found is None:
        raise RunError(
            ExitCode.CONFIG,
            f"{CONVERTER} is not on the PATH, so {target} was not written: with a checkout "
            f"of https://github.com/ggml-org/llama.cpp and its requirements, "
            f"write `python3 llama.cpp/{shlex.join(words)}`",
        )
    # It is a script, whose own first line may name another Python.
    done = subprocess.run([sys.executable, *words], check=False)
    if done.returncode:
        raise RunError(
            ExitCode.CRASHED, f"{CONVERTER} ended with {done.returncode}: its last lines above say what it lacks"
        )
