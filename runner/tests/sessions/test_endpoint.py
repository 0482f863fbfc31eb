"""A session of `trl-tinker`: an endpoint for the tinker client, with a key that the client takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from runner.tests.runs.api_server import Cluster

from stoker import sdk
from stoker.backends import TRLConfig
from stoker.backends.initializer import Initializer, Source
from stoker.commands.main import main
from stoker.contract.exits import RunError
from stoker.sessions import up

Object = dict[str, Any]
RUNTIME = Path(__file__).parents[3] / "examples/runtimes/trl-tinker-cpu.yaml"
UP = ("up", "loops", "--runtime", "trl-tinker", "--model", "/opt/tiny", "--wait", "0")


@pytest.fixture
def endpoint(cluster: Cluster) -> Cluster:
    """A cluster with the runtime."""
    cluster.add("clustertrainingruntimes", yaml.safe_load(RUNTIME.read_text()))
    return cluster


@pytest.fixture(autouse=True)
def quick(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "_SECONDS_BETWEEN_LOOKS", 0.01)


def rl(*words: str) -> Result:
    return CliRunner().invoke(main, ["rl", *words])


def test_an_endpoint_gets_a_service_and_a_key_and_says_how_to_use_it(endpoint: Cluster) -> None:
    told = rl(*UP, "--set", "max_rank=16", "--idle-limit", "30m")
    assert told.exit_code == 0, told.output
    trainjob = endpoint.objects["trainjobs", "ml", "loops"]
    assert trainjob["spec"]["trainer"]["args"] == ["--model_name_or_path=/opt/tiny", "--max_rank=16"]
    assert "initializer" not in trainjob["spec"]
    env = {one["name"] for one in trainjob["spec"]["trainer"]["env"]}
    assert env == {"STOKER_SAMPLERS_API_KEY", "STOKER_IDLE_SECONDS"}
    service = endpoint.objects["services", "ml", "loops-tinker"]
    assert service["spec"] == {
        "selector": {"stoker.dev/session": "loops", "stoker.dev/role": "node"},
        "ports": [{"name": "http", "port": 8000, "targetPort": 8000}],
    }
    assert service["metadata"]["ownerReferences"][0]["uid"] == "uid-loops"
    key = endpoint.objects["secrets", "ml", "loops-session"]["stringData"]["api-key"]
    assert key.startswith("tml-")
    assert len(key) == 68
    assert key not in told.output
    assert "endpoint  http://loops-tinker.ml:8000" in told.stdout
    assert "kubectl port-forward service/loops-tinker 8000 --namespace ml" in told.stdout
    assert "export TINKER_BASE_URL=http://127.0.0.1:8000" in told.stdout
    again = rl(*UP, "--set", "max_rank=16", "--idle-limit", "30m")
    assert (again.exit_code, "already exists with these values" in again.stderr) == (0, True)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ((), "/opt/tiny"),
        (("--set", "base_model=one", "--set", "base-model=tiny=2"), "tiny=2"),
    ],
)
def test_the_client_is_told_the_name_of_the_model(endpoint: Cluster, words: tuple[str, ...], name: str) -> None:
    told = rl(*UP, *words, "--wait", "0")
    assert told.exit_code == 0, told.output
    assert f'create_lora_training_client(base_model="{name}", rank=8)' in told.stdout


def test_what_it_trains_on_is_not_for_the_session_to_say(endpoint: Cluster) -> None:
    for words, said in (
        (("--dataset", "hf://org/data"), "--dataset does not go with an endpoint"),
        (("--nodes", "2"), "--nodes does not go with an endpoint"),
    ):
        told = rl(*UP, *words)
        assert (told.exit_code, said in told.stderr) == (64, True), told.output
    told = rl("up", "loops", "sft", "--runtime", "trl-tinker", "--wait", "0")
    assert (told.exit_code, "runs no method: leave out sft" in told.stderr) == (64, True), told.output
    assert not [name for plural, _, name in endpoint.objects if plural != "clustertrainingruntimes"]


def test_what_its_pod_would_refuse_is_refused_before_anything_is_made(endpoint: Cluster) -> None:
    wrong = (*UP, "--set", "max_rnk=64")
    for words in (wrong, (*wrong[:-2], "--dry-run", *wrong[-2:])):
        told = rl(*words)
        assert (told.exit_code, "--max_rnk" in told.stderr, told.stdout) == (64, True, ""), told.output
    assert not [name for plural, _, name in endpoint.objects if plural != "clustertrainingruntimes"]


def test_it_waits_for_the_endpoint_too(endpoint: Cluster) -> None:
    def pod(role: str, ready: bool) -> Object:
        labels = {"stoker.dev/session": "loops", "stoker.dev/role": role}
        conditions = [{"type": "Ready", "status": str(ready)}]
        metadata = {"name": f"loops-{role}-0-0-x", "namespace": "ml", "labels": labels}
        return {"metadata": metadata, "status": {"phase": "Running", "conditions": conditions}}

    endpoint.add("pods", pod("sampler", True), pod("node", False))
    late = rl(*UP[:-1], "0.05")
    assert (late.exit_code, "1 of 1 samplers ready; the endpoint is not" in late.stderr) == (75, True), late.output
    endpoint.objects["pods", "ml", "loops-node-0-0-x"] = pod("node", True)
    assert rl(*UP[:-1], "5").exit_code == 0


def test_it_is_printed_without_a_cluster() -> None:
    told = rl(*UP[:-2], "--dry-run", "--runtimes", str(RUNTIME), "--namespace", "ml")
    assert told.exit_code == 0, told.output
    made = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(told.stdout)}
    assert ("Service", "loops-tinker") in made
    assert made["Secret", "loops-session"]["stringData"]["api-key"].startswith("tml-")


def test_python_starts_it_too(endpoint: Cluster) -> None:
    env = {"STOKER_ARG_MODEL_NAME_OR_PATH": "/opt/tiny"}
    url = sdk.start_session(None, "loops", runtime="trl-tinker", env=env, wait_seconds=0)
    assert url == "http://loops-tinker.ml:8000"
    trainer = endpoint.objects["trainjobs", "ml", "loops"]["spec"]["trainer"]
    assert {"name": "STOKER_ARG_MODEL_NAME_OR_PATH", "value": "/opt/tiny"} in trainer["env"]
    assert endpoint.objects["secrets", "ml", "loops-session"]["stringData"]["api-key"].startswith("tml-")
    with pytest.raises(RunError, match="trl-grpo-async runs a method: write a config"):
        sdk.start_session(None, "sums", wait_seconds=0)
    fetched = Initializer(model=Source("hf://org/model", "token"))
    with pytest.raises(RunError, match="the runtime has no job 'model-initializer'"):
        sdk.start_session(None, "more", runtime="trl-tinker", initializer=fetched, wait_seconds=0)
    config = TRLConfig(method="grpo_async", extra_args={"reward_funcs": "think_format_reward"})
    with pytest.raises(RunError, match="trl-tinker serves the tinker client: write None as config"):
        sdk.start_session(config, "sums", runtime="trl-tinker", initializer=fetched, wait_seconds=0)
