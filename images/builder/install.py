#!/usr/bin/env python3
"""Install an image's locked requirements into a virtual environment.

The Dockerfiles run this file, and so does the host-side `venv` command, so that a container and a laptop hold the
same packages. It needs the standard library only and stands alone: an image's build context holds no other file of
this package.

    install.py tools DEST --requirements DIR
    install.py stack DEST --requirements DIR --accelerator cpu [--torch auto] [--wheels DIR] [--tools DIR]
    install.py runner DEST --requirements DIR --source runner [--tools DIR]
    install.py converter DEST --source runner --tools DIR

`stack` makes the environment; `runner` adds the Stoker runner to one; `converter` fetches llama.cpp's converter as
`stoker export --gguf` does. None leaves pip behind: it lives in an
environment of its own, pinned by `tools.lock`, which is a temporary one unless `tools` has made one before.

pip's own settings (files and PIP_*) apply. A container build hands them over as secrets instead: `pip.conf`, `ca.crt`
(certificate authorities) and `torch-cpu-index` (address of PyTorch's CPU index, or of a mirror of it).

Exit codes: 0 done, 64 wrong usage, 66 a lock or a wheel is missing, 69 a package could not be fetched or does not
match its hash, 78 this Python cannot do it.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

EX_USAGE, EX_NOINPUT, EX_UNAVAILABLE, EX_CONFIG = 64, 66, 69, 78

SECRETS = Path("/run/secrets")
"""Where a container build mounts its secrets; they are never in a layer."""


THIS_PYTHON = (sys.version_info.major, sys.version_info.minor)
"""The Python an environment is made for, unless another is named."""

INDEX_TIMEOUT_SECONDS = 5.0
"""How long that index may take to answer before PyPI's own torch is taken instead."""

HEARTBEAT_SECONDS = 20.0
"""A step that takes longer says so this often, so that a download does not look like a hang."""

OVERRIDES, ALIASES = "overrides.txt", "aliases.txt"
"""Beside an image's locks, where it needs them: what packages ask for and do not get (uv's --override), and
distributions that other code knows by another name."""

_STARTED = time.monotonic()


def torch_cpu_index() -> str:
    """Return the address of PyTorch's index of wheels built without CUDA, which PyPI does not have."""
    secret = SECRETS / "torch-cpu-index"
    named = secret.read_text(encoding="utf-8").strip() if secret.exists() else os.environ.get("TORCH_CPU_INDEX")
    return named or "https://download.pytorch.org/whl/cpu"


def fail(code: int, message: str) -> NoReturn:
    """End with one message on stderr and an exit code from sysexits."""
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    raise SystemExit(code)


