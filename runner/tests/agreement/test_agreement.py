"""`stoker validate` says of a TrainJob what its pods say: valid where they get to their launch, or their exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from runner.tests.agreement import cases
from runner.tests.agreement.cases import Case
from runner.tests.agreement.pods import Container, fetchers_of, local, nodes_of

from stoker.cluster.admission import admission_of
from stoker.cluster.pods import job_of
from stoker.contract.exits import PRECEDENCE, ExitCode, RunError

ROOT = Path(__file__).parents[3]
_PLAYER = "runner.tests.agreement.player"
_FINAL = {0, *(code for code in ExitCode if code.is_final)}
_SHOWN = 20
_GENERATED = 250


def all_cases() -> Iterator[Case]:
    yield from cases.shaped()
    yield from cases.upstream()
    yield from cases.fetching()
    yield from cases.worlds()
    yield from cases.of_repository(ROOT)
    yield from cases.generated(_GENERATED)
    yield from cases.sampled()


def test_validate_and_pods_agree_on_some(tmp_path: Path) -> None:
    chosen = [*islice(all_cases(), 0, None, 12)]
    assert len(chosen) >= 30
    assert disagreements(chosen, tmp_path) == []


@pytest.mark.full
def test_validate_and_pods_agree_on_all(tmp_path: Path) -> None:
    chosen = [*all_cases()]
    assert len(chosen) >= 300
    found = disagreements(chosen, tmp_path)
    assert found == [], "\n".join([f"{len(found)} of {len(chosen)}, of which the first are", *found[:_SHOWN]])


def test_the_cluster_takes_what_the_sdk_makes() -> None:
    refused = [case.name for case in cases.upstream() if case.name.startswith("SDK: ") and _is_refused(case)]
    # Trainer accepts `tune run` on one node only, and this proposal has five.
    assert refused == ["SDK: proposals/2401-llm-trainer-v2"]


def disagreements(chosen: Sequence[Case], folder: Path) -> list[str]:
    """Return a line for each case of which `stoker validate` and the pods say different things."""
    asked = [_containers(case, folder / f"{number:03}") for number, case in enumerate(chosen)]
    played = iter(_played([one for containers in asked for one in containers]))
    found = []
    for case, containers in zip(chosen, asked, strict=True):
        validated, *pods = [next(played) for _ in containers]
        expected, said = _end_of(case, pods)
        is_same = validated["code"] == expected or _is_unchecked(said, validated["out"] + validated["err"])
        has_trace = any("Traceback" in one["err"] for one in (validated, *pods))
        if not is_same or expected not in _FINAL or has_trace:
            found.append(f"{case.name}: validate {validated['code']}, pods {expected}: {validated['err']}{said[-600:]}")
    return found


def _end_of(case: Case, pods: Sequence[dict[str, Any]]) -> tuple[Any, str]:
    """Return how a TrainJob ends, and what its last pod says. Initializers come before the nodes, the dataset first."""
    if not pods:
        return int(ExitCode.USAGE), "there are no pods"
    fetched = [pod for pod in pods[:2] if case.fetches and pod["code"]]
    ended = fetched[:1] or pods
    code = min((pod["code"] for pod in ended), key=lambda code: PRECEDENCE.index(code) if code in _FINAL else -1)
    return code, next(pod["err"] for pod in ended if pod["code"] == code)


def _is_unchecked(said: str, validated: str) -> bool:
    """Return whether `stoker validate` says that it did not check what a pod misses."""
    if "--config " in said and " cannot be read" in said:
        return " and was not read: " in validated
    said = re.sub(r"/\S+/volumes/initializer", "/workspace", said)
    if found := re.search(r"STOKER_RESUME=require, but (/\S+) has no complete checkpoint", said):
        return f"a complete checkpoint in {found[1]}" in validated
    missing = re.findall(r"the ([a-z' ]+) (/\S+) does not exist: ", said)
    return bool(missing) and all(f"the {what} {path}, " in validated for what, path in missing)


def _is_refused(case: Case) -> bool:
    """Return whether no container runs: the cluster (compared by tests/e2e/test_validate.py) or Trainer makes no pods.

    No image has a program with a space in its name either.
    """
    if " " in "".join(((case.trainjob["spec"].get("trainer") or {}).get("command") or [])[:1]):
        return True
    try:
        job_of(case.trainjob, case.runtime)
    except RunError:
        return True
    return bool(admission_of(case.trainjob, case.runtime).problems)


def _containers(case: Case, folder: Path) -> list[tuple[Container, Path]]:
    """Write what a case needs, and return `stoker validate` and its pods, each with its working directory."""
    given, volumes = folder / "given", folder / "volumes"
    workspace = volumes / "initializer"
    for name in ("initializer", "cache", "tmp"):
        (volumes / name).mkdir(parents=True)
    given.mkdir()
    for name, text in case.content.items():
        for target, content in ((given, text), (workspace, local(text, {"/workspace": str(workspace)}))):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(content, encoding="utf-8")
    for name, manifest in (("trainjob", case.trainjob), ("runtime", case.runtime)):
        (folder / f"{name}.json").write_text(json.dumps(manifest))
    words = ["validate", "trainjob.json", "--runtime", "runtime.json"]
    words += [f"--volume=initializer={given}"] if case.is_given else []
    validated = (Container(["stoker", *words], {"PATH": os.defpath}), folder)
    if _is_refused(case):
        return [validated]
    fetchers = fetchers_of(case.trainjob, case.runtime, volumes) if case.fetches else ()
    pods = [*fetchers, *nodes_of(case.trainjob, case.runtime, volumes)]
    return [validated, *((pod, workspace) for pod in pods)]


def _played(containers: Sequence[tuple[Container, Path]]) -> list[dict[str, Any]]:
    lines = "".join(json.dumps({**vars(one), "folder": str(folder)}) + "\n" for one, folder in containers)
    source = os.pathsep.join(str(ROOT / path) for path in (".", "runner/src", "tests"))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", _PLAYER], env=env, input=lines, stdout=subprocess.PIPE, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]
