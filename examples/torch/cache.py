"""A rank's cache: tensors that Baton can read and write, and the transformers Cache over them.

Paged states are `[layers, blocks, tokens, heads, dim]`, per-request ones `[layers, slots, ...]`.
transformers asks a Cache for what a sequence remembers; here a sequence is a block table and a
slot, and each layer reads and writes the rows that those name.
"""

import torch
from transformers import cache_utils

import baton

BLOCK_TOKENS = 16


class Sequence:
    """One request's place in the memory of a rank."""

    def __init__(self, label, blocks, slot, length=0):
        self.label = label
        self.blocks = list(blocks)
        self.slot = slot  #: -1: the model has no per-request state
        self.length = length  #: tokens that have state

    def rows(self, device):
        """Of each token that the blocks have room for, its row in a paged tensor that is flat
        over blocks and tokens."""
        first = torch.tensor(self.blocks, device=device) * BLOCK_TOKENS
        return (first[:, None] + torch.arange(BLOCK_TOKENS, device=device)).flatten()


class Memory:
    """The states of one rank. config is the rank's own share of a model, full the whole one's."""

    def __init__(self, config, full, blocks, slots, device):
        self.config, self.full, self.device = config, full, device
        self.kinds = list(getattr(config, "layers_block_type", None) or ["full_attention"] * config.num_hidden_layers)
        self.at = {}  # layer of the model: its place among those of its kind
        for layer, kind in enumerate(self.kinds):
            self.at[layer] = self.kinds[:layer].count(kind)
        self.k = self.v = self.latent = self.conv = self.ssm = None
        paged = (self.kinds.count("full_attention"), blocks, BLOCK_TOKENS)
        if hasattr(config, "kv_lora_rank"):
            self.latent = self._zeros(*paged, 1, config.kv_lora_rank + config.qk_rope_head_dim)
        else:
            heads = (config.num_key_value_heads, config.head_dim)
            self.k, self.v = self._zeros(*paged, *heads), self._zeros(*paged, *heads)
        mamba = self.kinds.count("linear_attention")
        if mamba:
            c = config
            self.inner, self.band = c.mamba_num_heads * c.mamba_head_dim, c.n_groups * c.ssm_state_size
            self.conv = self._zeros(mamba, slots, self.inner + 2 * self.band, c.conv_kernel)
            self.ssm = self._zeros(mamba, slots, c.mamba_num_heads, c.mamba_head_dim, c.ssm_state_size)

    def _zeros(self, *shape):
        if self.device.type == "cuda":
            return torch.zeros(shape, device=self.device)
        return baton.shm(torch.Size(shape).numel() * torch.float32.itemsize).torch(shape, torch.float32)

    def states(self):
        """What both sides of a hand-off state: the whole model's."""
        c, paged, out = self.full, self.kinds.count("full_attention"), []
        if self.latent is not None:
            out.append(baton.State("attn.latent", paged, 1, c.kv_lora_rank + c.qk_rope_head_dim))
        else:
            out += [baton.State(name, paged, c.num_key_value_heads, c.head_dim) for name in ("attn.k", "attn.v")]
        if self.conv is not None:
            layers, request = self.kinds.count("linear_attention"), baton.Paging.REQUEST
            out += [
                baton.State("conv.x", layers, c.mamba_num_heads, c.mamba_head_dim, request),
                baton.State("conv.b", layers, c.n_groups, c.ssm_state_size, request),
                baton.State("conv.c", layers, c.n_groups, c.ssm_state_size, request),
                baton.State("ssm", layers, c.mamba_num_heads, c.mamba_head_dim * c.ssm_state_size, request),
            ]
        return out

    def shards(self, rank):
        """What this rank has of them, and where."""
        of, c, out = baton.Shard.of, self.config, []
        if self.latent is not None:  # whole on every rank
            out.append(of(self.latent, "attn.latent", "layer block token unit elem"))
        else:
            head = rank * c.num_key_value_heads
            for name, t in (("attn.k", self.k), ("attn.v", self.v)):
                out.append(of(t, name, "layer block token unit elem", unit=head))
        if self.conv is not None:
            head, group = rank * c.mamba_num_heads, rank * c.n_groups
            x, b, c_ = self.conv.split((self.inner, self.band, self.band), 2)
            out.append(of(x.unflatten(2, (c.mamba_num_heads, -1)), "conv.x", "layer slot unit elem column", unit=head))
            for name, t in (("conv.b", b), ("conv.c", c_)):
                out.append(of(t.unflatten(2, (c.n_groups, -1)), name, "layer slot unit elem column", unit=group))
            out.append(of(self.ssm, "ssm", "layer slot unit elem elem", unit=head))
        return out

    def cache(self, seq):
        """The transformers Cache of a sequence, for one forward pass."""
        rows = seq.rows(self.device)
        return cache_utils.Cache(layers=[self._layer(i, kind, seq, rows) for i, kind in enumerate(self.kinds)])

    def _layer(self, layer, kind, seq, rows):
        at = self.at[layer]
        if kind == "full_attention" and self.latent is not None:
            both = self.latent[at].flatten(0, 1).split((self.config.kv_lora_rank, self.config.qk_rope_head_dim), -1)
            return Pages(*both, rows, seq.length)
        if kind == "full_attention":
            return Pages(self.k[at].flatten(0, 1), self.v[at].flatten(0, 1), rows, seq.length)
        if kind == "linear_attention":
            own = slice(seq.slot, seq.slot + 1)
            return Slot(self.conv[at, own], self.ssm[at, own], seq.length > 0)
        # A layer without state; versions of transformers before DummyLayer have this for it.
        return getattr(cache_utils, "DummyLayer", cache_utils.LinearAttentionLayer)()

    def fill(self, seq, value):
        """Fills a sequence's memory."""
        for t in (self.k, self.v, self.latent):
            if t is not None:
                t[:, seq.blocks] = value
        for t in (self.conv, self.ssm):
            if t is not None:
                t[:, seq.slot] = value

    def damage(self, seq, what):
        """Turns the sign of what a sequence remembers: of its first block, or of its state."""
        if what == "kv":
            for t in (self.k, self.v, self.latent):
                if t is not None:
                    t[:, seq.blocks[0]].neg_()
        elif self.ssm is not None:
            self.ssm[:, seq.slot].neg_()


