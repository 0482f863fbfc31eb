"""Alerts, tried by Prometheus' own tester of rules."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from charts.helm import ROOT


@cache
def promtool() -> Path:
    """Return the program, built first where that was not done yet."""
    built = subprocess.run([ROOT / "tools/build", "prometheus"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(built.stdout.strip()) / "promtool"


def check_alerts(
    rules: Mapping[str, Any], series: Mapping[str, str], minutes: int, firing: Iterable[str], folder: Path
) -> None:
    """Fail unless just these alerts fire.

    Args:
        rules: `spec` of a PrometheusRule.
        series: name with labels → values, one a minute.
        minutes: when to look.
        firing: the alerts that fire then.
        folder: for the tester's files.
    """
    (folder / "rules.json").write_text(json.dumps(rules))
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing],
            }
        ],
    }
    # JSON is YAML.
    file = folder / "test.json"
    file.write_text(json.dumps({"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([promtool(), "test", "rules", file], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def alerts_of(rules: Mapping[str, Any]) -> set[str]:
    """Return the names of the alerts of a PrometheusRule's `spec`."""
    return {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
