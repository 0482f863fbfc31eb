"""What the scheduler's messages mean for a run. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stoker.runs.read import Seen
from stoker.runs.run import Object, part, rows


def causes_in(text: str, spec: Object, seen: Seen) -> Iterator[tuple[str, str]]:
    """Yield the causes that a message of the scheduler has, each with what to do.

    Args:
        text: such as `0/3 nodes are available: 2 Insufficient cpu, …`.
        spec: of the pod.
        seen: the run that the pod is of.
    """
    wanted = {str(name): str(value) for name, value in part(spec, "nodeSelector").items()}
    if match := re.search(r'persistentvolumeclaim "([^"]+)" (not found|is being deleted|bound to non-existent)', text):
        yield (
            f"the claim {match[1]} {'does not exist' if match[2] == 'not found' else match[2]}",
            f"create the claim {match[1]} in namespace {seen.run.namespace}, or name another one in the TrainJob",
        )
    if "affinity/selector" in text or "didn't satisfy" in text:
        labels = ", ".join(f"{name}={value}" for name, value in sorted(wanted.items()))
        told = f"the labels that it asks for ({labels})" if wanted else "what its node affinity asks for"
        yield (
            f"{_share(text, 'affinity/selector')} do not have {told}",
            (
                f"kubectl get nodes --selector {labels.replace(' ', '')}{seen.cluster} lists the nodes that have them; "
                if wanted
                else ""
            )
            + "label a node, or change nodeSelector in the catalogue's values or in the TrainJob's runtimePatches",
        )
    for name in dict.fromkeys(re.findall(r"(?:Insufficient|Too many) ([\w./-]+\w)", text)):
        asked = _asked(spec, name)
        what = f"{name} ({asked} for each pod)" if asked else name
        device = "/" in name
        yield (
            f"{_share(text, name)} have too little free {what}",
            f"wait for other runs to end (`stoker runs --all-namespaces{seen.cluster}`), or ask for less in "
            "spec.trainer.resourcesPerNode"
            + (
                f"; kubectl describe nodes{seen.cluster} | grep {name} shows whether any node offers it at all"
                if device
                else ""
            ),
        )
    if taints := dict.fromkeys(re.findall(r"untolerated taint(?:\(s\))? ?(?:\{([^}]*)\})?", text)):
        named = ", ".join(taint.rstrip(": ") for taint in taints if taint)
        yield (
            f"{_share(text, 'taint')} keep it away by a taint" + (f" ({named})" if named else ""),
            (
                "add a toleration (value tolerations of the catalogue, or runtimePatches of the TrainJob); a node that "
                f"is not ready or cordoned has such a taint too: kubectl get nodes{seen.cluster}"
            ),
        )
    if "unbound immediate" in text:
        yield ("it waits for a claim that has no volume", f"see the claim: kubectl get pvc{seen.there}")
    if "volume node affinity conflict" in text or "node(s) had no available volume zone" in text:
        yield (
            "its volume is in a place that no fitting node can reach",
            (
                "the claim is of one zone or node: let the run's pods go there (nodeSelector), or use storage that all "
                "nodes reach (ReadWriteMany)"
            ),
        )
    if "were unschedulable" in text:
        yield (f"{_share(text, 'were unschedulable')} are cordoned", f"kubectl uncordon NODE{seen.cluster}")
    if match := re.search(r"device class (\S+) does not exist", text):
        yield (
            f"it claims a device of class {match[1]}, which does not exist",
            (
                f"name a class that kubectl get deviceclasses{seen.cluster} lists, or have the DRA driver installed "
                "that brings it"
            ),
        )
    if "cannot allocate all claims" in text or "resourceclaim" in text.lower():
        yield (
            f"its devices cannot be allocated: {text}",
            (
                f"kubectl get resourceclaims,deviceclasses,resourceslices{seen.there} shows what is asked for and what "
                "there is; if there is no resourceslice, no DRA driver runs"
            ),
        )


def _share(text: str, mark: str) -> str:
    """Return how many of the nodes a part of the scheduler's message is about, such as `2 of 3 nodes`."""
    total = re.search(r"\d+/(\d+) nodes are available", text)
    share = re.search(rf"(\d+) [^,]*{re.escape(mark)}", text.partition(": ")[2])
    return f"{share[1]} of {total[1]} nodes" if total and share else "the nodes"


def _asked(spec: Object, resource: str) -> str:
    """Return how much of a resource the containers of a pod ask for; empty if nothing tells."""
    asked = [
        str(amount)
        for one in rows(spec, "containers")
        for place in ("requests", "limits")
        if (amount := part(part(one, "resources"), place).get(resource)) is not None
    ]
    return asked[0] if asked else ""
