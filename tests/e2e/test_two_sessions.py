"""Two sessions at once, whose samplers share a device in turns.

Both learn, one's trainer is killed, the other does not notice, and nothing is left. Each has its solo run's rewards.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from charts.helm import ROOT
from cluster import Cluster
from e2e.devices import CLASS, COUNT, devices, devices_of, own_claim, template, users_of
from e2e.kube import Kube, uid_of
from e2e.registry import Image
from e2e.rollouts import SMALL, Installs, SumsRun, best, example_trainjob
from e2e.sessions import Rl, key_of, left, pods_of, rl, status
from e2e.sharing import CLAIMS, LEASE, OWN, SAMPLERS, SHARED, take_turns
from e2e.trainjobs import Reader

__all__ = ["devices", "rl"]  # fixtures

# Two samplers start, and two runs learn: in turns, so one after the other.
pytestmark = [pytest.mark.full, pytest.mark.timeout(4 * 3600)]

NAMES = ("one", "two")
RUNTIME = "trl-two-sessions"
EXAMPLE = ROOT / "examples/two-sessions/two_sessions.py"
# As in test_rollouts.py, which has twice the nodes: half of all sums in each step, eight answers to each.
ALL_WEIGHTS = {
    "use_peft": "false",
    "per_device_train_batch_size": "400",
    "learning_rate": "5e-4",
    "max_steps": "300",
    "save_steps": "25",
}
LORA = {"per_device_train_batch_size": "128", "max_steps": "100", "save_steps": "10"}
LEARNS = {
    "max_staleness": "4",
    "eval_strategy": "steps",
    "per_device_eval_batch_size": "50",
    "dataset_test_split": "train",
}


@pytest.fixture(scope="module")
def claims(cluster: Cluster, request: pytest.FixtureRequest) -> bool:
    """Whether pods claim devices; where no node has any, samplers take turns all the same."""
    if cluster.provider.name == "embedded":
        request.getfixturevalue("devices")
        return True
    return False


@pytest.fixture(scope="module")
def runtime(install_catalogue: Installs, image: Image, serving_images: Mapping[str, Image], claims: bool) -> None:
    """A runtime whose samplers share a device in turns, and whose trainers have their own."""
    images = {name: one.values for name, one in {**serving_images, "trl": image}.items()}
    samplers = {key: value for key, value in SAMPLERS.items() if claims or key != "deviceClaims"}
    samplers["slice"] = {"lease": LEASE, "quantumSeconds": 2}
    own = {"base": "trl-grpo-async", "samplers": samplers, **(CLAIMS if claims else {})}
    made = {"trl-distributed": {"enabled": False}, RUNTIME: own}
    install_catalogue("two-sessions", {"runtimes": made, "images": images})


@pytest.fixture
def sharing(kube: Kube, claims: bool) -> Iterator[tuple[str, ...]]:
    """The flags by which a session shares the samplers' device."""
    if not claims:
        yield ("--turns",)
        return
    kube.apply(template(OWN, CLASS))
    yield ("--turns", "--device-claim", f"{SHARED}={CLASS}")
    kube.delete("resourceclaimtemplate", OWN)


@pytest.fixture
def trainjob(sums: None, tmp_path: Path) -> Path:
    """The example's TrainJob for one node."""
    file = tmp_path / "trainjob.yaml"
    file.write_text(yaml.safe_dump(example_trainjob(RUNTIME, SMALL)))
    return file


def with_flags(file: Path, flags: Mapping[str, str]) -> Path:
    """Give the TrainJob in a file more flags; the last of a flag counts."""
    made = yaml.safe_load(file.read_text())
    made["spec"]["trainer"]["args"] += [f"--{flag}={value}" for flag, value in flags.items()]
    file.write_text(yaml.safe_dump(made))
    return file