class Pages(cache_utils.CacheLayerMixin):
    """The keys and values of a layer, or its latent's two parts: `[rows, heads, dim]`."""

    is_sliding = False

    def __init__(self, k, v, rows, length):
        super().__init__()
        self.k, self.v, self.rows, self.length = k, v, rows, length
        self.is_initialized = True

    def lazy_initialization(self, *_):
        pass

    def update(self, k, v, *_args, **_kwargs):
        """Takes `[1, heads, tokens, dim]` of new tokens, and gives that of all."""
        known, new = self.rows[:self.length], self.rows[self.length:self.length + k.shape[2]]
        self.k[new], self.v[new] = k[0].transpose(0, 1), v[0].transpose(0, 1)
        every = torch.cat((known, new))
        return self.k[every].transpose(0, 1)[None], self.v[every].transpose(0, 1)[None]

    def get_mask_sizes(self, query_length):
        return self.length + query_length, 0

    def get_seq_length(self):
        return self.length

    def get_max_length(self):
        return -1


class Slot(cache_utils.LinearAttentionLayer):
    """The window `[1, channels, columns]` and the state `[1, heads, dim, state]` of a layer. The
    class above copies into them in place."""

    def __init__(self, conv, ssm, started):
        super().__init__()
        self.conv_states, self.recurrent_states = {0: conv}, {0: ssm}
        self.conv_kernel_size = {0: conv.shape[-1]}
        self.is_conv_states_initialized = self.is_recurrent_states_initialized = {0: True}
        self.has_previous_state = {0: started}
        self.device, self.dtype = conv.device, conv.dtype
