"""Reads 512 MiB between two processes of this host by mooncake-transfer-engine over TCP, in
pieces as large as Baton's chunks and as small as rows, beside one flat TCP stream.

    python3 -m venv v && v/bin/pip install mooncake-transfer-engine-non-cuda   # wants libibverbs1
    v/bin/python docs/bench/flat_mooncake.py
"""

import ctypes
import mmap
import multiprocessing
import socket
import statistics
import threading
import time

TOTAL = 512 << 20
ROUNDS = 5
BATCH = 128  # pieces of one call: it refuses thousands


def engine():
    from mooncake.engine import TransferEngine

    e = TransferEngine()
    if e.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
        raise SystemExit("mooncake: initialize failed")
    return e


def memory(e, fill):
    m = mmap.mmap(-1, TOTAL)
    m.write(bytes([fill]) * TOTAL)
    at = ctypes.addressof(ctypes.c_char.from_buffer(m))
    if e.register_memory(at, TOTAL):
        raise SystemExit("mooncake: register_memory failed")
    return m, at


def target(pipe):
    e = engine()
    m, at = memory(e, 1)
    pipe.send((e.get_rpc_port(), at))
    pipe.recv()  # until the reader has done
    del m


def flat(to):
    """The seconds that one stream takes, both ends of it here."""
    l = socket.create_server(("127.0.0.1", 0))
    out = socket.create_connection(l.getsockname())
    own, _ = l.accept()
    sender = threading.Thread(target=out.sendall, args=(bytes(1 << 20) * (TOTAL >> 20),))
    view, got = memoryview(to), 0
    began = time.perf_counter()
    sender.start()
    while got < TOTAL:
        got += own.recv_into(view[got:])
    sender.join()
    took = time.perf_counter() - began
    for s in (l, out, own):
        s.close()
    return took


def main():
    pipe, other = multiprocessing.Pipe()
    p = multiprocessing.get_context("spawn").Process(target=target, args=(other,), daemon=True)
    p.start()
    port, remote = pipe.recv()
    e = engine()
    m, at = memory(e, 0)
    plain = bytearray(TOTAL)
    for piece in (TOTAL, 4 << 20, 128 << 10, 4 << 10):
        offsets = range(0, TOTAL, piece)
        rates, ratios = [], []
        for _ in range(ROUNDS):
            base = flat(plain)
            began = time.perf_counter()
            for i in range(0, len(offsets), BATCH):
                some = offsets[i : i + BATCH]
                failed = e.batch_transfer_sync_read(
                    f"127.0.0.1:{port}", [at + o for o in some], [remote + o for o in some], [piece] * len(some)
                )
                if failed:
                    break
            if failed:
                break
            took = time.perf_counter() - began
            rates.append(TOTAL / took / 1e9)
            ratios.append(base / took)
        if failed or m[TOTAL - 1] != 1:
            print(f"pieces of {piece >> 10} KiB: the read failed, {failed}")
            continue
        print(f"pieces of {piece >> 10} KiB: {statistics.median(rates):.2f} GB/s, {statistics.median(ratios):.2f} of a flat stream")
    pipe.send(None)
    p.join()


if __name__ == "__main__":
    main()
