"""Resolves an image's requirements into locks with hashes.

One resolution covers every accelerator and every Python from 3.11 on; it is then split by where a package comes
from, so that no version is written twice:

| lock | what it holds |
|---|---|
| `stack.lock` | everything that is the same whatever the accelerator, without torch |
| `torch.lock` | torch from PyPI and the CUDA libraries it depends on |
| `torch-cpu.lock` | the same torch built without CUDA, which PyTorch's CPU index serves and PyPI does not |
| `cuda.lock` | what only the CUDA image adds, where `cuda.in` names something |
| `tools.lock` | pip and the runner's build backend: used by the build, not left in the image |

Where a package's metadata asks for what it must not get, `overrides.txt` says so, for uv and for the installer's check.

A lock names no index: pip's own settings decide where packages come from, and the hashes that they are the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from images.builder import ROOT, development
from images.builder.install import (
    EX_NOINPUT,
    EX_UNAVAILABLE,
    OVERRIDES,
    CommandLine,
    cpu_index_answers,
    fail,
    say,
    step,
    torch_cpu_index,
)

OLDEST_PYTHON = "3.11"
"""The images' own Python, and the oldest one a host may have."""

RUNNER = Path("runner/pyproject.toml")

_PIN = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*\])?==([^\s;\\]+)")
_ACCELERATOR_LIBRARY = re.compile(r"torch$|triton$|cuda-|nvidia-")


def pins(lock: str) -> dict[str, str]:
    """Return every package of a lock or a requirements file with its exact version."""
    return {match.group(1): match.group(2) for line in lock.splitlines() if (match := _PIN.match(line))}


def blocks(lock: str) -> dict[str, str]:
    """Split a lock into the text of each package (its pin, hashes and who asks for it), keyed by name."""
    found: dict[str, str] = {}
    name = ""
    for line in lock.splitlines(keepends=True):
        if match := _PIN.match(line):
            name = match.group(1)
            found[name] = ""
        if name:
            found[name] += line
    return found