def say(message: str) -> None:
    """Print one line on stderr with the seconds since the program started."""
    print(f"[{time.monotonic() - _STARTED:5.0f} s] {message}", file=sys.stderr, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce a step, keep saying that it still runs, and close it with its duration."""
    say(title)
    began = time.monotonic()
    ended = threading.Event()

    def heartbeat() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            say(f"{title}: still at it after {time.monotonic() - began:.0f} s")

    thread = threading.Thread(target=heartbeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if (took := time.monotonic() - began) >= 1:
        say(f"{title}: done in {took:.0f} s")


def run(argv: Sequence[str | Path], why: str) -> None:
    """Run a command with its output on stderr.

    Raises:
        SystemExit: 69 with `why` when it fails; the command has said what went wrong.
    """
    if subprocess.run([str(word) for word in argv], check=False, stdout=sys.stderr).returncode != 0:
        fail(EX_UNAVAILABLE, why)


def make_venv(folder: Path, *, with_pip: bool) -> None:
    """Make an empty virtual environment of the running Python.

    Raises:
        SystemExit: 78 when this Python has no `venv` or `ensurepip`, with what to install.
    """
    argv = [sys.executable, "-m", "venv", *([] if with_pip else ["--without-pip"]), str(folder)]
    if subprocess.run(argv, check=False, stdout=sys.stderr).returncode != 0:
        fail(EX_CONFIG, f"{sys.executable} cannot make virtual environments (Debian: apt-get install python3-venv)")


def use_build_secrets() -> None:
    """Let pip and Python find the settings and certificates that a container build was handed as secrets."""
    for name, variables in (("pip.conf", ["PIP_CONFIG_FILE"]), ("ca.crt", ["PIP_CERT", "SSL_CERT_FILE"])):
        if (secret := SECRETS / name).exists():
            os.environ.update(dict.fromkeys(variables, str(secret)))


def install_tools(folder: Path, requirements: Path) -> None:
    """Make an environment with the locked pip and build backend in it.

    Raises:
        SystemExit: they cannot be fetched (69), or this Python has no venv (78).
    """
    lock = existing(requirements / "tools.lock")
    make_venv(folder, with_pip=True)
    with step("pip and build backend"):
        # The pip that Python brings is only good enough to fetch the pinned one.
        run(
            [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--root-user-action", "ignore", "--require-hashes", "--only-binary", ":all:", "--requirement", lock],
            "the build tools could not be installed; is a package index within reach (pip's own settings apply)?",
        )  # fmt: skip


@contextmanager
def build_tools(folder: Path | None, requirements: Path) -> Iterator[Path]:
    """Yield the Python of an environment of build tools: the given one, or a temporary one."""
    if folder is not None:
        yield existing(folder / "bin" / "python")
        return
    with tempfile.TemporaryDirectory(prefix="stoker-install-") as temporary:
        install_tools(Path(temporary), requirements)
        yield Path(temporary) / "bin" / "python"


def pip_install(tools: Path, venv: Path, what: Sequence[str | Path], why: str) -> None:
    """Install exactly what is named into `venv`: nothing is resolved, nothing is compiled from source."""
    run(
        [tools, "-m", "pip", "--python", venv / "bin" / "python", "install", "--quiet", "--no-deps", "--no-compile",
         "--disable-pip-version-check", "--root-user-action", "ignore", "--only-binary", ":all:", *what],
        why,
    )  # fmt: skip


def packages_folder(venv: Path) -> Path:
    """Return where an environment holds its packages."""
    (folder,) = (venv / "lib").glob("python*/site-packages")
    return folder


def remove_unused(venv: Path) -> None:
    """Remove what no training run reads: the packages' own test suites, and torch's test programs.

    Without a C compiler, torch's 10,000 headers go too: nothing could compile against them.
    """
    packages = packages_folder(venv)
    torch = packages / "torch"
    headers = [] if shutil.which("cc") or shutil.which("clang") else [torch / "include"]
    for folder in [*packages.glob("**/tests"), torch / "test", *headers]:
        shutil.rmtree(folder, ignore_errors=True)
    for program in (torch / "bin").glob("*"):
        if program.is_file() and program.name != "torch_shm_manager":  # the one that torch itself starts
            program.unlink()


def precompile(venv: Path) -> None:
    """Compile all modules once, as the image's root is read-only and cannot keep bytecode that is made later.

    The bytecode is never checked against its source: nothing changes after the install, and a layer or a copy that
    rounds time stamps would else make every import compile again. Each package has a process of its own, because the
    bytes depend on what else a process has compiled, and an image built again must be the same.
    """
    compiler = (str(venv / "bin" / "python"), "-B", "-m", "compileall")

    def compile_package(path: Path) -> None:
        subprocess.run(
            # What Python imports at its start may have been compiled before, with the time of the install in it.
            [*compiler, "-q", "-f", "--invalidation-mode", "unchecked-hash", path],
            check=False,  # some packages ship templates that are not Python; they are never imported
            stdout=subprocess.DEVNULL,
        )

    found = packages_folder(venv).iterdir()
    named = [path for path in found if path.suffix == ".py" or (path.is_dir() and path.suffix != ".dist-info")]
    with step("bytecode"), ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_package, named))


def existing(path: Path) -> Path:
    """Return a path that must be there.

    Raises:
        SystemExit: 66 when it is not.
    """
    if not path.exists():
        fail(EX_NOINPUT, f"{path} is missing; the image's `lock` command makes the locks")
    return path


def locked_version(lock: Path, package: str) -> str:
    """Return the exact version a lock pins a package to.

    Raises:
        SystemExit: 66 when the lock or the package in it is missing.
    """
    match = re.search(rf"^{re.escape(package)}==([^\s;\\]+)", existing(lock).read_text(encoding="utf-8"), re.MULTILINE)
    if not match:
        fail(EX_NOINPUT, f"{lock} does not pin {package}")
    return match.group(1)


def has_torch(requirements: Path) -> bool:
    """Return whether an image's locks hold torch: one that only moves files needs none."""
    return (requirements / "torch.lock").exists()


def has_cpu_wheel(
    requirements: Path, accelerator: str, wheels: Path | None, python: tuple[int, int] = THIS_PYTHON
) -> bool:
    """Return whether a folder of wheels holds the CPU torch that the image's lock names, for one Python."""
    if accelerator != "cpu" or wheels is None:
        return False
    version = locked_version(requirements / "torch-cpu.lock", "torch")
    tag = f"cp{python[0]}{python[1]}"
    return any(wheels.glob(f"torch-{version}-{tag}-{tag}-*_{platform.machine()}.whl"))


def cpu_index_answers(timeout: float = INDEX_TIMEOUT_SECONDS) -> bool:
    """Return whether PyTorch's CPU index can be reached within `timeout` seconds."""
    request = urllib.request.Request(f"{torch_cpu_index()}/torch/", method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=timeout):
            return True
    except (OSError, ValueError):
        return False


def torch_source(
    requirements: Path, accelerator: str, wheels: Path | None, python: tuple[int, int] = THIS_PYTHON
) -> str:
    """Choose where torch comes from.

    Returns:
        `wheels` (a folder of wheels), `index` (PyTorch's CPU index), `pypi` (with CUDA libraries, which a machine
        without a GPU does not use but needs the disk for) or `none` (the image has no torch).
    """
    if not has_torch(requirements):
        return "none"
    # PyTorch builds a CPU-only wheel under its own version for Linux alone; PyPI's has no CUDA elsewhere.
    if accelerator != "cpu" or platform.system() != "Linux":
        return "pypi"
    if has_cpu_wheel(requirements, accelerator, wheels, python):
        return "wheels"
    return "index" if cpu_index_answers() else "pypi"


def install_torch(venv: Path, requirements: Path, source: str, wheels: Path | None, tools: Path) -> None:
    """Install the locked torch from a source that `torch_source` returned, which is not `none`.

    Raises:
        SystemExit: it cannot be had or does not match its hash (69), its lock is missing (66).
    """
    origin: list[str | Path] = []
    lock = requirements / ("torch.lock" if source == "pypi" else "torch-cpu.lock")
    if source == "wheels" and wheels is not None:
        origin = ["--no-index", "--find-links", wheels.resolve()]
    elif source == "index":
        origin = ["--index-url", torch_cpu_index()]
    version = locked_version(lock, "torch")
    place = {"wheels": f"the folder {wheels}", "index": "PyTorch's CPU index", "pypi": "PyPI"}[source]
    with step(f"torch {version} from {place}"):
        pip_install(
            tools, venv, [*origin, "--require-hashes", "--requirement", lock],
            f"torch {version} could not be installed from {place}: it cannot be fetched, or is not the file that "
            f"{lock.name} has the hash of",
        )  # fmt: skip


def install_stack(
    venv: Path, requirements: Path, accelerator: str, source: str, wheels: Path | None, tools_folder: Path | None = None
) -> None:
    """Make `venv` and fill it with the locked packages of one accelerator.

    Args:
        venv: folder to make; an existing one is replaced.
        requirements: the image's folder of locks.
        accelerator: `cpu` or `cuda`; `any` for an image that needs none.
        source: where torch comes from, as `torch_source` returns it.
        wheels: the folder of wheels for the source `wheels`.
        tools_folder: an environment that `install_tools` made; a temporary one is made where there is none.

    Raises:
        SystemExit: a package cannot be had or does not match its hash (69), a lock is missing (66).
    """
    locks = [existing(requirements / "stack.lock")]
    if accelerator not in ("any", "cpu"):
        locks.append(existing(requirements / f"{accelerator}.lock"))
    shutil.rmtree(venv, ignore_errors=True)
    make_venv(venv, with_pip=False)
    with build_tools(tools_folder, requirements) as tools:
        if source != "none":
            install_torch(venv, requirements, source, wheels, tools)
        with step(f"{sum(len(pinned(lock)) for lock in locks)} locked packages"):
            pip_install(
                tools, venv, ["--require-hashes", *(word for lock in locks for word in ("--requirement", lock))],
                "the locked packages could not be installed; is a package index within reach (pip's settings apply)?",
            )  # fmt: skip
        check = [str(tools), "-m", "pip", "--python", str(venv / "bin" / "python"), "check"]
        done = subprocess.run(check, check=False, stdout=subprocess.PIPE, text=True)
        wrong = contradictions(done.stdout, entries(requirements / OVERRIDES))
        if done.returncode != 0 and wrong:
            fail(EX_CONFIG, "the locked packages contradict each other:\n" + "\n".join(wrong))
    write_aliases(venv, requirements, accelerator)
    remove_unused(venv)
    precompile(venv)


def entries(path: Path) -> list[str]:
    """Return the lines of a file that are not comments; none where there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def contradictions(check: str, overrides: Sequence[str]) -> list[str]:
    """Return what `pip check` complains of, less what the image's overrides say is meant.

    Args:
        check: what `pip check` printed: "A 1 requires B, which is not installed." or "A 1 has requirement B>2, but …".
        overrides: requirements that stand in the place of every other one of the same package.
    """
    names = {re.split(r"[^\w.-]", entry, maxsplit=1)[0] for entry in overrides}
    # Whether a wheel fits this platform pip has judged by its name when it installed it; the tag inside can be another.
    told = [line for line in check.splitlines() if line and not line.endswith("is not supported on this platform")]
    asked = re.compile(r"^\S+ \S+ (?:requires|has requirement) ([\w.-]*\w)")
    return [line for line in told if not ((match := asked.match(line)) and match[1] in names)]


def write_aliases(venv: Path, requirements: Path, accelerator: str) -> None:
    """Let distributions be found by a second name, with the accelerator as their version's local part.

    Raises:
        SystemExit: 66 when the lock does not pin one of them.
    """
    packages = packages_folder(venv)
    for alias, name in (re.split(r"\s*=\s*", entry, maxsplit=1) for entry in entries(requirements / ALIASES)):
        version = f"{locked_version(requirements / 'stack.lock', name)}+{accelerator}"
        folder = packages / f"{alias}-{version}.dist-info"
        folder.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {alias}\nVersion: {version}\nSummary: {name} by another name\n"
        (folder / "METADATA").write_text(metadata, encoding="utf-8")
        (folder / "INSTALLER").write_text("stoker\n", encoding="utf-8")


def inputs(requirements: Path) -> list[Path]:
    """Return the files of an image's folder of requirements that decide what is installed."""
    return sorted([*requirements.glob("*.lock"), *requirements.glob("*.txt")])


def pinned(lock: Path) -> list[str]:
    """Return the names of the packages a lock pins."""
    return re.findall(r"^([A-Za-z0-9][\w.-]*)==", lock.read_text(encoding="utf-8"), re.MULTILINE)


def install_runner(venv: Path, requirements: Path, source: Path, tools_folder: Path | None = None) -> None:
    """Build the runner's wheel from its folder and install it into `venv`, which is made where it is missing.

    The runner's dependencies are in the image's locks, so nothing but its own files is added.
    """
    existing(source / "pyproject.toml")
    if not (venv / "bin" / "python").exists():
        make_venv(venv, with_pip=False)
    with (
        build_tools(tools_folder, requirements) as tools,
        tempfile.TemporaryDirectory(prefix="stoker-runner-") as folder,
        step("runner"),
    ):
        # A copy, since a build backend may write beside its sources and those can be read-only.
        copy = Path(folder) / "source"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", "tests"))
        run(
            [tools, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
             "--no-build-isolation", "--wheel-dir", folder, copy],
            "the runner's wheel could not be built",
        )  # fmt: skip
        # By its name: of a file, pip would note the temporary path.
        pip_install(
            tools, venv, ["--no-index", "--find-links", folder, "--force-reinstall", "stoker"],
            "the runner could not be installed",
        )  # fmt: skip
    precompile(venv)


def install_converter(folder: Path, source: Path, tools_folder: Path) -> None:
    """Fetch llama.cpp's converter into a folder, the version that the runner names, with the runner's own code."""
    code = "import sys; from pathlib import Path; from stoker.results.gguf import fetch; fetch(Path(sys.argv[1]))"
    os.environ["PYTHONPATH"] = str(existing(source / "src"))
    run([tools_folder / "bin" / "python", "-c", code, folder], "llama.cpp's converter could not be fetched")


def end_tidily(main: Callable[[], None]) -> None:
    """Run a command so that an interruption removes what is temporary and shows no traceback."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


class CommandLine(argparse.ArgumentParser):
    """A command line that ends with 64 when it is wrong, where argparse alone would end with 2."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is."""
        fail(EX_USAGE, f"{message}; see {self.prog} --help")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line.

    Raises:
        SystemExit: 64 when it is wrong.
    """
    parser = CommandLine(
        prog="install.py", description=(__doc__ or "").split("\n", 1)[0],
        epilog=f"TORCH_CPU_INDEX (env) names PyTorch's CPU index, now {torch_cpu_index()}. pip's own settings apply.",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True, metavar="tools | stack | runner | converter")
    for name, text in (
        ("tools", "make an environment with pip and the build backend"),
        ("stack", "make the environment"),
        ("runner", "add the runner to an environment"),
        ("converter", "fetch llama.cpp's converter"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("dest", type=Path, help="the folder to make or to add to")
        if name != "converter":
            command.add_argument("--requirements", type=Path, required=True, help="folder of the image's locks")
        if name == "stack":
            command.add_argument("--accelerator", choices=("any", "cpu", "cuda"), required=True)
            command.add_argument("--torch", choices=("auto", "none", "wheels", "index", "pypi"), default="auto")
            command.add_argument("--wheels", type=Path, help="folder that may hold a CPU torch")
        if name in ("runner", "converter"):
            command.add_argument("--source", type=Path, required=True, help="folder of the runner")
        if name != "tools":
            made = "environment that the command `tools` made"
            command.add_argument("--tools", type=Path, required=name == "converter", help=made)
    return parser.parse_args(arguments)


def main() -> None:
    """Run the command line."""
    if sys.version_info < (3, 11):
        fail(EX_CONFIG, f"Python 3.11 or newer is needed, this is {platform.python_version()}")
    options = parse()
    use_build_secrets()
    if options.command == "tools":
        install_tools(options.dest, options.requirements)
    elif options.command == "runner":
        install_runner(options.dest, options.requirements, options.source, options.tools)
    elif options.command == "converter":
        install_converter(options.dest, options.source, options.tools)
    else:
        source = options.torch
        if source == "auto":
            source = torch_source(options.requirements, options.accelerator, options.wheels)
        install_stack(options.dest, options.requirements, options.accelerator, source, options.wheels, options.tools)


if __name__ == "__main__":
    end_tidily(main)
