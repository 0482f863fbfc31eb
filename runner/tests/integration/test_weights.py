"""A run that trains all weights: real vLLM servers take each version in place, whole or by what has changed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from runner.tests.integration.local_sampler import sampler

import stoker
from stoker.cluster.processes import free_ports
from stoker.contract.samplers import SamplerRequest, request_path

SOURCE = str(Path(stoker.__file__).parents[1])


@pytest.fixture(scope="module")
def served(trainer_python: Path, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two samplers served, the second of which came late."""
    folder = tmp_path_factory.mktemp("weights")
    model = folder / "model"
    script = str(Path(__file__).with_name("weights_cases.py"))
    env = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}
    subprocess.run([trainer_python, script, "tie", inputs / "model", model], env=env, check=True)
    request = SamplerRequest(str(model), "policy", str(folder / "adapters"), 128, None, versions=1, dtype="float32")
    request.write(request_path(folder, "job", 0))
    ports = free_ports(4)
    addresses = ",".join(
        f"http://127.0.0.1:{port};watcher=http://127.0.0.1:{watcher}"
        for port, watcher in zip(ports[::2], ports[1::2], strict=True)
    )
    command = [str(trainer_python), script, str(model), str(folder), addresses]
    with (
        (folder / "cases.log").open("w") as log,
        sampler(folder, ports[0], ports[1]),
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True) as cases,
    ):
        try:
            while not (folder / "second").exists() and cases.poll() is None:
                time.sleep(0.1)
            with sampler(folder, ports[2], ports[3]):
                out, _ = cases.communicate(timeout=1800)
        finally:
            cases.kill()
    logs = "\n".join(f"--- {path.name}\n{path.read_text()[-4000:]}" for path in folder.glob("*.log"))
    assert cases.returncode == 0, logs
    print(logs)
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def formats(trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What files of weights hold."""
    done = subprocess.run(
        [trainer_python, Path(__file__).with_name("weights_format_cases.py"), tmp_path_factory.mktemp("formats")],
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"}, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_difference_gives_the_same_bytes_in_every_type(formats: dict[str, Any]) -> None:
    for kind, found in formats["round"].items():
        assert found["exact"], kind
        assert found["untouched"], kind
        # Some elements by a mask; where all have changed, all values; nothing of what is the same.
        assert found["keys"] == ["a#mask", "a#values", "b"], kind
        assert found["share"] == pytest.approx(14 / (239 + 1025 * 513)), kind
        assert found["smaller"], kind
        assert found["names"] == ["run:0", "run:1"]


def test_a_version_may_have_tensors_of_every_type_and_form(formats: dict[str, Any]) -> None:
    assert len(formats["types"]) == 14
    assert all(formats["types"].values()), formats["types"]


def test_a_worker_that_has_dropped_its_weights_has_the_same_ones_again(formats: dict[str, Any]) -> None:
    assert formats["restored"] == [["", "its own"], ["run:0", {"w": [1.0, 1.0]}]]


def test_a_version_takes_the_memory_of_the_last_but_one_unless_the_engine_has_it(formats: dict[str, Any]) -> None:
    copied, kept = formats["places"]
    assert copied == {"places": [0, 1, 0, 1, 0], "is": True}
    assert kept == {"places": [0, 1, 2, 1, 2], "is": True}


def test_a_worker_that_still_reads_a_version_loads_nothing_and_waits_for_no_disk(formats: dict[str, Any]) -> None:
    found = formats["unread"]
    assert found["at once"] == ["", None]
    assert found["then"] == ["run:0", {"w": [1.0, 1.0]}]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("cut", "it is damaged (SafetensorError"),
        ("wrong", "1 of its 2 tensors are not the trainer's: a"),
        ("bare", "it is damaged (KeyError"),
        ("empty", "it is damaged (FileNotFoundError"),
        ("newer", "weights.json has schemaVersion 3, but this sampler reads 2"),
        ("other", "it is the difference to run:1, not to run:0"),
        ("none", "it is the difference to run:1, not to the base model"),
    ],
)
def test_what_is_damaged_is_refused(formats: dict[str, Any], case: str, words: str) -> None:
    assert words in formats["damages"][case]


def test_changes_that_the_steps_do_not_explain_are_doubted(formats: dict[str, Any]) -> None:
    doubts = formats["doubts"]
    assert [doubts[case][1] for case in ("no step", "no step since", "small", "large")] == [""] * 4
    assert 0 < doubts["small"][0] < 0.2
    assert "no weight has changed since the version before" in doubts["none"][1]
    assert "in bfloat16: look for what else writes to the weights" in doubts["all"][1]
    assert "look for weights that are no longer trained" in doubts["lost"][1]


@pytest.mark.full
def test_every_tensor_of_every_sampler_is_the_trainers(served: dict[str, Any]) -> None:
    assert served["first"]
    assert served["last"] == [True, True]
    assert max(served["worst"]) < 0.02
    assert [told["whole"] for told in served["published"][:3]] == [1, 0, 0]
    whole, *differences = (told["bytes"] for told in served["published"][:3])
    assert max(differences) < 0.2 * whole


@pytest.mark.full
def test_a_late_sampler_has_the_newest_version_before_it_is_ready(served: dict[str, Any]) -> None:
    assert served["files"][0] == ["d1-0", "d2-1", "w0"]
    assert served["late"]
    assert served["replicas"] == 2


@pytest.mark.full
def test_a_damaged_difference_is_refused_and_the_next_whole_version_mends_it(served: dict[str, Any]) -> None:
    assert all("d3-2: it is damaged" in problem for problem in served["refusals"])
    assert served["stayed"] == [True, True]
    assert served["mended"] == [True, True]


@pytest.mark.full
def test_an_answer_under_which_the_weights_change_has_the_older_version(served: dict[str, Any]) -> None:
    spanned = served["spanned"]
    assert {(4, 5)} <= {(oldest, newest) for oldest, newest, *_ in spanned} <= {(4, 4), (4, 5)}
    # One version explains it up to a token, the other from there on, and neither all of it.
    assert max(both for _, _, both, *_ in spanned) < 0.02
    assert any(0 < at < length and alone > 0.5 for _, _, _, alone, at, length in spanned)


@pytest.mark.full
def test_files_that_a_newer_whole_version_has_replaced_go(served: dict[str, Any]) -> None:
    assert not {"w0", "d1-0", "d2-1"} & set(served["files"][1])
