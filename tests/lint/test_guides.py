"""What the guides say of columns, memory and claims is what the runner and the catalogue do."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import RUNTIME, trainjob, variables
from lint.files import ROOT, texts
from stoker.cluster.validate import Validation, validate_one
from stoker.contract.exits import ExitCode
from stoker.frameworks.trl.data_checks import _NEEDS

GUIDES = Path("docs/guides")
ROWS = [
    (method, json.loads(row))
    for methods, row in re.findall(r"^\| (`.+?) \| .+? \| `(\{.+\})` \|$", texts()[GUIDES / "your-own-data.md"], re.M)
    for method in re.findall(r"`(\w+)`", methods)
]
QWEN = {"model_type": "qwen3", "head_dim": 128, "vocab_size": 151936, "num_key_value_heads": 8}
# Width, width inside, layers and heads of the models whose configurations the guides name.
MODELS = {"Qwen3-8B": (4096, 12288, 36, 32), "Qwen3-32B": (5120, 25600, 64, 64)}
# What these need besides data.
MORE = {
    "grpo": {"STOKER_ARG_REWARD_FUNCS": "rewards.exact"},
    "rloo": {"STOKER_ARG_REWARD_FUNCS": "rewards.exact"},
    "grpo_async": {
        "STOKER_ARG_REWARD_FUNCS": "rewards:exact",
        "STOKER_ARG_SAMPLERS": "http://samplers-control:8090",
        "STOKER_ARG_USE_PEFT": "true",
    },
    "distillation": {"STOKER_ARG_TEACHER_MODEL_NAME_OR_PATH": "a/teacher"},
}


def judged(method: str, row: dict[str, Any], folder: Path) -> Validation:
    files = {
        "model/config.json": {"model_type": "qwen2", "max_position_embeddings": 4096},
        "model/tokenizer_config.json": {"chat_template": "{{ messages }}"},
        "dataset/train.jsonl": row,
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content) + "\n")
    job = trainjob(env=variables({"STOKER_METHOD": method, **MORE.get(method, {})}))
    return validate_one(job, RUNTIME, [f"initializer={folder}"])


def test_every_method_has_a_row() -> None:
    assert {method for method, _ in ROWS} == {*_NEEDS}


@pytest.mark.parametrize(
    ("method", "row"), ROWS, ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_a_row_of_the_guide_is_one_that_the_method_reads(method: str, row: dict[str, Any], tmp_path: Path) -> None:
    assert [text for code, text in judged(method, row, tmp_path).problems if code is ExitCode.BAD_DATA] == []
    (needed, *_) = (name for name in ("messages", "chosen", "prompt", "text") if name in row)
    without = {name: value for name, value in row.items() if name != needed} | {"other": "1"}
    assert ExitCode.BAD_DATA in {code for code, _ in judged(method, without, tmp_path).problems}


def test_the_memory_of_a_model_is_what_its_runtime_asks_for() -> None:
    table = re.findall(r"^\| .+? \| `(trl-[\w.-]+)` \| (\w+) \|$", texts()[GUIDES / "cost-and-memory.md"], re.M)
    assert len(table) > 3
    for name, memory in table:
        runtime = yaml.safe_load((ROOT / "runtimes" / f"{name}.yaml").read_text())
        assert runtime["sizes"]["nvidia"]["requests"]["memory"] == memory, name


def test_the_claim_of_the_readme_is_the_one_that_a_runtime_makes() -> None:
    """But for the access mode, which is the value that the README sets there."""
    (block,) = re.findall(
        r"^```yaml\n(apiVersion: v1\nkind: PersistentVolumeClaim\n.*?)^```$", texts()[Path("README.md")], re.M | re.S
    )
    claim = yaml.safe_load(block)
    (policy,) = RUNTIME["spec"]["template"]["spec"]["volumeClaimPolicies"]
    (template,) = policy["templates"]
    assert claim["metadata"]["name"] == f"{template['metadata']['name']}-first-run"
    assert claim["spec"] == {**template["spec"], "accessModes": ["ReadWriteOnce"]}
    assert "--set 'workspace.accessModes={ReadWriteOnce}'" in texts()[Path("README.md")]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder as a user has it: the checkout's examples, rows, and models' configurations."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1=", "chosen": "2", "rejected": "3"}\n')
    for name, (width, inner, layers, heads) in MODELS.items():
        (tmp_path / name).mkdir()
        sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
        (tmp_path / name / "config.json").write_text(json.dumps({**QWEN, **sizes, "num_attention_heads": heads}))
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "stoker"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT / "runner/src"} exec {sys.executable} -m stoker "$@"\n')
    command.chmod(0o755)
    return tmp_path


def test_the_quota_of_a_shared_device_has_room_for_three_sessions() -> None:
    runtime = yaml.safe_load((ROOT / "examples/runtimes/trl-grpo-async-cpu.yaml").read_text())
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    kept = sum(job["template"]["spec"].get("completions", 1) for job in jobs)
    page = texts()[GUIDES / "share-devices.md"]
    (quota,) = re.findall(r"name: pods, nominalQuota: (\d+)", page)
    # A session that starts has a pod for each thing that it fetches.
    (command,) = re.findall(r"^stoker rl up math [^`]* --queue gpu-0$", page, re.M)
    assert int(quota) == 3 * kept + command.count(" hf://")


def test_the_upgrade_is_to_the_versions_of_the_readme() -> None:
    chart = re.compile(r"(oci://\S+/(?:jobset|kubeflow-trainer)) --version (\S+)")
    (page, readme) = (chart.findall(texts()[path]) for path in (GUIDES / "upgrade.md", Path("README.md")))
    assert {*page} == {*readme}


def test_every_role_of_a_guide_is_bound() -> None:
    page = texts()[GUIDES / "sessions.md"]
    roles = re.findall(r"^kind: (?:Cluster)?Role\nmetadata: \{name: ([\w-]+)", page, re.M)
    assert sorted(roles) == sorted(re.findall(r"binding \S+ --(?:cluster)?role ([\w-]+)", page))


def typed(text: str, desk: Path) -> subprocess.CompletedProcess[str]:
    """Run a block of a guide."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=desk, check=False, capture_output=True, text=True, env={"PATH": f"{desk / 'bin'}:/usr/bin:/bin"},
    )  # fmt: skip


def blocks(page: str, word: str) -> list[str]:
    """Return the shell blocks of a guide that have a word in them."""
    return [block for block in re.findall(r"^```sh\n(.*?)^```$", texts()[GUIDES / page], re.M | re.S) if word in block]


def test_rows_are_checked_as_the_guide_says(desk: Path) -> None:
    (block,) = blocks("your-own-data.md", "stoker trainjob")
    done = typed(block, desk)
    assert (done.returncode, "check: valid: trl dpo" in done.stdout) == (0, True), done.stderr
    (desk / "train.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}\n')
    done = typed(block, desk)
    (told,) = re.findall(r"^```text\n(stoker: error: .*?)\n```$", texts()[GUIDES / "your-own-data.md"], re.M | re.S)
    assert done.returncode == ExitCode.BAD_DATA
    assert told in done.stderr.replace(f"{desk}/", "")


@pytest.mark.parametrize(
    ("page", "word"),
    [("cost-and-memory.md", "estimate --devices"), ("cost-and-memory.md", "awk"), ("large-models.md", "--nodes 4")],
)
def test_what_is_counted_in_a_guide_can_be_counted(page: str, word: str, desk: Path) -> None:
    (block,) = blocks(page, word)
    done = typed(block, desk)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fits" in done.stdout or "cost 10.42" in done.stdout
