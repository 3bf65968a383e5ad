"""One rank of an engine: a share of a model, its cache, and its session with a sidecar.

Rank 0 decides. Whatever happens, happens in steps: rank 0 says what a step does, all ranks hear
it and do it alike, decisions of Baton included, so that block tables are the same on every rank
and no rank waits for another within a step but to add up its part of a layer.
"""

import hashlib
import inspect
import os
import select
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

import baton
import models
from baton import DecisionKind
from cache import BLOCK_TOKENS, Memory, Sequence

BLOCKS, SLOTS = 64, 8
IDLE = 0.005  # seconds between steps in which nothing is to be done
PATIENCE = 120  # seconds that an export is held, an import may take, and ranks wait for each other


@dataclass(frozen=True)
class Job:
    """What a rank is to be."""

    model: str
    seed: int
    group: str
    role: str
    instance: int
    rank: int
    ranks: int
    run_dir: str
    meet: str  #: path of a file that is not there, where the ranks of the group meet
    device: str
    shift: int  #: of the rank's GPU against its number
    new: int  #: tokens to decode
    corrupt: str  #: what to damage of what was imported; "": nothing


@dataclass
class Step:
    """What rank 0 says."""

    through: int = 0  #: decisions up to this are applied
    places: dict = field(default_factory=dict)  #: n of a RESERVE: (blocks, slot), or None: no room
    prompts: list = field(default_factory=list)  #: (label, tokens, blocks, slot)
    tokens: list = field(default_factory=list)  #: (label, token) of what decodes
    over: list = field(default_factory=list)  #: labels that are done
    end: bool = False


def place(job):
    """The device of a rank, and whether each rank of its group has one of its own."""
    if job.device == "cpu":
        torch.set_num_threads(1)
        return torch.device("cpu"), False
    count = torch.cuda.device_count()
    if count == 0:
        raise RuntimeError("--device cuda: torch sees no GPU here")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = torch.device("cuda", (job.rank + job.shift) % count)
    torch.cuda.set_device(device)
    return device, count >= job.ranks


