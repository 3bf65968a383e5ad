"""Baton for inference engines: attach a rank's KV cache and per-request state to its sidecar,
and hand requests off to any other layout.

    rank = baton.attach("/run/baton", group="prefill-0", instance=launch, model=model,
                        shards=shards, capacity=baton.Capacity(blocks=1024, block_tokens=16))

`attach` says what a rank keeps and where; its Client takes one-way messages and is polled
between steps. No call but attach() and close() waits. README.md beside this package has an
engine in a page; docs/ENGINES.md says what an engine must do.
"""

from .blockhash import hashes
from .client import Client, Rank, attach
from .errors import *
from .memory import SharedMemory, shm
from .shard import Shard
from .words import (
    Action,
    Capacity,
    Decision,
    DecisionKind,
    DType,
    Event,
    Exported,
    Failed,
    HandoffID,
    Imported,
    Manifest,
    Model,
    MoverStarted,
    OnDown,
    Paging,
    Phases,
    Reach,
    Resume,
    Salt,
    Scheduler,
    State,
    Through,
    UnpinExport,
    WeightsPolicy,
)
