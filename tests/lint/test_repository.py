"""Rules for every file of this repository that no off-the-shelf linter knows."""

from __future__ import annotations

import re
from pathlib import Path

from lint.files import ROOT, lines, report, repository_files, shebang, texts

# Written by a tool that decides about its own white space.
GENERATED = {".sum", ".snap"}

# Folders of one person or one machine; not /workspace, nor $HOME/work, nor the /root of a container.
MACHINE_PATH = re.compile(r"(?<![\w.$})~/-])/(?:(?:home|Users)/\w+|work|opt/wheels)(?=[/\s\"'`)]|$)")

PINNED_ACTION = re.compile(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
INSTALL_COMMAND = re.compile(r"oci://\S+/charts/(jobset|kubeflow-trainer|training-runtimes) --version (\d\S*)")
PYTHON_PACKAGE_HOSTS = ("https://download.pytorch.org/", "https://pypi.org/", "https://files.pythonhosted.org/")


def test_text_files_are_tidy() -> None:
    findings = []
    for path, text in texts().items():
        if path.suffix in GENERATED or not text:
            continue
        findings += [
            f"{path}:{number}: white space at the end" for number, line in lines(path) if line != line.rstrip()
        ]
        if not text.endswith("\n") or text.endswith("\n\n"):
            findings.append(f"{path}: must end with exactly one newline")
    report(findings, "Remove it; .editorconfig makes most editors do so.")


def test_files_are_small() -> None:
    sizes = {path: (ROOT / path).stat().st_size for path in repository_files()}
    report(
        [f"{path}: {size / 2**20:.1f} MiB" for path, size in sizes.items() if size > 2**20],
        "Build large things into the cache instead of keeping them in Git.",
    )


def test_scripts_are_executable() -> None:
    findings = []
    for path in repository_files():
        executable = bool((ROOT / path).stat().st_mode & 0o111)
        if executable != bool(shebang(path)):
            findings.append(f"{path}: {'no #! line' if executable else 'not executable'}")
    report(findings, "A script has both a #! line and the executable bit (chmod +x), any other file neither.")


def test_no_file_names_a_path_of_one_machine() -> None:
    this = Path(__file__).resolve().relative_to(ROOT)
    findings = [
        f"{path}:{number}: {match.group()}"
        for path in texts()
        if path != this
        for number, line in lines(path)
        for match in MACHINE_PATH.finditer(line)
    ]
    report(findings, "Name it relative to the repository, to $HOME or to the cache.")


def test_actions_are_pinned() -> None:
    findings = [
        f"{path}:{number}: {used[1]}"
        for path in texts()
        if path.parts[0] == ".github"
        for number, line in lines(path)
        if (used := re.search(r"\buses: *(\S.*)", line))
        if not used[1].startswith("./") and not PINNED_ACTION.search(used[1])
    ]
    report(findings, "Pin the action to the commit of a release and name the release: owner/action@COMMIT # v1.2.3")


def test_python_locks_name_no_mirror() -> None:
    findings = [
        f"{path}:{number}: {url}"
        for path in texts()
        if path.suffix == ".txt" and path.parts[0] != "charts"
        for number, line in lines(path)
        for url in re.findall(r"https?://\S+", line)
        if not url.startswith(PYTHON_PACKAGE_HOSTS)
    ]
    report(findings, "A lock must work with any mirror of PyPI: write none into it.")


def test_install_commands_name_what_is_tested() -> None:
    modules = Path("tests/cluster/go")
    expected = {
        chart: re.search(rf"^\t{re.escape(module)} v(\S+)", texts()[modules / chart / "go.mod"], re.MULTILINE)
        for chart, module in {"jobset": "sigs.k8s.io/jobset", "trainer": "github.com/kubeflow/trainer/v2"}.items()
    }
    expected["training-runtimes"] = re.search(
        r"^version: (\S+)", texts()[Path("charts/training-runtimes/Chart.yaml")], re.MULTILINE
    )
    findings = []
    for path in texts():
        for number, line in lines(path):
            for chart, version in INSTALL_COMMAND.findall(line):
                known = expected[chart.removeprefix("kubeflow-")]
                if known is None or known[1] != version:
                    findings.append(f"{path}:{number}: {chart} {version}, tested is {known and known[1]}")
    report(findings, "Name the version that the tests install.")
