"""Values that cannot work are refused with a message that says where and why."""

from __future__ import annotations

import copy
import json
import re
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

import jsonschema
import pytest
import yaml

from charts.generate import is_group
from charts.helm import TRAINING_RUNTIMES, run, template, template_arguments
from charts.refusals import ends_with_the_fix


class Refused(NamedTuple):
    """A wrong setting and what Helm says about it."""

    setting: str
    value: Any
    message: str


OVERRIDE = "runtimes.trl-distributed"
SHARE = {"cpu": "1", "memory": "1Gi"}
PROFILE = {
    "kind": "cpu",
    "imageVariant": "cpu",
    "sharedMemory": "1Gi",
    "resources": {"requests": SHARE, "limits": SHARE},
}
# Of runtimes that are off unless they are asked for.
SAMPLED = {"trl-grpo-async": {"enabled": True, "samplers": {"env": {"PYTHONPATH": "/x"}}}}
KEYED = {"trl-grpo-async": {"enabled": True, "samplers": {"env": {"VLLM_API_KEY": "x"}}}}
MISSPELT = {"trl-grpo-async": {"enabled": True, "samplers": {"env": {"STOKER_TYPO": "1"}}}}
LOCKED = {"trl-grpo-async": {"enabled": True, "samplers": {"args": {"api-key": "x"}}}}
SEVERAL = {"trl-grpo-async": {"enabled": True, "samplers": {"args": {"api-server-count": "2"}}}}
RENAMED = {"trl-grpo-async": {"enabled": True, "labels": {"stoker.dev/role": "research"}}}
REFUSED = [
    Refused(
        "runtimes", SAMPLED, "trl-grpo-async.samplers.env.PYTHONPATH: the chart sets this variable itself. Remove it"
    ),
    Refused("runtimes", KEYED, "trl-grpo-async.samplers.env.VLLM_API_KEY: the chart sets this variable itself"),
    Refused(
        "runtimes", MISSPELT, "trl-grpo-async.samplers.env.STOKER_TYPO: stoker does not know this variable. Remove it"
    ),
    Refused(
        "runtimes",
        LOCKED,
        "trl-grpo-async.samplers.args.api-key: the run decides how vLLM is reached and what it serves. Remove it.",
    ),
    Refused("runtimes", SEVERAL, "samplers.args.api-server-count: the run decides how vLLM is reached and what"),
    Refused("runtimes", RENAMED, "runtimes.trl-grpo-async.labels: the chart sets stoker.dev/role itself. Remove it."),
    Refused("acelerator", "cpu", "additional properties 'acelerator' not allowed"),
    Refused("workspace.sise", "1Gi", "at '/workspace': additional properties 'sise' not allowed"),
    Refused("workspace.size", "50 GB", "at '/workspace/size': '50 GB' does not match pattern"),
    Refused("workspace.accessModes", [], "at '/workspace/accessModes': minItems: got 0, want 1"),
    Refused("workspace.accessModes", ["RWX"], "at '/workspace/accessModes/0': value must be one of 'ReadWriteOnce'"),
    Refused("workspace.retention", "keep", "at '/workspace/retention': value must be one of 'Retain', 'Delete'"),
    Refused("retries.maxRestarts", -1, "at '/retries/maxRestarts': minimum: got -1, want 0"),
    Refused("retries.maxRestarts", "3", "at '/retries/maxRestarts': got string, want integer"),
    Refused(
        "podSecurityContext.runAsUser", "root", "at '/podSecurityContext/runAsUser': 'root' does not match pattern"
    ),
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
    Refused(
        "accelerator", "gpu", 'accelerator: there is no accelerator profile "gpu". Use one of: amd, cpu, intel, nvi'
    ),
    Refused("accelerator", "amd", 'accelerator "amd" needs the variant "rocm" of image'),
    Refused("accelerator", "tpu", 'needs the variant "tpu" of image "torchtune", and images.lock.yaml has only'),
    Refused(f"{OVERRIDE}.accelerator", "gpu", f'{OVERRIDE}.accelerator: there is no accelerator profile "gpu"'),
    Refused("runtimes.trl-grpo-async.samplers.accelerator", "gpu", "samplers.accelerator: there is no accelerator pro"),
    Refused(f"{OVERRIDE}.numNode", 2, f"at '/{OVERRIDE.replace('.', '/')}': additional properties 'numNode'"),
    Refused(f"{OVERRIDE}.numNodes", 0, "trl-distributed/numNodes': minimum: got 0, want 1"),
    Refused(f"{OVERRIDE}.sharding", "zero3", "trl-distributed/sharding': value must be one of 'none', 'full'"),
    Refused(
        "runtimes.torchtune-distributed.sharding",
        "none",
        'runtimes.torchtune-distributed.sharding: torchtune cannot do "none". Remove it, or use one of: full.',
    ),
    Refused(f"{OVERRIDE}.args.learning_rate", 2e-4, "trl-distributed/args/learning_rate': got number, want string"),
    Refused(f"{OVERRIDE}.args", {"--lr": "1"}, "invalid propertyName '--lr'"),
    Refused(f"{OVERRIDE}.env.A", {"fieldRef": {}}, "trl-distributed/env/A': additional properties 'fieldRef'"),
    Refused(f"{OVERRIDE}.env.PET_NNODES", "2", "the chart sets PET_NNODES in env itself. Remove it."),
    Refused(
        f"{OVERRIDE}.env.STOKER_ARG_SEED",
        "1",
        f"STOKER_ARG_SEED in env sets a flag of the trainer. Use {OVERRIDE}.args instead.",
    ),
    Refused("runtimes.trl-distribuited.numNodes", 2, "the catalogue has no runtime of this name. It has: "),
    Refused("runtimes.trl-distribuited.numNodes", 2, "set runtimes.trl-distribuited.base to one of them."),
    Refused("runtimes.mine.base", "trl", 'runtimes.mine.base: the catalogue has no runtime "trl". Use one of: '),
    Refused(f"{OVERRIDE}.base", "trl-qwen3-8b", "a runtime of this name already. Give your own another name."),
    Refused("runtimes", {"My_Runtime": {"base": "trl-distributed"}}, "invalid propertyName 'My_Runtime'"),
    Refused("workspace", None, "missing property 'workspace'"),
    Refused("retries.maxRestarts", None, "at '/retries': missing property 'maxRestarts'"),
    Refused("profile", "tlr", "at '/profile': value must be one of 'all', 'trl', 'torchtune', 'none'"),
    Refused("names.style", "both names", "at '/names/style': value must be one of 'plain', 'versioned', 'both'"),
    Refused("names.version", "1.0_rc", "at '/names/version': '1.0_rc' does not match pattern"),
    Refused("kind", "Runtime", "at '/kind': value must be one of 'ClusterTrainingRuntime', 'TrainingRuntime'"),
    Refused("namespaces", ["a", "a"], "at '/namespaces': items at 0 and 1 are equal"),
    Refused("scratch.tmpSize", "ten", "'ten' does not match pattern"),
    Refused("podGroupPolicy", {"coscheduling": {}}, "the jobs that fetch count into the gang, and the nodes start"),
    Refused("podGroupPolicy", {"kueue": {}}, "at '/podGroupPolicy': additional properties 'kueue' not allowed"),
    Refused(
        "podGroupPolicy", {"coscheduling": {}, "volcano": {}}, "at '/podGroupPolicy': maxProperties: got 2, want 1"
    ),
    Refused("commonLabels", {"a": 1}, "at '/commonLabels/a': got number, want string"),
    Refused(
        "commonLabels", {"app.kubernetes.io/part-of": "ml"}, "commonLabels: the chart sets app.kubernetes.io/part-of"
    ),
    Refused("commonAnnotations", {"helm.sh/resource-policy": "keep"}, "the chart sets helm.sh/resource-policy itself"),
    Refused("test.labels", {"app.kubernetes.io/name": "mine"}, "test.labels: the chart sets app.kubernetes.io/name"),
    Refused(f"{OVERRIDE}.labels", {"trainer.kubeflow.org/framework": "mine"}, f"{OVERRIDE}.labels: the chart sets tr"),
    Refused(
        f"{OVERRIDE}.annotations", {"stoker.dev/description": "mine"}, f"{OVERRIDE}.annotations: the chart sets st"
    ),
    Refused("runtimes", {"a..b": {"base": "trl-distributed"}}, "invalid propertyName 'a..b'"),
    Refused(
        "names", {"style": "both", "version": "1" * 48}, "has 64 characters, and a runtime's name may have 63. Choose"
    ),
    Refused("accelerators", {"H 100": PROFILE}, 'the name "H 100" is not a valid label value. Use'),
    Refused("initializers.env.STORAGE_URI", "hf://a/b", "initializers.env.STORAGE_URI: the chart sets this variable"),
    Refused(
        "initializers.env.STOKER_FETCH", "1", "stoker does not know this variable. Remove it, or use one of: STOKER_ACC"
    ),
    Refused(
        f"{OVERRIDE}.volumeMounts",
        [{"name": "corpsu", "mountPath": "/corpus"}],
        'there is no volume "corpsu". Use one of: ',
    ),
    Refused(
        f"{OVERRIDE}.volumeMounts",
        [{"name": "tmp", "mountPath": "/cache/"}],
        'the chart mounts /cache/ itself. Mount "tmp" somewhere else.',
    ),
    Refused("policies.mode", "audit", "at '/policies/mode': value must be one of 'warn', 'deny'"),
    Refused("policies.catalogueRuntimes.enabled", None, "at '/policies/catalogueRuntimes': missing property 'enabled'"),
    Refused("initializers.resources.limits.memory", None, "/initializers/resources/limits': missing property 'memory'"),
    Refused("policies.maxNodes.limit", 3, "at '/policies/maxNodes': additional properties 'limit' not allowed"),
    Refused(f"{OVERRIDE}.method", "stf", f'{OVERRIDE}.method: "stf" is not a method of trl. Use one of: sft, dpo,'),
    Refused(f"{OVERRIDE}.args.lr", "1e-4", "write --learning_rate"),
    Refused(
        f"{OVERRIDE}.args.rate",
        "1e-4",
        f"{OVERRIDE}.args.rate: no method of trl has this flag. Run `stoker flags METHOD`",
    ),
    Refused(f"{OVERRIDE}.args.local_rank", "0", "--local_rank is reserved for stoker: leave it out"),
    Refused(f"{OVERRIDE}.args.torch_dtype", "auto", "is called --dtype in trl"),
    Refused(
        f"{OVERRIDE}.env.STOKER_RESUM",
        "never",
        "stoker does not know the variable STOKER_RESUM in env. Remove it, or use one of: ",
    ),
    Refused(f"{OVERRIDE}.model", "Qwen/Qwen3-8B", "trl-distributed/model': 'Qwen/Qwen3-8B' does not match pattern"),
    Refused(
        f"{OVERRIDE}.volumes",
        [{"name": "shm", "emptyDir": {}}],
        'the chart has a volume "shm" already. Choose another name.',
    ),
    Refused(
        f"{OVERRIDE}.volumes",
        [{"name": name, "persistentVolumeClaim": {"claimName": "corpora"}} for name in ("a", "b")],
        'its volumes a and b are both of claim "corpora", and Kubernetes never starts a pod that mounts a claim twice.',
    ),
    Refused(
        f"{OVERRIDE}.podTemplate",
        {"spec": {"containers": [{"name": "sidecar", "image": "registry.example.com/sidecar:1"}]}},
        f"{OVERRIDE}.podTemplate.spec.containers: none of these is called node, which is the one that Trainer and the",
    ),
    Refused(
        f"{OVERRIDE}.podTemplate",
        {"spec": {"containers": [{"name": "node", "tty": True}]}},
        f"{OVERRIDE}.podTemplate.spec.containers: the container node has no image, for the list replaces the chart's.",
    ),
    Refused(
        f"{OVERRIDE}.podTemplate",
        {"spec": {"volumes": [{"name": "corpus", "emptyDir": {}}]}},
        f'{OVERRIDE}.podTemplate.spec.volumes: the container node mounts "shm", and there is no such volume. Write all',
    ),
    Refused(
        f"{OVERRIDE}.podTemplate",
        {"spec": {"initContainers": [{"name": "warm", "image": "a:1", "volumeMounts": [{"name": "x"}]}]}},
        f'{OVERRIDE}.podTemplate.spec: the container warm mounts "x", and there is no such volume. Use one of',
    ),
    Refused(
        "initializers.volumeMounts",
        [{"name": "x", "mountPath": "/x"}],
        'initializers.volumeMounts: there is no volume "x". Use one of: initializer, cache, tmp.',
    ),
    Refused(
        "initializers.volumes",
        [{"name": "initializer", "emptyDir": {}}],
        'initializers.volumes: the chart has a volume "initializer" already. Choose another name.',
    ),
    Refused(
        "initializers.sidecars",
        [{"name": "model-initializer", "image": "a:1"}],
        'initializers.sidecars: there is a container "model-initializer" already. Choose another name.',
    ),
    Refused("serviceAccount.annotations", {"a": "b"}, "this release makes no service account. Set serviceAccount."),
    Refused("outbound.caBundle", {"configMap": "a", "secret": "b"}, "there are two bundles, configMap and secret"),
    Refused(
        f"{OVERRIDE}.resources.limits", {"nvidia.com/gpu": 8}, "nvidia.com/gpu is counted by devices or rdma. Remove"
    ),
    Refused(
        f"{OVERRIDE}.resources",
        {"limits": {"rdma/ib": 2}, "requests": {"rdma/ib": 1}},
        "limits.rdma/ib is 2 and requests.rdma/ib is 1, and Kubernetes wants them equal. Remove the request.",
    ),
    Refused("accelerators.nvidia.deviceSelectors", ["true"], "only claims have selectors. Set deviceClassName"),
    Refused(f"{OVERRIDE}.resources.requests.memory", "1Ti", "requests.memory is 1Ti and limits.memory is 64Gi"),
    Refused(
        f"{OVERRIDE}.resources.requests.cpu", "16500m", "requests.cpu is 16500m and limits.cpu is 16. A pod cannot"
    ),
    Refused(
        "initializers.resources.requests.memory", "5Gi", "initializers: requests.memory is 5Gi and limits.memory is"
    ),
    Refused("accelerators.nvidia.deviceClassName", "gpu.nvidia.com", "has both resourceName and deviceClassName"),
    Refused(
        "runtimes.trl-distributed",
        {"accelerator": "cpu", "resources": {"devices": 2}},
        'asks for 2 device(s), but its accelerator "cpu" has no resourceName',
    ),
    Refused("accelerators.nvidia.resources.devices", None, 'has accelerator "nvidia" but asks for no device'),
    Refused(
        "accelerators.nvidia.imageVariant",
        "rocm",
        "images.lock.yaml has only: cpu, cuda. Set images.torchtune.tag or images.torchtune.digest to an image",
    ),
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda case: f"{case.setting}={json.dumps(case.value)}")
def test_bad_values_are_refused(refused: Refused) -> None:
    setting = f"{refused.setting}={json.dumps(refused.value)}"
    done = run("helm", *template_arguments(TRAINING_RUNTIMES, settings=[setting]))
    assert done.returncode != 0
    assert refused.message in done.stderr
    assert ends_with_the_fix(done.stderr), done.stderr


