"""An engine rank's side of its sidecar: one-way messages, and what came, polled between steps."""

from __future__ import annotations

import functools
import os
import select
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Sequence

from . import _check, _wire, words
from ._blocks import BlockEvent, Blocks
from ._driver import Driver
from ._fences import Fences
from ._place import place
from ._record import DEFAULT_DEADLINE, Growing
from .errors import AttachRefused, Bound, EngineFault, Error, WrongRole
from .shard import Shard
from .words import Capacity, Decision, Event, Manifest, Model, OnDown, Reach, Resume, Salt, Scheduler, WeightsPolicy


@dataclass(frozen=True)
class Rank:
    """What a rank states of itself, once a session."""

    group: str
    instance: int
    rank: int
    ranks: int
    model: Model
    shards: Sequence[Shard]
    capacity: Capacity
    scheduler: Scheduler
    on_down: OnDown
    weights: WeightsPolicy
    parts: bool
    tells_blocks: bool

    def check(self) -> None:
        """Raises AttachRefused or LayoutError for what no sidecar would take."""
        _check.kinds(self.model, self.shards, self.capacity, instance=self.instance, rank=self.rank, ranks=self.ranks)
        if not self.group:
            raise AttachRefused("attach: it names no group")
        if not 0 < self.instance < 1 << 64:
            raise AttachRefused(f"attach: instance {self.instance}: want a random number of 64 bits, equal on all ranks of a launch")
        if not 0 <= self.rank < self.ranks:
            raise AttachRefused(f"attach: rank {self.rank} of {self.ranks}")
        if not self.shards:
            raise AttachRefused("attach: it states no shard")
        _check.shards(self.model, self.shards, self.capacity)


def attach(
    run_dir: str | os.PathLike[str],
    *,
    group: str,
    instance: int,
    model: Model,
    shards: Sequence[Shard],
    capacity: Capacity,
    rank: int = 0,
    ranks: int = 1,
    scheduler: Scheduler = Scheduler.RANK,
    on_down: OnDown = OnDown.FAIL,
    weights: WeightsPolicy = WeightsPolicy.REFUSE,
    parts: bool = False,
    tells_blocks: bool = False,
    timeout: float = 60.0,
    redial: tuple[float, float] = (0.05, 5.0),
) -> Client:
    """Attaches a rank to the sidecar of its GPU and returns when a mover maps its memory.

    run_dir is the sidecar's run directory. instance is random, one per launch of the group and
    equal on all its ranks: rank 0 draws it and tells the others. Ranks of unequal ones wait for
    each other, and exports fail with NotReady. shards say where the rank keeps which part of the model; the memory
    of their tensors is passed to the mover once, and stays until the client is closed. parts
    says that the engine takes a RESERVE before its hand-off is exported whole, and the resume
    packet with ADMIT. tells_blocks, of rank 0, says that the engine tells what its prefix cache holds:
    see stored(). The client attaches again by itself after redial[0] seconds, doubled for
    each try that fails, up to redial[1].

    This call and close() wait; no other does. Raises AttachRefused, LayoutError, WrongModel,
    AlreadyAttached, Relaunch, CudaError for GPU memory that cannot be shared, PeerLost where no
    sidecar serves run_dir, TimeoutError.
    """
    if isinstance(shards, Shard):
        raise AttachRefused("attach: shards: a Shard: want a list of them")
    me = Rank(group, instance, rank, ranks, model, tuple(shards), capacity, scheduler, on_down, weights, parts, tells_blocks)
    me.check()
    if not 0 < redial[0] <= redial[1]:
        raise AttachRefused(f"attach: redial {redial}: want 0 < least <= most")
    placed, buffers = place(me.shards)

    def statement(state: Any) -> Any:
        return _wire.attach(me, placed, buffers, state)

    driver = Driver(os.fspath(run_dir), statement, [(i, fd) for i, b in enumerate(buffers) for fd in b.files], model.weights_epoch,
                    on_down == OnDown.RECOMPUTE, redial)
    driver.start(timeout)
    return Client(me, driver, buffers)


