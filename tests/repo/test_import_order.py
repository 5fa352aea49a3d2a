"""Imports point down only, and the two packages meet in the contract alone."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo.sources import ROOT, imported

BUILDER = ROOT / "dspark_trt"
RUNTIME = ROOT / "runtime" / "dspark_runtime"

# Later may import earlier; neighbours of one group may import each other.
ORDER = {
    BUILDER: (
        ("config",), ("stored",), ("checkpoint",), ("quantize", "head_storage"), ("draft_vocab",), ("graph",),
        ("bundle",), ("backends",), ("build",), ("cli",), ("__main__", "__init__"),
    ),
    RUNTIME: (
        ("contract",), ("oplib", "dspark_ops"), ("checks",), ("cutoff",), ("speculative",),
        ("params", "outputs", "plan"), ("rules", "controllers"), ("resolve",), ("request",), ("slots", "waiting"),
        ("scheduler",), ("bundle",), ("template_worker",), ("templates",), ("tokenizer", "detokenize", "profile"),
        ("sessions",), ("drafting",), ("executor",), ("metrics",), ("engine",), ("jobs",), ("stats", "exposition"),
        ("tickets",), ("engine_loop",), ("trace",), ("prompts",), ("core",), ("llm", "async_llm"), ("__init__",),
        ("cli",), ("__main__",),
    ),
}  # fmt: skip

MAY_IMPORT_OF_THE_RUNTIME = ("dspark_runtime.contract", "dspark_runtime.oplib")

# file -> why a module is imported inside a function there
LAZY: dict[str, str] = {}


def ranks(package: Path) -> dict[str, int]:
    return {name: rank for rank, group in enumerate(ORDER[package]) for name in group}


def layer(path: Path, package: Path) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


def upward_imports(package: Path) -> Iterator[str]:
    """`file:line: what` of every import that points up or to a module that ORDER does not list."""
    rank = ranks(package)
    for path in sorted(package.rglob("*.py")):
        here = layer(path, package)
        where = path.relative_to(package.parent)
        if here not in rank:
            yield f"{where}: '{here}' has no place in the order"
            continue
        dotted = ".".join((package.name, *path.relative_to(package).parts[:-1]))
        for line, module in imported(ast.parse(path.read_text(encoding="utf-8")), dotted):
            parts = module.split(".")
            if parts[0] != package.name or len(parts) < 2:
                continue
            # `from package import name`: a name that is no module comes from the package's __init__.
            there = parts[1] if parts[1] in rank else "__init__"
            if rank[there] > rank[here]:
                yield f"{where}:{line}: imports {module}"


@pytest.mark.parametrize("package", [BUILDER, RUNTIME], ids=lambda path: path.name)
def test_imports_of_a_package_never_point_up(package: Path) -> None:
    assert list(upward_imports(package)) == []


def test_builder_imports_of_the_runtime_only_what_it_may() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: imports {module}"
        for path in sorted(BUILDER.rglob("*.py"))
        for line, module in imported(ast.parse(path.read_text(encoding="utf-8")), "dspark_trt")
        if module.split(".")[0] == "dspark_runtime"
        and not any(module == allowed or module.startswith(allowed + ".") for allowed in MAY_IMPORT_OF_THE_RUNTIME)
    ]
    assert found == []


def test_runtime_imports_nothing_but_its_few_dependencies() -> None:
    # _typeshed exists for type checkers alone; nothing is installed for it.
    allowed = {"dspark_runtime", "numpy", "onnxruntime", "tokenizers", "jinja2", "prometheus_client", "_typeshed"}
    command_line = allowed | {"rich"}
    found = []
    for path in sorted(RUNTIME.rglob("*.py")):
        names = command_line if layer(path, RUNTIME) == "cli" else allowed
        for line, module in imported(ast.parse(path.read_text(encoding="utf-8")), "dspark_runtime"):
            top = module.split(".")[0]
            if top not in names and not is_standard(top):
                found.append(f"{path.relative_to(ROOT)}:{line}: imports {module}")
    assert found == []


def test_functions_import_nothing_but_what_is_listed() -> None:
    found = []
    for package in (BUILDER, RUNTIME):
        for path in sorted(package.rglob("*.py")):
            if str(path.relative_to(ROOT)) in LAZY:
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for function in ast.walk(tree):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    found += [f"{path.relative_to(ROOT)}:{line}" for line, _ in imported(function, package.name)]
    assert found == []


def test_the_rule_sees_an_upward_import(tmp_path: Path) -> None:
    package = tmp_path / "dspark_trt"
    package.mkdir()
    (package / "config.py").write_text("from dspark_trt.build import build\n")
    (package / "build.py").write_text("from . import config\n")
    (package / "stray.py").write_text("")
    ORDER[package] = ORDER[BUILDER]
    try:
        found = list(upward_imports(package))
    finally:
        del ORDER[package]
    assert found == [
        "dspark_trt/config.py:1: imports dspark_trt.build.build",
        "dspark_trt/stray.py: 'stray' has no place in the order",
    ]


def is_standard(name: str) -> bool:
    return name in sys.stdlib_module_names
