"""Values that cannot work are refused with a message that says where and why."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import pytest
import yaml

from charts.helm import TRAINING_RUNTIMES, run, template, template_arguments


class Refused(NamedTuple):
    """A wrong setting and what Helm says about it."""

    setting: str
    value: Any
    message: str


OVERRIDE = "runtimes.trl-distributed"
REFUSED = [
    Refused("acelerator", "cpu", "additional properties 'acelerator' not allowed"),
    Refused("workspace.sise", "1Gi", "at '/workspace': additional properties 'sise' not allowed"),
    Refused("workspace.size", "50 GB", "at '/workspace/size': '50 GB' does not match pattern"),
    Refused("workspace.accessModes", [], "at '/workspace/accessModes': minItems: got 0, want 1"),
    Refused("workspace.accessModes", ["RWX"], "at '/workspace/accessModes/0': value must be one of 'ReadWriteOnce'"),
    Refused("workspace.retention", "keep", "at '/workspace/retention': value must be one of 'Retain', 'Delete'"),
    Refused("retries.maxRestarts", -1, "at '/retries/maxRestarts': minimum: got -1, want 0"),
    Refused("retries.maxRestarts", "3", "at '/retries/maxRestarts': got string, want integer"),
    Refused("podSecurityContext.runAsUser", 0, "at '/podSecurityContext/runAsUser': minimum: got 0, want 1"),
    Refused("terminationGracePeriodSeconds", 5, "at '/terminationGracePeriodSeconds': minimum: got 5, want 30"),
    Refused("imagePullPolicy", "always", "at '/imagePullPolicy': value must be one of 'Always'"),
    Refused("imagePullSecrets", ["registry"], "at '/imagePullSecrets/0': got string, want object"),
    Refused("images.trl.digest", "sha256:abc", "at '/images/trl/digest': 'sha256:abc' does not match pattern"),
    Refused("images.trl.repository", "trl:0.1.0", "at '/images/trl/repository': 'trl:0.1.0' does not match pattern"),
    Refused("global.imageRegistry", "https://registry.example.com", "at '/global/imageRegistry': 'https://registry"),
    Refused("tolerations", [{"key": "a", "operator": "Is"}], "at '/tolerations/0/operator': value must be one of"),
    Refused("accelerators.mine", {"kind": "nvidia"}, "at '/accelerators/mine': missing properties 'imageVariant'"),
    Refused("accelerators.cpu.kind", "arm", "at '/accelerators/cpu/kind': value must be one of 'nvidia'"),
    Refused("accelerators.cpu.resources.limits", {"cpu": None}, "at '/accelerators/cpu/resources/limits': missing"),
    Refused("accelerator", "amd", 'accelerator: no profile named "amd"; accelerators has: cpu, nvidia.'),
    Refused(f"{OVERRIDE}.accelerator", "amd", f'{OVERRIDE}.accelerator: no profile named "amd"'),
    Refused(f"{OVERRIDE}.numNode", 2, f"at '/{OVERRIDE.replace('.', '/')}': additional properties 'numNode'"),
    Refused(f"{OVERRIDE}.numNodes", 0, "trl-distributed/numNodes': minimum: got 0, want 1"),
    Refused(f"{OVERRIDE}.args.learning_rate", 2e-4, "trl-distributed/args/learning_rate': got number, want string"),
    Refused(f"{OVERRIDE}.args", {"--lr": "1"}, "invalid propertyName '--lr'"),
    Refused(f"{OVERRIDE}.env.A", {"fieldRef": {}}, "trl-distributed/env/A': additional properties 'fieldRef'"),
    Refused(f"{OVERRIDE}.env.PET_NNODES", "2", "PET_NNODES in env: the chart sets this one itself; leave it out."),
    Refused(f"{OVERRIDE}.env.STOKER_ARG_SEED", "1", f"set the trainer's flags by {OVERRIDE}.args instead."),
    Refused("runtimes.trl-distribuited.numNodes", 2, "no such runtime in the catalogue; it has: trl-distributed."),
    Refused(
        "runtimes.trl-distributed",
        {"accelerator": "cpu", "resources": {"devices": 2}},
        'asks for 2 device(s), but its accelerator "cpu" has no resourceName',
    ),
    Refused(
        "accelerators.nvidia.imageVariant",
        "rocm",
        'needs the variant "rocm" of image "trl", and images.lock.yaml has only: cpu, cuda.',
    ),
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda case: f"{case.setting}={json.dumps(case.value)}")
def test_bad_values_are_refused(refused: Refused) -> None:
    setting = f"{refused.setting}={json.dumps(refused.value)}"
    done = run("helm", *template_arguments(TRAINING_RUNTIMES, settings=[setting]))
    assert done.returncode != 0
    assert refused.message in done.stderr


def undocumented(schema: dict[str, Any], path: str = "") -> list[str]:
    """Return the paths of the values that nobody explains; a group of values needs no words of its own."""
    if not schema.get("properties"):
        return [] if schema.get("description") else [path]
    return [
        item
        for name, child in schema["properties"].items()
        for item in undocumented(child, f"{path}.{name}".lstrip("."))
    ]


def test_every_value_is_documented() -> None:
    assert undocumented(json.loads((TRAINING_RUNTIMES / "values.schema.json").read_text())) == []


def test_a_parent_charts_globals_and_switch_are_let_through() -> None:
    assert template(TRAINING_RUNTIMES, settings=['global={"storageClass": "fast"}', "enabled=true"])
    assert not template(TRAINING_RUNTIMES, settings=["enabled=false"]).strip()


def test_a_null_leaves_the_user_to_the_cluster() -> None:
    assert "runAsUser" not in template(TRAINING_RUNTIMES, settings=["podSecurityContext.runAsUser=null"])


def test_a_cluster_without_trainer_is_refused_with_the_commands_that_fix_it() -> None:
    refused = run("helm", "template", "catalogue", TRAINING_RUNTIMES)
    assert refused.returncode != 0
    assert "does not serve jobset.x-k8s.io/v1alpha2 and trainer.kubeflow.org/v1alpha1" in refused.stderr
    commands = re.findall(r"helm upgrade --install (\S+) (\S+) --version (\S+)", refused.stderr)
    assert [chart for chart, _, _ in commands] == ["jobset", "kubeflow-trainer"]
    assert "skipApiCheck=true" in refused.stderr
    readme = (TRAINING_RUNTIMES / "README.md").read_text()
    assert all(f"helm upgrade --install {' '.join((c, url))} --version {v}" in readme for c, url, v in commands)


def test_a_cluster_with_trainer_is_accepted() -> None:
    apis = ["--api-versions", "jobset.x-k8s.io/v1alpha2", "--api-versions", "trainer.kubeflow.org/v1alpha1"]
    assert run("helm", "template", "catalogue", TRAINING_RUNTIMES, *apis).returncode == 0


def test_every_example_in_the_readme_renders() -> None:
    readme = (TRAINING_RUNTIMES / "README.md.gotmpl").read_text()
    examples = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)]
    assert len(examples) == 2
    for example in examples:
        assert template(TRAINING_RUNTIMES, settings=[f"{key}={json.dumps(value)}" for key, value in example.items()])
