"""Includes of the native code point down only: headers, then sources, then adapters."""

from __future__ import annotations

import re
from pathlib import Path

from tests.repo.sources import ROOT, tracked

PLUGINS = ROOT / "plugins"
# folder -> folders whose headers it may include
MAY_INCLUDE = {
    "include": ("include",),
    "src": ("include", "src"),
    "python": ("include", "python"),
    "onnxruntime": ("include", "src", "onnxruntime"),
}
KNOW_THE_COMPILER = {
    "host_device.h",  # the place for it
    "vectors.h",  # vector extensions of GCC and Clang
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def folder_of(name: str, including: Path) -> str | None:
    """Which folder of plugins/ holds the header `name`, None where it is not ours."""
    candidates = [including.parent / name, *(PLUGINS / folder / name for folder in MAY_INCLUDE), PLUGINS / name]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve().relative_to(PLUGINS).parts[0]
    return None


def test_includes_never_point_up() -> None:
    sources = [path for path in tracked(".h", ".cc", ".cpp") if path.is_relative_to(PLUGINS)]
    found = []
    for path in sources:
        here = path.relative_to(PLUGINS).parts[0]
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            there = folder_of(name, path)
            if there is not None and there not in MAY_INCLUDE[here]:
                found.append(f"{path.relative_to(ROOT)} includes {name}")
    assert sources and found == []


def test_compilers_are_known_to_few_headers() -> None:
    compilers = "__GNUC__|__clang__|_MSC_VER"  # which side of CUDA a line is on (__CUDACC__) is another matter
    pattern = re.compile(rf"^\s*#\s*(?:el)?if.*\b(?:{compilers})\b", re.MULTILINE)
    found = [
        str(path.relative_to(ROOT))
        for path in tracked(".h", ".cc", ".cpp")
        if path.name not in KNOW_THE_COMPILER and pattern.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []
