"""Fixtures of the cluster's own tests."""

from cluster.testing import live

__all__ = ["live"]
