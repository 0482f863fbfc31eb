"""The example's backend of its own trains under the runner as TRL does: two nodes, one world, a manifest, a model."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from runner.tests.integration.jobs import LocalJob

ROOT = Path(__file__).parents[3]
PLUGIN = ROOT / "examples" / "backend-plugin" / "src"
# As it was built, unedited, for stoker 0.1 at 869a3b6.
EARLIER = ROOT / "runner" / "tests" / "wheel" / "stoker_classifier-0.1.0-py3-none-any.whl"
ENTRY = "[stoker.backends]\nclassifier = stoker_classifier.config:ClassifierConfig\n"


@pytest.fixture(params=["today's", pytest.param("the earlier wheel", marks=pytest.mark.full)])
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Today's package from its source, its entry point beside it as an installation would write it, or the wheel."""
    site = tmp_path / "site"
    if request.param == "today's":
        info = site / "stoker_classifier-0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stoker-classifier\nVersion: 0\n")
        (info / "entry_points.txt").write_text(ENTRY)
        monkeypatch.setenv("PYTHONPATH", f"{PLUGIN}:{site}")
    else:
        zipfile.ZipFile(EARLIER).extractall(site)
        monkeypatch.setenv("PYTHONPATH", str(site))


@pytest.mark.usefixtures("plugin")
def test_a_backend_of_a_package_trains_on_two_nodes(job: LocalJob) -> None:
    ended = job.run(
        "stoker_classifier.train",
        *("--dataset_name", f"{job.inputs}/labelled", "--text_column", "completion", "--max_steps", "6"),
        nodes=2,
        command=("stoker", "run"),
        env={"STOKER_FRAMEWORK": "classifier", "STOKER_ARG_SAVE_STEPS": "3", "STOKER_ARG_LOGGING_STEPS": "1"},
    )
    assert ended.code == 0, ended.output
    manifest = job.manifest()
    assert (manifest["status"], manifest["steps"], manifest["world_size"]) == ("finished", 6, 2)
    assert (manifest["framework"], manifest["method"]) == ("classifier", "classify")
    config = json.loads((job.output / "config.json").read_text())
    assert config["id2label"] == {"0": "False", "1": "True"}
