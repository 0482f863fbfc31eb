"""An adapter computes the same without the copies that PEFT makes of its inputs."""

from __future__ import annotations

from pathlib import Path

from runner.tests.integration.scripts import printed


def test_autocast_rounds_what_goes_into_an_adapter(trainer_python: Path) -> None:
    (found,) = printed(trainer_python, "adapter_inputs.py")
    for what in ("outputs", "gradients"):
        assert found["ours"][what] == found["theirs"][what]
    # Both layers keep the same rows, in place of a copy each: 16 rows of 64 numbers of 2 bytes.
    assert found["ours"]["kept"] == found["theirs"]["kept"] - 16 * 64 * 2
    assert found["without autocast"] == "torch.bfloat16"
