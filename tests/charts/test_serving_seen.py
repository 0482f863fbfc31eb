"""A replica as the serving chart makes it, real vLLM: what Prometheus sees of it, what OpenAI's package gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from charts import openai_checks
from charts.helm import ROOT
from charts.prometheus import Prometheus, scrape_configs
from charts.serving_stack import KEY, Stack, models

pytestmark = pytest.mark.full  # needs vLLM's and the trainer's environments, and Prometheus, on this machine

OPENAI_USER = Path(__file__).with_name("openai_user.py")
POD = {"namespace": "default", "pod": "replica"}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A replica that is ready."""
    folder = tmp_path_factory.mktemp("replica")
    models(folder)
    running = Stack(folder)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def said(stack: Stack) -> dict[str, Any]:
    """What OpenAI's Python package, which vLLM's environment has, was told."""
    made = subprocess.run([sys.executable, ROOT / "images/vllm/venv"], check=True, stdout=subprocess.PIPE, text=True)
    python = Path(made.stdout.strip()) / "bin/python"
    words = [str(python), str(OPENAI_USER), f"{stack.url('clients')}/v1", "base", "first"]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "API_KEY": KEY})
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_openai_package_lists_the_model_and_its_adapter(said: dict[str, Any]) -> None:
    openai_checks.check_models(said)


def test_the_openai_package_chats_and_completes(said: dict[str, Any]) -> None:
    openai_checks.check_answers(said)
    assert "iron" in said["chat"]


def test_the_openai_package_is_streamed_the_same_in_pieces(said: dict[str, Any]) -> None:
    openai_checks.check_streams(said)


@pytest.mark.parametrize(("what", "error", "status", "words"), openai_checks.REFUSALS)
def test_the_openai_package_understands_a_refusal(
    said: dict[str, Any], what: str, error: str, status: int, words: str
) -> None:
    openai_checks.check_refusal(said, what, error, status, words)


@pytest.fixture(scope="module")
def dashboard(stack: Stack) -> dict[str, Any]:
    """The Grafana dashboard."""
    (text,) = stack.object("ConfigMap", "vllm-serving-dashboard")["data"].values()
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture(scope="module")
def watching(stack: Stack, said: dict[str, Any]) -> Prometheus:
    """Prometheus, after the replica was asked more than it takes and was given adapters, one of them without effect."""
    folder = stack.folder / "prometheus"
    folder.mkdir()
    (folder / "rules.json").write_text(json.dumps(stack.object("PrometheusRule")["spec"]))
    targets = {"metrics": stack.url("probes"), "adapters": stack.url("adapters")}
    addresses = {name: url.removeprefix("http://") for name, url in targets.items()}
    config = {
        # vLLM may take more than a second to answer, on a machine that is busy.
        "global": {"scrape_interval": "5s", "evaluation_interval": "1s"},
        "rule_files": ["rules.json"],
        "scrape_configs": scrape_configs(stack.object("PodMonitor"), addresses, POD),
    }
    # JSON is YAML.
    (folder / "prometheus.yml").write_text(json.dumps(config))
    built = subprocess.run([ROOT / "tools/build", "prometheus"], check=True, stdout=subprocess.PIPE, text=True)
    command = [
        f"{built.stdout.strip()}/prometheus", f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{stack.ports['prometheus']}",
    ]  # fmt: skip
    stack.run("prometheus", command, {})
    address = stack.url("prometheus")
    stack.until("Prometheus to be ready", lambda: stack.get(f"{address}/-/ready")[0] == 200, 300)
    for name in ("policy", "no-effect"):
        waiting = stack.folder / "waiting" / name
        (waiting / "1").touch()  # published now
        waiting.rename(stack.folder / "published/adapters" / name)
    found = Prometheus(lambda path: stack.get(address + path))
    stack.until("three adapters", lambda: len(found.query("stoker_adapter_loaded")) == 3, 300)

    def turned_away() -> bool:
        stack.ask(8, tokens=200)
        return bool(found.query('rate(caddy_http_request_duration_seconds_count{code="503"}[1m]) > 0'))

    stack.until("requests turned away", turned_away, 300)
    return found


def test_every_endpoint_of_the_podmonitor_is_there(watching: Prometheus, stack: Stack) -> None:
    wanted = {
        f"{stack.url('probes')}/metrics", f"{stack.url('probes')}/proxy/metrics", f"{stack.url('adapters')}/metrics",
    }  # fmt: skip
    targets = watching.data("targets")["activeTargets"]
    assert {target["scrapeUrl"]: target["health"] for target in targets} == dict.fromkeys(wanted, "up")


def test_every_panel_of_the_dashboard_shows_something(watching: Prometheus, dashboard: dict[str, Any]) -> None:
    shown = {
        f"{panel['title']}: {target['expr']}": watching.numbers(filled(target["expr"]))
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    assert len(shown) > 12
    assert [title for title, numbers in shown.items() if not numbers] == []


def test_every_variable_of_the_dashboard_has_a_choice(watching: Prometheus, dashboard: dict[str, Any]) -> None:
    variables = {item["name"]: item for item in dashboard["templating"]["list"]}
    for name, value in {"namespace": "default", "release": "vllm-serving"}.items():
        inside = variables[name]["query"]["query"].removeprefix("label_values(").removesuffix(")")
        selector, _, label = inside.rpartition(", ")
        series = watching.data("series", **{"match[]": filled(selector)})
        assert {item[label] for item in series} == {value}


def test_every_alert_asks_for_series_that_there_are(watching: Prometheus, stack: Stack) -> None:
    (group,) = stack.object("PrometheusRule")["spec"]["groups"]
    asked = {rule["alert"]: watching.selectors(rule["expr"]) for rule in group["rules"]}
    assert all(asked.values())
    missing = [
        f"{alert}: {selector}"
        for alert, selectors in asked.items()
        for selector in selectors
        if not watching.query(selector)
    ]
    assert missing == []


def test_every_alert_is_evaluated_and_what_is_wrong_here_waits_to_fire(watching: Prometheus, stack: Stack) -> None:
    (group,) = stack.object("PrometheusRule")["spec"]["groups"]
    assert watching.rules().keys() == {rule["alert"] for rule in group["rules"]}
    stack.until("every rule", lambda: all(rule["health"] == "ok" for rule in watching.rules().values()), 120)

    def waiting() -> dict[str, Any]:
        return {name: rule for name, rule in watching.rules().items() if rule["state"] != "inactive"}

    # What a query sees already, a rule sees when it is evaluated next.
    stack.until("what fails here to wait", lambda: waiting().keys() == {"AdapterNotServed", "RequestsFail"}, 120)
    (alert,) = waiting()["AdapterNotServed"]["alerts"]
    assert alert["labels"]["name"] == "no-effect:1"


def test_probes_are_answered_while_clients_are_turned_away(watching: Prometheus) -> None:
    answers = watching.query("sum by (server, code) (caddy_http_request_duration_seconds_count)")
    codes = {(item["metric"]["server"], item["metric"]["code"]) for item in answers}
    assert {("clients", "503"), ("probes", "200")} <= codes
    assert ("probes", "503") not in codes


def filled(expression: str) -> str:
    """Return an expression of the dashboard with its variables filled in."""
    return expression.replace("$release", "vllm-serving").replace("$namespace", "default")
