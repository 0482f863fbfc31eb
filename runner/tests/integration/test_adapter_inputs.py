"""An adapter computes the same without PEFT's copies of its inputs, and with fewer products."""

from __future__ import annotations

from pathlib import Path

from runner.tests.integration.scripts import printed


def test_adapters_compute_the_same_with_fewer_copies_and_products(trainer_python: Path) -> None:
    (found,) = printed(trainer_python, "adapter_inputs.py")
    for scale, saved in (("2", 2 * 2 * 16 * (32 - 4)), ("2.5", 0)):
        theirs, ours = found["theirs"][scale], found["ours"][scale]
        for what in ("outputs", "gradients"):
            assert ours[what] == theirs[what]
        # Both layers keep the same rows, in place of a copy each: 16 rows of 64 numbers of 2 bytes.
        assert ours["kept"] == theirs["kept"] - 16 * 64 * 2
        # Two layers scale 16 rows of 4 numbers in place of 32, and their gradients.
        assert ours["products"] == theirs["products"] - saved
    assert found["without autocast"] == "torch.bfloat16"
