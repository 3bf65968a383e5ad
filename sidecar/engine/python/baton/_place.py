"""Buffers: which memory the shards of a rank lie in, and how a mover comes to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from . import memory
from .errors import AttachRefused
from .shard import Shard


@dataclass
class Buffer:
    """Memory that is passed once, with what keeps it alive."""

    address: int  #: of the first byte, in this process or on its GPU
    nbytes: int
    fd: int
    owner: Any


@dataclass(frozen=True)
class Placed:
    """A shard within a buffer."""

    shard: Shard
    buffer: int  #: index
    off: int  #: byte of its first element


def place(shards: Sequence[Shard]) -> tuple[list[Placed], list[Buffer]]:
    """The buffers that shards lie in, each once, in the order of their first shard."""
    buffers: list[Buffer] = []
    placed = []
    for s in shards:
        if s.device is not None:
            raise AttachRefused(f"attach: shard of {s.state} lies on GPU {s.device}: tensors in baton.shm(...) are handed off")
        at = next((i for i, b in enumerate(buffers) if _within(b, s)), None)
        if at is None:
            m = memory.holding(s.address, s.nbytes)
            at = len(buffers)
            buffers.append(Buffer(m.address, m.nbytes, m.fd, m))
        placed.append(Placed(s, at, s.address - buffers[at].address))
    return placed, buffers


def _within(b: Buffer, s: Shard) -> bool:
    return b.address <= s.address and s.address + s.nbytes <= b.address + b.nbytes
