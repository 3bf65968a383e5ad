"""What an engine and its sidecar say to each other, as plain values.

The words are those of the protocol: a *block* is an item of a paged state, a *slot* an item
of a per-request state, a *row* one token of a block or one column of a convolution window, a
*unit* what a cut divides (a KV head, an SSM head). A *label* is the engine's own id of a
request. A decision is the leader's numbered word, which every rank applies in order.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Sequence, Union

from .errors import Error


class Paging(enum.IntEnum):
    """What one item of a state is."""

    BLOCK = 1  #: a block of tokens; a row is one token
    REQUEST = 2  #: the slot of a live request; a row is a window column, or the only one


class DType(enum.IntEnum):
    """Type of the elements of a shard. It belongs to the shard: groups may differ."""

    BF16 = 1
    F16 = 2
    F32 = 3
    F8E4M3 = 4
    U8 = 5

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return {1: 2, 2: 2, 3: 4, 4: 1, 5: 1}[self.value]


class Scheduler(enum.IntEnum):
    """Who decides for a rank."""

    RANK = 1  #: every rank mirrors the decisions
    GROUP = 2  #: one scheduler decides for all ranks


class OnDown(enum.IntEnum):
    """What becomes of rank 0's requests whose import is open while no sidecar is there.

    Their memory is the group's and stays held either way.
    """

    FAIL = 1  #: they wait for the next leader's word until their deadline, and then fail
    RECOMPUTE = 2  #: they fail when the session is lost: the engine computes them itself


class WeightsPolicy(enum.IntEnum):
    """What a change of the weights epoch does to KV that older weights made."""

    REFUSE = 1  #: it is not handed off, and block hashes are salted with the epoch
    ALLOW = 2  #: it stays good


class DecisionKind(enum.IntEnum):
    """What a leader decides."""

    RESERVE = 1  #: take blocks and a slot, all or nothing; answer reserved()
    ADMIT = 2  #: the request is the engine's: register hashes, decode
    DROP = 3  #: the import failed: forget its hashes; its blocks stay out of use
    RELEASE_QUARANTINE = 4  #: a dropped import's blocks and slot are quiet: return them
    FREE = 5  #: an exported label is over: return its blocks and slot
    SET_WEIGHTS_EPOCH = 6  #: from here on the weights are those of weights_epoch
    LIFECYCLE = 7  #: carry out action, and answer lifecycle_ack()


class Action(enum.IntEnum):
    """What a control plane asks of the engines of a group."""

    PAUSE = 1  #: step no request until UNPAUSE; what is held stays held
    UNPAUSE = 2
    SUSPEND = 3  #: pause, and give up what the engine may rebuild
    RESUME = 4
    STOP = 5  #: finish what runs and exit
    PROFILE_START = 6
    PROFILE_STOP = 7
    STOP_INTAKE = 8  #: take no new request; what runs goes on
    RESUME_INTAKE = 9


@dataclass(frozen=True)
class State:
    """One logical tensor of a model. Both sides of a hand-off state it equally."""

    name: str  #: "attn.k", "attn.v", "attn.latent", "conv.x", "conv.b", "conv.c", "ssm"
    layers: int  #: that carry this state, counted within the state
    units: int  #: what a cut divides, of the whole model; 1 for an MLA latent
    elems: int  #: of one unit in one row
    paging: Paging = Paging.BLOCK


@dataclass(frozen=True)
class Model:
    """What both groups of a hand-off must share, and the epoch of the engine's weights."""

    name: str
    states: Sequence[State]
    weights_epoch: int = 0

    def index(self, state: str) -> int:
        """Place of a state in the list; KeyError names those that there are."""
        for i, s in enumerate(self.states):
            if s.name == state:
                return i
        raise KeyError(f"{state!r}: the model has {', '.join(s.name for s in self.states)}")


@dataclass(frozen=True)
class Capacity:
    """What an engine rank can hold."""

    blocks: int = 0  #: usable blocks of the paged pool
    block_tokens: int = 0  #: of one block, and of the hash chain
    slots: int = 0  #: usable request slots; 0: the model has no per-request state


@dataclass(frozen=True)
class Resume:
    """Everything that decode needs to go on exactly. Rank 0 states it."""

    tokens: Sequence[int] = ()  #: sampled token, then proposals of a draft layer
    logprobs: Sequence[float] = ()  #: of tokens, from the first on; proposals may have none
    sampler: bytes = b""  #: the engine's own sampler state, opaque
    finished: bool = False  #: the request ended at prefill: end of text, limit, stop word


