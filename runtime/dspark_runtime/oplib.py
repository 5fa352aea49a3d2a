"""Where the operator library is, and what it can do. Knows neither ONNX Runtime nor the operators.

The shared library is installed beside the extension module `dspark_ops`; in an editable install the two lie in the
environment while this file lies in the checkout, so the extension is what is looked for.
"""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from dspark_runtime.contract.errors import BundleError

LIBRARY = "libdspark_ops.so"


@cache
def library_path() -> Path:
    """Path of libdspark_ops, for `SessionOptions.register_custom_ops_library` and for C callers.

    Raises BundleError when the package was not installed (a bare checkout has no compiled part).
    """
    folders = [Path(__file__).resolve().parent]
    spec = find_spec("dspark_runtime.dspark_ops")
    if spec is not None and spec.origin is not None:
        folders.insert(0, Path(spec.origin).resolve().parent)
    for folder in folders:
        path = folder / "lib" / LIBRARY
        if path.is_file():
            return path
    raise BundleError(
        f"operator library: {LIBRARY} is not in {folders[0] / 'lib'}; install the package with `pip install .` first"
    )


@cache
def has_onnxruntime_ops() -> bool:
    """True when the library registers its operators with ONNX Runtime (False: built without ONNX Runtime's headers)."""
    return hasattr(ctypes.CDLL(str(library_path())), "RegisterCustomOps")
