"""The page as it answers: what it shows of a cluster and of claims, and how it refuses."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runner.tests.board.conftest import SOURCE, Start
from runner.tests.board.objects import SECRET, claims, deployment, fill, folders, lines
from runner.tests.report.hostile import TEXTS, write_run
from runner.tests.runs.api_server import Cluster, forbidden
from runner.tests.runs.objects import pod, trainjob

from stoker.contract.exits import ExitCode


def test_runs_are_listed_with_what_they_report(
    cluster: Cluster, kubeconfig: Path, start: Start, tmp_path: Path
) -> None:
    fill(cluster)
    page = start(*folders(claims(tmp_path / "claims"))).get()
    assert "Runs in ml" in page.text
    assert page.row("tune")[:7] == ["tune", "Running", "42", "1.5", "0.25", "42 %", "3m 20s"]
    assert page.row("wait")[1] == "Pending"
    assert page.row("wait")[-1] == "Unschedulable"
    assert page.row("broken")[1::7] == ["Failed", "exit code 64 wrong arguments"]
    # What is over reports nothing any more, or never did: its claim knows.
    assert page.row("done")[1:4] == ["Complete", "60", "0.5498"]
    # What has no TrainJob any more, and one that goes on.
    assert page.row("older")[1:5] == ["shared", "sft", "30", "0.7231"]
    assert page.row("young")[-1] == "not finished"
    assert "tone-1" not in page.text, "a published adapter is not a run"
    assert "Not all is shown" not in page.text, "a claim with adapters has no run"
    assert {verb for verb, _ in cluster.requests} == {"GET"}
    kinds = {path.partition("?")[0].rpartition("/")[2] for _, path in cluster.requests}
    assert kinds == {"trainjobs", "pods", "deployments"}, "its role grants no more"


def test_a_run_has_its_facts_its_causes_and_its_curves(
    cluster: Cluster, kubeconfig: Path, start: Start, tmp_path: Path
) -> None:
    fill(cluster)
    board = start(*folders(claims(tmp_path / "claims")))
    listed = board.get()
    done = board.get(listed.parsed.links["done"])
    assert all(word in done.text for word in ("Complete", "trl-distributed", "Learning rate", "All metrics", "Step 9"))
    assert done.body.count('role="img"') == 4
    report = board.get(done.parsed.links["The run's own report"])
    assert "Training report: grpo_async" in report.body
    assert report.headers["content-security-policy"].startswith("sandbox;")
    waits = board.get(listed.parsed.links["wait"])
    assert "do not have the labels that it asks for (gpu=h200)" in waits.text
    assert "initializer-wait" in waits.text
    new = board.get(listed.parsed.links["new"])
    assert "Pending" in new.text
    assert "JobSet" not in new.text, "the page may not see JobSets, so it would only guess"
    older = board.get(listed.parsed.links["older"])
    assert "Folder older/output of shared" in older.text
    assert older.body.count('role="img"') == 4


def test_releases_have_replicas_and_adapters(cluster: Cluster, kubeconfig: Path, start: Start, tmp_path: Path) -> None:
    fill(cluster)
    cluster.add(
        "deployments",
        deployment("late", "model: {name: m}\n", readyReplicas=0, updatedReplicas=1, replicas=1),
        deployment("half", "model: {name: m}\n", readyReplicas=1),
        deployment("odd", "["),
    )
    page = start(*folders(claims(tmp_path / "claims"))).get("/serving")
    assert page.row("chat")[1:5] == [
        "Ready",
        "2 of 2",
        "support Qwen/Qwen3-0.6B",
        "tone published in adapters: tone-1, tone-2",
    ]
    assert page.row("late")[1:3] == ["Starting", "0 of 1"]
    assert page.row("half")[1:3] == ["Degraded", "1 of 2"]
    assert "other" not in page.text
    assert "odd" not in page.text
    assert "this page does not read that folder" in start().get("/serving").text


def test_restarts_are_known_without_the_jobset(cluster: Cluster, kubeconfig: Path, start: Start) -> None:
    cluster.add("trainjobs", trainjob())
    cluster.add("pods", pod(attempt=2))
    page = start().get("/runs/ml/tune")
    assert "restarts 2" in page.text


def test_two_namespaces(cluster: Cluster, kubeconfig: Path, start: Start, tmp_path: Path) -> None:
    fill(cluster)
    theirs = trainjob("done")
    theirs["metadata"] |= {"namespace": "other", "uid": "uid-other"}
    cluster.add("trainjobs", theirs)
    named = {f"ml/{name}": path for name, path in claims(tmp_path / "claims").items()}
    board = start("--namespace", "other", "-n", "ml", *folders(named))
    page = board.get()
    assert "Runs in other, ml" in page.text
    assert sorted(row[1] for row in page.parsed.rows if row[0] == "done") == ["ml", "other"]
    # A claim belongs to the runs of its own namespace.
    assert 'role="img"' in board.get("/runs/ml/done").body
    assert 'role="img"' not in board.get("/runs/other/done").body


def test_advice_names_the_namespace_of_the_run(cluster: Cluster, kubeconfig: Path, start: Start) -> None:
    stopped = trainjob(suspend=True)
    stopped["metadata"] |= {"namespace": "other"}
    cluster.add("trainjobs", stopped)
    page = start("--namespace", "other").get("/runs/other/tune")
    assert "stoker resume tune --namespace other lets it" in page.text
    assert "stoker get tune --namespace other FOLDER" in page.text


def test_folders_without_a_cluster(start: Start, tmp_path: Path) -> None:
    write_run(tmp_path / "first", lines())
    board = start("--folder", str(tmp_path / "first"), KUBECONFIG=str(tmp_path / "none"))
    page = board.get()
    assert page.row("first")[3:5] == ["60", "0.5498"]
    assert "there is no kubeconfig" in page.text
    assert board.get(page.parsed.links["first"]).body.count('role="img"') == 4


# Bad input: one sentence each.


@pytest.mark.parametrize("kind", ["trainjobs", "pods", "deployments"])
def test_rights_that_are_missing(cluster: Cluster, kubeconfig: Path, start: Start, kind: str) -> None:
    fill(cluster)
    cluster.refusals["GET", kind] = forbidden("list", kind)
    page = start().get()
    assert page.status == 200
    assert page.text.count("Not all is shown:") == 1
    assert f"you may not list {kind}" in page.text
    assert ("wait" in page.text) is (kind != "trainjobs")


def test_a_cluster_without_trainer(cluster: Cluster, kubeconfig: Path, start: Start) -> None:
    cluster.kinds.remove("trainjobs")
    cluster.add("deployments", deployment())
    board = start()
    page = board.get()
    assert "has no trainjobs.trainer.kubeflow.org: install Kubeflow Trainer in it" in page.text
    assert "There are no runs here." in page.text
    assert board.get("/serving").row("chat")[1] == "Ready"


def test_a_cluster_that_does_not_answer(start: Start, tmp_path: Path) -> None:
    from runner.tests.runs.api_server import write_kubeconfig

    # Nobody listens on the discard port.
    path = write_kubeconfig(tmp_path, "http://127.0.0.1:9", "ml")
    page = start(KUBECONFIG=str(path)).get()
    assert page.status == 200
    assert "does not answer" in page.text


def test_claims_that_hold_something_else(cluster: Cluster, kubeconfig: Path, start: Start, tmp_path: Path) -> None:
    empty, broken, odd = (tmp_path / name for name in ("empty", "broken", "odd"))
    empty.mkdir()
    (broken / "output").mkdir(parents=True)
    (broken / "output/metrics.jsonl").write_bytes(b"\x00\xff{]\n[1]\n" + b"[" * 5000 + b'\n{"step": NaN}\n')
    (broken / "output/stoker.json").write_text("[" * 5000)
    (odd / "output").mkdir(parents=True)
    (odd / "output/stoker.json").write_text('{"method": ["x"], "time": {}, "base_model": 3}')
    named = {"empty": empty, "broken": broken, "odd": odd, "later": tmp_path / "later"}
    board = start(*folders(named), "--wait-for-folders")
    page = board.get()
    assert "later cannot be read (No such file or directory)" in page.text
    assert "empty has no run with metrics.jsonl yet" in page.text
    assert "metrics.jsonl of broken has no number" in board.get(page.parsed.links["broken"]).text
    assert "It has no metrics.jsonl" in board.get(page.parsed.links["odd"]).text


def test_files_that_lead_elsewhere(cluster: Cluster, kubeconfig: Path, start: Start, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write_run(outside, [{"step": 1, "loss": 77.5}])
    (outside / "token").write_text("a token of the pod")
    claim = tmp_path / "claim"
    for name, target in (("metrics.jsonl", outside / "metrics.jsonl"), ("report.html", outside / "token")):
        (claim / "linked/output").mkdir(parents=True, exist_ok=True)
        (claim / "linked/output" / name).symlink_to(target)
    write_run(claim / "mixed/output", lines(5))
    (claim / "mixed/output/samples.jsonl").symlink_to(outside / "token")
    (claim / "mixed/output/report.html").symlink_to(outside / "token")
    (claim / "away").symlink_to(outside)
    board = start("--folder", f"c={claim}")
    page = board.get()
    assert "77.5" not in page.body
    assert "linked" not in page.text
    mixed = board.get(page.parsed.links["mixed"])
    assert "leads out of it" in mixed.text
    for folder in ("mixed/output", "linked/output", "../outside", "away", "/", "mixed/output/../../../outside"):
        answer = board.get(f"/report?claim=c&folder={folder}")
        assert answer.status == 404
        assert "token of the pod" not in answer.body


def test_what_runs_write_is_text(cluster: Cluster, kubeconfig: Path, start: Start, tmp_path: Path) -> None:
    fill(cluster)
    hostile = [text for text in TEXTS if "\x00" not in text]
    for index, text in enumerate(hostile):
        made = trainjob(f"hostile-{index}")
        made["spec"]["runtimeRef"]["name"] = text
        cluster.add("trainjobs", made)
        cluster.add("pods", pod(run=f"hostile-{index}", phase="Failed", reason=text[:300], message=text))
    write_run(tmp_path / "c/output", [{"step": 1, **dict.fromkeys(TEXTS, 1.0)}])
    board = start("--folder", f"c={tmp_path / 'c'}")
    page = board.get()
    for link in page.parsed.links.values():
        assert board.get(link).parsed.words  # it fails on elements that could run or load something
    broken = board.get("/runs/ml/broken")
    assert "unknown flag --lerning_rate" in broken.text
    assert SECRET not in broken.body
    assert SECRET not in page.body


def test_addresses_that_lead_nowhere(cluster: Cluster, kubeconfig: Path, start: Start) -> None:
    board = start()
    for path in ("/nothing", "/runs/ml/none", "/results?claim=x", "/report", "/runs/ml/%3Cscript%3E", "/?every=<b>"):
        page = board.get(path)
        assert page.status == (200 if "every" in path else 404)
        assert page.text.count("Not shown") == (0 if "every" in path else 2)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        page = board.ask(method, "/")
        assert page.status == 405
        assert "This page is read-only" in page.text
    assert board.get("/healthz").body == "ok\n"


def test_headers(cluster: Cluster, kubeconfig: Path, start: Start) -> None:
    board = start("--allow-host", "board.example.com", "--root-path", "/board")
    page = board.get(Host="board.example.com")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "script" not in page.headers["content-security-policy"]
    assert "server" not in page.headers
    assert page.status == 200
    assert "Runs in ml" in page.text
    assert page.parsed.links["Serving"] == "/board/serving"
    assert 'href="/board/board.css"' in page.body
    # Another site's page that has its name point here must not read this one.
    refused = board.get(Host="evil.example.com")
    assert refused.status == 400
    assert "does not answer under the name 'evil.example.com'" in refused.text
    assert "--allow-host NAME" in refused.text
    assert "refresh" not in page.headers
    assert board.get("/serving?every=30").headers["refresh"] == "30"
    assert "refresh" not in board.get("/?every=31").headers
    assert board.get("/healthz").body == "ok\n", "where the pod is asked whether it is ready"
    # A proxy may strip the path.
    board.address = board.address.removesuffix("/board")
    assert "Runs in ml" in board.get().text
    assert board.get("/healthz").body == "ok\n"


def test_many_who_look_ask_the_cluster_once(cluster: Cluster, kubeconfig: Path, start: Start) -> None:
    fill(cluster)
    board = start()
    for _ in range(20):
        assert board.get().status == 200
    assert len(cluster.requests) <= 2 * 3, "a look is used for five seconds"


# How it starts and ends.


def begun(packages: Path, tmp_path: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [packages, "-m", "stoker", "board", *options],
        env={"PATH": "/usr/bin", "HOME": str(tmp_path), "PYTHONPATH": str(SOURCE), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to(start: Start, tmp_path: Path, number: int) -> None:
    board = start("--folder", str(tmp_path), KUBECONFIG="none")
    assert board.get().status == 200
    assert board.stop(number) == (0, "")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((), ExitCode.CONFIG, "there is no kubeconfig at none: name your cluster's kubeconfig in KUBECONFIG"),
        (("--folder", "missing"), ExitCode.NO_INPUT, "--folder missing: there is no folder missing: correct the path"),
        (("--folder", "a=/", "--folder", "a=/tmp"), ExitCode.USAGE, "there is a folder a already: write NAME=/tmp"),
        (("--folder", "=/"), ExitCode.USAGE, "--folder '=/' names no folder: write PATH or NAME=PATH"),
        (("--folder", "a="), ExitCode.USAGE, "--folder 'a=' names no folder: write PATH or NAME=PATH"),
        (("--folder", "a=/", "--allow-host", "a*"), ExitCode.USAGE, "--allow-host 'a*' is not a name: write HOST"),
        (("--folder", "a=/", "--root-path", "b"), ExitCode.USAGE, "--root-path 'b' is not a path: begin it with /"),
        (("--folder", "a=/", "--port", "70000"), ExitCode.USAGE, "70000 is not in the range 0<=x<=65535"),
        (("--folder", "a=/", "--host", "192.0.2.1"), ExitCode.CONFIG, "cannot listen on port 8086 of 192.0.2.1"),
    ],
)  # fmt: skip
def test_it_does_not_begin(packages: Path, tmp_path: Path, options: tuple[str, ...], code: int, said: str) -> None:
    done = begun(packages, tmp_path, *options, KUBECONFIG="none")
    assert done.returncode == code
    assert done.stderr.startswith("stoker: error: ")
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr


def test_without_its_packages(tmp_path: Path) -> None:
    # This Python has no Starlette.
    done = begun(Path(sys.executable), tmp_path, "--folder", "a=/")
    assert done.returncode == ExitCode.CONFIG
    assert done.stderr.startswith("stoker: error: this command needs the Python package ")
    assert "pip install './runner[board]'" in done.stderr
