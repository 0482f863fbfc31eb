"""A new user's afternoon: install, run, watch, plot, get, evaluate, export, serve, swap, uninstall.

Each step is a command that a document shows, read from it (afternoon.py). What differs: charts and images come from the
cluster's registry, and JobSet and Trainer are there. The trainers' environment for CPUs stands in for
`pip install './runner[local]'`, because PyPI's torch is for GPUs. The time of each step is printed:

    make test-e2e PYTEST_ARGS="-m full -k afternoon"
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from runner.tests.integration.environments import environment

from charts.helm import ROOT
from cluster import Cluster
from e2e import afternoon
from e2e.afternoon import Given, Step
from e2e.conftest import RELEASE
from e2e.kube import Kube
from e2e.registry import Image
from e2e.trainjobs import Reader

pytestmark = pytest.mark.full  # a server starts twice, and an environment comes from PyPI

ADAPTERS = "adapters"


class User:
    """Somebody with a folder, a kubeconfig and a virtual environment of their own.

    Args:
        cluster: the cluster.
        folder: the folder, which gets the checkout's `examples` and `runner`.
        trainers: the folder with a `stoker` that has the trainers' libraries.
        say: prints a line at once.
    """

    def __init__(self, cluster: Cluster, folder: Path, trainers: Path, say: Callable[[str], None]) -> None:
        self._cluster, self.folder, self._say = cluster, folder, say
        self._own, self._trainers = folder / "venv" / "bin", trainers
        self._times: dict[str, float] = {}
        for name in ("examples", "runner"):
            (folder / name).symlink_to(ROOT / name)
        # The user changes the namespace of the context, and no other test is to notice.
        shown = cluster.run(["kubectl", "config", "view", "--raw", "--flatten"], capture_output=True)
        self._kubeconfig = folder / "kubeconfig"
        self._kubeconfig.touch(mode=0o600)
        self._kubeconfig.write_text(shown.stdout)

    def installs_stoker(self) -> None:
        """Install the command in a new virtual environment: here, where the network is, and not in the cluster's."""
        step = afternoon.stoker_itself()
        env = {**os.environ, "PATH": self._path(os.environ["PATH"])}

        def install() -> str:
            subprocess.run([sys.executable, "-m", "venv", self._own.parent], check=True, capture_output=True)
            words = ["bash", "-euc", step.script]
            done = subprocess.run(words, check=False, capture_output=True, text=True, cwd=self.folder, env=env)
            assert done.returncode == 0, f"{step.script}\n{done.stdout}{done.stderr}"
            return done.stdout

        self.waits(step, install)

    def does(self, *steps: Step) -> str:
        """Take steps where the cluster can be reached, and return what they printed.

        Raises:
            AssertionError: one failed.
        """
        return "".join(self.waits(step, partial(self._succeeds, step)) for step in steps)

    def tries(self, step: Step) -> str:
        """Take a step, and return what it printed; nothing if it failed."""
        done = self._takes(step)
        return done.stdout if done.returncode == 0 else ""

    def waits(self, step: Step, act: Callable[[], str]) -> str:
        """Take a step in another way, and count its time as that of any."""
        for line in step.script.rstrip().splitlines():
            self._say(f"{step.name:<10}$ {line}")
        started = time.monotonic()
        try:
            return act()
        finally:
            seconds = time.monotonic() - started
            self._times[step.name] = self._times.get(step.name, 0) + seconds
            self._say(f"{step.name:<10}{seconds:8.1f} s")

    def summary(self) -> str:
        """Return a table with the seconds of all steps for one thing."""
        rows = [*self._times.items(), ("all", sum(self._times.values()))]
        return "\n".join(f"{name:<10}{seconds:8.1f} s" for name, seconds in rows)

    def _succeeds(self, step: Step) -> str:
        done = self._takes(step)
        assert done.returncode == 0, f"{step.script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _takes(self, step: Step) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": self._path(self._cluster.env["PATH"], step.local),
            "KUBECONFIG": str(self._kubeconfig),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(self.folder / "hf"),
            "OMP_NUM_THREADS": "1",
        }
        words = ["bash", "-euc", step.script]
        done: subprocess.CompletedProcess[str] = self._cluster.run(
            words, check=False, capture_output=True, cwd=self.folder, env=env
        )
        return done

    def _path(self, others: str, local: bool = False) -> str:
        return os.pathsep.join([str(self._trainers if local else self._own), others])


