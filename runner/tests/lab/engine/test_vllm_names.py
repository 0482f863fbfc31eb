"""Which names of vLLM the package uses: a change of vLLM that breaks one of them is seen here first."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from runner.tests.lab.scripts import seen

import stoker.lab

PACKAGE = Path(stoker.lab.__file__).parent
# Name: whether it is public, that is, whether the module that it is imported from exports it by `__all__`.
ALLOWED = {
    "vllm.LLM": True,
    "vllm.SamplingParams": True,
    "vllm.model_executor.model_loader.DefaultModelLoader": True,
    "vllm.model_executor.model_loader.register_model_loader": True,
    "vllm.platforms.current_platform": True,
    "vllm.lora.request.LoRARequest": False,  # every example of vLLM's documentation imports it from there
    "vllm.exceptions.VLLMClientError": False,  # what a wrong prompt raises; no parent of it is more public
    # How vLLM's own and other quantizations plug in; described in vLLM's documentation, but exported nowhere.
    "vllm.model_executor.layers.linear.LinearMethodBase": False,
    "vllm.model_executor.layers.linear.UnquantizedLinearMethod": False,
    "vllm.model_executor.layers.vocab_parallel_embedding.UnquantizedEmbeddingMethod": False,
}


def imported() -> set[str]:
    """Return the names of vLLM that the package imports, anywhere."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.partition(".")[0] == "vllm"}


def test_every_name_of_vllm_is_listed() -> None:
    assert imported() == ALLOWED.keys()


@pytest.mark.full
def test_names_are_as_public_as_the_list_says(lab_python: Path) -> None:
    code = """
import importlib, json, sys
found = {}
for name in json.loads(sys.argv[1]):
    module, _, last = name.rpartition(".")
    loaded = importlib.import_module(module)
    getattr(loaded, last)
    found[name] = last in getattr(loaded, "__all__", [])
print(json.dumps(found))
"""
    assert seen(lab_python, "-c", code, json.dumps(sorted(ALLOWED))) == ALLOWED
