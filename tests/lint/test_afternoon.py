"""The steps of a new user's afternoon (tests/e2e/test_afternoon.py) are in the documents, in this order."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from e2e import afternoon
from e2e.afternoon import Given, Step
from lint.snippets import adapted, block, commands

GIVEN = Given({afternoon.CATALOGUE: "oci://here/charts/a --plain-http", afternoon.SERVER: "oci://here/charts/b"})


def steps() -> list[Step]:
    """Return all steps, as the test takes them."""
    return [
        afternoon.stoker_itself(),
        *afternoon.before_serving(GIVEN),
        *afternoon.served(GIVEN),
        afternoon.opened(GIVEN),
        afternoon.published("/claims/result/output"),
        afternoon.asked_again("support:1"),
        *afternoon.removed(),
    ]


def test_every_step_is_documented() -> None:
    names = list(dict.fromkeys(step.name for step in steps()))
    loads = ["chat", "evaluate", "export"]
    assert names == [
        "stoker",
        "install",
        "inputs",
        "run",
        "watch",
        "get",
        "plot",
        *loads,
        "serve",
        "ask",
        "swap",
        "uninstall",
    ]
    assert {step.name for step in steps() if step.local} == set(loads)


@pytest.mark.parametrize("step", steps(), ids=lambda step: str(step.name))
def test_a_step_is_a_script_about_what_is_there(step: Step) -> None:
    subprocess.run(["bash", "-n"], input=step.script, check=True, text=True)
    assert "first-run" not in step.script
    assert "ghcr.io" not in step.script


def test_the_releases_are_those_of_the_runs_claims() -> None:
    first, swapped = (yaml.safe_load(text) for text in (afternoon.first_values(), afternoon.swapped_values()))
    assert [adapter["claim"] for adapter in first["adapters"]] == [f"initializer-{afternoon.NAME}"]
    assert first["model"]["claim"]["name"] == swapped["model"]["claim"]["name"] == "sft-lora-inputs"
    assert first["api"] == swapped["api"]
    assert "adapters" not in swapped


def test_a_block_is_found_below_its_heading() -> None:
    assert block("README.md", "Train on one node", "helm upgrade").count("--set 'workspace.accessModes") == 1
    assert block("docs/guides/see-a-run.md", "The numbers", "jq ").startswith("jq -r")


@pytest.mark.parametrize(
    ("heading", "starting"), [("Quickstart on your cluster", "helm remove"), ("No such heading", "helm install")]
)
def test_what_a_page_does_not_show_is_told(heading: str, starting: str) -> None:
    with pytest.raises(LookupError, match=rf"README.md, {heading}: 0 blocks .* begins with '{starting}', not 1"):
        block("README.md", heading, starting)


def test_commands_are_joined_with_the_lines_that_they_go_on_with() -> None:
    assert commands("a \\\n  --b\n\nc\n") == ["a    --b", "c"]


def test_what_is_adapted_must_be_there() -> None:
    assert adapted("get first ./first", {"first": "sft"}) == "get sft ./sft"
    with pytest.raises(LookupError, match="'second' is not in: get first"):
        adapted("get first", {"second": "sft"})
