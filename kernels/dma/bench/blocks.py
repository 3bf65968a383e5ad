"""A hand-off block by block over torch.distributed: the way that is compared with.

Rank 0 is a source of TP4 and holds two heads of a layer, rank 1 a destination of TP8 that takes
one. For each block of 64 tokens rank 0 makes the head's part contiguous, both post a send and a
receive, all in one batch, and rank 1 scatters what came into its cache. NCCL between two GPUs;
with --cpu gloo between two processes, which shows that the script works and nothing else.
"""

import argparse
import os
import socket
import subprocess
import sys
import time

os.environ["NCCL_NVLS_ENABLE"] = "0"  # multicast of the link is left alone

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from report import Report, machine, row  # noqa: E402

LAYERS, HEADS, DIM, BLOCK = 80, 2, 128, 64


class Cache:
    """kv is [K|V, layer, block, token, head, dim] bf16, of one rank."""

    def __init__(self, rank, blocks, layers, device):
        shape = (2, layers, 2 * blocks, BLOCK, HEADS if rank == 0 else 1, DIM)
        self.kv = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        self.rank, self.blocks = rank, blocks
        if rank == 0:
            self.kv.copy_(torch.arange(self.kv.numel(), device=device).reshape(shape) % 251)
        # every second block, in a scattered order
        self.table = [i * 37 % blocks * 2 for i in range(blocks)]

    def move(self):
        """One hand-off. Returns when its last block is in the cache."""
        ops, parts = [], []
        for b in self.table:
            if self.rank == 0:
                part = self.kv[:, :, b, :, 1:2].contiguous()
                ops.append(dist.P2POp(dist.isend, part, 1))
            else:
                part = torch.empty(self.kv.shape[:2] + self.kv.shape[3:], dtype=self.kv.dtype, device=self.kv.device)
                ops.append(dist.P2POp(dist.irecv, part, 0))
            parts.append(part)
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        if self.rank == 1:
            for b, part in zip(self.table, parts, strict=True):
                self.kv[:, :, b] = part
        if self.kv.is_cuda:
            torch.cuda.synchronize()

    def nbytes(self):
        return self.blocks * BLOCK * self.kv.shape[1] * 2 * DIM * 2

    def check(self):
        """The destination has the source's second head."""
        layers, blocks = self.kv.shape[1:3]
        want = torch.arange(2 * layers * blocks * BLOCK * HEADS * DIM, device=self.kv.device).reshape(2, layers, blocks, BLOCK, HEADS, DIM) % 251
        b = torch.tensor(self.table, device=self.kv.device)
        if not torch.equal(self.kv[:, :, b], want[:, :, b, :, 1:2].to(self.kv.dtype)):
            raise SystemExit("bytes differ")


def timed(f):
    begin = time.perf_counter()
    f()
    return time.perf_counter() - begin


def flat(device, size):
    """A flat copy between the GPUs in this process, in GB/s; on a CPU within its memory."""
    src = torch.empty(size, dtype=torch.uint8, device="cuda:0" if device != "cpu" else "cpu")
    dst = torch.empty(size, dtype=torch.uint8, device=device)

    def copy():
        dst.copy_(src)
        if device != "cpu":
            torch.cuda.synchronize()

    copy()
    return [size / timed(copy) / 1e9 for _ in range(7)]


def measure(o, rank, device, report):
    """Rates, each hand-off begun by both ranks at once."""
    base = flat(device, 1 << (24 if o.cpu else 30)) if rank == 1 else []
    if report:
        report.add(row("nccl/memcpy-peer", "one flat copy of 1 GiB between the GPUs, within one process", "GB/s", base))
    for tokens in o.tokens:
        c = Cache(rank, tokens // BLOCK, o.layers, device)
        rates = []
        for i in range(o.rounds + 2):
            dist.barrier()
            took = timed(c.move)
            if i >= 2:
                rates.append(c.nbytes() / took / 1e9)
        if rank == 1:
            c.check()
            report.add(row(f"nccl/blocks-{tokens}", f"contiguous, batch of isend and irecv, scatter for each 64-token block, llama-70b TP4 to TP8, {c.nbytes() / 2**20:.1f} MiB",
                           "GB/s", rates, baseline=base))
        del c


def pace(o, rank, device, report):
    """A hand-off every so often, for an engine beside it."""
    c = Cache(rank, o.tokens[0] // BLOCK, o.layers, device)
    for _ in range(3):
        c.move()
    dist.barrier()
    if rank == 1:
        print("begins", file=sys.stderr, flush=True)
    took = []
    begin = time.perf_counter()
    for i in range(int(o.seconds / o.every)):
        time.sleep(max(0.0, begin + i * o.every - time.perf_counter()))
        dist.barrier()
        took.append(timed(c.move) * 1e6)
    if report:
        report.add(row(f"nccl/paced-{o.tokens[0]}", f"a hand-off of {c.nbytes() / 2**20:.1f} MiB every {o.every * 1000:.0f} ms, block by block", "us", took))


def serve(o, rank):
    device = "cpu" if o.cpu else f"cuda:{rank}"
    if not o.cpu:
        torch.cuda.set_device(rank)
    on = {} if o.cpu else {"device_id": torch.device(device)}
    dist.init_process_group("gloo" if o.cpu else "nccl", init_method=f"tcp://127.0.0.1:{o.port}", rank=rank, world_size=2, **on)
    report = Report(o.save, machine(torch)) if rank == 1 else None
    (pace if o.every else measure)(o, rank, device, report)
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cpu", action="store_true", help="gloo on a CPU, a few layers")
    p.add_argument("--tokens", type=int, nargs="+", default=[1024, 8192], help="of a hand-off, whole blocks of 64")
    p.add_argument("--rounds", type=int, default=11)
    p.add_argument("--every", type=float, default=0, help="seconds from one hand-off to the next, in place of the rates")
    p.add_argument("--seconds", type=float, default=5, help="with --every, how long")
    p.add_argument("--save", default="", help="file for the results, as JSON")
    p.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    p.add_argument("--port", type=int, help=argparse.SUPPRESS)
    o = p.parse_args()
    o.layers = 2 if o.cpu else LAYERS
    if any(t < BLOCK or t % BLOCK for t in o.tokens):
        p.error(f"--tokens {o.tokens}: want whole blocks of {BLOCK}")
    if o.rank is not None:
        return serve(o, o.rank)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    ranks = [subprocess.Popen([sys.executable, *sys.argv, "--rank", str(r), "--port", str(port)]) for r in range(2)]
    try:
        codes = [r.wait() for r in ranks]
    finally:
        for r in ranks:
            r.kill()
            r.wait()
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main())