def test_two_runtimes_of_one_name_are_refused() -> None:
    settings = ['names={"style": "both", "version": "next"}', 'runtimes.trl-distributed-next.base="trl-qwen3-8b"']
    done = run("helm", *template_arguments(TRAINING_RUNTIMES, settings=settings))
    assert 'Two runtimes would have the name "trl-distributed-next"' in done.stderr


def undocumented(schema: dict[str, Any], path: str = "") -> list[str]:
    """Return the paths of the values that nobody explains; a group of values needs no words of its own."""
    if not schema.get("properties") or "$ref" in schema:
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


def leaves(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return the default of every single value by its path."""
    found: dict[str, Any] = {}
    for name, default in values.items():
        where = f"{path}.{name}".lstrip(".")
        found |= leaves(default, where) if is_group(where, default) else {where: default}
    return found


def test_a_null_is_the_default_where_that_is_nothing_and_refused_elsewhere() -> None:
    """A key with nothing behind it, as a section is whose lines are all comments."""
    defaults = yaml.safe_load((TRAINING_RUNTIMES / "values.yaml").read_text())
    schema = json.loads((TRAINING_RUNTIMES / "values.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    values = leaves(defaults)
    nullable = {path for path in values if path.startswith("podSecurityContext.") and "supplemental" not in path}
    for path in (path for path, default in values.items() if default and path not in nullable):
        without = copy.deepcopy(defaults)
        *groups, name = path.split(".")
        del reduce(getitem, groups, without)[name]
        assert [error.message for error in validator.iter_errors(without)] == [f"{name!r} is a required property"], path
    switches = {"skipApiCheck", "policies.enabled"}
    nothing = [path for path, default in values.items() if not default and path not in {*switches, *nullable}]
    assert len(nothing) > 20
    rules = "policies.enabled=true"
    nulls = [f"{path}=null" for path in nothing]
    assert template(TRAINING_RUNTIMES, settings=[rules, *nulls]) == template(TRAINING_RUNTIMES, settings=[rules])


@pytest.mark.parametrize("nobody", ["null", '""'])
def test_a_null_or_an_empty_string_leaves_user_and_groups_to_the_cluster(nobody: str) -> None:
    fields = ("runAsUser", "runAsGroup", "fsGroup")
    rendered = template(TRAINING_RUNTIMES, settings=[f"podSecurityContext.{name}={nobody}" for name in fields])
    assert not any(f"{name}:" in rendered for name in fields)


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
    assert len(examples) == 3
    for example in examples:
        assert template(TRAINING_RUNTIMES, settings=[f"{key}={json.dumps(value)}" for key, value in example.items()])
