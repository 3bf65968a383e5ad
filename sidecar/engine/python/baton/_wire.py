"""The messages of proto/engine/v1 to and from the plain values of words.py.

This module alone knows protobuf. It keeps the bounds that the sidecar keeps, so that an
oversized message is refused here and not by the end of the session.
"""

from __future__ import annotations

import base64
import functools
import operator
from typing import Any, Callable, Iterable, Sequence

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from . import words
from ._schema import DESCRIPTORS
from .errors import Bound, Error, named

MAX_MESSAGE = 16 << 20
MAX_STRING = 256
MAX_TEXT = 4 << 10
MAX_TOKENS = 1 << 20
MAX_BLOCKS = 1 << 20
MAX_SHARDS = 1 << 16
MAX_STATES = 1 << 12
MAX_BUFFERS = 1 << 12
MAX_PINS = 1 << 16
MAX_PARTS = 1 << 16
MAX_STATED = 1 << 14
MAX_RESUME = 1 << 10
MAX_SAMPLER = 1 << 20
_MAX_HOLD = 1 << 56


def _load() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for f in descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(DESCRIPTORS)).file:
        pool.Add(f)
    pool.Add(_status())
    return pool


def _status() -> descriptor_pb2.FileDescriptorProto:
    """What the trailer grpc-status-details-bin holds: code, message, and details with a URL."""
    f = descriptor_pb2.FileDescriptorProto(name="baton/trailer.proto", package="baton.trailer", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    detail = f.message_type.add(name="Detail")
    detail.field.add(name="type_url", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    detail.field.add(name="value", number=2, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    status = f.message_type.add(name="Status")
    status.field.add(name="details", number=3, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED, type_name=".baton.trailer.Detail")
    return f


_POOL = _load()


@functools.lru_cache(maxsize=None)
def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


def _new(name: str) -> Any:
    return _class("baton." + name)()


def _bounded(f: Callable[..., Any]) -> Callable[..., Any]:
    """Turns what protobuf says of a value that is none of its kind into Bound."""

    @functools.wraps(f)
    def g(*args: Any, **named_args: Any) -> Any:
        try:
            return f(*args, **named_args)
        except (ValueError, TypeError, AttributeError, UnicodeError, OverflowError) as err:
            raise Bound(f"{f.__name__.strip('_')}: {err}") from err

    return g


@_bounded
def blocks(table: Iterable[Any]) -> list[int]:
    """A block table as a list, be it one, an array or a tensor."""
    return [operator.index(b) for b in table]


def _limit(what: str, n: int, most: int, least: int = 0) -> int:
    if not least <= n <= most:
        raise Bound(f"{what}: {n}: want {least} to {most}")
    return n


def _text(what: str, s: str, most: int = MAX_STRING) -> str:
    if not isinstance(s, str):
        raise Bound(f"{what}: {type(s).__name__}: want a str")
    _limit(f"bytes of {what}", len(s.encode()), most)
    return s


def _fill(what: str, to: Any, values: Iterable[Any], most: int) -> None:
    values = list(values)
    _limit(f"elements of {what}", len(values), most)
    to.extend(values)


def _nanoseconds(what: str, seconds: float) -> int:
    return _limit(what + " in nanoseconds", round(seconds * 1e9), _MAX_HOLD)


def _resume(to: Any, r: words.Resume) -> None:
    _fill("resume.tokens", to.tokens, r.tokens, MAX_RESUME)
    for token in to.tokens:
        _limit("resume.tokens", token, (1 << 31) - 1)
    _fill("resume.logprobs", to.logprobs, r.logprobs, MAX_RESUME)
    _limit("bytes of resume.sampler", len(r.sampler), MAX_SAMPLER)
    to.sampler = r.sampler
    to.finished = r.finished


def _salt(to: Any, s: words.Salt) -> None:
    to.lora = _text("salt.lora", s.lora)
    to.namespace = _text("salt.namespace", s.namespace)
    if len(s.media) not in (0, 32):
        raise Bound(f"salt.media: {len(s.media)} bytes, want 32, or none")
    to.media = s.media


@_bounded
def check_salt(s: words.Salt) -> None:
    """Raises Bound for a salt that no message carries."""
    _salt(_new("common.v1.Salt"), s)


def _id(to: Any, i: words.HandoffID) -> None:
    to.group, to.instance, to.leader, to.n = _text("id.group", i.group), i.instance, i.leader, i.n


def _manifest(to: Any, m: words.Manifest) -> None:
    _id(to.id, m.id)
    to.key, to.label, to.model, to.geometry = m.key, _text("manifest.label", m.label), m.model, m.geometry
    to.tokens = _limit("manifest.tokens", m.tokens, MAX_TOKENS)
    to.position = _limit("manifest.position", m.position, MAX_TOKENS)
    to.weights_epoch, to.block_tokens = m.weights_epoch, m.block_tokens
    _resume(to.resume, m.resume)


@_bounded
def manifest_bytes(m: words.Manifest) -> bytes:
    p = _new("common.v1.Manifest")
    _manifest(p, m)
    return bytes(p.SerializeToString(deterministic=True))


def parse_manifest(data: bytes) -> words.Manifest:
    _limit("bytes of a manifest", len(data), MAX_MESSAGE)
    p = _new("common.v1.Manifest")
    try:
        p.ParseFromString(data)
    except message.DecodeError as err:
        raise Bound(f"manifest: {err}") from err
    if len(p.key) != 16 or not p.label:
        raise Bound("manifest: it has no key of 16 bytes, or no label")
    return _from_manifest(p)


@_bounded
def attach(a: Any, shards: Sequence[Any], buffers: Sequence[Any], state: Any) -> Any:
    """The Attach of a rank: a is what attach() was given, state what _record.Record states."""
    p = _new("engine.v1.FromEngine")
    to = p.attach
    to.group, to.instance, to.rank, to.ranks = _text("group", a.group), a.instance, _limit("rank", a.rank, (1 << 14) - 1), a.ranks
    to.model.name, to.model.weights_epoch = _text("model.name", a.model.name), state.weights
    _limit("states of the model", len(a.model.states), MAX_STATES)
    for s in a.model.states:
        to.model.layout.states.add(name=_text("state.name", s.name), paging=s.paging, layers=s.layers, units=s.units, elems=s.elems)
    _limit("shards", len(shards), MAX_SHARDS)
    for placed in shards:
        shard = placed.shard
        q = to.shards.add(state=a.model.index(shard.state), rank=a.rank, rows=shard.rows, items=shard.items, dtype=shard.dtype)
        q.box.layers.lo, q.box.layers.hi = shard.layers
        q.box.units.lo, q.box.units.hi = shard.units
        q.view.buffer, q.view.off = placed.buffer, placed.off
        q.view.layer, q.view.item, q.view.row = shard.layer_stride, shard.item_stride, shard.row_stride
        q.view.unit, q.view.elem = shard.unit_stride, shard.elem_stride
    _limit("buffers", len(buffers), MAX_BUFFERS)
    for i, b in enumerate(buffers):
        q = to.buffers.add(id=i, off=b.off, len=b.nbytes)
        if b.gpu is not None:
            q.gpu.uuid, q.gpu.handle = b.gpu.uuid, b.gpu.handle
            q.gpu.chunks.extend(b.gpu.chunks)
    c = a.capacity
    to.capacity.blocks, to.capacity.slots, to.capacity.block_tokens = c.blocks, c.slots, c.block_tokens
    to.scheduler, to.on_down, to.weights, to.parts = a.scheduler, a.on_down, a.weights, a.parts
    to.tells_blocks = a.tells_blocks
    to.pins.extend(state.pins)
    to.imports.extend(state.imports)
    to.applied, to.held, to.draining = state.applied, state.held, state.draining
    for d in state.decisions:
        to.decisions.add().CopyFrom(d.wire)
    return _done(p)


@_bounded
def export(e: dict[str, Any]) -> Any:
    p = _new("engine.v1.FromEngine")
    to = p.export
    _pinned("export", to, e)
    to.slot = _limit("export.slot", e["slot"], (1 << 31) - 1, -1)
    if e["resume"] is not None:
        _resume(to.resume, e["resume"])
    to.copies = _limit("export.copies", e["copies"], (1 << 31) - 1, 1)
    to.max_hold_ns = _nanoseconds("export.max_hold", e["max_hold"])
    to.parts = _limit("export.parts", e["parts"], MAX_PARTS)
    return _done(p)


@_bounded
def export_part(e: dict[str, Any]) -> Any:
    p = _new("engine.v1.FromEngine")
    to = p.export_part
    _pinned("export_part", to, e)
    to.part = _limit("export_part.part", e["part"], MAX_PARTS, 1)
    r = e["reach"]
    to.reach.tokens, to.reach.ahead, to.reach.layers = r.tokens, r.ahead, r.layers
    return _done(p)


def _pinned(what: str, to: Any, e: dict[str, Any]) -> None:
    to.label = _text(what + ".label", e["label"])
    _fill(what + ".blocks", to.blocks, e["blocks"], MAX_BLOCKS)
    to.tokens = _limit(what + ".tokens", e["tokens"], MAX_TOKENS)
    to.position = _limit(what + ".position", e["position"], MAX_TOKENS)
    to.weights_epoch, to.fence = e["weights_epoch"], e["fence"]
    if e["salt"] is not None:
        _salt(to.salt, e["salt"])


@_bounded
def import_(label: str, m: words.Manifest, tokens: Sequence[int], deadline: float) -> Any:
    p = _new("engine.v1.FromEngine")
    to = p.import_request
    to.label = _text("import.label", label)
    _manifest(to.manifest, m)
    _fill("import.tokens", to.tokens, tokens, MAX_TOKENS)
    to.deadline_ns = _nanoseconds("import.deadline", deadline)
    return _done(p)


@_bounded
def reserved(n: int, full: bool, why: str, blocks: Sequence[int], cached: int, slot: int, digest: bytes, fence: int) -> Any:
    p = _new("engine.v1.FromEngine")
    to = p.reserved
    to.n, to.full, to.why = n, full, _text("reserved.why", why, MAX_TEXT)
    _fill("reserved.blocks", to.blocks, blocks, MAX_BLOCKS)
    to.cached, to.slot, to.fence = _limit("reserved.cached", cached, MAX_TOKENS), _limit("reserved.slot", slot, (1 << 31) - 1, -1), fence
    if len(digest) not in (0, 32):
        raise Bound(f"reserved.digest: {len(digest)} bytes, want 32")
    to.digest = digest
    return _done(p)


@_bounded
def lifecycle_ack(n: int, error: Error | None) -> Any:
    p = _new("engine.v1.FromEngine")
    p.lifecycle_ack.n = n
    if error is not None:
        p.lifecycle_ack.error.names.extend(error.names)
        p.lifecycle_ack.error.text = error.text.encode()[:MAX_TEXT].decode(errors="ignore")
    return _done(p)


@_bounded
def simple(kind: str, **fields: Any) -> Any:
    """A message of numbers and a label alone."""
    p = _new("engine.v1.FromEngine")
    to = getattr(p, kind)
    to.SetInParent()
    for name, value in fields.items():
        setattr(to, name, _text(f"{kind}.{name}", value) if name == "label" else value)
    return p


@_bounded
def block_events(events: Sequence[Any]) -> Any:
    p = _new("engine.v1.FromEngine")
    p.block_events.SetInParent()
    for e in events:
        to = p.block_events.events.add(kind=e.kind, lost=e.lost, removed=e.removed)
        if e.blocks:
            first = e.blocks[0]
            to.parent, to.block_tokens = first.parent, len(first.tokens)
            if first.salt is not None:
                _salt(to.salt, first.salt)
            for b in e.blocks:
                to.blocks.add(id=b.id, tokens=b.tokens)
    return _done(p)


def _done(p: Any) -> Any:
    _limit("bytes of a message", p.ByteSize(), MAX_MESSAGE)
    return p


def encode(p: Any) -> bytes:
    return bytes(p.SerializeToString())


def decode(data: bytes) -> Any:
    return _class("baton.engine.v1.ToEngine").FromString(data)


def spoken(trailer: bytes) -> Error | None:
    """The error of the sidecar that a status trailer holds."""
    try:
        for d in _class("baton.trailer.Status").FromString(trailer).details:
            if d.type_url.endswith("/baton.common.v1.Error"):
                return _from_error(_class("baton.common.v1.Error").FromString(d.value))
    except message.DecodeError:
        pass
    return None


def _from_error(p: Any) -> Error:
    return named(list(p.names), p.text)


def _from_id(p: Any) -> words.HandoffID:
    return words.HandoffID(p.group, p.instance, p.leader, p.n)


def _from_resume(p: Any) -> words.Resume:
    return words.Resume(tuple(p.tokens), tuple(p.logprobs), p.sampler, p.finished)


def _from_manifest(p: Any) -> words.Manifest:
    return words.Manifest(_from_id(p.id), p.key, p.label, p.tokens, p.position, p.weights_epoch, p.block_tokens,
                          _from_resume(p.resume), p.model, p.geometry)


def from_decision(p: Any) -> words.Decision:
    try:
        kind = words.DecisionKind(p.kind)
        action = words.Action(p.action) if p.action else None
    except ValueError as err:
        raise Bound(f"decision {p.n}: {err}: the sidecar is newer than this client") from err
    return words.Decision(p.n, kind, p.label, p.of, p.tokens, tuple(p.hashes), p.position, _from_resume(p.resume),
                          p.extent.more, p.weights_epoch, action, _from_id(p.id) if p.HasField("id") else None, p.settled, p)


def stripped(d: words.Decision) -> words.Decision:
    """d without what every rank has once it is applied."""
    if d.kind not in (words.DecisionKind.RESERVE, words.DecisionKind.ADMIT):
        return d
    p = type(d.wire)()
    p.CopyFrom(d.wire)
    for name in ("tokens", "hashes", "resume"):
        p.ClearField(name)
    return from_decision(p)


_PHASES = ("open_ns", "reserve_ns", "move_ns", "check_ns", "done_ns", "admit_ns")


def event(p: Any) -> Any:
    """What a ToEngine holds: an event, a Decision, (incarnation, descriptor key) of Attached,
    or the bool of TellBlocks."""
    kind = p.WhichOneof("message")
    if kind is None:
        raise Bound("message: empty, or of a newer version: install the client of the sidecar's release")
    m = getattr(p, kind)
    if kind == "decision":
        return from_decision(m)
    if kind == "attached":
        return (m.incarnation, m.fd_key)
    if kind == "mover_started":
        return words.MoverStarted(m.pid)
    if kind == "exported":
        return words.Exported(m.label, _from_manifest(m.manifest), m.more)
    if kind == "through":
        return words.Through(m.n)
    if kind == "tell_blocks":
        return bool(m.on)
    if kind == "unpin_export":
        return words.UnpinExport(m.label)
    if kind == "imported":
        return words.Imported(m.label, _from_id(m.id), m.bytes, m.cached, words.Phases(*(getattr(m.phases, f) / 1e9 for f in _PHASES)))
    if kind == "failed":
        return words.Failed(m.label, _from_error(m.error), m.source_safe)
    raise Bound(f"message {kind}: of a newer version: install the client of the sidecar's release")
