"""Has llama.cpp's own converter write a GGUF file. PyPI has it inside the source package of llama-cpp-python."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path

from stoker.contract.exits import ExitCode, RunError
from stoker.contract.words import say
from stoker.results.packages import needing

CONVERTER = "convert_hf_to_gguf.py"
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
_DIGEST = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
# Where the converter lies in the package, and what it imports from beside itself.
_FOLDER = f"llama_cpp_python-{VERSION}/vendor/llama.cpp"
_PARTS = (CONVERTER, "conversion/", "gguf-py/", "LICENSE")


def converter() -> Path:
    """Return the converter on the PATH, else the package's, which is fetched on the first use.

    Raises:
        RunError: the converter or what it imports is missing (78), or cannot be fetched (69).
    """
    if on_path := shutil.which(CONVERTER):
        return Path(on_path).resolve()  # what it imports lies beside the file, and not beside a link to it
    with needing("gguf"):
        import sentencepiece  # noqa: F401
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker" / f"llama.cpp-{VERSION}"
    if not cache.is_dir():
        if find_spec("pip") is None:
            raise RunError(
                ExitCode.CONFIG,
                f"{CONVERTER} is not on the PATH, and this Python has no pip to fetch it: put that of a checkout of "
                "https://github.com/ggml-org/llama.cpp there, or run this command where pip is",
            )
        fetch(cache)
    return cache / CONVERTER


def convert(script: Path, folder: Path, target: Path) -> None:
    """Write a model as a GGUF file.

    Args:
        script: the converter.
        folder: the model.
        target: the file. Its folder is made if missing.

    Raises:
        RunError: it failed (70).
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # A script's first line may name another Python.
    words = [sys.executable, str(script), str(folder), "--outfile", str(target), "--outtype", "auto"]
    done = subprocess.run(words, check=False)
    if done.returncode:
        raise RunError(
            ExitCode.CRASHED,
            f"llama.cpp's {CONVERTER} ended with {done.returncode}, and its last lines above say why: a model that it "
            "does not know may need a newer one, which this command takes from the PATH",
        )


def fetch(folder: Path) -> None:
    """Fetch the converter and what it imports from beside itself into a folder, with this Python's pip.

    Raises:
        RunError: pip cannot fetch it (69).
    """
    say(f"fetching llama.cpp's converter with {PACKAGE} {VERSION} (77 MB, once, about a minute)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        wanted = Path(temporary) / "requirements.txt"
        wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{_DIGEST}\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE]
        words = [*pip, "--require-hashes", "--requirement", str(wanted), "--dest", temporary]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RunError(
                ExitCode.UNAVAILABLE,
                f"pip could not fetch {PACKAGE} {VERSION}, which holds llama.cpp's converter: check its index "
                f"(pip config list), or put {CONVERTER} on the PATH ({done.stderr.strip()[-300:]})",
            )
        (package,) = Path(temporary).glob("*.tar.gz")
        with tarfile.open(package) as archive:
            parts = tuple(f"{_FOLDER}/{part}" for part in _PARTS)
            for member in archive:
                data = archive.extractfile(member) if member.name.startswith(parts) else None
                if data is not None:
                    target = Path(temporary) / member.name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data.read())
                    target.chmod(member.mode)
        # Another process may have been faster.
        if not folder.is_dir():
            (Path(temporary) / _FOLDER).rename(folder)
