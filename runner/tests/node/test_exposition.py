"""Prometheus sees a node and its run: newest numbers, whatever a metrics file holds, and never at the run's cost."""

from __future__ import annotations

import json
import re
import socket
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from runner.tests.samples import plan_of

from stoker.contract.exits import RunError
from stoker.node.exposition import Exposition, exposed
from stoker.plan.plan import Plan
from stoker.rank.pulse import SAVING, TRAINING, Beat

MODEL = {"STOKER_ARG_MODEL_NAME_OR_PATH": "org/model", "STOKER_ARG_DATASET_NAME": "org/data"}
SECRET = "hf_" + "a1B2" * 8
# Of https://prometheus.io/docs/instrumenting/exposition_formats
SAMPLE = re.compile(r'[a-zA-Z_:][\w:]*(\{[a-zA-Z_]\w*="([^"\\]|\\[\\"n])*"\})? (NaN|[-+]?[0-9.]+(e[-+]?[0-9]+)?)')


def plan_in(folder: Path, port: int, rank: int = 0) -> Plan:
    env = {"STOKER_METRICS_PORT": str(port), "STOKER_WORKSPACE": str(folder), "PET_NODE_RANK": str(rank)}
    return plan_of(env={**MODEL, **env})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in lines if not SAMPLE.fullmatch(line)] == []
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_node_shows_its_ranks_and_the_first_one_the_run(tmp_path: Path) -> None:
    output = Path(plan_in(tmp_path, 1).output_dir)
    output.mkdir(parents=True)
    lines = [{"step": 1, "loss": 2.5, "eval_loss": 3}, {"step": 2, "loss": 2.0, "grad_norm": None, "rewards": [1, 2]}]
    (output / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "lo')
    exposition = Exposition(plan_in(tmp_path, 1))
    before = samples(exposition.text())
    assert "stoker_node_step" not in before  # nobody trains yet
    assert before["stoker_run_restarts"] == 0
    began = time.time()
    exposition.see({0: Beat(9, 4, TRAINING, 11), 1: Beat(7, 3, SAVING, 12)})
    seen = samples(exposition.text())
    assert seen["stoker_node_step"] == 3
    assert seen['stoker_node_phase{phase="saving"}'] == 1
    assert sum(value for name, value in seen.items() if name.startswith("stoker_node_phase")) == 1
    assert began <= seen["stoker_node_last_beat_timestamp_seconds"] <= time.time()
    shown = {name: value for name, value in seen.items() if name.startswith("stoker_run_metric")}
    assert shown.pop('stoker_run_metric{metric="grad_norm"}') != 0  # NaN
    assert shown == {
        'stoker_run_metric{metric="step"}': 2,
        'stoker_run_metric{metric="loss"}': 2,
        'stoker_run_metric{metric="eval_loss"}': 3,
    }
    # What does not change is no sign of life.
    exposition.see({0: Beat(9, 4, TRAINING, 11), 1: Beat(7, 3, SAVING, 12)})
    assert samples(exposition.text()) == pytest.approx(seen, nan_ok=True)
    assert not any("metric" in name for name in samples(Exposition(plan_in(tmp_path, 1, rank=1)).text()))


@pytest.mark.parametrize(
    "text",
    ["", "\n", "null\n", "[]\n", "[" * 100_000, '{"loss": 1e999}\n', '{"loss": NaN}\n', '{"loss": true}\n', "\xff\n",
     '{"loss": 1' + "0" * 400 + "}\n"],
)  # fmt: skip
def test_what_is_no_number_is_not_shown(tmp_path: Path, text: str) -> None:
    path = Path(plan_in(tmp_path, 1).output_dir) / "metrics.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="latin-1")
    assert not any("metric" in name for name in samples(Exposition(plan_in(tmp_path, 1)).text()))


def test_names_stay_names_and_are_bounded(tmp_path: Path) -> None:
    path = Path(plan_in(tmp_path, 1).output_dir) / "metrics.jsonl"
    path.parent.mkdir(parents=True)
    odd = {'a"} 5\n# HELP x': 1, "back\\slash": 2, "\ud800": 3, SECRET: 4, **{f"n{number}": 5 for number in range(500)}}
    path.write_text(json.dumps(odd) + "\n")
    text = Exposition(plan_in(tmp_path, 1)).text()
    assert SECRET not in text
    assert len([name for name in samples(text) if name.startswith("stoker_run_metric")]) == 200
    # A long run's old numbers stay known, and only its newest lines are read.
    exposition = Exposition(plan_in(tmp_path, 1))
    path.write_text('{"eval_loss": 7}\n')
    exposition.text()
    path.write_text("".join(f'{{"step": {step}, "loss": 1}}\n' for step in range(100_000)))
    assert samples(exposition.text())['stoker_run_metric{metric="step"}'] == 99_999
    assert samples(exposition.text())['stoker_run_metric{metric="eval_loss"}'] == 7


def test_prometheus_is_answered_while_the_run_lasts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with exposed(plan_in(tmp_path, port), {}) as exposition:
        exposition.see({0: Beat(1, 5, TRAINING, 1)})
        with urllib.request.urlopen(f"{address}/metrics", timeout=120) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert samples(answer.read().decode())["stoker_node_step"] == 5
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/", timeout=120)
        # Another node of this machine, or another program, has the port: the run goes on.
        with exposed(plan_in(tmp_path, port, rank=1), {}):
            pass
        assert f"metrics are not shown: port {port} cannot be used" in capfd.readouterr().err
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{address}/metrics", timeout=120)


def test_the_port_is_a_number(tmp_path: Path) -> None:
    assert plan_of(env=MODEL).metrics_port == 0
    assert "metrics_port" not in plan_of(env=MODEL).to_json()
    assert plan_in(tmp_path, 9400).to_json()["metrics_port"] == 9400
    for wrong in ("http", "-1", "65536"):
        with pytest.raises(RunError, match=r"STOKER_METRICS_PORT is .*write the number of a port"):
            plan_of(env={**MODEL, "STOKER_METRICS_PORT": wrong})