def with_pips_index(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment that hands pip's index to uv, which reads none of pip's settings."""
    settings = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=False, capture_output=True, text=True
    ).stdout
    found = re.search(r"^(?:global|:env:)\.index-url='(.+)'$", settings, re.MULTILINE)
    return {"UV_DEFAULT_INDEX": found.group(1), **environment} if found else environment


def resolve(uv: Path, requirements: list[str], kept: str = "", options: tuple[str, ...] = ()) -> str:
    """Resolve requirements to exact versions with hashes, for all platforms.

    Args:
        uv: the program.
        requirements: requirement files, relative to the repository.
        kept: former locks; their versions stay where they still fit.
        options: further options of `uv pip compile`.

    Returns:
        The resolved requirements.

    Raises:
        SystemExit: 69 when there is no solution or no index answers; uv says which.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-lock-") as folder:
        output = Path(folder) / "lock"
        output.write_text(kept, encoding="utf-8")
        done = subprocess.run(
            [uv, "pip", "compile", "--quiet", "--universal", "--python-version", OLDEST_PYTHON,
             # One version of a package for every Python, so that a host holds what the image holds.
             "--fork-strategy", "fewest", "--generate-hashes", "--no-header", "--no-emit-index-url",
             "--output-file", output, *options, *requirements],
            cwd=ROOT, env=with_pips_index(dict(os.environ)), check=False, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode != 0:
            fail(EX_UNAVAILABLE, f"{', '.join(requirements)} could not be resolved")
        return output.read_text(encoding="utf-8")


def cpu_torch(uv: Path, version: str, kept: str) -> str:
    """Return the lock of torch without CUDA.

    Args:
        uv: the program.
        version: torch's public version.
        kept: the former lock, returned as it is when the index cannot be asked and it is of this version.

    Raises:
        SystemExit: 69 when the index does not answer and the former lock is of another version.
    """
    wanted = f"{version}+cpu"
    if not cpu_index_answers():
        if pins(kept).get("torch") != wanted:
            fail(EX_UNAVAILABLE, f"torch {wanted} is new and {torch_cpu_index()}, which has its hashes, is silent")
        say(f"{torch_cpu_index()} does not answer: torch-cpu.lock is kept, it is of torch {wanted} already")
        return "".join(blocks(kept).values())
    with tempfile.NamedTemporaryFile("w", suffix=".in", encoding="utf-8") as wish:
        wish.write(f"torch=={wanted}\n")
        wish.flush()
        return resolve(uv, [wish.name], options=("--no-deps", "--no-annotate", "--default-index", torch_cpu_index()))


def build_tools(uv: Path, folder: Path, kept: str) -> str:
    """Return the lock of pip and of what the runner's package declares to be built with (PEP 518)."""
    backend = tomllib.loads((ROOT / RUNNER).read_text(encoding="utf-8"))["build-system"]["requires"]
    with tempfile.NamedTemporaryFile("w", suffix=".in", encoding="utf-8") as wish:
        wish.write("\n".join(backend) + "\n")
        wish.flush()
        return resolve(uv, [str((folder / "tools.in").relative_to(ROOT)), wish.name], kept, ("--no-annotate",))


def lock_image(folder: Path, command: str, *, upgrade: bool) -> None:
    """Write all locks of one image.

    Args:
        folder: the image's `requirements` folder, which holds the `.in` files.
        command: what to run for the same result; written into the locks.
        upgrade: take the newest versions the `.in` files allow instead of keeping what is locked.
    """

    def former(name: str) -> str:
        path = folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def write(name: str, content: str) -> None:
        header = f"# Generated by `{command}`. Change the .in files instead.\n"
        (folder / name).write_text(header + content, encoding="utf-8")
        say(f"{(folder / name).relative_to(ROOT)}: {len(pins(content))} packages")

    def kept(*names: str) -> str:
        return "" if upgrade else "".join(former(name) for name in names)

    uv = development.environment() / "bin" / "uv"
    with step("resolving"):
        inputs = [str(path.relative_to(ROOT)) for path in sorted(folder.glob("*.in")) if path.stem != "tools"]
        overrides = folder / OVERRIDES
        options = ("--override", str(overrides.relative_to(ROOT))) if overrides.exists() else ()
        resolved = blocks(resolve(uv, [*inputs, str(RUNNER)], kept("stack.lock", "torch.lock", "cuda.lock"), options))
        parts: dict[str, list[str]]
        if "torch" in resolved:
            cuda = folder / "cuda.in"
            only_cuda = set(pins(cuda.read_text(encoding="utf-8"))) if cuda.exists() else set()
            parts = {"stack.lock": [], "torch.lock": [], **({"cuda.lock": []} if cuda.exists() else {})}
            for name, text in resolved.items():
                is_library = _ACCELERATOR_LIBRARY.match(name)
                part = "torch.lock" if is_library else "cuda.lock" if name in only_cuda else "stack.lock"
                parts[part].append(text)
            if not folder.parent.name.endswith("-cuda"):  # a variant with a folder of its own
                torch = pins(resolved["torch"])["torch"]
                parts["torch-cpu.lock"] = [cpu_torch(uv, torch, former("torch-cpu.lock"))]
        else:  # an image that only moves files
            parts = {"stack.lock": list(resolved.values())}
        parts["tools.lock"] = [build_tools(uv, folder, kept("tools.lock"))]
    for name, texts in parts.items():
        write(name, "".join(texts))


def main(folder: Path, command: str) -> None:
    """Run the command line of an image's `lock` command.

    Args:
        folder: the image's `requirements` folder.
        command: the command's name, for help and headers.

    Raises:
        SystemExit: 66 without the runner's package, 69 when something cannot be resolved.
    """
    parser = CommandLine(
        prog=command,
        description="Resolve requirements/*.in and the runner's dependencies into requirements/*.lock. "
        "Locked versions stay where they still fit.",
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that the .in files allow")
    options = parser.parse_args()
    if not (ROOT / RUNNER).exists():
        fail(EX_NOINPUT, f"{RUNNER} is missing: the runner's dependencies are locked with the image's")
    lock_image(folder, command, upgrade=options.upgrade)