class Client:
    """One attached rank, made by `attach`. Every call but close() and wait() returns at once;
    the calls of one engine come from one thread, or are ordered by the engine.

    While no sidecar is there, nothing is lost that matters: the client attaches again, to the
    same sidecar or the one that takes its place, and states what the engine holds. An export is
    freed in the group's order; an announcement is said again, and its label has a new manifest;
    an import fails at once with PeerLost and its source safe; one that waits ends by the word of
    the next sidecar, at most at its deadline, or under OnDown.RECOMPUTE at once. Its memory is
    the group's either way, and comes back by RELEASE_QUARANTINE.
    """

    def __init__(self, me: Rank, driver: Driver, buffers: Sequence[Any]) -> None:
        self.rank = me  #: what was stated
        self._driver = driver
        self._buffers = buffers
        self._fences = Fences()
        self._bounds = _check.Bounds(me.model, me.shards, me.capacity)

    # Prefill.

    def announce(self, label: str) -> None:
        """Says that label will be exported. Rank 0. The control plane hears of it (a notice
        ANNOUNCED with the manifest), and who imports by that waits for the state. Nothing comes
        to the engine: rank 0 hears Exported once the label is exported, or Failed."""
        self._send(_wire.simple("announce", label=label), lambda r: r.announces(label))

    def export(
        self,
        label: str,
        blocks: Sequence[int],
        tokens: int,
        *,
        slot: int = -1,
        position: int | None = None,
        resume: Resume | None = None,
        copies: int = 1,
        max_hold: float = 0.0,
        weights_epoch: int | None = None,
        salt: Salt | None = None,
        stream: Any = None,
        fence: int = 0,
        parts: int = 0,
    ) -> None:
        """Pins a finished prompt's state. Every rank says it; blocks and slot stay untouched
        until decision FREE of the label, or UnpinExport, or Failed other than Gone. Use the label
        again after that: after FREE, once applied() was said. FREE without Exported before it, at
        rank 0, says that the request failed: nobody got its manifest.

        blocks is the block table from token 0, one for each block_tokens of tokens, slot that of the per-request state (-1: none),
        tokens how many of the prompt have state, position that of the per-request state
        (tokens, if left out). resume is rank 0's. copies imports may consume it. max_hold is in
        seconds; 0: the sidecar's lease. weights_epoch is the engine's at the request's first
        token (the newest applied, if left out). parts closes so many export_part() of the label,
        whose blocks are the first of blocks.

        The work that wrote the state has ended: the stream is synchronised. Or stream is where it
        was queued, a torch.cuda.Stream: an event is recorded there, and the state is read when
        poll() has seen it pass. Or fence is the engine's own number of the step: see fenced().
        """
        fields: dict[str, Any] = dict(
            label=label, blocks=_wire.blocks(blocks), tokens=tokens, slot=slot, position=tokens if position is None else position, resume=resume,
            copies=copies, max_hold=max_hold, weights_epoch=weights_epoch, salt=salt, parts=parts)
        self._ready(_wire.export, fields)
        self._bounds.pinned(f"export of {label!r}", fields["blocks"], slot, tokens, tokens)
        self._pin(_wire.export, (lambda r: r.closes(label, parts, fields["blocks"], _like(fields))) if parts else (lambda r: r.exports(label)),
                  stream, fence, fields)

    def export_part(
        self,
        label: str,
        part: int,
        blocks: Sequence[int],
        tokens: int,
        reach: Reach,
        *,
        position: int | None = None,
        weights_epoch: int | None = None,
        salt: Salt | None = None,
        stream: Any = None,
        fence: int = 0,
    ) -> None:
        """Pins what is computed of a prompt while the rest is. Every rank says the same parts,
        from 1 in order; export(parts=n) closes them, release() gives them up.

        blocks are those behind the ones that earlier parts named; tokens is of the whole prompt;
        reach what is computed, and only grows. tokens, position, weights_epoch and salt are those of
        the first part, also where export() closes them.
        What continues a label that has ended is dropped.
        """
        fields: dict[str, Any] = dict(
            label=label, part=part, blocks=_wire.blocks(blocks), tokens=tokens, reach=reach, position=tokens if position is None else position,
            weights_epoch=weights_epoch, salt=salt)
        self._ready(_wire.export_part, fields)
        self._pin(_wire.export_part, lambda r: r.part(label, part, fields["blocks"], reach, _like(fields), lambda named: self._bounds.pinned(
            f"export of {label!r}", named, -1, reach.ahead, tokens)), stream, fence, fields)

    def release(self, label: str) -> None:
        """Gives up an exported or announced hand-off; its memory comes back by FREE. Rank 0."""
        self._send(_wire.simple("release_export", label=label), lambda r: r.releases(label))

    # Decode.

    def import_(self, label: str, manifest: Manifest, tokens: Sequence[int], *, deadline: float = 0.0) -> None:
        """Asks for a hand-off, under the decode engine's own label ("": that of the manifest).
        Rank 0. tokens is the prompt; deadline is in seconds, 0: the sidecar's default. Decisions
        RESERVE and ADMIT follow, and Imported or Failed ends it."""
        if self.rank.rank != 0:
            raise WrongRole(f"import: rank {self.rank.rank} asks for it: rank 0 alone does")
        if not isinstance(manifest, Manifest):
            raise Bound(f"import: manifest: a {type(manifest).__name__}: want baton.Manifest, which Manifest.parse makes of bytes")
        name = label or manifest.label
        request = _wire.import_(name, manifest, tokens, deadline)
        due = time.monotonic() + (deadline if deadline > 0 else DEFAULT_DEADLINE)
        self._send(request, lambda r: r.asks(name, manifest, due), imports=name)

    def abort(self, label: str) -> None:
        """Asks to end an import; Imported or Failed follows. Rank 0."""
        self._send(_wire.simple("abort_import", label=label))

    def reserved(
        self, n: int, blocks: Sequence[int], digest: bytes, *, slot: int = -1, cached: int = 0, stream: Any = None, fence: int = 0
    ) -> None:
        """Answers RESERVE n, once it was applied, with the memory that was taken.

        blocks is the table from token 0, cached ones included; cached the leading tokens that
        need no copy, a multiple of the block size. digest is 32 bytes of blocks and slot of the
        mirrored allocator: unequal digests in a group are an engine failure. Where a step that
        was queued may still write the memory, stream or fence say which, as in export().
        """
        named = _wire.blocks(blocks)
        answer = functools.partial(_wire.reserved, n, False, "", named, cached, slot, digest)
        answer(0)  # refuses what is out of bounds, before an event is recorded
        self._bounds.taken(f"answer to decision {n}", named, slot, cached)
        self._send(answer(self._fences.of(stream, fence)))

    def full(self, n: int) -> None:
        """Answers RESERVE n: there is no room and nothing is held. It is asked again after freed()."""
        self._send(_wire.reserved(n, True, "", (), 0, -1, b"", 0))

    def refuse(self, n: int, why: str) -> None:
        """Answers RESERVE n: it can never work."""
        if not why:
            raise EngineFault("refuse: it says not why")
        self._send(_wire.reserved(n, False, why, (), 0, -1, b"", 0))

    def freed(self, blocks: int = 1, slots: int = 0) -> None:
        """Says that blocks or slots came back: an import that found no room may fit. Rank 0."""
        self._send(_wire.simple("freed", blocks=blocks, slots=slots))

    # Decisions.

    def decisions(self, through: int) -> list[Decision]:
        """Takes the decisions up to and with number through that were not taken, in order. Each
        is applied in one step, the same on every rank; then say applied()."""
        with self._driver.lock:
            return self._driver.record.take(through)

    def applied(self, n: int) -> None:
        """Says that decisions 1 to n are applied."""
        self._send(_wire.simple("applied", n=n), lambda r: r.applies(n))

    def lifecycle_ack(self, n: int, error: Error | None = None) -> None:
        """Answers LIFECYCLE n, once it was applied and its action is carried out or, what takes
        longer, begun. error: the engine refuses."""
        self._send(_wire.lifecycle_ack(n, error), lambda r: r.acks(n))

    def fenced(self, n: int) -> None:
        """Says that the engine's steps behind fences 1 to n have ended. With stream= the client
        says it."""
        self._send(_wire.simple("fenced", n=n), lambda r: r.fences(n))

    # The prefix cache, rank 0 of an engine that attached with tells_blocks.

    def stored(self, blocks: Sequence[tuple[int, Sequence[int]]], *, parent: int = 0, salt: Salt | None = None) -> None:
        """Says that complete blocks entered the prefix cache: (id, tokens), each of which continues
        the one before it, the first one parent (0: a prompt begins with it). An id names a
        block's tokens and all before it. The client keeps what is held, 2^20 blocks at most, and
        tells it while somebody routes by it; a sidecar that does not keep up is told all anew."""
        if salt is not None:
            _wire.check_salt(salt)
        self._tell(lambda b: b.stored(blocks, parent, salt))

    def removed(self, ids: Sequence[int]) -> None:
        """Says that blocks left the prefix cache."""
        self._tell(lambda b: b.removed(ids))

    def cleared(self) -> None:
        """Says that the prefix cache was emptied."""
        self._tell(lambda b: b.cleared())

    # What came.

    def poll(self) -> list[Event]:
        """Takes what arrived, in order. Fences whose events have passed are told by this call, so
        an engine that gives streams polls between its steps."""
        n = self._fences.passed()
        if n:
            self.fenced(n)
        return self._driver.take()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until something arrived since the last poll(), or timeout seconds. Not for the
        loop of an engine with work to do."""
        return bool(select.select([self.fileno()], [], [], timeout)[0])

    def fileno(self) -> int:
        """A descriptor that is readable when something arrived since the last poll(), decisions
        included, and when a session was lost or stands again. Only to be watched."""
        return self._driver.wake

    @property
    def away(self) -> Error | None:
        """Why no sidecar is attached; None while one is. The client goes on trying until error
        says otherwise."""
        return self._driver.away

    @property
    def error(self) -> Error | None:
        """Why the client has ended; None while it lives. What came before stays for poll() and
        decisions()."""
        return self._driver.error

    def close(self) -> None:
        """Sends what is queued and ends the session. A sidecar that does not read is given a
        second. The memory may still be read until the group is over: see docs/ENGINES.md."""
        self._driver.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self, encode: Callable[[dict[str, Any]], Any], fields: dict[str, Any]) -> None:
        """Refuses what is out of bounds, before an event is recorded."""
        if fields["weights_epoch"] is None:
            fields["weights_epoch"] = self._driver.record.weights
        fields["fence"] = 0
        encode(fields)

    def _pin(self, encode: Callable[[dict[str, Any]], Any], record: Callable[[Any], bool], stream: Any, fence: int, fields: dict[str, Any]) -> None:
        fields["fence"] = self._fences.of(stream, fence)
        self._send(encode(fields), record)

    def _tell(self, change: Callable[[Blocks], list[BlockEvent]]) -> None:
        if not self.rank.tells_blocks:
            raise EngineFault("blocks: attach() was not told tells_blocks=True")
        self._driver.tell(change)

    def _send(self, message: Any, record: Callable[[Any], bool] | None = None, imports: str = "") -> None:
        if message.ByteSize() > _wire.MAX_MESSAGE:
            raise Bound("message: too large")
        self._driver.send(message, record, imports)


def _like(fields: dict[str, Any]) -> Growing:
    """What the parts of one export have alike."""
    salt = fields["salt"] or Salt()
    return Growing(fields["tokens"], fields["position"], fields["weights_epoch"], replace(salt, media=salt.media or bytes(32)))
