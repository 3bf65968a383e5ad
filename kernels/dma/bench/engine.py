"""An engine to be disturbed: it replays a CUDA graph of decode-like matrix products.

It reads lines `measure SECONDS` and answers each with one line of JSON, the microseconds of
every step in that time. Between them it steps on, as an engine does. On a CPU it runs the same
products without a graph, which shows that the script works and nothing else.
"""

import argparse
import json
import sys
import threading
import time

import torch

BATCH = 64  # requests that decode at once


def build(device, width, weights, count):
    """A function that runs one step, of so many products."""
    w = [torch.randn(width, width, dtype=torch.bfloat16, device=device) / width**0.5 for _ in range(weights)]
    x = torch.randn(BATCH, width, dtype=torch.bfloat16, device=device)

    def products():
        y = x
        for i in range(count):
            y = torch.nn.functional.silu(y @ w[i % weights])
        return y

    if device == "cpu":
        return products
    torch.cuda.set_device(device)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            products()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        products()

    def step():
        with torch.cuda.stream(side):
            graph.replay()
        side.synchronize()

    return step


def timed(step, seconds):
    """The steps of a time, in microseconds."""
    out = []
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        step()
        out.append((time.perf_counter() - begin) * 1e6)
    return out


def sized(device, width, weights, millis):
    """A step of about so many milliseconds, and its number of products."""
    probe = build(device, width, weights, 16)
    for _ in range(20):
        probe()
    one = sorted(timed(probe, 0.2))[0] / 16
    count = max(1, round(millis * 1000 / one))
    return build(device, width, weights, count), count


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cuda:0", help="cuda:N or cpu")
    p.add_argument("--millis", type=float, default=1.0, help="of one step, about")
    p.add_argument("--width", type=int, help="of the square weights (8192; on a CPU 256)")
    o = p.parse_args()
    width = o.width or (256 if o.device == "cpu" else 8192)
    step, count = sized(o.device, width, 8, o.millis)
    print(json.dumps({"ready": o.device, "products": count, "width": width}), flush=True)
    asked = []
    ended = threading.Event()

    def read():
        for line in sys.stdin:
            asked.append(float(line.split()[1]))
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    while not ended.is_set():
        if asked:
            print(json.dumps([round(s, 1) for s in timed(step, asked.pop(0))]), flush=True)
        else:
            step()


if __name__ == "__main__":
    main()
