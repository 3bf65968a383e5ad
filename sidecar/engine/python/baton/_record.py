"""What a rank has to state when it attaches again. No I/O, no clock, no lock.

It follows the messages in both directions, in their order. A label ends once: an export by
FREE (when the engine takes that decision), by Failed other than Gone, or by UnpinExport; an
import by Imported or Failed. What ends a label that has ended is not passed on. A label that is
announced ends with Failed, or when it is exported; what a lost session knew of it is said again
in the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Sequence

from . import _wire, words
from .errors import Bound, EngineFault, UnknownLabel, WrongPosition, WrongWeights
from .words import Decision, DecisionKind

MAX_PINS = _wire.MAX_PINS
MAX_HELD = _wire.MAX_STATED
DEFAULT_DEADLINE = 30.0  # seconds, of an import that brings none


@dataclass
class Awaited:
    """An import without an end."""

    id: words.HandoffID
    key: bytes
    deadline: float  # when OnDown.FAIL gives it up, if no sidecar is there


@dataclass(frozen=True)
class Growing:
    """An export whose parts leave. What a part may not change is that of the first."""

    tokens: int
    position: int
    weights: int
    salt: words.Salt
    parts: int = 0  # that were exported
    blocks: tuple[int, ...] = ()  # that they named
    reach: words.Reach = words.Reach(0, 0)  # of the last


@dataclass(frozen=True)
class Statement:
    """What a rank states of itself at one instant."""

    pins: Sequence[str]
    imports: Sequence[str]
    applied: int
    held: int
    weights: int
    draining: bool
    decisions: Sequence[Decision]


class Gap(EngineFault):
    """Decisions did not come in order: another session brings them."""


def _within(r: words.Reach, tokens: int) -> bool:
    return 0 <= r.tokens <= r.ahead <= tokens and r.layers >= 0 and (r.layers == 0) == (r.ahead == r.tokens)


def _follows(r: words.Reach, before: words.Reach) -> bool:
    """More layers of the same tokens, or all of those and more."""
    return r.tokens >= before.ahead or (r.tokens, r.ahead) == (before.tokens, before.ahead) and r.layers >= before.layers


class Record:
    def __init__(self, weights: int = 0) -> None:
        self.pins: set[str] = set()  # exports that are held
        self.growing: dict[str, Growing] = {}  # of them, those whose parts leave
        self.announced: set[str] = set()  # and neither exported nor refused
        self.imports: dict[str, Awaited] = {}
        self.log: list[Decision] = []  # held and not settled, or not taken; without gaps
        self.held = 0  # decisions 1 to held have arrived,
        self.taken = 0  # 1 to taken were handed to the engine,
        self.applied = 0  # 1 to applied it has applied,
        self.settled = 0  # and 1 to settled nobody need state any more
        self.fenced = 0  # the highest fence that the engine passed
        self.weights = weights
        self.draining = False

    def after(self, n: int) -> int:
        """Index in the log of the first decision behind n."""
        if not self.log:
            return 0
        return min(max(n + 1 - self.log[0].n, 0), len(self.log))

    def state(self) -> Statement:
        """What the rank has to say now. What grows ends here: a session goes on with no part of
        another."""
        self.growing.clear()
        return Statement(sorted(self.pins), sorted(self.imports), self.applied, self.held, self.weights, self.draining,
                         self.log[self.after(self.settled):])

    # What the engine says. An error refuses it and changes nothing; False: it was said before,
    # or what it continues has ended, and it need not go out.

    def announces(self, label: str) -> bool:
        if len(self.announced) >= MAX_PINS:
            raise Bound(f"announce: {MAX_PINS} labels are announced")
        if label not in self.pins:
            self.announced.add(label)
        return True

    def exports(self, label: str) -> bool:
        if not label:
            raise EngineFault("export: it has no label")
        if any(d.kind == DecisionKind.FREE and d.label == label for d in self.log[self.after(self.applied):self.after(self.taken)]):
            raise EngineFault(f"export: label {label!r} was freed: say applied() before it is exported again")
        if label in self.pins:
            raise EngineFault(f"export: label {label!r} is exported already: it is over with FREE, Failed or UnpinExport")
        if len(self.pins) >= MAX_PINS:
            raise Bound(f"export: {MAX_PINS} exports are held")
        self.announced.discard(label)
        self.pins.add(label)
        return True

    def part(self, label: str, part: int, blocks: Sequence[int], reach: words.Reach, like: Growing, check: Callable[[Sequence[int]], None]) -> bool:
        """like has what is alike in all parts; check refuses the blocks of all so far."""
        before = like if part == 1 else self._continues(label, part - 1, like)
        if before is None:
            return False
        if not _within(reach, like.tokens) or not _follows(reach, before.reach):
            raise EngineFault(f"export: part {part} of label {label!r} has {reach} of {like.tokens} tokens, after {before.reach}")
        named = (*before.blocks, *blocks)
        check(named)
        if part == 1:
            self.exports(label)
        self.growing[label] = replace(like, parts=part, blocks=named, reach=reach)
        return True

    def closes(self, label: str, parts: int, blocks: Sequence[int], like: Growing) -> bool:
        before = self._continues(label, parts, like)
        if before is None:
            return False
        if tuple(blocks[:len(before.blocks)]) != before.blocks:
            raise EngineFault(f"export of {label!r}: its blocks do not begin with those of its parts: name all, from token 0")
        del self.growing[label]
        return True

    def _continues(self, label: str, parts: int, like: Growing) -> Growing | None:
        """What follows so many parts of a label; None: it has ended."""
        said = self.growing.get(label)
        if said is None:
            return None
        if said.parts != parts:
            raise EngineFault(f"export: {said.parts} parts of label {label!r} are exported, and this follows {parts}")
        if (said.tokens, said.position) != (like.tokens, like.position):
            raise WrongPosition(f"export: the first part of {label!r} is of {said.tokens} tokens at position {said.position}, "
                                f"and this of {like.tokens} at {like.position}")
        if said.weights != like.weights:
            raise WrongWeights(f"export: the first part of {label!r} is of epoch {said.weights}, and this of {like.weights}")
        if said.salt != like.salt:
            raise EngineFault(f"export: the first part of {label!r} has another salt than this")
        return said

    def releases(self, label: str) -> bool:
        self.announced.discard(label)
        self.growing.pop(label, None)
        return True

    def asks(self, label: str, m: words.Manifest, deadline: float) -> bool:
        """deadline: on the caller's clock."""
        if not label:
            raise EngineFault("import: it has no label")
        old = self.imports.get(label)
        if old is not None:
            if (old.id, old.key) == (m.id, m.key):
                return False
            raise UnknownLabel(f"import: label {label!r} names another import under way")
        if len(self.imports) >= MAX_PINS:
            raise Bound(f"import: {MAX_PINS} imports have no end")
        self.imports[label] = Awaited(m.id, m.key, deadline)
        return True

    def applies(self, n: int) -> bool:
        if n > self.taken or n < self.applied:
            raise EngineFault(f"applied: {n} decisions: {self.taken} are taken and {self.applied} were applied")
        lo, hi = self.after(self.applied), self.after(n)
        for i in range(lo, hi):
            d = self.log[i]
            if d.kind == DecisionKind.SET_WEIGHTS_EPOCH:
                self.weights = d.weights_epoch
            if d.action == words.Action.STOP_INTAKE:
                self.draining = True
            elif d.action == words.Action.RESUME_INTAKE:
                self.draining = False
            self.log[i] = _wire.stripped(d)
        self.applied = n
        self._trim()
        return True

    def fences(self, n: int) -> bool:
        self.fenced = max(self.fenced, n)
        return True

    def acks(self, n: int) -> bool:
        if n == 0 or n > self.taken:
            raise EngineFault(f"lifecycle_ack: of decision {n}: {self.taken} are taken")
        return True

    # What the sidecar says.

    def hears(self, m: Any) -> bool:
        """Takes an event and says whether the engine has to hear it."""
        if isinstance(m, words.Imported):
            a = self.imports.get(m.label)
            if a is None or a.id != m.id:
                return False
            del self.imports[m.label]
        elif isinstance(m, words.Failed):
            return self._fails(m)
        elif isinstance(m, words.UnpinExport):
            if m.label not in self.pins:
                return False
            self._over(m.label)
        return True

    def _fails(self, m: words.Failed) -> bool:
        if m.label in self.imports:
            del self.imports[m.label]
        elif m.label in self.pins:
            if m.source_safe:
                return False  # of the announcement before: the export is answered by itself
            if "handoff.gone" not in m.error.names:  # else FREE ends it, or has: the label may be exported anew
                self._over(m.label)
        elif m.label in self.announced:
            self.announced.discard(m.label)
        else:
            return False
        return True

    def holds(self, d: Decision) -> None:
        """Takes a decision. One that is held already says at most what is settled."""
        if d.n > self.held + 1:
            raise Gap(f"decision {d.n} after {self.held}: one is missing")
        if d.n == self.held + 1:
            self.log.append(d)
            self.held = d.n
        if d.settled <= self.held:
            self.settled = max(self.settled, d.settled)
        self._trim()

    def take(self, through: int) -> list[Decision]:
        """Hands out the decisions up to through that were not taken."""
        lo = self.after(self.taken)
        out = self.log[lo:max(self.after(through), lo)]
        for d in out:
            if d.kind == DecisionKind.FREE:
                self._over(d.label)
        if out:
            self.taken = out[-1].n
        return out

    @property
    def waiting(self) -> int:
        """Decisions that the engine has not taken."""
        return self.held - self.taken

    def give_up(self, now: float, everything: bool = False) -> list[str]:
        """Ends the imports whose deadline has come; their labels in order."""
        labels = sorted(label for label, a in self.imports.items() if everything or a.deadline <= now)
        for label in labels:
            del self.imports[label]
        return labels

    def due(self) -> float | None:
        """When give_up has something to do; None: never."""
        return min((a.deadline for a in self.imports.values()), default=None)

    def _over(self, label: str) -> None:
        self.pins.discard(label)
        self.growing.pop(label, None)

    def _trim(self) -> None:
        """Drops what need not be stated: decisions that are settled and applied. A leader that
        settles nothing does not make the log grow for ever: the oldest applied go."""
        n = self.after(min(self.settled, self.applied))
        over = len(self.log) - MAX_HELD
        if over > n:
            n = min(over, self.after(self.applied))
        del self.log[:n]
