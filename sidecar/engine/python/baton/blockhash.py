"""The hash chain that names a prefix of a prompt, block by block."""

from __future__ import annotations

import hashlib
import struct
from typing import Sequence

from .words import Salt, WeightsPolicy


def hashes(tokens: Sequence[int], block_tokens: int, *, model: str = "", weights_epoch: int = 0,
           policy: WeightsPolicy = WeightsPolicy.REFUSE, salt: Salt = Salt()) -> list[int]:
    """The chain of the complete blocks of tokens, as every rank and sidecar of the group makes it:
    two prompts share a hash exactly when they share every token up to the end of that block, and
    the model, the salt and, under REFUSE, the weights epoch."""
    if not 1 <= block_tokens <= 1 << 16:
        raise ValueError(f"blocks of {block_tokens} tokens: want 1 to {1 << 16}")
    digest = _start(model, salt, 0 if policy == WeightsPolicy.ALLOW else weights_epoch)
    out = []
    for i in range(0, len(tokens) - block_tokens + 1, block_tokens):
        digest = hashlib.sha256(digest + struct.pack(f"<{block_tokens}q", *tokens[i:i + block_tokens])).digest()
        out.append(int.from_bytes(digest[:8], "little") % ((1 << 63) - 1) + 1)
    return out


def _start(model: str, salt: Salt, weights_epoch: int) -> bytes:
    media = salt.media or bytes(32)
    if not (model or salt.lora or salt.namespace or any(media) or weights_epoch):
        return bytes(32)
    b = b"baton block salt 1\n"
    for part in (model, salt.lora, salt.namespace):
        b += struct.pack("<Q", len(part.encode())) + part.encode()
    return hashlib.sha256(b + media + struct.pack("<Q", weights_epoch)).digest()