@pytest.fixture
def user(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], measured: Callable[[str], None]
) -> Iterator[User]:
    """A user on this machine; at the end the times are shown, and nothing of theirs is left."""

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)

    system = Kube(cluster, "default")
    system.delete("namespace", afternoon.NAMESPACE)
    found = User(cluster, tmp_path, environment("trl").parent, say)
    try:
        yield found
    finally:
        measured(found.summary())
        system.delete("namespace", afternoon.NAMESPACE)


@pytest.fixture
def given(
    cluster: Cluster,
    helm: Callable[..., str],
    catalogue: Callable[[], None],
    chart: list[str],
    catalogue_values: list[str],
    serving_chart: list[str],
) -> Iterator[Given]:
    """The charts in the cluster's registry. Meanwhile no other release has the runtimes' names."""
    words = {
        afternoon.CATALOGUE: [*_without_version(chart), *catalogue_values],
        afternoon.SERVER: _without_version(serving_chart),
    }
    helm("uninstall", RELEASE, "--namespace", "stoker-system", "--wait")
    try:
        yield Given({name: shlex.join(said) for name, said in words.items()})
    finally:
        helm("uninstall", afternoon.CATALOGUE, "--namespace", "default", "--ignore-not-found", "--wait")
        catalogue()


def _without_version(words: list[str]) -> list[str]:
    """Return the words that find a chart without its version, which the documents name."""
    at = words.index("--version")
    return [*words[:at], *words[at + 2 :]]


def test_an_afternoon(user: User, given: Given, cluster: Cluster, image: Image) -> None:
    user.installs_stoker()
    printed: defaultdict[str, str] = defaultdict(str)
    for step in afternoon.before_serving(given):
        printed[step.name] += user.does(step)
    assert f"{afternoon.NAME} is submitted" in printed["run"]
    assert "node-0 | " in printed["watch"]
    assert "node-1 | " in printed["watch"]
    assert "Complete" in printed["watch"]
    assert "<svg" in (user.folder / "stoker-plot.html").read_text()
    assert printed["chat"] == "Cr\n"
    assert "perplexity" in printed["evaluate"]
    merged = json.loads((user.folder / "merged" / "stoker.json").read_text())
    assert merged["merged_adapter"]["rank"] == 16

    (user.folder / "values.yaml").write_text(afternoon.first_values())
    install, question = afternoon.served(given)
    user.does(install)
    assert _said(user.does(question)) == "Cr"

    kube = Kube(cluster, afternoon.NAMESPACE)
    (user.folder / "values.yaml").write_text(afternoon.swapped_values())
    (user.folder / "adapters.yaml").write_text(afternoon.claim_for_adapters())
    user.does(afternoon.opened(given))
    result = f"initializer-{afternoon.NAME}"
    publish = afternoon.published(f"/claims/{result}/output")
    reader = Reader(kube, image.reference)
    said = user.waits(publish, lambda: reader.run(shlex.split(publish.script), [result, ADAPTERS]))
    assert "support:1" in said.splitlines()
    again = afternoon.asked_again("support:1")
    answer = user.waits(again, lambda: kube.until("support:1 to be served", lambda: user.tries(again), 300))
    assert _said(answer) == "Cr"

    user.does(*afternoon.removed())
    left = Kube(cluster, "default")
    assert left.get("namespace", afternoon.NAMESPACE) is None
    assert left.get("clustertrainingruntime", "trl-distributed") is None


def _said(printed: str) -> str:
    """Return what a server has answered; what forwards the port says before that where it listens."""
    answer, _ = json.JSONDecoder().raw_decode(printed, printed.index("{"))
    content: str = answer["choices"][0]["message"]["content"]
    return content.strip()
