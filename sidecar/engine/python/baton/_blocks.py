"""What an engine's prefix cache holds, told to whoever routes by it. No I/O, no lock.

Events are told between tell_blocks on and off: at on, that all is forgotten and the whole content
anew, then changes. A sidecar that does not keep up is told so again, when it has read.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Iterable, Iterator, Sequence

from .errors import Bound, EngineFault
from .words import Salt

MAX_RUN = 512  # blocks, or ids, of one event
MAX_EVENTS = 4096  # of one message
MAX_BLOCK = 1 << 16  # tokens of one block
_MAX_TOKENS = 1 << 18  # tokens and ids after which an event, and a message, has enough: far less than the sidecar takes
MAX_BLOCKS = 1 << 20  # that are held
STORED, REMOVED, CLEARED = 1, 2, 3


@dataclass(frozen=True)
class Block:
    """A complete block of the cache."""

    id: int
    parent: int
    tokens: tuple[int, ...]
    salt: Salt | None


@dataclass(frozen=True)
class BlockEvent:
    """A change of the cache: a run of blocks, ids that left, or that all is forgotten."""

    kind: int
    blocks: Sequence[Block] = ()
    removed: Sequence[int] = ()
    lost: int = 0


class Blocks:
    def __init__(self) -> None:
        self.on = False
        self._held: dict[int, Block] = {}  # in the order in which they came
        self._lost: int | None = None  # events that were not told; None: all were

    def stored(self, blocks: Iterable[tuple[int, Sequence[int]]], parent: int, salt: Salt | None) -> list[BlockEvent]:
        """Takes a run of blocks; what has to be told. Blocks that are held are not told twice."""
        new: list[Block] = []
        for name, tokens in blocks:
            if not 0 < name < 1 << 64 or not 0 <= parent < 1 << 64 or not 0 < len(tokens) <= MAX_BLOCK:
                raise EngineFault(f"stored: block {name} behind {parent} with {len(tokens)} tokens: "
                                  f"want ids of 64 bits, not 0, and 1 to {MAX_BLOCK} tokens")
            if name not in self._held and all(name != b.id for b in new[-1:]):
                new.append(Block(name, parent, _numbers(name, tokens), salt))
            parent = name
        if len(self._held) + len(new) > MAX_BLOCKS:
            raise Bound(f"stored: {len(self._held) + len(new)} blocks are held, at most {MAX_BLOCKS}")
        self._held.update((b.id, b) for b in new)
        return runs(new)

    def removed(self, ids: Iterable[int]) -> list[BlockEvent]:
        """Takes ids that left the cache; those that are not held are not told."""
        gone = [i for i in ids if self._held.pop(i, None) is not None]
        return [BlockEvent(REMOVED, removed=gone[i:i + MAX_RUN]) for i in range(0, len(gone), MAX_RUN)]

    def cleared(self) -> list[BlockEvent]:
        self._held.clear()
        return [BlockEvent(CLEARED)]

    def anew(self) -> list[BlockEvent]:
        """That all is forgotten, and the whole content."""
        lost, self._lost = self._lost or 0, None
        return [BlockEvent(CLEARED, lost=lost), *runs(self._held.values())]

    def behind(self, events: Sequence[BlockEvent]) -> None:
        """Notes that these were not told."""
        self._lost = (self._lost or 0) + len(events)

    @property
    def is_behind(self) -> bool:
        return self._lost is not None


def _numbers(name: int, tokens: Sequence[int]) -> tuple[int, ...]:
    """The tokens of a block, which a message can carry."""
    try:
        out = tuple(map(index, tokens))
    except TypeError as err:
        raise EngineFault(f"stored: tokens of block {name}: {err}") from err
    if not 0 <= min(out) <= max(out) < 1 << 31:
        raise EngineFault(f"stored: tokens of block {name}: from {min(out)} to {max(out)}: want numbers of 31 bits, not less than 0")
    return out


def messages(events: Iterable[BlockEvent]) -> Iterator[list[BlockEvent]]:
    """Deals events out to messages, in order."""
    out: list[BlockEvent] = []
    weight = 0
    for e in events:
        if out and (len(out) == MAX_EVENTS or weight >= _MAX_TOKENS):
            yield out
            out, weight = [], 0
        out.append(e)
        weight += 8 + len(e.removed) + sum(len(b.tokens) for b in e.blocks)
    if out:
        yield out


def runs(blocks: Iterable[Block]) -> list[BlockEvent]:
    """Events of blocks, each of which continues the one before it in its event."""
    out: list[list[Block]] = []
    for b in blocks:
        last = out[-1][-1] if out else None
        same = last is not None and (b.parent, b.salt, len(b.tokens)) == (last.id, last.salt, len(last.tokens))
        if same and len(out[-1]) < min(MAX_RUN, max(1, _MAX_TOKENS // len(b.tokens))):
            out[-1].append(b)
        else:
            out.append([b])
    return [BlockEvent(STORED, blocks=r) for r in out]
