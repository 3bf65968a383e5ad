"""What a hand-off every 100 ms does to an engine on each of two GPUs.

The engines replay a CUDA graph of about a millisecond. Their steps are measured alone, beside
Baton's copies from GPU 0 to GPU 1, and beside the same bytes sent block by block over NCCL, and
alone again. Median and p99 of a step are told for each, and kept with all samples.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch

from report import Report, machine, percentile, row

HERE = pathlib.Path(__file__).parent


class Engine:
    """An engine in a process of its own."""

    def __init__(self, device, millis):
        self.p = subprocess.Popen([sys.executable, HERE / "engine.py", "--device", device, "--millis", str(millis)],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.device = device

    def answer(self):
        line = self.p.stdout.readline()
        if not line:
            raise SystemExit(f"the engine on {self.device} ended")
        return json.loads(line)

    def ask(self, seconds):
        self.p.stdin.write(f"measure {seconds}\n")
        self.p.stdin.flush()

    def close(self):
        self.p.stdin.close()
        try:
            self.p.wait(30)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()


def steps(engines, seconds):
    """The steps of all engines in one time, in microseconds, by device."""
    for e in engines:
        e.ask(seconds)
    return {e.device: e.answer() for e in engines}


@contextlib.contextmanager
def beside(command, env=None):
    """Runs a command that says on stderr when its hand-offs begin, and waits for its end."""
    p = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
    said = []
    try:
        for line in p.stderr:
            said.append(line)
            if "begins" in line:
                break
        else:
            raise RuntimeError(f"{command[0]}: {p.wait()}: {''.join(said[-5:])}")
        yield
    except BaseException:
        p.kill()
        raise
    finally:
        said += p.stderr.readlines()
        code = p.wait()
    if code:
        raise RuntimeError(f"{command[0]}: exit {code}: {''.join(said[-5:])}")


def told(report, mode, by_device, alone):
    for device, us in by_device.items():
        base = alone.get(device, us)
        p99 = percentile(us, 0.99)
        report.add(row(f"engine/{mode}/{device}", "steps of an engine", "us", us,
                       note=f"p99 {p99:.0f}; alone p50 {percentile(base, 0.5):.0f} p99 {percentile(base, 0.99):.0f}; p99 {100 * (p99 / percentile(base, 0.99) - 1):+.1f} %"))


def hand_offs(report, path):
    """Adds what a command that was beside the engines measured of itself."""
    with open(path, encoding="utf-8") as f:
        for r in json.load(f)["rows"]:
            r["note"] = f"p99 {percentile(r['samples'], 0.99):.0f} us, beside the engines"
            report.add(r)


def modes(o, tmp):
    """Name, command and file of what runs beside the engines."""
    lasts = o.seconds + 2  # longer than what is measured
    for tokens in o.tokens:
        if o.baton:
            path = os.path.join(tmp, f"baton-{tokens}.json")
            yield f"baton-{tokens}", [o.baton, "bench", "gpu", "--every", "100ms", "--for", f"{lasts}s", "--tokens", str(tokens), "--save", path], path
        path = os.path.join(tmp, f"nccl-{tokens}.json")
        command = [sys.executable, HERE / "blocks.py", "--every", "0.1", "--seconds", str(lasts), "--tokens", str(tokens), "--save", path]
        yield f"nccl-{tokens}", command + (["--cpu"] if o.cpu else []), path


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cpu", action="store_true", help="engines and NCCL's part on a CPU: shows that the scripts work")
    p.add_argument("--baton", default="", help="the baton binary; without it NCCL alone is compared")
    p.add_argument("--tokens", type=int, nargs="+", default=[1024, 8192], help="of a hand-off")
    p.add_argument("--seconds", type=float, default=4, help="that each mode is measured")
    p.add_argument("--save", default="", help="file for the results, as JSON")
    o = p.parse_args()
    report = Report(o.save, machine(torch), o.baton)
    devices = ["cpu"] if o.cpu else ["cuda:0", "cuda:1"]
    failed = []
    with contextlib.ExitStack() as stack:
        tmp = stack.enter_context(tempfile.TemporaryDirectory())
        engines = [Engine(d, 1.0) for d in devices]
        for e in engines:
            stack.callback(e.close)
        for e in engines:
            print(e.answer(), flush=True)
        steps(engines, 1)  # clocks rise
        alone = steps(engines, o.seconds)
        told(report, "alone", alone, {})
        for name, command, path in modes(o, tmp):
            try:
                with beside(command):
                    got = steps(engines, o.seconds)
                told(report, name, got, alone)
                hand_offs(report, path)
            except RuntimeError as e:
                failed.append(name)
                print(f"{name}: {e}", flush=True)
        told(report, "alone-again", steps(engines, o.seconds), alone)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
