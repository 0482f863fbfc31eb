"""Commit subjects can be read in one line of a log."""

from __future__ import annotations

import subprocess

import pytest

from lint.files import ROOT, report

# The rule holds for what came after this commit.
BASE = "869a3b66820a19e0cb98498bd5fd09972353e418"
LONGEST = 72


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, check=False, capture_output=True, text=True)


def too_long(log: str) -> list[str]:
    """Return the lines, each a hash and a subject, whose subject is too long."""
    return [
        f"{line}: {len(subject)} characters"
        for line in log.splitlines()
        if len(subject := line.partition(" ")[2]) > LONGEST
    ]


def test_subjects_are_short() -> None:
    if git("merge-base", "--is-ancestor", BASE, "HEAD").returncode:
        pytest.skip(f"no history back to commit {BASE[:7]}: this is a shallow clone, or no clone")
    log = git("log", "--no-merges", "--format=%h %s", f"{BASE}..HEAD")
    report(too_long(log.stdout), f"Write a subject of {LONGEST} characters at most (git rebase -i), the rest below it.")


def test_the_length_of_a_subject_is_counted_without_the_hash() -> None:
    assert too_long(f"0123456 {'a' * 72}\n0123457 {'b' * 73}") == [f"0123457 {'b' * 73}: 73 characters"]
