"""Prometheus, asked over its API for the series behind alerts and panels."""

from __future__ import annotations

import json
import math
import re
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

Series = dict[str, Any]
"""Labels in `metric`, time and text in `value`."""


class Prometheus:
    """A running Prometheus.

    Args:
        get: asks for a path of the API, such as `/api/v1/query?query=up`, and returns the answer's status and body.
    """

    def __init__(self, get: Callable[[str], tuple[int, Any]]) -> None:
        self._get = get

    def data(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of the API.

        Raises:
            AssertionError: it refused; carries what it said.
        """
        status, body = self._get(f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        assert status == 200, body
        return body["data"]

    def query(self, expression: str) -> list[Series]:
        """Return the series that an expression is now."""
        found: list[Series] = self.data("query", query=expression)["result"]
        return found

    def numbers(self, expression: str) -> list[float]:
        """Return the values of an expression that are numbers."""
        values = [float(series["value"][1]) for series in self.query(expression)]
        return [value for value in values if not math.isnan(value)]

    def selectors(self, expression: str) -> list[str]:
        """Return what an expression asks for, each as a selector of series."""
        found: list[str] = []

        def walk(node: Any) -> None:
            if isinstance(node, list):
                for item in node:
                    walk(item)
            elif isinstance(node, dict):
                if node.get("type") in ("vectorSelector", "matrixSelector"):
                    matchers = [f"{item['name']}{item['type']}{json.dumps(item['value'])}" for item in node["matchers"]]
                    found.append("{" + ",".join(matchers) + "}")
                else:
                    walk(list(node.values()))

        walk(self.data("parse_query", query=expression))
        return found

    def rules(self) -> dict[str, Any]:
        """Return the alerting rules by name, with their health and state."""
        return {rule["name"]: rule for group in self.data("rules")["groups"] for rule in group["rules"]}


def scrape_configs(monitor: Mapping[str, Any], targets: Mapping[str, str], pod: Mapping[str, str]) -> list[Any]:
    """Return what the Prometheus Operator makes of a PodMonitor, for a pod that is found already.

    Args:
        monitor: the PodMonitor.
        targets: address of each of the pod's ports by name.
        pod: labels that discovery gives the pod's targets.
    """
    return [
        {
            "job_name": f"{monitor['metadata']['name']}-{number}",
            "metrics_path": endpoint["path"],
            "static_configs": [{"targets": [targets[endpoint["port"]]], "labels": dict(pod)}],
            "relabel_configs": [
                {re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", key): value for key, value in rule.items()}
                for rule in endpoint.get("relabelings", ())
            ],
        }
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"])
    ]
