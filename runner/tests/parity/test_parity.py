"""Plans are what they were before the modules moved: of every example, the catalogue and 1,000 made-up runs."""

from __future__ import annotations

from pathlib import Path

from runner.tests.parity.intended import CHANGED, LINES, REFUSED, is_intended, with_workspace
from runner.tests.parity.outcomes import differences, play, read

ROOT = Path(__file__).parents[3]
RECORD = Path(__file__).with_name("869a3b6.jsonl.xz")
_SHOWN = 20


def test_plans_are_what_they_were_before_the_modules_moved(tmp_path: Path) -> None:
    recorded = [(with_workspace(configuration), outcome) for configuration, outcome in read(RECORD)]
    outcomes = play(ROOT / "runner/src", tmp_path, [configuration for configuration, _ in recorded])
    found = [
        (configuration.name, line, is_intended(configuration.name, line, before, after))
        for (configuration, before), after in zip(recorded, outcomes, strict=True)
        for line in differences(before, after)
    ]
    new = [f"{name}: {line}" for name, line, intended in found if not intended]
    assert not new, "\n".join([f"{len(new)} differences, of which the first are", *new[:_SHOWN]])
    meant = {*LINES, *CHANGED, *(name for names in REFUSED.values() for name in names)}
    seen = {text for name, line, _ in found for text in (name, f"{name}: {line}")}
    assert meant <= seen, "a difference that was meant is gone: remove it from intended.py"
