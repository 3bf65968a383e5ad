"""Models of transformers with seeded weights, and how tensor parallelism cuts them.

A rank builds the whole model from the seed, and then one with as many heads as are its own,
whose weights are slices of it: rows of what makes heads, columns of what reads them. What
reads them is summed over the ranks. Norms, embeddings and the head are whole on every rank.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import transformers

VOCAB = 512
HIDDEN = 64

HEADS, KV_HEADS, HEAD_DIM = 8, 4, 16
SSM_HEADS, GROUPS = 8, 4

#: Ranks that every model here can be cut for: each gets as many heads and groups as the others.
TP = (1, 2, 4)


@dataclass(frozen=True)
class Cut:
    """Parameters whose name matches are cut along dim: each of so many widths, which follow
    one another in it, by itself. None: it is all one."""

    match: str
    dim: int
    widths: Callable | None = None


@dataclass(frozen=True)
class Family:
    """A model by its name on the command line."""

    kind: str  #: class within transformers
    config: Callable[[int], object]  #: of one of so many ranks
    cuts: tuple[Cut, ...]


def _llama(tp):
    return transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=128 // tp, num_hidden_layers=4,
        num_attention_heads=HEADS // tp, num_key_value_heads=KV_HEADS // tp, head_dim=HEAD_DIM,
        tie_word_embeddings=False)


def _hybrid(tp):
    kinds = {"M": "linear_attention", "*": "full_attention", "-": "mlp"}
    return transformers.NemotronHConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=128 // tp,
        layers_block_type=[kinds[c] for c in "M-M*-M*"], num_attention_heads=HEADS // tp,
        num_key_value_heads=KV_HEADS // tp, head_dim=HEAD_DIM, mamba_num_heads=SSM_HEADS // tp, mamba_head_dim=16,
        n_groups=GROUPS // tp, ssm_state_size=16, conv_kernel=4, chunk_size=16, tie_word_embeddings=False)


def _mla(tp):
    return transformers.DeepseekV3Config(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=128 // tp, moe_intermediate_size=32 // tp,
        num_hidden_layers=3, num_attention_heads=HEADS // tp, num_key_value_heads=HEADS // tp, q_lora_rank=32,
        kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, n_routed_experts=8,
        n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1,
        tie_word_embeddings=False)


def _conv(c):
    """Widths of x, B and C."""
    band = c.n_groups * c.ssm_state_size
    return c.mamba_num_heads * c.mamba_head_dim, band, band


def _projection(c):
    """Widths of z, x, B, C and dt."""
    return _conv(c)[0], *_conv(c), c.mamba_num_heads


_DENSE = (
    Cut(r"\.[qkv]_proj\.weight$", 0),
    Cut(r"\.(gate|up)_proj\.weight$", 0),
    Cut(r"\.(o|down)_proj\.weight$", 1),
)

FAMILIES = {
    # Grouped queries.
    "llama": Family("LlamaForCausalLM", _llama, _DENSE),
    # Nemotron-H: Mamba2, attention and MLP in turn. Its gated norm is by B/C groups, and a
    # rank has whole ones, so that nothing but sums crosses ranks.
    "hybrid": Family("NemotronHForCausalLM", _hybrid, _DENSE + (
        Cut(r"\.in_proj\.weight$", 0, _projection),
        Cut(r"\.conv1d\.(weight|bias)$", 0, _conv),
        Cut(r"\.mixer\.(A_log|D|dt_bias|norm\.weight)$", 0),
        Cut(r"\.out_proj\.weight$", 1),
    )),
    # DeepSeek-V3: a dense layer and two of experts. The latent is not cut, the queries are.
    "mla": Family("DeepseekV3ForCausalLM", _mla, _DENSE + (
        Cut(r"\.(q|kv)_b_proj\.weight$", 0),
        Cut(r"\.experts\.gate_up_proj$", 1, lambda c: (c.moe_intermediate_size,) * 2),
        Cut(r"\.experts\.down_proj$", 2),
    )),
}

# Modules whose output is one rank's part of a sum.
_SUMMED = re.compile(r"\.(o_proj|out_proj|down_proj|experts)$")


def load():
    """Imports what the models are made of, before processes fork."""
    for family in FAMILIES.values():
        getattr(transformers, family.kind)


def whole(name, seed):
    """The model in one process, on the CPU, fp32."""
    model = _empty(FAMILIES[name], 1)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter, p in sorted(model.named_parameters()):
            p.copy_(_draw(parameter, p, random))
    return model


def share(name, seed, rank, ranks, group=None):
    """The same model as one of so many ranks has it; group sums over them."""
    family, full = FAMILIES[name], whole(name, seed)
    if ranks == 1:
        return full
    model, config = _empty(family, ranks), family.config(1)
    given = dict(full.named_parameters())
    with torch.no_grad():
        for parameter, p in model.named_parameters():
            p.copy_(_slice(family, config, parameter, given[parameter], rank, ranks))
    for module_name, module in model.named_modules():
        if _SUMMED.search(module_name):
            module.register_forward_hook(lambda _module, _args, out: _sum(out, group))
    return model


def _empty(family, ranks):
    config = family.config(ranks)
    config._attn_implementation = config._experts_implementation = "eager"
    model = getattr(transformers, family.kind)(config).to(torch.float32).eval()
    model.generation_config.eos_token_id = None  # answers have the length that was asked for
    model.generation_config.pad_token_id = 0
    return model


def _draw(name, p, random):
    """Weights with which the next token hangs on what the caches remember."""
    noise = torch.randn(p.shape, generator=random)
    if "norm" in name or name.endswith(".D"):
        return 1 + 0.2 * noise
    if name.endswith("A_log"):
        return noise.abs() - 2
    if p.dim() == 1:
        return 0.3 * noise
    if "embed" in name or "lm_head" in name:
        return 0.7 * noise
    return 1.6 * noise / p.shape[-1] ** 0.5 if p.shape[-1] > 1 else 0.6 * noise


def _slice(family, config, name, p, rank, ranks):
    for cut in family.cuts:
        if not re.search(cut.match, name):
            continue
        parts = p.split(cut.widths(config), cut.dim) if cut.widths else (p,)
        return torch.cat([part.chunk(ranks, cut.dim)[rank] for part in parts], cut.dim)
    return p


def _sum(out, group):
    dist.all_reduce(out, group=group)
    return out
