"""An adapter computes the same without PEFT's copies of its inputs, and with fewer products."""

from __future__ import annotations

from pathlib import Path

from runner.tests.integration.scripts import printed

# The products that are saved: two layers scale 16 rows of 4 numbers in place of 32, and their gradients.
SAVED = {"scale 2": 2 * 2 * 16 * (32 - 4), "scale 2.5": 0, "bias": 0, "merged": 0, "off": 0}
# Both layers keep the same rows, in place of a copy each: 16 rows of 64 numbers of 2 bytes.
COPY = {"scale 2": 16 * 64 * 2, "scale 2.5": 16 * 64 * 2, "bias": 16 * 64 * 2, "merged": 0, "off": 0}


def test_adapters_compute_the_same_with_fewer_copies_and_products(trainer_python: Path) -> None:
    (found,) = printed(trainer_python, "adapter_inputs.py")
    for name, ours in found["ours"].items():
        theirs = found["theirs"][name]
        for what in ("outputs", "gradients"):
            assert ours[what] == theirs[what], name
        assert theirs["kept"] - ours["kept"] == COPY[name], name
        assert theirs["products"] - ours["products"] == SAVED[name], name
    assert found["without autocast"] == "torch.bfloat16"
