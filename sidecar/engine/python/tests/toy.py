"""Engine groups without a model, all ranks in this process: state is a pattern of the tokens, so
that what arrives can be compared byte for byte. For the tests."""

import hashlib
import os
import struct
import time

import numpy

import baton
import gpu

BLOCKS, SLOTS, TOKENS = 24, 4, 4  # of a rank's pool; tokens of a block
HEADS, DIM, LAYERS, COLUMNS = 4, 8, 3, 4
PATIENCE = 60.0

MODEL = baton.Model("toy", [
    baton.State("attn.k", layers=LAYERS, units=HEADS, elems=DIM),
    baton.State("attn.v", layers=LAYERS, units=HEADS, elems=DIM),
    baton.State("conv.x", layers=2, units=HEADS, elems=3, paging=baton.Paging.REQUEST),
    baton.State("ssm", layers=2, units=HEADS, elems=6, paging=baton.Paging.REQUEST),
])


def pattern(state, prompt, units, n):
    """What n rows of a state hold: an array of [layers, rows, units, elems]."""
    s = MODEL.states[MODEL.index(state)]
    seed = int.from_bytes(hashlib.sha256(struct.pack(f"{len(prompt)}q", *prompt) + state.encode()).digest()[:4], "big")
    whole = numpy.arange(s.layers * n * HEADS * s.elems, dtype=numpy.uint64) * 2654435761 + seed
    return (whole >> 8 & 0xFFFF).astype(numpy.uint16).reshape(s.layers, n, HEADS, s.elems)[:, :, units[0]:units[1]]


