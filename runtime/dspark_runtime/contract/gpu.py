"""Which GPUs this machine has, asked of the NVIDIA driver alone: no toolkit, no Python package.

Builder and runtime compare the answer with a manifest. Nothing is allocated and no context is made.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

DRIVER = "libcuda.so.1"
_COMPUTE_MAJOR = 75
_COMPUTE_MINOR = 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h."""
_NAME_BYTES = 256


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device of this machine."""

    name: str
    compute_capability: str
    """Such as `8.6`."""


def find_gpus(driver: str = DRIVER) -> tuple[Gpu, ...]:
    """The GPUs that a process may use, in CUDA's order; empty without a driver or a device.

    driver: the library to ask; another one in tests.
    """
    try:
        cuda = ctypes.CDLL(driver)
    except OSError:
        return ()
    count = ctypes.c_int()
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    found = (_describe(cuda, index) for index in range(count.value))
    return tuple(gpu for gpu in found if gpu is not None)


def _describe(cuda: ctypes.CDLL, index: int) -> Gpu | None:
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    failed = (
        cuda.cuDeviceGet(ctypes.byref(device), index)
        or cuda.cuDeviceGetName(name, _NAME_BYTES, device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_MAJOR, device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_MINOR, device)
    )
    if failed:
        return None
    return Gpu(name.value.decode(errors="replace"), f"{major.value}.{minor.value}")
