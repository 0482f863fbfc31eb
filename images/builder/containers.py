"""Builds an image's Dockerfile without Docker: buildah in a chroot, with a storage of its own.

Layers are kept uncompressed in the result, an OCI image layout. Compressing 1.2 GB takes longer than sending it to a
registry on the same machine, and an uncompressed layer is known by its digest: a build that changes only the runner
links the large layers from the build before and writes a few kilobytes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from images.builder import ROOT, cache, debian, install, mends, pip_settings, torch_choice
from images.builder.install import EX_CONFIG, EX_UNAVAILABLE, fail, say, step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from images.builder.catalogue import Variant

_PROGRAMS = {"buildah": "buildah", "debootstrap": "debootstrap"}
"""What is needed, and the Debian package it is in."""

_REPOSITORY = "localhost/stoker"
"""Names the images in buildah's own storage; nothing is pulled from or pushed to it."""

TIME = 315532800
"""Seconds since 1970 that an image and all its files have for their time, so that building again gives the same bytes:
the first of 1980, before which no ZIP file can be written."""

_PIP_CACHE = Path(os.environ.get("PIP_CACHE_DIR") or (Path.home() / ".cache" / "pip"))


class Buildah:
    """buildah on a storage below Stoker's cache.

    The system's own container storage stays as it is: buildah would write a cache there whatever its options.
    """

    def __init__(self, folder: Path) -> None:
        """Use a storage in `folder`, which need not exist."""
        self._folder = folder
        self._options = ["--root", str(folder / "storage"), "--runroot", str(folder / "run")]

    def __call__(self, *words: str | Path, log: Path | None = None) -> str:
        """Run buildah.

        Args:
            words: its command line.
            log: file that takes all output; without it, stdout is returned.

        Raises:
            subprocess.CalledProcessError: it failed; the log says why.
            SystemExit: 69, the same without a log.
        """
        scratch = self._folder / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        system = Path("/var/lib/containers")
        hide = f'if [ -d {system} ]; then mount -t tmpfs stoker {system}; fi; exec "$@"'
        command = [*debian.OWN_NAMESPACES, "sh", "-c", hide, "sh", "buildah", *self._options, *map(str, words)]
        environment = {**os.environ, "TMPDIR": str(scratch)}
        if log is None:
            done = subprocess.run(
                command, check=False, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
            )
            if done.returncode != 0:
                fail(EX_UNAVAILABLE, f"`buildah {' '.join(map(str, words))}` failed:\n{done.stderr.strip()}")
            return done.stdout.strip()
        with log.open("a", encoding="utf-8") as output:
            subprocess.run(command, check=True, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        return ""

    def has(self, image: str) -> bool:
        """Return whether the storage holds an image."""
        return bool(self("images", "--quiet", "--filter", f"reference={image}"))


def need_programs() -> None:
    """Install buildah and debootstrap where they are missing.

    Raises:
        SystemExit: 78 when this machine is not one where that works, with what to do instead.
    """
    missing = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    if os.geteuid() != 0:
        fail(EX_CONFIG, "building without Docker needs root; with Docker: docker buildx bake (see images/README.md)")
    if not missing:
        return
    if shutil.which("apt-get") is None:
        fail(EX_CONFIG, f"{' and '.join(missing)} missing: install them, or build with Docker (images/README.md)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with step(f"installing {' and '.join(missing)} with apt-get"):
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-qq", "--yes", *missing]):
            if subprocess.run(command, check=False, env=environment, stdout=subprocess.DEVNULL).returncode != 0:
                fail(EX_UNAVAILABLE, f"`{' '.join(command)}` failed: install {' and '.join(missing)} by hand")


def stack_inputs(image: Path) -> list[Path]:
    """Return the files that decide all of an image but the runner."""
    locks = install.inputs(image / "requirements")
    return [image / "Dockerfile", ROOT / ".dockerignore", Path(install.__file__), *locks, *mends.programs(image)]


def runner_inputs() -> list[Path]:
    """Return the files that decide the runner's part of an image."""
    runner = ROOT / "runner"
    return [runner / "pyproject.toml", runner / "README.md", runner / "src"]


def build(variant: Variant) -> tuple[str, Path]:
    """Return an image's tag and OCI layout, built where it is missing.

    The tag carries the hash of everything the image is made from, so that two builds never share one.

    Args:
        variant: the image and its accelerator.

    Raises:
        SystemExit: a program, a package or a lock is missing, or a step of the Dockerfile failed.
    """
    image = variant.folder
    home = cache.root() / "images"

    def keys(torch_build: str) -> tuple[str, str]:
        facts = [variant.accelerator, torch_build, debian.key(), str(TIME)]
        stack_key = cache.digest(facts, stack_inputs(image), ROOT)
        return stack_key, cache.digest([variant.tag, stack_key], runner_inputs(), ROOT)

    def layout(torch_build: str) -> Path:
        return home / f"{variant.target}-{keys(torch_build)[1]}"

    source, torch_build = torch_choice.choose(
        image / "requirements",
        variant.accelerator,
        lambda torch_build: cache.is_complete(layout(torch_build)),
        debian.PYTHON,
    )
    stack_key, key = keys(torch_build)
    tag = f"{variant.tag}-{key}"

    def fill(folder: Path) -> None:
        need_programs()
        with cache.locked(home / "buildah.lock"):
            _Build(variant, image, source, tag, stack_key).run(folder)

    return tag, cache.entry(layout(torch_build), variant.target, fill)


class _Build:
    """One build: from the Dockerfile to an OCI layout."""

    def __init__(self, variant: Variant, image: Path, source: str, tag: str, stack_key: str) -> None:
        self._variant, self._image, self._source, self._tag = variant, image, source, tag
        self._home = cache.root() / "images"
        self._buildah = Buildah(self._home / "buildah")
        self._stack_key = stack_key
        self._log = self._home / f"{variant.target}.log"
        self._log.unlink(missing_ok=True)

    def run(self, folder: Path) -> None:
        """Build, and write the layout into `folder`."""
        base = f"{_REPOSITORY}/base:{debian.key()}"
        stack = f"{_REPOSITORY}/{self._variant.target}-stack:{self._stack_key}"
        final = f"{_REPOSITORY}/{self._variant.image}:{self._tag}"
        say(f"{self._variant.target}: {self._tag}; the build's log is {self._log}")
        self._buildah("rm", "--all")  # containers that an interrupted build left behind
        self._make_base(base)
        with tempfile.TemporaryDirectory(prefix="stoker-secrets-") as secrets:
            options = self._options(base, pip_settings.write_secrets(Path(secrets)))
            self._bud("build tools", [*options, "--target", "tools", "--tag", f"{_REPOSITORY}/tools:{self._stack_key}"])
            self._bud("trainer and its libraries", [*options, "--target", "stack", "--tag", stack])
            self._bud("runner and smoke test", [*options, "--build-arg", f"IMAGE_VERSION={self._tag}", "--tag", final])
        self._export(stack, final, folder)
        self._prune(final)

    def _make_base(self, name: str) -> None:
        """Have the base image in the storage."""
        if self._buildah.has(name):
            return
        tree = self._home / f"base-{debian.key()}"
        try:
            tree.mkdir(parents=True)
            debian.build(tree)
            with step("base system: image"):
                container = self._buildah("from", "scratch")
                self._buildah("add", "--quiet", container, tree, "/")
                self._buildah("config", "--cmd", "bash", container)
                self._buildah("commit", "--quiet", "--rm", "--timestamp", str(TIME), container, name)
        finally:
            cache.remove(tree)

    def _options(self, base: str, secrets: dict[str, Path]) -> list[str | Path]:
        """Return the options of every `buildah build`."""
        options: list[str | Path] = [
            "--isolation", "chroot", "--network", "host", "--layers", "--pull-never", "--format", "oci",
            "--timestamp", str(TIME),
            "--build-arg", f"BASE_IMAGE={base}",
            "--build-arg", f"ACCELERATOR={self._variant.accelerator}",
            "--build-arg", f"TORCH={self._source}",
            "--ignorefile", ROOT / ".dockerignore", "--file", self._image / "Dockerfile",
        ]  # fmt: skip
        for name, file in secrets.items():
            options += ["--secret", f"id={name},src={file}"]
        if self._source == "wheels" and (wheels := torch_choice.wheels_folder()):
            options += ["--build-context", f"wheels={wheels}"]
        if _PIP_CACHE.is_dir():
            options += ["--volume", f"{_PIP_CACHE}:/root/.cache/pip"]
        return options

    def _bud(self, title: str, options: Sequence[str | Path]) -> None:
        """Build the Dockerfile, or one of its stages."""
        with step(f"{self._variant.target}: {title}"):
            try:
                self._buildah("build", *options, ROOT, log=self._log)
            except subprocess.CalledProcessError:
                tail = "\n".join(self._log.read_text(encoding="utf-8").splitlines()[-25:])
                fail(EX_UNAVAILABLE, f"the build failed; {self._log} ends with:\n{tail}")

    def _export(self, stack: str, final: str, folder: Path) -> None:
        """Write an image as an OCI layout whose large layers are links to those of its stack."""
        family = f"layers-{self._variant.target}"
        layers = self._home / f"{family}-{self._stack_key}"

        def unpack(target: Path) -> None:
            with step("writing the layers"):
                self._buildah("push", "--quiet", "--disable-compression", stack, f"dir:{target / 'image'}")

        cache.entry(layers, family, unpack)
        blobs = folder / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        manifest = json.loads((layers / "image" / "manifest.json").read_text(encoding="utf-8"))
        for layer in manifest["layers"]:
            digest = layer["digest"].removeprefix("sha256:")
            (blobs / digest).hardlink_to(layers / "image" / digest)
        # A blob that lies there already is not written again.
        self._buildah("push", "--quiet", final, f"oci:{folder}:{self._tag}")

    def _prune(self, final: str) -> None:
        """Remove from the storage what the next build will not start from: the result, and older stacks and tools."""
        kept = {path.name.rsplit("-", 1)[1] for path in self._home.glob("layers-*-*") if cache.is_complete(path)}
        kept.add(debian.key())
        named = self._buildah("images", "--format", "{{.Name}}:{{.Tag}}", "--filter", f"reference={_REPOSITORY}/*")
        old = [name for name in named.splitlines() if name == final or name.rsplit(":", 1)[1] not in kept]
        self._buildah("rmi", *old)
        self._buildah("rmi", "--prune")
