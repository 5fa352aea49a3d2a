"""What a tracked file may not hold: paths of somebody's machine, servers outside a closed list, huge files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.repo.sources import ROOT, tracked

MAX_BYTES = 40_000_000
# A package index is named by the user's own pip, never by us.
HOSTS = {"arxiv.org", "github.com", "www.apache.org", "example.com", "example.org", "localhost", "127.0.0.1"}
URL = re.compile(r"\b(?:https?|ftp|git)://(?:[^/@\s\"'<>]+@)?([A-Za-z0-9.-]+)")
MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:work|tmp|root|home|Users)/\w")


def texts() -> Iterator[tuple[str, str]]:
    for path in tracked():
        data = path.read_bytes()
        if b"\0" not in data[:4096]:
            yield str(path.relative_to(ROOT)), data.decode("utf-8")


def test_tracked_files_name_only_known_hosts() -> None:
    found = [f"{name}: {host}" for name, text in texts() for host in URL.findall(text) if host.lower() not in HOSTS]
    assert found == []


def test_tracked_files_hold_no_path_of_a_machine() -> None:
    found = [f"{name}: {hit.group()}" for name, text in texts() for hit in MACHINE_PATH.finditer(text)]
    assert found == []


def test_tracked_files_are_small() -> None:
    assert [str(path) for path in tracked() if path.stat().st_size > MAX_BYTES] == []
