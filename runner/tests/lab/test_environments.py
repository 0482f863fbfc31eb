"""What becomes of a test whose environment cannot be made."""

from __future__ import annotations

import subprocess

import pytest
from runner.tests.integration import environments


@pytest.mark.parametrize(("image", "outcome"), [("lab", pytest.fail.Exception), ("lab-next", pytest.skip.Exception)])
def test_without_the_images_own_environment_tests_fail(
    image: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = subprocess.CompletedProcess([], 1, "", "pip: no such wheel")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: broken)
    with pytest.raises(outcome, match=f"no environment with {image} could be made: pip: no such wheel"):
        environments.environment(image)
