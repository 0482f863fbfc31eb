"""What a new user does in an afternoon: each step is a command of the documents, read from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lint.snippets import adapted, block, commands

QUICKSTART = ("README.md", "Quickstart on your cluster")
EXAMPLE = "examples/sft-lora/README.md"
SERVING = "docs/guides/serving.md"
NAME, NAMESPACE = "sft-lora", "sft-lora"
CATALOGUE, SERVER = "training-runtimes", "vllm-serving"
# The quickstart's run needs a hub; the example's brings model and data.
OURS = {"first-run": NAME}
# These load a model, with the libraries of the extra `local`.
LOCAL = ("chat", "evaluate", "export")


@dataclass(frozen=True)
class Step:
    """What a user types.

    Attributes:
        name: what it is for; several steps may be for one thing.
        script: the commands.
        local: True if it needs the libraries of the extra `local`.
    """

    name: str
    script: str
    local: bool = False


@dataclass(frozen=True)
class Given:
    """What differs here from what the documents say: nothing is published, and the machine is small.

    Attributes:
        charts: what follows `helm install NAME` or `helm upgrade NAME` for each chart, by its name.
    """

    charts: Mapping[str, str] = field(default_factory=dict)

    def chart(self, name: str) -> dict[str, str]:
        """Return what replaces the address of a chart."""
        address = f"oci://ghcr.io/stoker-dev/charts/{name}"
        return {address: self.charts.get(name, address)}


def first_values() -> str:
    """Return the values that the release is installed with."""
    return block(SERVING, "Train, then serve", "adapters:")


def swapped_values() -> str:
    """Return the values that let adapters come while it runs; one replica is enough here."""
    return adapted(block(SERVING, "Add an adapter while the server runs", "published:"), {"replicas: 2": "replicas: 1"})


def claim_for_adapters() -> str:
    """Return the claim that these values name."""
    return block(SERVING, "Add an adapter while the server runs", "kind: PersistentVolumeClaim")


def stoker_itself() -> Step:
    """Return the step that installs the command."""
    return Step("stoker", block(*QUICKSTART, "pip install"))


def published(folder: str) -> Step:
    """Return the step that publishes what a folder holds, for a pod that has the claim `adapters`."""
    command = block(SERVING, "Add an adapter while the server runs", "stoker adapters publish")
    return Step("swap", adapted(command, {"/workspace/output": folder}))


def before_serving(given: Given) -> list[Step]:
    """Return the steps from nothing to an exported model."""
    example = (EXAMPLE, "On your cluster")
    result = commands(block(EXAMPLE, "Take the result", "stoker get"))
    return [
        Step("install", adapted(block(*QUICKSTART, "helm install training-runtimes"), given.chart(CATALOGUE))),
        Step("inputs", block(*example, "kubectl apply -f examples/sft-lora/k8s/namespace.yaml")),
        Step("inputs", block(*example, "image=$(")),
        Step(
            "run",
            adapted(block(*QUICKSTART, "stoker submit"), {"first-run.yaml": "examples/sft-lora/trainjob.yaml"}),
        ),
        *(Step("watch", line) for line in commands(adapted(block(*QUICKSTART, "stoker logs"), OURS))),
        *(Step(word := line.split()[1], line, local=word in LOCAL) for line in result),
    ]


def served(given: Given) -> list[Step]:
    """Return the steps that serve the result; values.yaml holds `first_values`."""
    return [
        Step("serve", adapted(block(SERVING, "Train, then serve", "helm install"), given.chart(SERVER))),
        Step("ask", _question()),
    ]


def opened(given: Given) -> Step:
    """Return the step that lets adapters come; values.yaml holds `swapped_values`, adapters.yaml their claim."""
    upgrade = block(SERVING, "Add an adapter while the server runs", "helm upgrade")
    return Step("swap", adapted(upgrade, given.chart(SERVER)))


def asked_again(name: str) -> Step:
    """Return the step that asks an adapter which was published a moment ago."""
    return Step("ask", adapted(_question(), {'"model": "tuned"': f'"model": "{name}"'}))


def _question() -> str:
    # What a user does by hand in the end. No proxy stands between a machine and itself.
    by_hand = "export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1\ntrap 'kill %1' EXIT\n"
    return by_hand + block(SERVING, "Train, then serve", "kubectl port-forward")


def removed() -> list[Step]:
    """Return the steps after which nothing is left; the catalogue goes last, from the namespace that it came to."""
    run, catalogue = commands(adapted(block(*QUICKSTART, "kubectl delete"), OURS))
    return [
        Step("uninstall", block(SERVING, "Train, then serve", "helm uninstall")),
        Step("uninstall", run),
        Step("uninstall", block(EXAMPLE, "Remove it", "kubectl delete namespace")),
        Step("uninstall", catalogue),
    ]
