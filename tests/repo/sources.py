"""What the rules of this folder look at: the tracked files and their syntax trees."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def tracked(*suffixes: str) -> list[Path]:
    """Files that Git tracks and that exist, filtered by suffix where any is given, as paths below ROOT."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = (ROOT / name for name in listing.split("\0") if name)
    return [path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes)]


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """(line, dotted module) of every import in `tree`; a relative one is completed with `package`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, base] if base else parent)
            # `from a import b` may name a module: give both, the rule looks at prefixes only.
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def load_script(path: Path) -> ModuleType:
    """A script as a module; what lies beside it can be imported by it, as when it is run."""
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