class Rank:
    """A rank. Its runs go through `forward`; rank 0 has a Lead beside it."""

    def __init__(self, job):
        self.job = job
        self.device, alone = place(job)
        if job.ranks > 1:
            backend = "cpu:gloo,cuda:nccl" if alone else "gloo"
            dist.init_process_group(backend, init_method=f"file://{job.meet}", rank=job.rank, world_size=job.ranks,
                                    timeout=timedelta(seconds=PATIENCE))
        self.model = models.share(job.model, job.seed, job.rank, job.ranks).to(self.device)
        self.cache_word = "cache" if "cache" in inspect.signature(type(self.model).forward).parameters else "past_key_values"
        full = models.FAMILIES[job.model].config(1)
        self.memory = Memory(self.model.config, full, BLOCKS, SLOTS, self.device)
        self.slots = SLOTS if self.memory.ssm is not None else 0
        self.held = {}  # label: sequence of a request that runs, or is exported
        self.imports = {}  # n of RESERVE: sequence that a mover may write
        self.digest = hashlib.sha256()  # of what was handed out so far
        self.client = baton.attach(
            job.run_dir, group=job.group, instance=job.instance, rank=job.rank, ranks=job.ranks,
            model=baton.Model(f"torch-{job.model}-{job.seed}", self.memory.states()), shards=self.memory.shards(job.rank),
            capacity=baton.Capacity(blocks=BLOCKS, block_tokens=BLOCK_TOKENS, slots=self.slots),
            scheduler=baton.Scheduler.GROUP)

    def run(self, lead=None):
        """Steps until rank 0 ends it."""
        step = Step()
        while not step.end:
            said = [lead.plan() if lead else None]
            if self.job.ranks > 1:
                dist.broadcast_object_list(said, src=0, device=torch.device("cpu"))
            step = said[0]
            if self.client.error is not None:
                raise self.client.error
            self.step(step, lead)
        self.client.close()
        if self.job.ranks > 1:
            dist.destroy_process_group()

    @torch.inference_mode()
    def step(self, step, lead):
        for event in lead.events if lead else self.client.poll():
            if isinstance(event, baton.UnpinExport):
                raise RuntimeError(f"{event.label}: its leader is not heard any more: start the group again")
        self.decide(lead.taken if lead else self.client.decisions(step.through), step, lead)
        for label in step.over:
            del self.held[label]
        for label, tokens, blocks, slot in step.prompts:
            seq = self.held[label] = Sequence(label, blocks, slot)
            choice = self.forward(seq, tokens)
            resume = lead.prefilled(label, choice) if lead else None
            self.client.export(label, seq.blocks, seq.length, slot=slot, resume=resume, max_hold=PATIENCE, stream=self.stream())
        for label, token in step.tokens:
            choice = self.forward(self.held[label], [token])
            if lead:
                lead.decoded(label, choice)

    def forward(self, seq, tokens):
        """Runs tokens behind those of seq, and gives the logits of the next."""
        ids = torch.tensor([tokens], device=self.device)
        out = self.model(ids, use_cache=True, logits_to_keep=1, **{self.cache_word: self.memory.cache(seq)})
        seq.length += len(tokens)
        return out.logits[0, -1]

    def stream(self):
        return torch.cuda.current_stream() if self.device.type == "cuda" else None

    def decide(self, decisions, step, lead):
        """Applies what the sidecars decided."""
        for d in decisions:
            if d.kind == DecisionKind.RESERVE:
                self.reserve(d, step.places[d.n])
            elif d.kind == DecisionKind.ADMIT:
                self.admit(self.imports.pop(d.of), d, lead)
            elif d.kind == DecisionKind.FREE and lead:
                lead.give(self.held.pop(d.label))
            elif d.kind == DecisionKind.FREE:
                del self.held[d.label]
            elif d.kind == DecisionKind.RELEASE_QUARANTINE:
                seq = self.imports.pop(d.of)
                if lead:
                    lead.give(seq)
            elif d.kind == DecisionKind.LIFECYCLE:
                takes = d.action in (baton.Action.STOP_INTAKE, baton.Action.RESUME_INTAKE)
                self.client.lifecycle_ack(d.n, None if takes else baton.EngineFault(f"{d.action.name}: this engine cannot"))
            # DROP: the memory stays where it is until RELEASE_QUARANTINE.
            # SET_WEIGHTS_EPOCH: the weights are made of the seed and stay.
        if decisions:
            self.client.applied(decisions[-1].n)

    def reserve(self, d, where):
        if where is None:
            self.client.full(d.n)
            return
        seq = self.imports[d.n] = Sequence(d.label, *where)
        seq.length, seq.resume = d.position, d.resume
        # What is not moved must not pass for state.
        self.memory.fill(seq, float("nan"))
        self.digest.update(repr(where).encode())
        self.client.reserved(d.n, seq.blocks, self.digest.digest(), slot=seq.slot, stream=self.stream())

    def admit(self, seq, d, lead):
        if self.job.corrupt:
            self.memory.damage(seq, self.job.corrupt)
        self.held[seq.label] = seq
        if lead:
            lead.admitted(seq.label, seq.resume.tokens[0])


