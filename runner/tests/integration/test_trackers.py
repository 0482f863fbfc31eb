"""Every tracker of the image gets a run's losses, without a network."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from runner.tests.integration.jobs import LocalJob

pytestmark = pytest.mark.full  # four clients start


def found(folder: Path, pattern: str, text: bytes) -> bool:
    """Return whether a file has a text."""
    return any(text in path.read_bytes() for path in folder.rglob(pattern))


def test_all_four_get_the_losses_of_a_run(job: LocalJob) -> None:
    place = job.folder / "trackers"
    for name in ("wandb", "tensorboard"):
        (place / name).mkdir(parents=True)
    ended = job.run(
        env={
            "STOKER_ARG_REPORT_TO": "tensorboard wandb mlflow trackio",
            "STOKER_ARG_RUN_NAME": "first",
            "TENSORBOARD_LOGGING_DIR": str(place / "tensorboard"),
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(place / "wandb"),
            "MLFLOW_TRACKING_URI": (place / "mlruns").as_uri(),
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "TRACKIO_DIR": str(place / "trackio"),
        }
    )
    assert ended.code == 0, ended.output
    assert found(place / "tensorboard", "events.out.tfevents.*", b"train/loss")
    assert found(place / "wandb", "*.wandb", b"train/loss")
    (losses,) = place.glob("mlruns/*/*/metrics/loss")
    assert [int(line.split()[2]) for line in losses.read_text().splitlines()] == [5, 10, 15, 20]
    (database,) = place.glob("trackio/*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select run_name, cast(metrics as text) from metrics").fetchall()
    assert len([name for name, metrics in rows if name == "first" and "train/loss" in metrics]) == 4
