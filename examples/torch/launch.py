"""Processes: sidecars by baton dev, ranks as forks of this one, which has imported torch."""

import ctypes
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait

STOP = 10  # seconds that a process may take to stop

_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Case:
    """What is handed over between whom."""

    model: str
    seed: int
    prefill: int  #: ranks
    decode: int
    device: str
    corrupt: str
    new: int
    limit: int  #: seconds that it may take
    prompts: dict  #: label: tokens


def program(said, root):
    """Where baton is."""
    for path in (said,) if said else (os.path.join(root, "dist", "baton"), shutil.which("baton") or ""):
        if os.access(path, os.X_OK):
            return os.path.abspath(path)
    raise RuntimeError(f"{said or 'baton'}: there is no such program: go build -o dist/baton . makes it, --baton FILE names it")


def _end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


@contextmanager
def sidecars(baton, case):
    """Brings sidecars up, and gives what baton dev says of them, and what is readable once it ended."""
    shards = f"tp={case.prefill},role=prefill+tp={case.decode},role=decode"
    with tempfile.TemporaryFile("w+") as log:
        # It ends with its parent, and takes what it started along.
        dev = subprocess.Popen([baton, "dev", "--engine", "none", "-o", "json", "--inference-shards", shards],
                               stdout=subprocess.PIPE, stderr=log, preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM))
        try:
            line = dev.stdout.readline()
            if not line:
                dev.wait()
                log.seek(0)
                raise RuntimeError(f"{baton} dev ended: {log.read().strip()}")
            ends = os.pidfd_open(dev.pid)
            try:
                yield json.loads(line), ends
            finally:
                os.close(ends)
        finally:
            dev.terminate()
            try:
                dev.wait(STOP)
            except subprocess.TimeoutExpired:
                dev.kill()
                dev.wait()


def _child(target, args, link):
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    try:
        target(*args, link)
    except BaseException as err:
        link.send(("error", f"{err}", traceback.format_exc()))
        raise SystemExit(1)


@contextmanager
def process(name, target, *args):
    """A fork that runs target(*args, link); gives this end of link."""
    ours, theirs = _fork.Pipe()
    p = _fork.Process(target=_child, args=(target, args, theirs), name=name, daemon=True)
    p.start()
    theirs.close()
    try:
        yield ours
        p.join(STOP)
    finally:
        p.kill()
        p.join()
        ours.close()


def receive(links, until, ends=None):
    """The next message of one of links: (name, message). Errors that were sent are raised, and so is
    that the sidecars have ended: ends is readable then, and they took the ranks' state along."""
    ready = wait([*links.values(), *([ends] if ends else [])], max(until - time.monotonic(), 0))
    if ends in ready:
        raise RuntimeError("baton dev ended by itself, with all sidecars")
    if not ready:
        raise RuntimeError(f"the time of --limit has passed, and {', '.join(links)} said nothing more")
    name = next(n for n, link in links.items() if link is ready[0])
    try:
        message = ready[0].recv()
    except EOFError:
        raise RuntimeError(f"{name} ended by itself") from None
    if message[0] == "error":
        raise RuntimeError(f"{name}: {message[1]}\n{message[2]}")
    return name, message


def reference(case):
    """What one process answers: {label: (tokens, margin)}."""
    import engine

    until = time.monotonic() + case.limit
    with process("reference", engine.reference, case.model, case.seed, case.device, list(case.prompts.values()), case.new) as link:
        return {label: receive({"the reference": link}, until)[1] for label in case.prompts}


def hand_over(baton, case, expected, say):
    """Runs a case, and gives what was seen."""
    import engine

    with ExitStack() as stack:
        up, ends = stack.enter_context(sidecars(baton, case))
        meet = stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-torch-"))
        say("starting ranks")
        instances = {role: secrets.randbits(63) | 1 for role in ("prefill", "decode")}
        links, ready = {}, {}
        for r in up["ranks"]:
            role, rank = r["role"], r["rank"]
            job = engine.Job(
                case.model, case.seed, r["group"], role, instances[role], rank, r["ranks"], r["run_dir"], os.path.join(meet, role), case.device,
                1 if role == "decode" and case.prefill == case.decode else 0, case.new, case.corrupt if role == "decode" else "")
            links[f"{role} rank {rank}"] = stack.enter_context(process(f"{role}-{rank}", engine.serve, job))
        until = time.monotonic() + case.limit
        while len(ready) < len(links):
            name, message = receive({n: link for n, link in links.items() if n not in ready}, until, ends)
            ready[name] = message[1]
        say("handing over")
        seen = Requests(case, expected, links["prefill rank 0"], links["decode rank 0"])
        seen.begin()
        while not seen.done():
            seen.hear(*receive(links, until, ends))
        ways = transports(baton, up["control"])
        for role in ("prefill", "decode"):
            links[f"{role} rank 0"].send(("end",))
    devices = {role: [ready[f"{role} rank {r}"] for r in range(getattr(case, role))] for role in ("prefill", "decode")}
    return {"model": case.model, "prefill": case.prefill, "decode": case.decode, "corrupt": case.corrupt, "devices": devices,
            "transports": ways, "requests": seen.rows}


def transports(baton, control):
    """By what each rank reads from which: {"decode-0/0 from prefill-0/1": "shm"}."""
    said = subprocess.run([baton, "doctor", "-o", "json", "--config", control], capture_output=True, text=True)
    try:
        return {f"{link['reader']} from {link['peer']}": link["transport"] for link in json.loads(said.stdout)["links"]}
    except (ValueError, KeyError):
        raise RuntimeError(f"baton doctor: {said.stdout}{said.stderr}") from None


class Requests:
    """Brings requests from the prefill to the decode group, as a router does: it passes
    manifests on, and sees no tensor."""

    def __init__(self, case, expected, prefill, decode):
        self.case, self.expected, self.prefill, self.decode = case, expected, prefill, decode
        self.rows = {label: {"prompt": len(tokens)} for label, tokens in case.prompts.items()}

    def begin(self):
        for label, tokens in self.case.prompts.items():
            self.prefill.send(("prompt", label, tokens))

    def done(self):
        return all("equal" in r and "bytes" in r for r in self.rows.values())

    def hear(self, name, message):
        what, label, *rest = message
        if what == "failed":
            raise RuntimeError(f"{name}: {label}: {rest[0]}")
        row = self.rows[label]
        if what == "exported":
            self.decode.send(("import", label, rest[0], self.case.prompts[label]))
        elif what == "prefilled":
            row["first"], row["first_margin"] = rest
        elif what == "imported":
            row["bytes"], row["phases"] = rest
        elif what == "answer":
            row["tokens"], margin = rest
            tokens, least = self.expected[label]
            row["margin"], row["expected"] = min(margin, row["first_margin"], least), tokens
            row["equal"] = row["tokens"] == tokens