@pytest.mark.parametrize(
    ("settings", "reward"),
    [
        pytest.param(ALL_WEIGHTS, 0.97, id="all-weights", marks=pytest.mark.learning),
        pytest.param(LORA, 0.85, id="lora"),
    ],
)
def test_both_learn_and_one_does_not_notice_that_the_others_trainer_is_killed(
    settings: dict[str, str],
    reward: float,
    rl: Rl,
    trainjob: Path,
    sharing: tuple[str, ...],
    claims: bool,
    thorough: dict[str, str],
    kube: Kube,
    reader: Reader,
    measured: Callable[[str], None],
) -> None:
    last = settings["max_steps"]
    steps = int(last)
    file = with_flags(trainjob, {**LEARNS, **thorough, **settings, "eval_steps": last})
    words = (str(file), "--time-limit", "3h", *sharing)
    for name in NAMES:
        rl("up", name, *words, "--wait", "0")
    # However fast they are, neither is far before both are there, nor over before one is killed.
    runs = {name: SumsRun(kube, name, reader) for name in NAMES}
    for run in runs.values():
        run.hold(1)
    for name in NAMES:
        rl("up", name, *words, "--wait", "1200")

    keys = {name: key_of(kube, name) for name in NAMES}
    for name, other in (NAMES, NAMES[::-1]):
        found = [status(kube, name, name, key) for key in ("", "wrong", keys[other], keys[name])]
        assert found == [401, 401, 401, 200], name

    # The samplers' device is one, and each has it again and again; each trainer has its own.
    late = steps - int(settings["save_steps"]) + 2  # between two checkpoints
    for run in runs.values():
        run.hold(late)
    if claims:
        _claim_devices(kube)
    take_turns(kube, {pods_of(kube, name, "sampler")[0]["spec"]["hostname"] for name in NAMES})
    assert _restarts_of_samplers(kube, *NAMES) == {0}

    runs["one"].wait_steps(late, 1800)
    before = {name: _uids(kube, name) for name in NAMES}
    (node,) = pods_of(kube, "one", "node")
    kube.kubectl("delete", "pod", node["metadata"]["name"], "--grace-period=0", "--force")
    kube.until("one to have another trainer", lambda: bool(_uids(kube, "one", "node") - before["one"]), 300)
    assert _uids(kube, "two") == before["two"], "no pod of the other was made anew"
    assert _restarts_of_samplers(kube, "two") == {0}
    kube.until("that trainer to run", runs["one"].runs, 300)
    for run in runs.values():
        run.release()

    for run in runs.values():
        run.wait_complete(seconds=7200)
    assert (runs["one"].restarts().total, runs["two"].restarts().total) == (1, 0)
    assert _uids(kube, "two", "node") <= before["two"]
    for name, run in runs.items():
        lines = run.metrics()
        assert [line["step"] for line in lines] == [*range(1, steps + 1)], name
        rewards = [line["reward"] for line in lines]
        measured(f"session {name}, {steps} steps: ten in a row have a mean reward of {best(rewards):.3f}")
        assert fmean(rewards[:10]) <= 0.7, (name, rewards)
        assert best(rewards) >= reward, (name, rewards)
        judged = run.manifest(reader)["metrics"]
        assert (judged["eval_version"], judged["eval_rows"], judged["eval_reward"]) == (steps, 100, 1.0), name

    for name in NAMES:
        rl("down", name, "--purge")
        # The other owns the Lease and the claim too, until the garbage collector has looked.
        kube.until(f"nothing of {name} to be left", lambda name=name: left(kube, name) == [], 180)  # type: ignore[misc]
        assert kube.get("pvc", f"initializer-{name}") is None
    kube.until("the Lease to go", lambda: kube.get("lease", LEASE) is None, 180)
    if claims:
        kube.until("all claims to go", lambda: kube.items("resourceclaims") == [], 180)


@pytest.mark.parametrize(
    "settings",
    [pytest.param(ALL_WEIGHTS, id="all-weights", marks=pytest.mark.learning), pytest.param(LORA, id="lora")],
)
def test_each_is_its_solo_run_where_nothing_is_written_ahead(
    settings: dict[str, str],
    rl: Rl,
    trainjob: Path,
    sharing: tuple[str, ...],
    kube: Kube,
    reader: Reader,
    measured: Callable[[str], None],
) -> None:
    own = {"max_staleness": "0", "eval_strategy": "no", "max_steps": "20", "save_steps": "20"}
    file = with_flags(trainjob, {**LEARNS, **settings, **own})

    def rewards(*names: str) -> list[list[float]]:
        for name in names:
            rl("up", name, str(file), "--time-limit", "1h", *sharing, "--wait", "0")
        runs = [SumsRun(kube, name, reader) for name in names]
        for run in runs:
            run.wait_complete(seconds=1800)
        found = [[line["reward"] for line in run.metrics()] for run in runs]
        for name in names:
            rl("down", name, "--purge")
        return found

    (alone,) = rewards(NAMES[0])
    together = rewards(*NAMES)
    gap = max(abs(one - other) for curve in together for one, other in zip(alone, curve, strict=True))
    measured(f"two sessions and a solo run, 20 steps without staleness: rewards differ by {gap:.4f} at most")
    assert gap <= 0.02, (alone, together)
    assert fmean(alone[-4:]) > fmean(alone[:4]) + 0.1, alone


@pytest.mark.learning
def test_the_example_does_it_with_one_command(
    rl: Rl, trainjob: Path, sharing: tuple[str, ...], kube: Kube, cluster: Cluster
) -> None:
    flags = {**LEARNS, "eval_strategy": "no", "per_device_train_batch_size": "128", "max_steps": "40"}
    file = with_flags(trainjob, flags)
    command = [
        sys.executable,
        EXAMPLE,
        "--namespace",
        kube.namespace,
        "--trainjob",
        file,
        "--time-limit",
        "1h",
        *sharing,
    ]
    words = ["env", f"PYTHONPATH={ROOT / 'runner/src'}", *map(str, command)]
    done: subprocess.CompletedProcess[str] = cluster.run(words, check=False, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = done.stdout.splitlines()
    for name in ("sums-one", "sums-two"):
        assert any(line.startswith(f"{name}: 40 steps, mean reward 0.") for line in shown), done.stdout
        assert left(kube, name) == []
        assert kube.get("pvc", f"initializer-{name}") is None
    assert shown[-1] == "left: nothing"


def _uids(kube: Kube, name: str, *roles: str) -> set[str]:
    """Return the ids of the pods of a session."""
    return {uid_of(pod) for role in roles or ("node", "sampler") for pod in pods_of(kube, name, role)}


def _claim_devices(kube: Kube) -> None:
    """Check that the samplers have one device together, and the trainers another each."""
    shared = kube.get("resourceclaim", SHARED) or {}
    assert users_of(shared) == {uid for name in NAMES for uid in _uids(kube, name, "sampler")}
    own = [devices_of(own_claim(kube, pod)) for name in NAMES for pod in pods_of(kube, name, "node")]
    assert [len(found) for found in (devices_of(shared), *own)] == [1, 1, 1]
    assert len(devices_of(shared).union(*own)) == COUNT


def _restarts_of_samplers(kube: Kube, *names: str) -> set[int]:
    """Return how often containers of samplers were started again."""
    pods = [pod for name in names for pod in pods_of(kube, name, "sampler")]
    kinds = ("initContainerStatuses", "containerStatuses")
    return {one["restartCount"] for pod in pods for kind in kinds for one in pod["status"][kind]}
