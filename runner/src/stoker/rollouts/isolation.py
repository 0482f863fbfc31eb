"""What the process of users' code has of its run: little of the environment, a part of the memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stoker.contract.secrets import is_secret

# What the process has of the run's environment; the prefixes are those of locales and OpenMP.
_PASSED = (
    "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PYTHONPATH", "SHELL", "TERM", "TMPDIR", "TZ",
    "USER",
    "VIRTUAL_ENV", "SSL_CERT_DIR", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NO_PROXY", "no_proxy", "XDG_CACHE_HOME",
    "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE",
)  # fmt: skip
_PASSED_PREFIXES = ("LC_", "OMP_")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
# No devices (they are the trainer's), and what is printed shows at once.
_SET = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the process's environment: no credentials, no word of the run, no devices."""
    passed = {
        name: value
        for name, value in environ.items()
        if (name in _PASSED or name.startswith(_PASSED_PREFIXES)) and not is_secret(name)
    }
    # A proxy's address may hold a password.
    passed |= {name: environ[name] for name in _PROXIES if name in environ and "@" not in environ[name]}
    return {**passed, **_SET}


def memory_limit() -> float:
    """Return half of what the container may use."""
    try:
        return int(_CGROUP_LIMIT.read_text()) // 2
    except (OSError, ValueError):
        return float("inf")
