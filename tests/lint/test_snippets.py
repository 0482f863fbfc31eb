"""What the documents show to copy is well formed: YAML, TrainJobs, shell commands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

from lint.files import markdown_files, texts

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def snippets(*languages: str) -> list[Any]:
    """Return the code blocks of these languages in all documents, as parameters named by file and line."""
    found = []
    for path in markdown_files():
        text = texts()[path]
        for block in BLOCK.finditer(text):
            if block[1] in languages:
                line = text.count("\n", 0, block.start()) + 1
                found.append(pytest.param(path, block[1], block[2], id=f"{path}:{line}"))
    return found


@pytest.mark.parametrize(("path", "language", "text"), snippets("yaml"))
def test_yaml(path: Path, language: str, text: str) -> None:
    for document in yaml.safe_load_all(text):
        if isinstance(document, dict) and document.get("kind") == "TrainJob":
            # The model drops what Trainer's API does not know.
            known = TrainerV1alpha1TrainJob.from_dict(document)
            assert known is not None
            assert known.to_dict() == document


@pytest.mark.parametrize(("path", "language", "text"), snippets("sh", "bash", "console"))
def test_shell(path: Path, language: str, text: str) -> None:
    if language == "console":  # commands after a prompt, the rest is output
        text = "\n".join(line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ "))
        assert text, f"{path}: a console block shows commands after '$ '"
    parsed = subprocess.run(
        ["bash", "-n"], input=text, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert parsed.returncode == 0, parsed.stdout
