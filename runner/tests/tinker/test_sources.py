"""Samplers serve the checkpoints that were used last, and the others again when they are used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.tests.tinker import vllm_stand_in

from stoker.tinker.checkpoints import SAMPLER_WEIGHTS, WEIGHTS, CheckpointPath, Checkpoints
from stoker.tinker.refusals import RefusedError
from stoker.tinker.samplers import Samplers
from stoker.tinker.sources import Sources


class Setup:
    """Checkpoints, and a server that has two of them at most.

    Args:
        folder: an empty one.
        sampler: who stands in for vLLM.
    """

    def __init__(self, folder: Path, sampler: vllm_stand_in.StandIn) -> None:
        self.sampler = sampler
        self.checkpoints = Checkpoints(folder / "checkpoints")
        self.samplers = Samplers([sampler.address], sampler.folder, "tinker", "me", "model", seconds=5.0)
        self.sources = Sources(self.checkpoints, self.samplers, most=2)

    def save(self, name: str, kind: str = SAMPLER_WEIGHTS) -> CheckpointPath:
        """Save a checkpoint, whose weights are its name."""
        place = CheckpointPath("m", kind, name)
        self.checkpoints.save(place, lambda folder: written(folder, name), overwrite=True)
        return place

    def publish(self, name: str) -> CheckpointPath:
        """Save a checkpoint and publish it."""
        place = self.save(name)
        self.sources.add(place, self.samplers.publish(lambda folder: written(folder, name)))
        return place

    def served(self) -> list[str]:
        """Return the weights that the server has."""
        return sorted((path / "adapter_model.safetensors").read_text() for path in self.sampler.names().values())


def written(folder: Path, weights: str) -> None:
    """Write an adapter."""
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_text(weights)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    (tmp_path / "adapters").mkdir()
    with vllm_stand_in.serving(tmp_path / "adapters") as sampler:
        yield Setup(tmp_path, sampler)


def test_only_those_that_were_used_last_are_served(setup: Setup) -> None:
    first = setup.sources.at(setup.publish("a"))
    for name in "bcde":
        setup.publish(name)
    assert setup.served() == ["d", "e"]
    with setup.sources.used(first) as version:
        assert setup.served() == ["a", "e"]
        assert (setup.sampler.names()[version] / "adapter_model.safetensors").read_text() == "a"
    with setup.sources.used(first) as again:
        assert again == version, "it is published once"
    setup.publish("f")
    assert setup.served() == ["a", "f"]


def test_what_is_in_use_stays(setup: Setup) -> None:
    place = setup.publish("a")
    with setup.sources.used(setup.sources.at(place)), setup.sources.used(setup.sources.at(place)):
        for name in "bcd":
            setup.publish(name)
        assert setup.served() == ["a", "d"]
    for name in "ef":
        setup.publish(name)
    assert setup.served() == ["e", "f"]


def test_what_was_overwritten_is_never_another(setup: Setup) -> None:
    place = setup.save("a", WEIGHTS)
    before = setup.sources.at(place)
    setup.sources.overwritten(setup.save("a", WEIGHTS))
    after = setup.sources.at(place)
    assert after is not before
    with setup.sources.used(before) as old, setup.sources.used(after) as new:
        assert old != new
    for name in "bcd":
        setup.publish(name)
    with pytest.raises(RefusedError, match="make a new sampling client") as refused, setup.sources.used(before):
        pass
    assert refused.value.status == 404
    with setup.sources.used(after):
        assert setup.served() == ["a", "d"]


def test_a_checkpoint_that_is_not_there_is_refused(setup: Setup) -> None:
    with pytest.raises(RefusedError, match="does not exist"):
        setup.sources.at(CheckpointPath("m", WEIGHTS, "none"))
    assert setup.served() == []
