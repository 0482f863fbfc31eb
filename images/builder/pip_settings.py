"""What a container build must know of this machine to reach its package index, as files to be mounted as secrets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

_SETTING = re.compile(r"^(?P<section>global|install|:env:)\.(?P<key>[a-z-]+)='(?P<value>.*)'$", re.MULTILINE)
_CARRIED = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries")
"""Settings that mean the same in a container. Folders of this machine do not."""

_AUTHORITIES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def write_secrets(folder: Path) -> dict[str, Path]:
    """Write the secrets that `install.py` knows, as far as this machine has something to say.

    Args:
        folder: an empty folder to write into; remove it after the build.

    Returns:
        The files by secret id: `pip.conf`, `ca.crt`, `torch-cpu-index`.
    """
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=False, capture_output=True, text=True
    ).stdout
    # The environment is listed first, and wins over files.
    found = {match["key"]: match["value"] for match in reversed(list(_SETTING.finditer(listed)))}
    settings = {key: value for key, value in found.items() if key in _CARRIED}
    secrets: dict[str, Path] = {}
    bundles = [found.get("cert"), *(os.environ.get(variable) for variable in _AUTHORITIES)]
    if bundle := next((name for name in bundles if name and Path(name).is_file()), None):
        secrets["ca.crt"] = folder / "ca.crt"
        shutil.copyfile(bundle, secrets["ca.crt"])
    if settings:
        secrets["pip.conf"] = folder / "pip.conf"
        lines = [f"{key} = {value}" for key, value in settings.items()]
        secrets["pip.conf"].write_text("\n".join(["[global]", *lines, ""]), encoding="utf-8")
    if index := os.environ.get("TORCH_CPU_INDEX"):
        secrets["torch-cpu-index"] = folder / "torch-cpu-index"
        secrets["torch-cpu-index"].write_text(index, encoding="utf-8")
    return secrets
