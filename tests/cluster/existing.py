"""The existing provider: whatever cluster KUBECONFIG points at. It is looked at, never changed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .artifacts import JOBSET, TRAINER
from .commands import capture
from .controllers import NEEDED_APIS
from .errors import ClusterError
from .provider import Health, Provider, client_environment

_INSTALL = f"""\
install JobSet and Kubeflow Trainer first:
  helm install jobset oci://registry.k8s.io/jobset/charts/jobset --version {JOBSET.version[1:]} \\
    --namespace jobset-system --create-namespace
  helm install kubeflow-trainer oci://ghcr.io/kubeflow/charts/kubeflow-trainer --version {TRAINER.version[1:]} \\
    --namespace kubeflow-system --create-namespace \\
    --set jobset.install=false --set manager.config.featureGates.TrainJobStatus=true"""


class ExistingProvider(Provider):
    """A cluster of the user's own; the registry is named by ``CLUSTER_REGISTRY``."""

    name = "existing"
    takes_add_ons = False

    def up(self) -> None:
        """Check that the cluster answers and has JobSet and Trainer."""
        api_server, *apis = self.status()
        if not api_server.healthy:
            raise ClusterError(
                f"no cluster answers: {api_server.detail}\n"
                "point KUBECONFIG at a cluster, or use --provider embedded or kind"
            )
        if missing := [api.component for api in apis if not api.healthy]:
            raise ClusterError(f"the cluster in your KUBECONFIG has no {', '.join(missing)}\n{_INSTALL}")

    def down(self) -> None:
        """Do nothing: `up` made nothing."""

    def status(self) -> list[Health]:
        """Return whether the API server and each needed kind of object answer."""
        found = [self._answers("API server", ["get", "--raw", "/readyz"])]
        if found[0].healthy:
            found += [self._answers(api, ["get", api, "--all-namespaces", "--chunk-size=1"]) for api in NEEDED_APIS]
        return found

    def environment(self) -> dict[str, str]:
        """Return the user's own settings."""
        return client_environment(
            kubeconfig=os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config"),
            registry=os.environ.get("CLUSTER_REGISTRY", ""),
            plain_http=os.environ.get("CLUSTER_REGISTRY_PLAIN_HTTP") == "true",
            path=os.environ.get("PATH", os.defpath),
        )

    def wrap(self, argv: Sequence[str]) -> list[str]:
        """Return the command as it is."""
        return list(argv)

    def _answers(self, component: str, arguments: list[str]) -> Health:
        try:
            capture(["kubectl", "--request-timeout=10s", *arguments], {**os.environ, **self.environment()})
        except ClusterError as error:
            return Health(component, healthy=False, detail=str(error))
        return Health(component, healthy=True, detail="answers")
