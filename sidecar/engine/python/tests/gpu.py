"""Memory of a GPU for tests, where the driver is the stand-in whose device memory this process
reads and writes as its own."""

import ctypes
import types

import numpy

from baton import _cuda

SKEW = 4096 + 256  # where memory begins within its allocation
GRAIN = 2 << 20


class _Prop(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("where", ctypes.c_int), ("gpu", ctypes.c_int),
                ("windows", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class _Access(ctypes.Structure):
    _fields_ = [("where", ctypes.c_int), ("gpu", ctypes.c_int), ("flags", ctypes.c_int)]


def _call(driver, name, version, types, *args):
    rc = driver.function(name, version, *types)(*args)
    if rc:
        raise OSError(f"{name}: {rc}")


def alloc(gpu, nbytes):
    """Bytes within an allocation as cudaMalloc makes it; never freed."""

    def f(driver):
        at = ctypes.c_uint64()
        _call(driver, "cuMemAlloc", 3020, (_cuda._P64, ctypes.c_size_t), ctypes.byref(at), nbytes + 2 * SKEW)
        return at.value + SKEW

    return _cuda.on_gpu(gpu, f)


def chunks(gpu, nbytes):
    """Bytes over the border of two physical allocations, as expandable segments have them."""
    size = -(-nbytes // GRAIN) * GRAIN

    def f(driver):
        u64 = ctypes.c_uint64
        at = u64()
        _call(driver, "cuMemAddressReserve", 10020, (_cuda._P64, ctypes.c_size_t, ctypes.c_size_t, u64, ctypes.c_ulonglong),
              ctypes.byref(at), 2 * size, 0, 0, 0)
        for i in range(2):
            prop, h = _Prop(type=1, handles=1, where=1, gpu=gpu), u64()
            _call(driver, "cuMemCreate", 10020, (_cuda._P64, ctypes.c_size_t, ctypes.POINTER(_Prop), ctypes.c_ulonglong),
                  ctypes.byref(h), size, ctypes.byref(prop), 0)
            _call(driver, "cuMemMap", 10020, (u64, ctypes.c_size_t, ctypes.c_size_t, u64, ctypes.c_ulonglong), at.value + i * size, size, 0, h, 0)
            _call(driver, "cuMemRelease", 10020, (u64,), h)
        access = _Access(where=1, gpu=gpu, flags=3)
        _call(driver, "cuMemSetAccess", 10020, (u64, ctypes.c_size_t, ctypes.POINTER(_Access), ctypes.c_size_t), at.value, 2 * size,
              ctypes.byref(access), 1)
        return at.value + size - nbytes // 2 // 256 * 256

    return _cuda.on_gpu(gpu, f)


def array(address, shape, dtype):
    """What lies at an address, as numpy sees it."""
    kind = numpy.dtype(dtype)
    n = int(numpy.prod(shape)) * kind.itemsize
    return numpy.frombuffer((ctypes.c_char * n).from_address(address), dtype=kind).reshape(shape)


class Tensor:
    """Such an array, as torch would show a tensor on that GPU."""

    def __init__(self, of, gpu):
        self._of, self.shape, self.dtype = of, of.shape, of.dtype
        self.device = types.SimpleNamespace(type="cuda", index=gpu)

    def data_ptr(self):
        return self._of.__array_interface__["data"][0]

    def stride(self):
        return tuple(s // self._of.itemsize for s in self._of.strides)

    def element_size(self):
        return self._of.itemsize
