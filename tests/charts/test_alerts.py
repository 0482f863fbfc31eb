"""The serving chart's alerts fire when they should and only then, by Prometheus' own tester of rules."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from charts.alerts import alerts_of, check_alerts
from charts.helm import VLLM_SERVING, render

pytestmark = pytest.mark.full  # Prometheus takes minutes to build

# Of a release in the namespace `default`, which has the chart's name; two replicas.
HERE = 'release="vllm-serving",namespace="default"'
WELL = {
    'stoker_serving_up{%s,pod="a"}': "1x60",
    'stoker_serving_up{%s,pod="b"}': "1x60",
    'stoker_adapter_loaded{%s,pod="a",name="support"}': "1x60",
    'stoker_adapter_loaded{%s,pod="b",name="support"}': "1x60",
    'vllm:num_requests_waiting{%s,pod="a"}': "5x60",
    'vllm:num_requests_waiting{%s,pod="b"}': "0x60",
    'vllm:kv_cache_usage_perc{%s,pod="a"}': "0.9x60",
    'caddy_http_request_duration_seconds_count{%s,pod="a",server="clients",code="200"}': "0+1000x60",
    'caddy_http_request_duration_seconds_count{%s,pod="a",server="clients",code="503"}': "0+5x60",
    # What a replica's probes are told while it starts.
    'caddy_http_request_duration_seconds_count{%s,pod="b",server="probes",code="502"}': "0+900x60",
}
"""Series as a healthy release has them, one value a minute; some are just below what an alert is for."""

CASES: list[tuple[str, dict[str, str], int, list[str]]] = [
    ("a healthy release", {}, 59, []),
    ("no replica", dict.fromkeys(WELL, "_x60"), 11, ["NoReplica"]),
    ("no replica yet", dict.fromkeys(WELL, "_x60"), 9, []),
    ("a replica that still starts", {'stoker_serving_up{%s,pod="b"}': "0x60"}, 29, []),
    ("a replica that does not come", {'stoker_serving_up{%s,pod="b"}': "0x60"}, 31, ["ModelDoesNotAnswer"]),
    ("an adapter refused", {'stoker_adapter_problem{%s,pod="a",name="x"}': "1x60"}, 3, ["AdapterNotServed"]),
    ("an adapter on its way", {'stoker_adapter_loaded{%s,pod="b",name="support"}': "_x3 1x57"}, 4, []),
    ("an adapter on one of two", {'stoker_adapter_loaded{%s,pod="b",name="support"}': "_x60"}, 6, ["AdaptersDiffer"]),
    ("as many waiting as two take", {'vllm:num_requests_waiting{%s,pod="a"}': "10x60"}, 59, []),
    ("more waiting than two take", {'vllm:num_requests_waiting{%s,pod="a"}': "11x60"}, 6, ["RequestsWait"]),
    (
        "two in a hundred answered with 503",
        {'caddy_http_request_duration_seconds_count{%s,pod="a",server="clients",code="503"}': "0+20x60"},
        12,
        ["RequestsFail"],
    ),
    ("a full cache", {'vllm:kv_cache_usage_perc{%s,pod="a"}': "0.99x60"}, 16, ["CacheFull"]),
]


@cache
def rules() -> dict[str, Any]:
    """Return `spec` of the chart's PrometheusRule."""
    rendered = render(
        VLLM_SERVING, [VLLM_SERVING / "ci/default-values.yaml"], ["monitoring.rules=true", "monitoring.podMonitor=true"]
    )
    (spec,) = (item["spec"] for item in rendered if item["kind"] == "PrometheusRule")
    found: dict[str, Any] = spec
    return found


@pytest.mark.parametrize(("series", "minutes", "firing"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_an_alert_fires_for_what_it_is_for_and_for_nothing_else(
    tmp_path: Path, series: dict[str, str], minutes: int, firing: list[str]
) -> None:
    given = {name.replace("%s", HERE): value for name, value in {**WELL, **series}.items()}
    check_alerts(rules(), given, minutes, firing, tmp_path)


def test_every_alert_has_a_case() -> None:
    assert alerts_of(rules()) == {name for case in CASES for name in case[3]}