class Lead:
    """What rank 0 has beside a rank: the pool, the requests, and who sends them (link, a
    multiprocessing connection)."""

    def __init__(self, rank, link):
        self.rank, self.link, self.client, self.job = rank, link, rank.client, rank.job
        self.blocks = list(range(BLOCKS))
        self.slots = list(range(rank.slots))
        self.events, self.taken = [], []  # what came before the step, and decisions that it applies
        self.waiting = []  # prompts without room
        self.answers = {}  # label: tokens so far
        self.margin = {}  # label: the least distance between the two best logits
        self.over, self.through, self.end = [], 0, False

    def plan(self):
        """Says what the next step does, after a wait if there is nothing to do."""
        if not self.answers and self.through == 0:
            select.select([self.client.fileno(), self.link.fileno()], [], [], IDLE)
        while self.link.poll():
            self.hear(self.link.recv())
        self.events = self.client.poll()
        for event in self.events:
            self.event(event)
        step = Step(through=self.through, over=self.over, end=self.end)
        self.taken, self.over, self.through = self.client.decisions(step.through), [], 0
        for d in self.taken:
            if d.kind == DecisionKind.RESERVE:
                step.places[d.n] = self.take(d.tokens + len(d.resume.tokens))
        while self.waiting and (where := self.take(len(self.waiting[0][1]))):
            step.prompts.append((*self.waiting.pop(0), *where))
        step.tokens = [(label, tokens[-1]) for label, tokens in self.answers.items()]
        return step

    def hear(self, message):
        """Takes (what, ...) of whoever sends requests."""
        what, *rest = message
        if what == "prompt":
            self.waiting.append(tuple(rest))
        elif what == "import":
            label, manifest, tokens = rest
            self.client.import_(label, baton.Manifest.parse(manifest), tokens, deadline=PATIENCE)
        elif what == "end":
            self.end = True

    def event(self, event):
        if isinstance(event, baton.Through):
            self.through = event.n
        elif isinstance(event, baton.Exported):
            self.link.send(("exported", event.label, bytes(event.manifest)))
        elif isinstance(event, baton.Imported):
            self.link.send(("imported", event.label, event.bytes, vars(event.phases)))
        elif isinstance(event, baton.Failed):
            self.link.send(("failed", event.label, str(event.error)))

    def take(self, tokens):
        """Blocks for so many tokens and all that are decoded behind them, and a slot; None: there
        is no room, and nothing was taken."""
        n = -(-(tokens + self.job.new) // BLOCK_TOKENS) if self.job.role == "decode" else -(-tokens // BLOCK_TOKENS)
        if n > len(self.blocks) or self.rank.slots and not self.slots:
            return None
        blocks, self.blocks = self.blocks[:n], self.blocks[n:]
        return blocks, self.slots.pop(0) if self.rank.slots else -1

    def give(self, seq):
        """Takes a sequence's memory back."""
        self.blocks += seq.blocks
        if seq.slot >= 0:
            self.slots.append(seq.slot)
        self.client.freed(len(seq.blocks), int(seq.slot >= 0))

    def prefilled(self, label, logits):
        token = self.choose(label, logits)
        self.link.send(("prefilled", label, token, self.margin.pop(label)))
        return baton.Resume(tokens=[token])

    def admitted(self, label, token):
        self.answers[label] = [token]

    def decoded(self, label, logits):
        tokens = self.answers[label]
        tokens.append(self.choose(label, logits))
        if len(tokens) < self.job.new:
            return
        self.link.send(("answer", label, self.answers.pop(label), self.margin.pop(label)))
        self.over.append(label)
        self.give(self.rank.held[label])

    def choose(self, label, logits):
        """The likeliest token."""
        best = logits.float().topk(2)
        self.margin[label] = min(self.margin.get(label, float("inf")), float(best.values[0] - best.values[1]))
        return int(best.indices[0])


def serve(job, link):
    """Runs a rank in its process. Rank 0 hears of requests on link; what fails is said there."""
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    rank = Rank(job)
    link.send(("ready", str(rank.device)))
    rank.run(Lead(rank, link) if job.rank == 0 else None)


def reference(name, seed, device, prompts, new, link):
    """The same requests in one process that has nothing but transformers."""
    device, _ = place(Job(name, seed, "", "", 0, 0, 1, "", "", device, 0, new, ""))
    model = models.whole(name, seed).to(device)
    for tokens in prompts:
        out = model.generate(
            torch.tensor([tokens], device=device), max_new_tokens=new, do_sample=False, output_logits=True, return_dict_in_generate=True)
        margins = [float(best[0] - best[1]) for best in (step[0].float().topk(2).values for step in out.logits)]
        link.send((out.sequences[0, len(tokens):].tolist(), min(margins)))
