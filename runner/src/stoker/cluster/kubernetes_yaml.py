"""YAML as kubectl, Helm and the API server read it (sigs.k8s.io/yaml 1.6)."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml

from stoker.contract.strict_yaml import MERGE_TAG, StrictLoader, read_yaml


class _KubernetesLoader(StrictLoader):
    """Reads plain values as Kubernetes does.

    PyYAML reads `1e-4` as text, `1:30` as the number 90 and 2026-11-21 as a date. Kubernetes reads a number and texts.
    """

    bool_values: ClassVar[dict[str, bool]] = {**yaml.SafeLoader.bool_values, "y": True, "n": False}
    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class declares it without ClassVar
        first: [(tag, pattern) for tag, pattern in resolvers if tag in ("tag:yaml.org,2002:null", MERGE_TAG)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


for _tag, _pattern, _first in (
    ("bool", r"y|Y|yes|Yes|YES|n|N|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    ("int", r"[-+]?(?:0b_*[01][01_]*|0x_*[0-9a-fA-F][0-9a-fA-F_]*|0o?_*[0-7][0-7_]*|0_*|[1-9][0-9_]*)", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9][0-9_]*)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
):
    _KubernetesLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), list(_first))


def read_kubernetes_yaml(text: str) -> list[Any]:
    """Return the documents of a YAML text, each value as Kubernetes reads it.

    Raises:
        yaml.YAMLError: the text is not YAML, has a key twice, or a value does not fit its tag.
    """
    return read_yaml(text, _KubernetesLoader)
