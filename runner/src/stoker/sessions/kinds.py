"""The kinds of objects that a session may leave behind."""

from __future__ import annotations

from stoker.runs.kinds import CLAIMS, DEVICE_CLAIMS, JOBS, JOBSETS, PODS, SECRETS, SERVICES, TRAINJOBS, Kind

POLICIES = Kind("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
LEASES = Kind("coordination.k8s.io/v1", "leases", "Lease")
# What a session makes beside its TrainJob: gone with it, and deleted by name where it has no owner.
OWN = (SECRETS, POLICIES, SERVICES)
# All that may carry a session's label, or have it for an owner.
ALL = (TRAINJOBS, JOBSETS, JOBS, PODS, *OWN, LEASES, DEVICE_CLAIMS, CLAIMS)
