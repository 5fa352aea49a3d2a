"""Where the runtime finds the compiled library."""

from __future__ import annotations

import ctypes

import pytest

from dspark_runtime import oplib
from dspark_runtime.contract.errors import BundleError


def test_library_path_is_a_library_with_the_expected_abi() -> None:
    assert ctypes.CDLL(str(oplib.library_path())).dspark_abi_version() == 2


def test_library_path_without_a_compiled_part_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oplib, "find_spec", lambda name: None)
    monkeypatch.setattr(oplib, "LIBRARY", "libdspark_ops_absent.so")
    oplib.library_path.cache_clear()
    try:
        with pytest.raises(BundleError, match="install the package with `pip install"):
            oplib.library_path()
    finally:
        oplib.library_path.cache_clear()
