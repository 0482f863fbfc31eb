"""Looks at the cluster for those who look at the page: at most one every few seconds, however many they are."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from stoker.board.releases import Release, release_of
from stoker.board.sources import ResultFolder, RunFolder, find
from stoker.contract.metrics import METRICS
from stoker.runs.client import Client
from stoker.runs.errors import ClusterError, UnreachableError
from stoker.runs.explain import Finding, explain
from stoker.runs.kinds import DEPLOYMENTS, PODS, TRAINJOBS, Kind
from stoker.runs.read import Seen
from stoker.runs.run import JOBSET_NAME, Object, Run, part, runs_of

# A look is used for so long.
_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Look:
    """What there was at a time.

    Attributes:
        time: when.
        runs: the runs, the newest first.
        releases: the serving releases.
        left: what runs have left in the sources.
        problems: what could not be read, a sentence each.
        objects: (namespace, name) of a run → its TrainJob and its pods.
    """

    time: datetime
    runs: tuple[Run, ...] = ()
    releases: tuple[Release, ...] = ()
    left: tuple[RunFolder, ...] = ()
    problems: tuple[str, ...] = ()
    objects: Mapping[tuple[str, str], tuple[Object, tuple[Object, ...]]] = field(default_factory=dict)

    def run(self, namespace: str, name: str) -> Run | None:
        """Return a run."""
        return next((run for run in self.runs if (run.namespace, run.name) == (namespace, name)), None)

    def left_of(self, run: Run) -> RunFolder | None:
        """Return what a run has left: of several of its name, the newest."""
        names = (run.namespace, run.name)
        return next((left for left in self.left if (left.source.namespace, left.run) == names), None)

    def causes(self, run: Run) -> list[Finding]:
        """Return what hinders a run, as far as its TrainJob and its pods tell."""
        trainjob, pods = self.objects[run.namespace, run.name]
        seen = Seen(
            dict(trainjob),
            None,
            (),
            tuple(dict(pod) for pod in pods),
            sees_jobsets=False,  # rules about what this page may not see would only guess
            options=f" --namespace {run.namespace}",  # whoever reads this may have another one in the kubeconfig
        )
        return explain(seen, self.time)


class Looks:
    """Looks, shared by all who ask.

    Args:
        client: the cluster; None for sources alone.
        namespaces: whose runs and releases are shown.
        sources: folders with what runs have left.
        problem: what has been wrong since the start, in a sentence.
    """

    def __init__(
        self, client: Client | None, namespaces: Sequence[str], sources: Sequence[ResultFolder], problem: str = ""
    ) -> None:
        self.namespaces, self.sources = tuple(namespaces), tuple(sources)
        self._client, self._problem = client, problem
        self._lock = threading.Lock()
        self._newest: Look | None = None
        self._until = 0.0

    def newest(self) -> Look:
        """Return the newest look; whoever comes while another looks is given the one before."""
        if (found := self._newest) and (time.monotonic() < self._until or self._lock.locked()):
            return found
        with self._lock:
            if self._newest is None or time.monotonic() >= self._until:
                self._newest = self._look()
                self._until = time.monotonic() + _SECONDS
            return self._newest

    def _look(self) -> Look:
        problems = [self._problem] if self._problem else []
        look = Look(datetime.now(UTC))
        try:
            look = self._cluster(look, problems)
        except UnreachableError as error:
            problems.append(error.message)
            if before := self._newest:
                # What was known is better than nothing, and the page says how old it is.
                look = replace(before, problems=())
        left: list[RunFolder] = []
        for source in self.sources:
            found, problem = find(source)
            left += found
            # A claim may be there for the adapters that a release takes from it.
            if not found and not problem and all(release.claim != source.name for release in look.releases):
                problem = f"{source.name} has no run with {METRICS} yet: it appears after the first step"
            problems += [problem] if problem else []
        left.sort(key=lambda one: one.changed, reverse=True)
        return replace(look, left=tuple(left), problems=tuple(problems))

    def _cluster(self, look: Look, problems: list[str]) -> Look:
        if self._client is None:
            return look
        trainjobs = self._list(self._client, TRAINJOBS, problems)
        pods = self._list(self._client, PODS, problems, JOBSET_NAME) if trainjobs else []
        deployments = self._list(self._client, DEPLOYMENTS, problems)
        theirs: dict[tuple[str, str], list[Object]] = {}
        for pod in pods:
            owner = str(part(part(pod, "metadata"), "labels").get(JOBSET_NAME) or "")
            theirs.setdefault((_key(pod)[0], owner), []).append(pod)
        return replace(
            look,
            runs=tuple(runs_of(trainjobs, (), pods)),
            releases=tuple(release for one in deployments if (release := release_of(one))),
            objects={_key(job): (job, tuple(theirs.get(_key(job), ()))) for job in trainjobs},
        )

    def _list(self, client: Client, kind: Kind, problems: list[str], selector: str = "") -> list[Object]:
        found: list[Object] = []
        for namespace in self.namespaces:
            try:
                found += client.list(kind, selector, namespace=namespace)
            except UnreachableError:
                raise
            except ClusterError as error:
                if error.message not in problems:
                    problems.append(error.message)
        return found


def _key(thing: Object) -> tuple[str, str]:
    metadata = part(thing, "metadata")
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")
