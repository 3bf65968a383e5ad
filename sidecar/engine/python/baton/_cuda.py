"""GPU memory as another process can open it: the driver's own calls, by ctypes. Nothing here
allocates or copies, and what the engine's threads have current on the GPU stays as it is."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from dataclasses import dataclass
from typing import Any, Callable, TypeVar

from .errors import CudaError

_P64 = ctypes.POINTER(ctypes.c_uint64)
_PINT = ctypes.POINTER(ctypes.c_int)
_PSIZE = ctypes.POINTER(ctypes.c_size_t)
_PVOID = ctypes.POINTER(ctypes.c_void_p)

# Function, the version whose form is meant, and its arguments. All return an int, 0 for good.
_CALLS: dict[str, tuple[int, tuple[Any, ...]]] = {
    "cuInit": (2000, (ctypes.c_uint,)),
    "cuGetErrorName": (6000, (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))),
    "cuGetErrorString": (6000, (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p))),
    "cuDeviceGet": (2000, (_PINT, ctypes.c_int)),
    "cuDeviceGetUuid": (11040, (ctypes.c_char_p, ctypes.c_int)),
    "cuDevicePrimaryCtxRetain": (7000, (_PVOID, ctypes.c_int)),
    "cuDevicePrimaryCtxRelease": (11000, (ctypes.c_int,)),
    "cuCtxSetCurrent": (4000, (ctypes.c_void_p,)),
    "cuPointerGetAttribute": (4000, (_P64, ctypes.c_int, ctypes.c_uint64)),
    "cuMemGetAddressRange": (3020, (_P64, _PSIZE, ctypes.c_uint64)),
    "cuIpcGetMemHandle": (4010, (ctypes.c_char_p, ctypes.c_uint64)),
    "cuMemRetainAllocationHandle": (11000, (_P64, ctypes.c_void_p)),
    "cuMemExportToShareableHandle": (10020, (_PINT, ctypes.c_uint64, ctypes.c_int, ctypes.c_ulonglong)),
    "cuMemRelease": (10020, (ctypes.c_uint64,)),
}
# Of CUpointer_attribute.
_ORDINAL, _LEGACY, _KINDS, _POOL = 9, 10, 14, 17
_POSIX_FD = 1


@dataclass(frozen=True)
class Allocation:
    """One physical allocation, as the driver knows it."""

    base: int
    nbytes: int
    gpu: int  #: ordinal, as this process numbers them
    legacy: bool  #: an IPC handle can be made
    posix: bool  #: a descriptor can be made
    pool: bool  #: it is of a stream-ordered pool

    @property
    def end(self) -> int:
        return self.base + self.nbytes


class Driver:
    """libcuda.so.1. Its calls run on a thread of their own, whose current context is theirs."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as err:
            raise CudaError(f"GPU driver: {err}: install NVIDIA's driver, or keep the cache in baton.shm(...)") from err
        self._functions: dict[str, Any] = {}
        self.call("cuInit", 0)

    def function(self, name: str, version: int, *args: Any) -> Any:
        """A function of the driver in the form of this version."""
        at, status = ctypes.c_void_p(), ctypes.c_int()
        find = getattr(self._library, "cuGetProcAddress_v2", None)
        if find is not None:
            rc = find(name.encode(), ctypes.byref(at), version, ctypes.c_uint64(0), ctypes.byref(status))
        else:
            rc = self._library.cuGetProcAddress(name.encode(), ctypes.byref(at), version, ctypes.c_uint64(0))
        if rc or not at.value:
            raise CudaError(f"GPU driver: it has no {name} of {version // 1000}.{version % 1000 // 10}: install a newer one")
        return ctypes.CFUNCTYPE(ctypes.c_int, *args)(at.value)

    def result(self, name: str, *args: Any) -> int:
        """Calls a function and returns what it says."""
        f = self._functions.get(name)
        if f is None:
            version, types = _CALLS[name]
            f = self._functions[name] = self.function(name, version, *types)
        return int(f(*args))

    def call(self, name: str, *args: Any) -> None:
        """Calls a function. Raises CudaError with the driver's name and text of a failure."""
        rc = self.result(name, *args)
        if rc:
            raise CudaError(f"GPU driver: {name}: {self._said(rc)}")

    def _said(self, rc: int) -> str:
        words = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            if self.result(name, rc, ctypes.byref(text)) == 0 and text.value:
                words.append(text.value.decode(errors="replace"))
        return ": ".join(words) or f"error {rc}"

    def allocation(self, address: int) -> Allocation:
        """The allocation in which this byte lies."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange", ctypes.byref(base), ctypes.byref(size), address)

        def attribute(which: int) -> int:
            v = ctypes.c_uint64()  # what the driver does not say of a pointer is no
            return v.value if self.result("cuPointerGetAttribute", ctypes.byref(v), which, address) == 0 else 0

        return Allocation(base.value, size.value, attribute(_ORDINAL) & 0xFFFFFFFF, bool(attribute(_LEGACY)),
                          bool(attribute(_KINDS) & _POSIX_FD), bool(attribute(_POOL)))

    def uuid(self, gpu: int) -> bytes:
        device, out = ctypes.c_int(), ctypes.create_string_buffer(16)
        self.call("cuDeviceGet", ctypes.byref(device), gpu)
        self.call("cuDeviceGetUuid", out, device)
        return out.raw

    def handle(self, base: int) -> bytes:
        """The 64 bytes by which another process opens an allocation."""
        out = ctypes.create_string_buffer(64)
        self.call("cuIpcGetMemHandle", out, base)
        return out.raw

    def descriptor(self, base: int) -> int:
        """A descriptor by which another process maps an allocation; the caller's."""
        kept, fd = ctypes.c_uint64(), ctypes.c_int(-1)
        self.call("cuMemRetainAllocationHandle", ctypes.byref(kept), base)
        try:
            self.call("cuMemExportToShareableHandle", ctypes.byref(fd), kept, _POSIX_FD, 0)
        finally:
            self.result("cuMemRelease", kept)
        os.set_inheritable(fd.value, False)
        return fd.value


T = TypeVar("T")


def on_gpu(gpu: int, f: Callable[[Driver], T]) -> T:
    """Runs f with the GPU's primary context current, on a thread of its own."""
    driver, out, wrong = load(), [], []

    def body() -> None:
        try:
            device, context = ctypes.c_int(), ctypes.c_void_p()
            driver.call("cuDeviceGet", ctypes.byref(device), gpu)
            driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            try:
                driver.call("cuCtxSetCurrent", context)
                out.append(f(driver))
            finally:
                driver.result("cuCtxSetCurrent", None)
                driver.result("cuDevicePrimaryCtxRelease", device)
        except Exception as err:
            wrong.append(err)

    t = threading.Thread(target=body, name="baton-gpu")
    t.start()
    t.join()
    if wrong:
        raise wrong[0]
    return out[0]


@functools.lru_cache(maxsize=1)
def load() -> Driver:
    """The driver, opened once. Raises CudaError where there is none."""
    return Driver()
