"""Buffers: which memory the shards of a rank lie in, and how a mover comes to it."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import Any, Sequence

from . import _cuda, memory
from .errors import AttachRefused, CudaError
from .shard import Shard

MAX_CHUNKS = 4096  # physical allocations of one buffer
MAX_DESCRIPTORS = 16384  # of one rank


@dataclass(frozen=True)
class GPU:
    """How another process comes to a buffer on a GPU."""

    uuid: bytes
    handle: bytes = b""
    chunks: Sequence[int] = ()  #: bytes of each physical allocation


class Buffer:
    """Memory that is passed once, with what keeps it alive."""

    def __init__(self, address: int, off: int, nbytes: int, files: Sequence[int], owner: Any = None, gpu: GPU | None = None) -> None:
        self.address = address  #: of the first byte, in this process or on its GPU
        self.off = off  #: of the first byte within what is passed
        self.nbytes = nbytes
        self.files = files  #: descriptors; the buffer's own on a GPU, the owner's else
        self.owner = owner
        self.gpu = gpu
        if gpu is not None:
            weakref.finalize(self, _close, tuple(files))


def _close(files: Sequence[int]) -> None:
    for fd in files:
        os.close(fd)


@dataclass(frozen=True)
class Placed:
    """A shard within a buffer."""

    shard: Shard
    buffer: int  #: index
    off: int  #: byte of its first element


def place(shards: Sequence[Shard]) -> tuple[list[Placed], list[Buffer]]:
    """The buffers that shards lie in, each once. Raises AttachRefused and CudaError."""
    buffers: list[Buffer] = []
    for s in shards:
        if s.device is None and not any(_within(b, s) for b in buffers):
            m = memory.holding(s.address, s.nbytes)
            buffers.append(Buffer(m.address, 0, m.nbytes, (m.fd,), m))
    there = [s for s in shards if s.device is not None]
    gpus = {s.device for s in there if s.device is not None}
    if len(gpus) > 1:
        raise AttachRefused(f"attach: the shards lie on GPUs {sorted(gpus)}: a rank has one")
    for gpu in gpus:
        buffers += _cuda.on_gpu(gpu, lambda driver: _on_gpu(driver, gpu, there))
    placed = []
    for s in shards:
        at = next(i for i, b in enumerate(buffers) if (b.gpu is not None) == (s.device is not None) and _within(b, s))
        placed.append(Placed(s, at, s.address - buffers[at].address))
    return placed, buffers


def _within(b: Buffer, s: Shard) -> bool:
    return b.address <= s.address and s.address + s.nbytes <= b.address + b.nbytes


@dataclass
class _Run:
    """Allocations one behind the other, and the bytes of them that shards use."""

    chunks: list[_cuda.Allocation]
    lo: int
    hi: int

    def meets(self, o: _Run) -> bool:
        return self.chunks[0].base < o.chunks[-1].end and o.chunks[0].base < self.chunks[-1].end

    def take(self, o: _Run) -> None:
        self.chunks = sorted(set(self.chunks) | set(o.chunks), key=lambda a: a.base)
        self.lo, self.hi = min(self.lo, o.lo), max(self.hi, o.hi)


def _on_gpu(driver: _cuda.Driver, gpu: int, shards: Sequence[Shard]) -> list[Buffer]:
    runs: list[_Run] = []
    for s in sorted(shards, key=lambda s: s.address):
        run = _Run(_chunks(driver, gpu, s), s.address, s.address + s.nbytes)
        if runs and runs[-1].meets(run):
            runs[-1].take(run)
        else:
            runs.append(run)
    if sum(len(r.chunks) for r in runs if not r.chunks[0].legacy) > MAX_DESCRIPTORS:
        raise CudaError(f"attach: the cache lies in more than {MAX_DESCRIPTORS} physical allocations: allocate it in larger pieces")
    uuid = driver.uuid(gpu)
    return [_buffer(driver, uuid, r) for r in runs]


def _chunks(driver: _cuda.Driver, gpu: int, s: Shard) -> list[_cuda.Allocation]:
    """The allocations that a shard lies in."""
    what = f"attach: shard of {s.state} at {s.address:#x}"
    out: list[_cuda.Allocation] = []
    at, end = s.address, s.address + s.nbytes
    while at < end:
        a = driver.allocation(at)
        if a.gpu != gpu:
            raise CudaError(f"{what}: the driver says GPU {a.gpu}, its tensor {gpu}")
        if a.pool:
            raise CudaError(f"{what}: it is of a cudaMallocAsync pool, which other processes cannot open: allocate the cache "
                            "with cudaMalloc (in PyTorch PYTORCH_CUDA_ALLOC_CONF=backend:native)")
        if not (a.legacy or a.posix):
            raise CudaError(f"{what}: it was allocated without a handle that other processes can open: ask for POSIX "
                            "descriptors when it is made")
        if a.legacy and a.end < end or out and (a.legacy or a.base != out[-1].end):
            raise CudaError(f"{what}: {s.nbytes} bytes leave their allocation: state a shard for each allocation")
        out.append(a)
        if len(out) > MAX_CHUNKS:
            raise CudaError(f"{what}: it lies in more than {MAX_CHUNKS} physical allocations: allocate it in larger pieces")
        at = a.end
    return out


def _buffer(driver: _cuda.Driver, uuid: bytes, r: _Run) -> Buffer:
    first = r.chunks[0]
    off, n = r.lo - first.base, r.hi - r.lo
    if first.legacy:
        return Buffer(r.lo, off, n, (), gpu=GPU(uuid, handle=driver.handle(first.base)))
    if len(r.chunks) > MAX_CHUNKS:
        raise CudaError(f"attach: a buffer lies in {len(r.chunks)} physical allocations, at most {MAX_CHUNKS}: allocate it in larger pieces")
    files: list[int] = []
    try:
        for a in r.chunks:
            files.append(driver.descriptor(a.base))
    except BaseException:
        _close(files)
        raise
    return Buffer(r.lo, off, n, files, gpu=GPU(uuid, chunks=[a.nbytes for a in r.chunks]))
