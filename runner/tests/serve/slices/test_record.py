"""What a Lease says is read as it was written, and times of other machines are not."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.contract.exits import ExitCode, RunError
from stoker.serve.slices.record import ANNOTATION, Record, Ticket, lease_of, record_of
from stoker.serve.slices.turns import Rules

LEASE: dict[str, Any] = {
    "metadata": {"name": "gpu-0", "resourceVersion": "7", "annotations": {"mine": "1"}},
    "spec": {},
}
RECORD = Record("a_1", 3, 5, 10.5, 9, (Ticket("b_1", 8, 2), Ticket("c_1", 9)))


def test_what_is_written_is_read() -> None:
    lease = lease_of(RECORD, LEASE)
    assert record_of(lease) == RECORD
    assert lease["metadata"]["resourceVersion"] == "7"
    assert lease["metadata"]["annotations"]["mine"] == "1"
    assert lease["spec"]["leaseDurationSeconds"] == 11  # whole seconds, for people


def test_a_new_lease_is_free() -> None:
    assert record_of(LEASE) == Record()
    assert record_of({"metadata": {"name": "gpu-0"}}) == Record()


def test_times_are_for_people_alone() -> None:
    lease = lease_of(RECORD, LEASE)
    later = {**lease, "spec": {**lease["spec"], "renewTime": "2099-01-01T00:00:00.000000Z", "acquireTime": None}}
    assert record_of(later) == RECORD


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({}, "held by other, which is not `stoker slice`"),
        ({ANNOTATION: "{"}, "is not ours"),
        ({ANNOTATION: "[]"}, "is not ours"),
        ({ANNOTATION: '{"queue": [["a", "x", 1]]}'}, "is not ours"),
        ({ANNOTATION: '{"queue": [1]}'}, "is not ours"),
    ],
)
def test_a_lease_of_somebody_else_is_refused(annotations: dict[str, str], says: str) -> None:
    with pytest.raises(RunError, match=says) as error:
        record_of({"metadata": {"name": "gpu-0", "annotations": annotations}, "spec": {"holderIdentity": "other"}})
    assert error.value.code is ExitCode.CONFIG


def test_rules_leave_time_to_stop() -> None:
    assert Rules.within(10, 30) == Rules()
    for wrong in ({"stop": 9.9}, {"suspend": 8.0}, {"renew": 3.0}, {"quantum": 0.0}, {"duration": 8.0}):
        with pytest.raises(RunError, match="leaves no time to stop the engine"):
            Rules(**wrong)
