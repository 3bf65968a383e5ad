#!/usr/bin/env python3
"""Hands requests over between processes that run a real transformers model.

    python examples/torch/run.py --model hybrid --prefill tp=2 --decode tp=1

starts sidecars (baton dev), the ranks of a prefill and of a decode group, and one process with
transformers alone. The prefill group runs prompts, the decode group imports what they left and
goes on; the tokens must be those of the one process. Exit code: 0 they are, 1 they are not, 2
wrong call, 3 something failed.
"""

import argparse
import importlib.util
import json
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PROMPTS = (1, 15, 16, 17, 40, 100)  # tokens
MODELS = ("llama", "hybrid", "mla")
STATES = {"llama": ("kv",), "hybrid": ("kv", "state"), "mla": ("kv",)}  # what there is to damage


def ranks(text):
    """tp=N."""
    key, _, n = text.partition("=")
    if key != "tp" or n not in ("1", "2", "4"):
        raise argparse.ArgumentTypeError(f"{text!r}: want tp=1, tp=2 or tp=4")
    return int(n)


def count(text):
    n = int(text) if text.isdecimal() else 0
    if not 1 <= n <= 200:
        raise argparse.ArgumentTypeError(f"{text!r}: want 1 to 200")
    return n


def seconds(text):
    n = int(text) if text.isdecimal() else 0
    if n < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: want 1 or more")
    return n


def parse(argv):
    p = argparse.ArgumentParser(
        prog="run.py", description="Hand requests over between processes that run a real transformers model, and compare the "
        "tokens with those of one process.", epilog="exit code: 0 tokens are equal, 1 they are not, 2 wrong call, 3 something failed")
    p.add_argument("--model", choices=MODELS, default="llama", help="llama: grouped queries; hybrid: Nemotron-H, Mamba2 and attention; "
                   "mla: DeepSeek-V3, latent attention and experts (default: llama)")
    p.add_argument("--prefill", type=ranks, default=2, metavar="tp=N", help="ranks of the prefill group (default: tp=2)")
    p.add_argument("--decode", type=ranks, default=1, metavar="tp=N", help="ranks of the decode group (default: tp=1)")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the model and its cache are (default: cpu)")
    p.add_argument("--corrupt", nargs="?", const="kv", default="", choices=("kv", "state"),
                   help="damage what was imported, the first block (kv) or the recurrent state (state): tokens must differ")
    p.add_argument("--suite", nargs="?", const="full", default="", choices=("full", "short"),
                   help="full: all models, TP 2 to 1, 1 to 2 and 2 to 2, and damage of each kind, which must be found; short: four of these")
    p.add_argument("--new", type=count, default=24, metavar="N", help="tokens of each answer (default: 24)")
    p.add_argument("--limit", type=seconds, default=240, metavar="S", help="seconds that a case may take (default: 240)")
    p.add_argument("--seed", type=int, default=1, help="of weights and prompts (default: 1)")
    p.add_argument("--baton", default="", metavar="FILE", help="the program baton (default: dist/baton of this repository, or the one on PATH)")
    p.add_argument("--save", default="", metavar="FILE", help="write what was seen, in JSON, after each case")
    a = p.parse_args(argv)
    if a.corrupt and not a.suite and a.corrupt not in STATES[a.model]:
        p.error(f"--corrupt {a.corrupt}: model {a.model} has no recurrent state")
    folder = os.path.dirname(os.path.abspath(a.save))
    if a.save and (os.path.isdir(a.save) or not os.path.isdir(folder) or not os.access(folder, os.W_OK)):
        p.error(f"--save {a.save}: want a file in a folder that is there and may be written")
    if a.suite and (a.corrupt or any(x.startswith(("--model", "--prefill", "--decode")) for x in argv)):
        p.error("--suite runs all models and cuts: leave --model, --prefill, --decode and --corrupt out")
    return a


def cases(a):
    """(model, prefill ranks, decode ranks, damage)."""
    if not a.suite:
        return [(a.model, a.prefill, a.decode, a.corrupt)]
    if a.suite == "short":
        return [("llama", 2, 1, ""), ("hybrid", 2, 1, ""), ("mla", 1, 2, ""), ("hybrid", 2, 1, "state")]
    cuts = [(m, p, d, "") for p, d in ((2, 1), (1, 2)) for m in MODELS]
    damage = [(m, 2, 1, what) for m in MODELS for what in STATES[m]]
    return cuts + damage + [(m, 2, 2, "") for m in MODELS]


