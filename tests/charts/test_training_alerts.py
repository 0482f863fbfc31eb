"""The catalogue's alerts fire when they should and only then, by Prometheus' own tester of rules."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from charts.alerts import alerts_of, check_alerts
from charts.helm import TRAINING_RUNTIMES, render

pytestmark = pytest.mark.full  # Prometheus takes minutes to build


def of(name: str, *labels: str) -> str:
    """Return a series with its labels."""
    return f"{name}{{{','.join(labels)}}}"


# Of a run with two pods on a runtime of the release, which is gone by now.
CATALOGUE = hashlib.sha256(b"default/training-runtimes").hexdigest()[:16]
RUN = f'namespace="team-a",run="tune",runtime="trl-distributed-0.0",catalogue="{CATALOGUE}"'
A, B = f'{RUN},pod="a",node_rank="0"', f'{RUN},pod="b",node_rank="1"'
BEAT, PHASE, RESTARTS = "stoker_node_last_beat_timestamp_seconds", "stoker_node_phase", "stoker_run_restarts"
LOSS = of("stoker_run_metric", A, 'metric="loss"')
SPEED = of("stoker_run_metric", A, 'metric="tokens_per_second"')
NONE = " ".join(["NaN"] * 500)
WELL = {
    of(BEAT, A): "0+60x600",
    of(BEAT, B): "0+60x600",
    of(PHASE, A, 'phase="training"'): "1x600",
    of(PHASE, B, 'phase="training"'): "1x600",
    of(PHASE, A, 'phase="saving"'): "0x600",
    of(RESTARTS, A): "2x600",
    LOSS: "9-0.001x600",
    SPEED: "900x600",
    # Another release, which has a runtime of the same name.
    'stoker_run_metric{namespace="team-b",run="other",runtime="trl-distributed",catalogue="x",pod="c",metric="loss"}': (
        NONE
    ),
}
"""Series of a healthy run, one value a minute."""

CASES: list[tuple[str, dict[str, str], int, list[str]]] = [
    ("a healthy run", {}, 590, []),
    ("a rank that is silent", {of(BEAT, B): "0+60x30 1800x600"}, 42, ["RunStandsStill"]),
    ("a rank that was silent for a short time", {of(BEAT, B): "0+60x30 1800x600"}, 39, []),
    (
        "a rank that saves, which may take long",
        {of(BEAT, A): "0x600", of(PHASE, A, 'phase="training"'): "0x600"},
        90,
        [],
    ),
    ("three restarts in an hour", {of(RESTARTS, A): "2x100 3x5 4x5 5x500"}, 115, ["RunRestartsOften"]),
    ("two restarts in an hour", {of(RESTARTS, A): "2x100 3x5 4x500"}, 115, []),
    ("three restarts in a day", {of(RESTARTS, A): "2x100 3x100 4x100 5x300"}, 310, []),
    ("a loss that is none", {LOSS: f"9x100 {NONE}"}, 105, ["RunDiverges"]),
    ("a loss that was none once", {LOSS: "9x100 NaN 9x500"}, 105, []),
    ("half the speed", {SPEED: "900x300 400x300"}, 320, ["RunSlowsDown"]),
    ("half the speed for a short time", {SPEED: "900x300 400x5 900x300"}, 320, []),
]


@cache
def rules() -> dict[str, Any]:
    """Return `spec` of the chart's PrometheusRule."""
    settings = ['profile="none"', 'accelerator="cpu"', "monitoring.rules=true", "monitoring.podMonitor=true"]
    rendered = render(TRAINING_RUNTIMES, [], [*settings, "runtimes.trl-distributed.enabled=true"])
    (spec,) = (item["spec"] for item in rendered if item["kind"] == "PrometheusRule")
    found: dict[str, Any] = spec
    return found


@pytest.mark.parametrize(("series", "minutes", "firing"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_an_alert_fires_for_what_it_is_for_and_for_nothing_else(
    tmp_path: Path, series: dict[str, str], minutes: int, firing: list[str]
) -> None:
    check_alerts(rules(), {**WELL, **series}, minutes, firing, tmp_path)


def test_every_alert_has_a_case() -> None:
    assert alerts_of(rules()) == {name for case in CASES for name in case[3]}
