"""Serving stays small: the watch loads few modules, and one module of each room speaks to vLLM."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import stoker

SOURCE = Path(stoker.__file__).parent
# Paths of vLLM's API, which include those of OpenAI's; not Tinker's and Kubernetes'.
API = re.compile(r"(?<!/api)(?<!k8s\.io)/v1/|lora_adapter|/health\b|/tokenize|/classify")
CLIENT = SOURCE / "serve" / "vllm.py"
TRAINERS_CLIENT = SOURCE / "rollouts" / "samplers.py"
REWARDS = SOURCE / "rollouts" / "classify.py"  # asks a server of the user's, which is no sampler
LABS_CLIENT = SOURCE / "lab" / "remote.py"
# Answers as vLLM does, and does not ask it.
FLEET = SOURCE / "serve" / "fleet" / "endpoints.py"
HARNESS = SOURCE / "results" / "harness.py"  # hands lm-evaluation-harness an address


def test_the_watch_loads_neither_plans_nor_frameworks() -> None:
    command = "import sys, stoker.serve.adapters.watch; print(*(m for m in sys.modules if m.startswith('stoker')))"
    done = subprocess.run(
        [sys.executable, "-c", command],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SOURCE.parent)},
    )
    rooms = {name.split(".")[1] for name in done.stdout.split() if "." in name}
    assert rooms == {"contract", "serve"}


def test_one_module_of_each_room_speaks_to_vllm() -> None:
    speaking = {path for path in SOURCE.rglob("*.py") if API.search(path.read_text())}
    assert speaking == {CLIENT, TRAINERS_CLIENT, REWARDS, LABS_CLIENT, FLEET, HARNESS}
    users = {path for path in SOURCE.rglob("*.py") if "from stoker.serve.vllm import" in path.read_text()}
    assert {path.relative_to(SOURCE).parts[0] for path in users} == {"lab", "results", "serve", "tinker"}
