"""The kinds of Kubernetes objects that a run consists of, and where the API server has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects.

    Attributes:
        version: API group and version, such as `v1` or `batch/v1`.
        plural: its name in addresses, such as `pods`.
        kind: its name in objects, such as `Pod`.
        brings: what to install if the API server does not know it; empty for what every cluster has.
        namespaced: False if its objects are the whole cluster's.
    """

    version: str
    plural: str
    kind: str
    brings: str = ""
    namespaced: bool = True

    @property
    def resource(self) -> str:
        """The name that roles and kubectl use, such as `trainjobs.trainer.kubeflow.org`."""
        group = self.version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural

    def path(self, namespace: str | None, name: str = "") -> str:
        """Return the address of one object, or of all in a namespace; without one, of all in the cluster."""
        root = f"/apis/{self.version}" if "/" in self.version else f"/api/{self.version}"
        within = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        return f"{root}{within}/{self.plural}" + (f"/{name}" if name else "")


TRAINJOBS = Kind("trainer.kubeflow.org/v1alpha1", "trainjobs", "TrainJob", "Kubeflow Trainer")
RUNTIMES = Kind("trainer.kubeflow.org/v1alpha1", "trainingruntimes", "TrainingRuntime", "Kubeflow Trainer")
CLUSTER_RUNTIMES = Kind(
    "trainer.kubeflow.org/v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime", "Kubeflow Trainer", False
)
JOBSETS = Kind("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet", "JobSet")
LOCAL_QUEUES = Kind("kueue.x-k8s.io/v1beta2", "localqueues", "LocalQueue", "Kueue")
WORKLOADS = Kind("kueue.x-k8s.io/v1beta2", "workloads", "Workload", "Kueue")
JOBS = Kind("batch/v1", "jobs", "Job")
DEPLOYMENTS = Kind("apps/v1", "deployments", "Deployment")
PODS = Kind("v1", "pods", "Pod")
NODES = Kind("v1", "nodes", "Node", namespaced=False)
EVENTS = Kind("v1", "events", "Event")
CLAIMS = Kind("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
DEVICE_CLAIMS = Kind(
    "resource.k8s.io/v1",
    "resourceclaims",
    "ResourceClaim",
    "Dynamic Resource Allocation (Kubernetes 1.34 or newer, and a driver)",
)
SERVICES = Kind("v1", "services", "Service")
SECRETS = Kind("v1", "secrets", "Secret")
CONFIG_MAPS = Kind("v1", "configmaps", "ConfigMap")
QUOTAS = Kind("v1", "resourcequotas", "ResourceQuota")
