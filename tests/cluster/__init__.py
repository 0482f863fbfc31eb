"""A Kubernetes cluster for tests, with JobSet, Kubeflow Trainer and an OCI registry.

``python3 -m cluster up`` starts one; `connect` reaches it. See README.md.
"""

from .connection import Cluster, connect
from .errors import CannotRunHereError, ClusterError

__all__ = ["CannotRunHereError", "Cluster", "ClusterError", "connect"]
