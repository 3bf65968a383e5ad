"""Memory that a mover can map: files of memory, and views of them as arrays and tensors."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from typing import Any, Sequence

from .errors import AttachRefused

# Of <linux/fcntl.h>; Python's fcntl does not name them in every version.
_ADD_SEALS = 1033
_SEAL_SHRINK = 2
_SEAL_GROW = 4


class _Mapping(mmap.mmap):
    """Views of a mapping keep it, and it keeps the memory that it belongs to."""

    owner: SharedMemory


class SharedMemory:
    """A file of memory, sealed against changes of its size and mapped here.

    It lives as long as a view of it does. The mover of the sidecar maps the same file, so what
    a rank writes into a view is what other ranks read; nothing is copied to hand it off.
    """

    def __init__(self, fd: int, memory: memoryview, address: int) -> None:
        self.fd = fd  #: of the file; the object's own
        self.memory = memory  #: the bytes, writable
        self.address = address  #: of the first byte, in this process
        self.nbytes = len(memory)
        self._end = weakref.finalize(self, os.close, fd)
        _live[id(self)] = self

    def numpy(self, shape: Sequence[int], dtype: Any, offset: int = 0) -> Any:
        """A numpy array of this shape over the bytes from offset on."""
        import numpy

        kind = numpy.dtype(dtype)
        count = _count(shape)
        self._within(offset, count * kind.itemsize)
        return numpy.frombuffer(self.memory, dtype=kind, count=count, offset=offset).reshape(tuple(shape))

    def torch(self, shape: Sequence[int], dtype: Any, offset: int = 0) -> Any:
        """A torch tensor of this shape over the bytes from offset on; dtype is torch's."""
        import torch

        count = _count(shape)
        self._within(offset, count * torch.empty((), dtype=dtype).element_size())
        return torch.frombuffer(self.memory, dtype=dtype, count=count, offset=offset).view(tuple(shape))

    def _within(self, offset: int, nbytes: int) -> None:
        if offset < 0 or offset + nbytes > self.nbytes:
            raise ValueError(f"{nbytes} bytes from {offset} on: the memory has {self.nbytes}")

    def __repr__(self) -> str:
        return f"<baton.SharedMemory of {self.nbytes} bytes>"


# Those that exist, so that a tensor's address tells in which it lies.
_live: weakref.WeakValueDictionary[int, SharedMemory] = weakref.WeakValueDictionary()


def shm(nbytes: int, name: str = "baton") -> SharedMemory:
    """Makes shared memory of so many bytes, all zero.

    Raises ValueError for a size that is none, and OSError where there is not so much.
    """
    if nbytes < 1:
        raise ValueError(f"{nbytes} bytes: want at least one")
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, _ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW)
        mapped = _Mapping(fd, nbytes)
    except BaseException:
        os.close(fd)
        raise
    mapped.owner = SharedMemory(fd, memoryview(mapped), ctypes.addressof(ctypes.c_char.from_buffer(mapped)))
    return mapped.owner


def holding(address: int, nbytes: int) -> SharedMemory:
    """The shared memory in which these bytes of this process lie. Raises AttachRefused."""
    for m in list(_live.values()):
        if m.address <= address and address + nbytes <= m.address + m.nbytes:
            return m
    raise AttachRefused(
        f"attach: {nbytes} bytes at {address:#x} lie in no shared memory: make the tensor in "
        "baton.shm(...)"
    )


def _count(shape: Sequence[int]) -> int:
    n = 1
    for s in shape:
        if s < 0:
            raise ValueError(f"shape {tuple(shape)}: a dimension is negative")
        n *= s
    return n
