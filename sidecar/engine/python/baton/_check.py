"""What an engine states and names, checked against itself before anything is sent."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from .errors import AttachRefused, EngineFault, LayoutError
from .shard import Shard
from .words import Capacity, Model, Paging, State


def kinds(model: Any, shards: Iterable[Any], capacity: Any, **numbers: Any) -> None:
    """Raises AttachRefused for an argument that is none of its kind."""
    for what, value, kind in (("model", model, Model), ("capacity", capacity, Capacity),
                              *(("model.states", s, State) for s in getattr(model, "states", ())), *(("shards", s, Shard) for s in shards),
                              *((n, v, int) for n, v in numbers.items())):
        if not isinstance(value, kind):
            raise AttachRefused(f"attach: {what}: a {type(value).__name__}: want {'an int' if kind is int else 'baton.' + kind.__name__}")
    for what in ("blocks", "block_tokens", "slots"):
        n = getattr(capacity, what)
        if not isinstance(n, int) or not 0 <= n < 1 << 31:
            raise AttachRefused(f"attach: capacity.{what}: {n!r}: want a count")


def shards(model: Model, shards: Sequence[Shard], capacity: Capacity) -> None:
    """Raises LayoutError for shards that contradict the model, AttachRefused where they and the
    capacity disagree."""
    if capacity.block_tokens < 1:
        raise AttachRefused("attach: capacity.block_tokens is 0: want the tokens of one block")
    if capacity.slots and _slotless(model):
        raise AttachRefused(f"attach: capacity.slots is {capacity.slots}, and the model has no per-request state: want 0")
    for s in shards:
        try:
            state = model.states[model.index(s.state)]
        except KeyError as err:
            raise LayoutError(f"shard: {err.args[0]}") from None
        if s.elems != state.elems:
            raise LayoutError(f"shard of {s.state}: {s.elems} elements a unit, and the model says {state.elems}")
        for what, (lo, hi), n in (("layers", s.layers, state.layers), ("units", s.units, state.units)):
            if not 0 <= lo < hi <= n:
                raise LayoutError(f"shard of {s.state}: {what} [{lo}, {hi}) of {n}")
        _holds(s, state, capacity)


def _slotless(model: Model) -> bool:
    """Nothing of the model is per request."""
    return all(s.paging != Paging.REQUEST for s in model.states)


def _holds(s: Shard, state: State, capacity: Capacity) -> None:
    paged = state.paging == Paging.BLOCK
    what, n = ("blocks", capacity.blocks) if paged else ("slots", capacity.slots)
    if not 1 <= n <= s.items:
        raise AttachRefused(f"attach: capacity.{what} is {n}, and the shard of {s.state} has {s.items} {what}: want 1 to {s.items}")
    if paged and s.rows != capacity.block_tokens:
        raise AttachRefused(f"attach: capacity.block_tokens is {capacity.block_tokens}, and a block of the shard of {s.state} has {s.rows}")


class Bounds:
    """How far the ids of blocks and slots reach: capacity may leave some out, as for a slot of its own."""

    def __init__(self, model: Model, shards: Sequence[Shard], capacity: Capacity) -> None:
        self.block_tokens = capacity.block_tokens
        self.slotless = _slotless(model)
        paging = {s.name: s.paging for s in model.states}
        self.blocks = min((s.items for s in shards if paging[s.state] == Paging.BLOCK), default=None)
        self.slots = min((s.items for s in shards if paging[s.state] == Paging.REQUEST), default=None)

    def pinned(self, what: str, blocks: Sequence[int], slot: int, computed: int, tokens: int) -> None:
        """Raises EngineFault for a block or a slot that is not there or comes twice, and for fewer
        blocks than what is computed fills, or more than tokens do."""
        self.taken(what, blocks, slot, 0)
        if self.blocks is None:  # nothing lies in blocks
            return
        least, most = -(-computed // self.block_tokens), -(-tokens // self.block_tokens)
        if not least <= len(blocks) <= most:
            raise EngineFault(f"{what}: {len(blocks)} blocks for {computed} computed tokens of {tokens}: want {least} to {most}")

    def taken(self, what: str, blocks: Sequence[int], slot: int, cached: int) -> None:
        """Raises EngineFault for a block or a slot that is not there or comes twice, and for
        cached tokens that end within a block, or beyond the last."""
        if self.slotless and slot >= 0:
            raise EngineFault(f"{what}: slot {slot}: the model has no per-request state")
        if self.slots is not None and slot >= self.slots:
            raise EngineFault(f"{what}: slot {slot}: there are {self.slots}, from 0")
        if not isinstance(cached, int) or cached < 0 or cached % self.block_tokens:
            raise EngineFault(f"{what}: {cached!r} tokens are cached: want a multiple of {self.block_tokens}, the tokens of a block")
        if self.blocks is None:
            return
        seen: set[int] = set()
        for b in blocks:
            if not 0 <= b < self.blocks:
                raise EngineFault(f"{what}: block {b}: there are {self.blocks}, from 0")
            if b in seen:
                raise EngineFault(f"{what}: block {b} is named twice")
            seen.add(b)
        if cached > len(seen) * self.block_tokens:
            raise EngineFault(f"{what}: {cached} tokens are cached, and {len(seen)} blocks of {self.block_tokens} are named")
