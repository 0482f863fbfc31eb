"""The charts of this repository, and Helm with its companions to render and check them."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "charts" / "common"
"""The chart of shared helpers, which the others hold by a link; it renders nothing by itself."""

CHARTS = tuple(sorted({path.parent for path in (ROOT / "charts").glob("*/Chart.yaml")} - {LIBRARY}))
STOKER_BOARD = ROOT / "charts" / "stoker-board"
TRAINING_RUNTIMES = ROOT / "charts" / "training-runtimes"
VLLM_SERVING = ROOT / "charts" / "vllm-serving"

# An image of one's own for accelerators that the lock has no variant for.
OWN_IMAGES = ('images={"trl": {"tag": "own"}, "torchtune": {"tag": "own"}}',)

Manifest = dict[str, Any]


@cache
def tools() -> Path:
    """Return the folder of the pinned tools, building them first where that was not done yet.

    Raises:
        subprocess.CalledProcessError: the build failed; it has said why on stderr.
    """
    printed = subprocess.run([ROOT / "tools" / "build"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return Path(printed.strip())


@cache
def caddy() -> Path:
    """Return the program of the proxy's image, built on this machine first where that was not done yet.

    Raises:
        subprocess.CalledProcessError: the build failed; it has said why on stderr.
    """
    printed = subprocess.run([ROOT / "tools/build", "proxy"], check=True, stdout=subprocess.PIPE, text=True).stdout
    (program,) = Path(printed.strip()).iterdir()
    return program


def run(tool: str, *arguments: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run one of the pinned tools in `folder`; the caller looks at the exit code."""
    env = {**os.environ, "GOGC": "400"}  # Helm lives briefly: it spends a fourth of its time on garbage otherwise
    command = [tools() / tool, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder, env=env)


def output(tool: str, *arguments: str | Path, folder: Path = ROOT) -> str:
    """Return what a pinned tool prints.

    Raises:
        RuntimeError: it failed; the message holds what it said.
    """
    done = run(tool, *arguments, folder=folder)
    if done.returncode != 0:
        raise RuntimeError(f"{tool} {' '.join(map(str, arguments))}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def values_files(chart: Path) -> list[Path]:
    """Return the values files under `ci/`: one for each way to install a chart that is worth a test."""
    return sorted((chart / "ci").glob("*-values.yaml"))


def templates(chart: Path) -> list[Path]:
    """Return the templates of a chart, those of the library that it holds included."""
    return sorted(path for folder in (chart, LIBRARY) for path in (folder / "templates").rglob("*.*"))


def accelerators(chart: Path) -> list[str]:
    """Return the names of the accelerator profiles that a chart comes with."""
    return sorted(yaml.safe_load((chart / "values.yaml").read_text())["accelerators"])


def template_arguments(chart: Path, values: Sequence[Path] = (), settings: Sequence[str] = ()) -> list[str | Path]:
    """Return the arguments with which Helm renders a chart as a release of its own name, without a cluster."""
    name = yaml.safe_load((chart / "Chart.yaml").read_text())["name"] if chart.is_dir() else chart.name
    arguments: list[str | Path] = ["template", name, chart, "--namespace", "default", "--set-json", "skipApiCheck=true"]
    for path in values:
        arguments += ["--values", path]
    for setting in settings:
        arguments += ["--set-json", setting]
    return arguments


def template(chart: Path, values: Sequence[Path] = (), settings: Sequence[str] = ()) -> str:
    """Return the manifests of a chart as text.

    Args:
        chart: the chart's folder.
        values: values files, the last one wins.
        settings: single values as `path=JSON`, they win over the files.

    Raises:
        RuntimeError: Helm refused; the message holds what it said.
    """
    if all(ROOT in path.parents for path in (chart, *values)):
        return _rendered(chart, tuple(values), tuple(settings))
    return output("helm", *template_arguments(chart, values, settings))


@cache
def _rendered(chart: Path, values: tuple[Path, ...], settings: tuple[str, ...]) -> str:
    """Return what `template` does for files of this repository, which no test changes."""
    return output("helm", *template_arguments(chart, values, settings))


def manifests(text: str) -> list[Manifest]:
    """Return the objects of a stream of YAML documents; empty documents are left out."""
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


def render(chart: Path, values: Sequence[Path] = (), settings: Sequence[str] = ()) -> list[Manifest]:
    """Return the objects that a chart renders; see `template`."""
    return manifests(template(chart, values, settings))
