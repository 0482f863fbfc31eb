"""Plans are what they were before the modules moved: of every example, the catalogue and 1,000 made-up runs."""

from __future__ import annotations

from pathlib import Path

from runner.tests.parity.outcomes import differences, play, read

ROOT = Path(__file__).parents[3]
RECORD = Path(__file__).with_name("869a3b6.jsonl.xz")
_SHOWN = 20
_NOT_CHECKED = "a note says that the packages of an image that is not Stoker's were not checked"
_REWARD = "validate {'args': ['trl.scripts.grpo', '--reward_funcs', 'accuracy_reward']}"
_LACKED = "the image lacks math_verify, which its pod says too"
# Difference → why a later change meant it.
INTENDED = {
    **{
        f"validate trl-distributed of {kind}: lines: 1 of them before, 2 now: about [[]] and [[], []]": _NOT_CHECKED
        for kind in ("amd", "intel", "tpu")
    },
    f"{_REWARD}: code: 0 before, 78 now": _LACKED,
    f"{_REWARD}: messages: 0 of them before, 1 now: about [] and [[]]": _LACKED,
    f"{_REWARD}: lines: 1 of them before, 0 now: about [[]] and []": _LACKED,
    "0320 reward: messages.1: about ['pet_nproc_per_node'] before, [] now": (
        "where a device is missing, Trainer's default number of processes is not to blame for it"
    ),
}


def test_plans_are_what_they_were_before_the_modules_moved(tmp_path: Path) -> None:
    recorded = read(RECORD)
    outcomes = play(ROOT / "runner/src", tmp_path, [configuration for configuration, _ in recorded])
    found = [
        f"{configuration.name}: {line}"
        for (configuration, before), after in zip(recorded, outcomes, strict=True)
        for line in differences(before, after)
    ]
    new = [line for line in found if line not in INTENDED]
    assert not new, "\n".join([f"{len(new)} differences, of which the first are", *new[:_SHOWN]])
    assert {*INTENDED} <= {*found}, "a difference that was meant is gone: remove it here"