def prompts(seed):
    import random

    draw = random.Random(seed)
    return {f"r{i}": [draw.randrange(512) for _ in range(n)] for i, n in enumerate(PROMPTS, 1)}


def size(n):
    return f"{n} B" if n < 1024 else f"{n / 1024:.1f} KiB"


def show(result, new):
    """Prints what became of each request."""
    print(f"\n{'req':4} {'prompt':>6} {'new':>4} {'moved':>10} {'move ms':>8} {'import ms':>9} {'margin':>8}  tokens")
    for label, r in result["requests"].items():
        whole = sum(r["phases"].values())
        print(f"{label:4} {r['prompt']:6} {new:4} {size(r['bytes']):>10} {r['phases']['move'] * 1e3:8.2f} {whole * 1e3:9.2f} "
              f"{r['margin']:8.4f}  {'equal' if r['equal'] else 'DIFFERENT'}")
    rows = result["requests"].values()
    equal = sum(r["equal"] for r in rows)
    where = {role: f"TP={result[role]} on {', '.join(result['devices'][role])}" for role in ("prefill", "decode")}
    print(f"{result['model']}, prefill {where['prefill']} → decode {where['decode']}: {size(sum(r['bytes'] for r in rows))} moved by "
          f"{' and '.join(sorted(set(result['transports'].values())))}{', ' + result['corrupt'] + ' damaged' if result['corrupt'] else ''}")
    print(f"tokens after the hand-off are {'EQUAL' if equal == len(rows) else 'NOT EQUAL'} to those of one transformers process: "
          f"{equal} of {len(rows)} requests", flush=True)


def main(argv):
    a = parse(argv)
    began = time.monotonic()

    def say(what):
        print(f"{time.monotonic() - began:5.1f} s  {what}", file=sys.stderr, flush=True)

    import launch

    program = launch.program(a.baton, ROOT)
    sys.path.insert(0, os.path.join(ROOT, "sidecar", "engine", "python"))
    missing = [name for name in ("torch", "transformers", "grpc", "google") if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(f"this Python has no {', '.join(missing)}: pip install --require-hashes -r "
                           "examples/engine/model/python/requirements.txt brings all that is needed")
    say("importing torch and transformers")
    import torch
    import transformers

    import models

    if a.device == "cuda" and torch.cuda.device_count() == 0:
        raise RuntimeError("--device cuda: torch sees no GPU here")
    models.load()
    transformers.utils.logging.set_verbosity_error()
    done, expected, good = [], {}, True
    for model, p, d, corrupt in cases(a):
        case = launch.Case(model, a.seed, p, d, a.device, corrupt, a.new, a.limit, prompts(a.seed))
        try:
            if model not in expected:
                say(f"{model}: one process with transformers alone")
                expected[model] = launch.reference(case)
            say(f"{model}: prefill TP={p} → decode TP={d}{', ' + corrupt + ' damaged' if corrupt else ''}")
            result = launch.hand_over(program, case, expected[model], say)
            show(result, a.new)
            equal = all(r["equal"] for r in result["requests"].values())
            good = good and equal == (not corrupt if a.suite else True)
        except RuntimeError as err:
            if not a.suite:
                raise
            print(f"run.py: {err}", file=sys.stderr, flush=True)  # the other cases are still worth a try
            result = {"model": model, "prefill": p, "decode": d, "corrupt": corrupt, "failed": str(err)}
            good = False
        done.append(result)
        if a.save:
            with open(a.save, "w") as f:
                json.dump({"torch": torch.__version__, "transformers": transformers.__version__, "device": a.device, "seed": a.seed,
                           "new": a.new, "cases": done}, f, indent=1)
    if a.suite:
        say(f"{len(done)} cases: {'each as it must be' if good else 'NOT each as it must be'}")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
    except RuntimeError as err:
        print(f"run.py: {err}", file=sys.stderr)
        sys.exit(3)