@dataclass(frozen=True)
class Salt:
    """What tells two prompts of equal tokens apart in a prefix cache."""

    lora: str = ""  #: adapter that the request runs with
    namespace: str = ""  #: of the cache: a tenant, a user
    media: bytes = b""  #: SHA-256 of images and sounds within the prompt; empty: none


@dataclass(frozen=True)
class Reach:
    """How much of a prompt's paged states may be read: all layers of tokens [0, tokens), and
    the first layers, counted within each state, of tokens [tokens, ahead)."""

    tokens: int
    ahead: int
    layers: int = 0


@dataclass(frozen=True)
class HandoffID:
    """Names one hand-off; the source leader mints it."""

    group: str
    instance: int
    leader: int
    n: int


@dataclass(frozen=True)
class Manifest:
    """What an importer needs to know of a hand-off. It holds no address, block table or slot,
    so it may pass through clients: `bytes(m)` and `Manifest.parse` carry it. Its key is the
    right to import: treat the bytes as a secret."""

    id: HandoffID
    key: bytes = field(repr=False)
    label: str  #: the prefill engine's request id
    tokens: int  #: prompt tokens whose state is held; 0: announced, and not exported yet
    position: int  #: where decode resumes
    weights_epoch: int
    block_tokens: int
    resume: Resume
    model: bytes = b""  #: digest of the model's identity
    geometry: bytes = b""  #: digest of the source group's shards

    def __bytes__(self) -> bytes:
        from . import _wire

        data: bytes = _wire.manifest_bytes(self)
        return data

    @staticmethod
    def parse(data: bytes) -> Manifest:
        """Reads what `bytes(manifest)` wrote. Raises Bound for anything else."""
        from . import _wire

        return _wire.parse_manifest(data)


@dataclass(frozen=True)
class Phases:
    """Where the time of one import went, in seconds, on the importing leader's clock."""

    open: float
    reserve: float
    move: float
    check: float
    done: float
    admit: float


@dataclass(frozen=True)
class Decision:
    """The leader's numbered word. Every rank applies decisions in order of n, without gaps."""

    n: int
    kind: DecisionKind
    label: str = ""  #: RESERVE: the importer's request id; FREE: the exported label
    of: int = 0  #: n of the RESERVE that ADMIT, DROP or RELEASE_QUARANTINE is about
    tokens: int = 0  #: RESERVE: of the prompt
    hashes: Sequence[int] = ()  #: RESERVE: block-hash chain of the complete blocks
    position: int = 0  #: RESERVE: where decode resumes
    resume: Resume = Resume()  #: of RESERVE; of ADMIT where RESERVE had more
    more: bool = False  #: RESERVE: its resume packet comes with ADMIT
    weights_epoch: int = 0  #: of the group; from SET_WEIGHTS_EPOCH on the new one
    action: Action | None = None  #: LIFECYCLE
    id: HandoffID | None = None
    settled: int = 0  #: every rank applied decisions 1 to settled
    wire: Any = field(default=None, repr=False, compare=False)  #: as it came; the client's own


@dataclass(frozen=True)
class MoverStarted:
    """A process maps the rank's buffers. The client holds on to it; shown for logs."""

    pid: int


@dataclass(frozen=True)
class Exported:
    """To rank 0: the manifest of an exported or announced label."""

    label: str
    manifest: Manifest
    more: bool = False  #: the first part is pinned; another Exported follows the last


@dataclass(frozen=True)
class Through:
    """To rank 0: every rank holds decisions 1 to n. Broadcast n in the engine's own step; all
    ranks take `decisions(n)` in that step."""

    n: int


@dataclass(frozen=True)
class UnpinExport:
    """An exported label's blocks and slot come back outside the group's order: the rank's own
    deadline passed and no leader is heard."""

    label: str


@dataclass(frozen=True)
class Imported:
    """To rank 0: a hand-off was admitted on every rank."""

    label: str
    id: HandoffID
    bytes: int  #: moved, by all ranks
    cached: int  #: tokens found in the decode cache
    phases: Phases


@dataclass(frozen=True)
class Failed:
    """A request of the engine failed."""

    label: str
    error: Error
    source_safe: bool  #: the source is still held: the import may be tried elsewhere


#: What poll() returns.
Event = Union[MoverStarted, Exported, Through, UnpinExport, Imported, Failed]
