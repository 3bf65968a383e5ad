"""Make tiny models with Hugging Face transformers, and say what they compute.

    python make.py DIR [SEED]

writes DIR/llama, DIR/bamba and DIR/groups: config.json and model.safetensors as save_pretrained
leaves them, and expected.safetensors with, for prompt i, i.tokens, i.logits (after every
token, [tokens, vocab]) and i.greedy (the tokens that follow), all F32. The same versions
make the same files.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import save_file

PROMPTS = (1, 9, 33)  # tokens
GREEDY = 24


def llama():
    """Grouped queries, tied embeddings, saved as bf16."""
    config = transformers.LlamaConfig(
        vocab_size=290, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, rope_theta=50000.0, rms_norm_eps=1e-5, tie_word_embeddings=True,
        bos_token_id=256, eos_token_id=257)
    return transformers.LlamaForCausalLM, config, torch.bfloat16


def bamba(groups=1, layers=4, tied=False):
    """Mamba2 and attention in turn, half of each key rotary, one gated norm over all heads, saved as fp16."""
    config = transformers.BambaConfig(
        vocab_size=258, hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, attn_layer_indices=list(range(1, layers, 2)), mamba_n_heads=8, mamba_d_head=8,
        mamba_n_groups=groups, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2, mamba_chunk_size=16,
        rms_norm_eps=1e-5, tie_word_embeddings=tied, bos_token_id=256, eos_token_id=257)
    return transformers.BambaForCausalLM, config, torch.float16


def groups():
    """Two B/C groups, each with a norm of its own."""
    return bamba(2, 2, True)


def fill(model, random):
    """Draw every weight, so that tokens hang on what the mixers remember."""
    for name, p in sorted(model.named_parameters()):
        noise = torch.randn(p.shape, generator=random)
        if "norm" in name or name.endswith(".D"):
            value = 1 + 0.2 * noise
        elif name.endswith("A_log"):
            value = -2 + noise.abs()
        elif p.dim() == 1:  # biases
            value = 0.3 * noise
        elif "embed" in name or "lm_head" in name:
            value = 0.7 * noise
        else:
            value = 1.6 * noise / (p.numel() / p.shape[0]) ** 0.5
        with torch.no_grad():
            p.copy_(value)


def expected(model, vocab, random):
    out = {}
    for i, n in enumerate(PROMPTS):
        tokens = torch.randint(0, vocab, (n,), generator=random)
        tokens[0] = 256
        with torch.no_grad():
            ids = tokens
            logits = model(ids[None], use_cache=False).logits[0]
            for _ in range(GREEDY):
                last = model(ids[None], use_cache=False).logits[0, -1]
                ids = torch.cat([ids, last.argmax()[None]])
        out[f"{i}.tokens"] = tokens.float()
        out[f"{i}.logits"] = logits.float().contiguous()
        out[f"{i}.greedy"] = ids[n:].float()
    return out


def main(directory, seed=1):
    torch.set_num_threads(1)
    for seed, make in enumerate((llama, bamba, groups), int(seed)):
        where = os.path.join(directory, make.__name__)
        kind, config, dtype = make()
        random = torch.Generator().manual_seed(seed)
        config._attn_implementation = "eager"
        model = kind(config).eval()
        fill(model, random)
        model.to(dtype).save_pretrained(where)
        # What is compared is computed in fp32, from the weights as they were saved.
        model = kind.from_pretrained(where, dtype=torch.float32, attn_implementation="eager").eval()
        save_file(expected(model, config.vocab_size, random), os.path.join(where, "expected.safetensors"))
        generation = os.path.join(where, "generation_config.json")
        if os.path.exists(generation):
            os.remove(generation)
        with open(os.path.join(where, "origin.json"), "w") as f:
            json.dump({"script": "examples/engine/model/python/make.py", "seed": seed, "torch": torch.__version__,
                       "transformers": transformers.__version__}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