class Memory:
    """A rank's tensors: [2, L, B, T, H, d], [L, S, H, 3, k], [L, S, H, 2, 3], in shared memory, or on
    a GPU as TOY_MEMORY says: cuda (one allocation) or chunks (several)."""

    def __init__(self, units, device):
        self.units, h = units, units[1] - units[0]
        shapes = [(2, LAYERS, BLOCKS, TOKENS, h, DIM), (2, SLOTS, h, 3, COLUMNS), (2, SLOTS, h, 2, 3)]
        starts = numpy.cumsum([0] + [2 * int(numpy.prod(s)) for s in shapes]).tolist()
        kind = os.environ.get("TOY_MEMORY", "shm")
        if kind == "shm":
            shared = baton.shm(starts[-1])  # its views keep it
            arrays = [shared.numpy(s, numpy.uint16, at) for s, at in zip(shapes, starts)]
        else:
            base = {"cuda": gpu.alloc, "chunks": gpu.chunks}[kind](device, starts[-1])
            arrays = [gpu.array(base + at, s, numpy.uint16) for s, at in zip(shapes, starts)]
        self.kv, self.conv, self.ssm = arrays
        for a in arrays:
            a.fill(0xDEAD)
        self.shards = []
        for a, state, dims in (
            (self.kv[0], "attn.k", "layer block token unit elem"),
            (self.kv[1], "attn.v", "layer block token unit elem"),
            (self.conv, "conv.x", "layer slot unit elem column"),
            (self.ssm, "ssm", "layer slot unit elem elem"),
        ):
            tensor = a if kind == "shm" else gpu.Tensor(a, device)
            self.shards.append(baton.Shard.of(tensor, state, dims, unit=units[0], dtype=baton.DType.BF16))

    def write(self, prompt, blocks, slot):
        for plane, state in enumerate(("attn.k", "attn.v")):
            rows = pattern(state, prompt, self.units, len(prompt))
            for t in range(len(prompt)):
                self.kv[plane, :, blocks[t // TOKENS], t % TOKENS] = rows[:, t]
        self.conv[:, slot] = pattern("conv.x", prompt, self.units, COLUMNS).transpose(0, 2, 3, 1)
        self.ssm[:, slot] = pattern("ssm", prompt, self.units, 1)[:, 0].reshape(self.ssm[:, slot].shape)

    def holds(self, prompt, blocks, slot):
        for plane, state in enumerate(("attn.k", "attn.v")):
            rows = pattern(state, prompt, self.units, len(prompt))
            if not all((self.kv[plane, :, blocks[t // TOKENS], t % TOKENS] == rows[:, t]).all() for t in range(len(prompt))):
                return False
        return bool((self.conv[:, slot] == pattern("conv.x", prompt, self.units, COLUMNS).transpose(0, 2, 3, 1)).all()
                    and (self.ssm[:, slot] == pattern("ssm", prompt, self.units, 1)[:, 0].reshape(self.ssm[:, slot].shape)).all())


class Rank:
    """One rank: its memory, a mirrored allocator, and what its client says."""

    def __init__(self, told, n, ranks, **options):
        cut = HEADS // ranks
        self.memory = Memory((n * cut, (n + 1) * cut), n)
        self.blocks, self.slots = list(range(BLOCKS)), list(range(SLOTS))
        self.exports, self.imports, self.live = {}, {}, {}  # by label, by n, by label
        self.client = baton.attach(
            told["dirs"][n], group=told["group"], instance=int(told["instance"], 16), rank=n, ranks=ranks, model=MODEL,
            shards=self.memory.shards, capacity=baton.Capacity(blocks=BLOCKS, block_tokens=TOKENS, slots=SLOTS),
            timeout=PATIENCE, **options)

    def take(self, tokens):
        need = -(-tokens // TOKENS)
        if need > len(self.blocks) or not self.slots:
            return None
        return [self.blocks.pop(0) for _ in range(need)], self.slots.pop(0)

    def give(self, held):
        self.blocks = sorted(self.blocks + held[0])
        self.slots = sorted(self.slots + [held[1]])

    def export(self, label, prompt, **more):
        held = self.take(len(prompt))
        self.memory.write(prompt, *held)
        self.exports[label] = held
        self.client.export(label, held[0], len(prompt), slot=held[1], **more)

    def apply(self, through):
        for d in self.client.decisions(through):
            kind = d.kind.name.lower()
            getattr(self, "on_" + kind)(d)
        self.client.applied(through)

    def on_reserve(self, d):
        held = self.take(d.tokens + 1)
        if held is None:
            return self.client.full(d.n)
        self.imports[d.n] = held, d
        digest = hashlib.sha256(repr(held).encode()).digest()
        self.client.reserved(d.n, held[0], digest, slot=held[1])

    def on_admit(self, d):
        held, reserve = self.imports.pop(d.of)
        self.live[reserve.label] = held, reserve

    def on_drop(self, d):
        pass  # its memory stays out of use

    def on_release_quarantine(self, d):
        if d.of in self.imports:
            self.give(self.imports.pop(d.of)[0])

    def on_free(self, d):
        if d.label in self.exports:
            self.give(self.exports.pop(d.label))

    def on_set_weights_epoch(self, d):
        pass

    def on_lifecycle(self, d):
        self.client.lifecycle_ack(d.n)

    @property
    def idle(self):
        return len(self.blocks) == BLOCKS and len(self.slots) == SLOTS


class Group:
    """An engine: rank 0 hears Through and every rank applies in the same step."""

    def __init__(self, told, **options):
        n = len(told["dirs"])
        self.told = told
        self.ranks = [Rank(told, i, n, **options) for i in range(n)]
        self.events = []

    @property
    def lead(self):
        return self.ranks[0].client

    def step(self):
        through = 0
        for i, r in enumerate(self.ranks):
            for m in r.client.poll():
                if isinstance(m, baton.Through):
                    through = m.n
                elif i == 0 and not isinstance(m, baton.MoverStarted):
                    self.events.append(m)
        if through:
            for r in self.ranks:
                r.apply(through)

    def close(self):
        for r in self.ranks:
            r.client.close()


def until(groups, ok, what):
    """Steps groups until ok() is true, and returns it."""
    end = time.monotonic() + PATIENCE
    while True:
        for g in groups:
            g.step()
        got = ok()
        if got:
            return got
        for g in groups:
            for r in g.ranks:
                if r.client.error is not None:
                    raise AssertionError(f"{what}: {g.told['group']}: {r.client.error}")
        if time.monotonic() > end:
            raise AssertionError(f"never: {what}: {[g.events for g in groups]}")
        groups[0].lead.wait(0.002)


def heard(group, kind, label):
    """The event of this kind and label, once."""
    for m in group.events:
        if isinstance(m, kind) and m.label == label:
            group.events.remove(m)
            return m
    return None
