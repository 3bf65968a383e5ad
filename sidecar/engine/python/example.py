"""An engine of one rank, less the model: it hands prompts off, and takes what comes."""

import hashlib
import secrets

import numpy

import baton

LAYERS, HEADS, DIM, BLOCKS, TOKENS = 2, 4, 8, 64, 16
MODEL = baton.Model("tiny", [baton.State("attn.k", LAYERS, HEADS, DIM), baton.State("attn.v", LAYERS, HEADS, DIM)])


class Engine:
    def __init__(self, run_dir, group, instance=None):  # a group of more ranks: one random number, equal on all of them
        # [2, L, B, T, H, d] in memory that a mover maps; with torch: .torch(shape, torch.bfloat16), or a tensor on a GPU
        shape = (2, LAYERS, BLOCKS, TOKENS, HEADS, DIM)
        self.kv = baton.shm(2 * int(numpy.prod(shape))).numpy(shape, numpy.float16)
        shards = [baton.Shard.of(self.kv[i], state.name, "layer block token unit elem") for i, state in enumerate(MODEL.states)]
        self.rank = baton.attach(run_dir, group=group, instance=instance or secrets.randbits(63) | 1, model=MODEL, shards=shards,
                                 capacity=baton.Capacity(blocks=BLOCKS, block_tokens=TOKENS))
        self.free = list(range(BLOCKS))
        self.exports, self.imports = {}, {}  # blocks that are not this engine's to use: by label, by n of RESERVE
        self.manifests, self.failed, self.running = {}, {}, {}  # by label

    def export(self, label, prompt, first_token):
        """Hands a prompt off: its blocks stay untouched until FREE."""
        self.manifests.pop(label, None)  # of an earlier use of the label
        blocks = self.exports[label] = [self.free.pop(0) for _ in range(-(-len(prompt) // TOKENS))]
        for t, token in enumerate(prompt):  # here a model computes them
            self.kv[:, :, blocks[t // TOKENS], t % TOKENS] = token
        self.rank.export(label, blocks, len(prompt), resume=baton.Resume(tokens=[first_token]))

    def step(self):
        """What Baton needs between two steps. With more ranks, rank 0 broadcasts n of Through."""
        for m in self.rank.poll():
            match m:
                case baton.Exported(label, manifest):  # for whoever imports: bytes(manifest)
                    self.manifests[label] = manifest
                case baton.Failed(label, error):  # an import, or an export that nobody holds; NotReady: again, after a pause
                    self.failed[label] = error
                    if not isinstance(error, baton.Gone):
                        self.free += self.exports.pop(label, [])
                case baton.UnpinExport(label):
                    self.free += self.exports.pop(label, [])
                case baton.Through(n):
                    for d in self.rank.decisions(n):
                        self.decide(d)
                    self.rank.applied(n)

    def decide(self, d):
        match d.kind:
            case baton.DecisionKind.RESERVE:  # all or none, and one token behind the prompt
                need = -(-(d.tokens + 1) // TOKENS)
                if need > len(self.free):
                    return self.rank.full(d.n)
                blocks = [self.free.pop(0) for _ in range(need)]
                self.imports[d.n] = d, blocks
                self.rank.reserved(d.n, blocks, hashlib.sha256(repr(blocks).encode()).digest())
            case baton.DecisionKind.ADMIT:  # go on with d.resume.tokens; nothing of the prompt is computed
                reserve, blocks = self.imports.pop(d.of)
                self.running[reserve.label] = reserve.resume.tokens, blocks
            case baton.DecisionKind.DROP:
                pass  # a copy may still write its blocks
            case baton.DecisionKind.RELEASE_QUARANTINE:
                self.free += self.imports.pop(d.of, (None, []))[1]
                self.rank.freed()
            case baton.DecisionKind.FREE:
                if d.label in self.exports and d.label not in self.manifests:  # as after a sidecar that was lost
                    self.failed[d.label] = baton.Gone("nobody got its manifest")
                self.free += self.exports.pop(d.label, [])
            case baton.DecisionKind.LIFECYCLE:
                self.rank.lifecycle_ack(d.n, baton.Error("this engine has no such action"))
