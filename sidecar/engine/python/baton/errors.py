"""Errors, by the decision that a caller makes on each.

Every error carries the names of the sentinels that it is (`handoff.gone`), the text of who
said it, and what to do. Catch the classes; `name in err.names` asks for the others.
"""

from __future__ import annotations

from typing import Iterable

__all__ = [
    "Error",
    "Gone",
    "Taken",
    "WrongModel",
    "PlanMismatch",
    "WrongPosition",
    "WrongWeights",
    "NoCapacity",
    "DeadlinePassed",
    "Aborted",
    "PeerLost",
    "TransferFailed",
    "ChecksumDiffers",
    "InDoubt",
    "NotReady",
    "AlreadyAttached",
    "AttachRefused",
    "Relaunch",
    "UnknownLabel",
    "EngineFault",
    "WrongRole",
    "NotQuiet",
    "Bound",
    "Draining",
    "NoGroup",
    "Denied",
    "WrongVersion",
    "TransferError",
    "LayoutError",
    "SessionFull",
    "SessionClosed",
    "CudaError",
]


class Error(Exception):
    """An error of Baton: what, why, and what to do."""

    sentinel: str = ""
    remedy: str = ""

    def __init__(self, text: str, names: Iterable[str] = (), spoken: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.names: tuple[str, ...] = tuple(names) or ((self.sentinel,) if self.sentinel else ())
        #: whether the sidecar said it; else it was found here
        self.spoken = spoken

    def __str__(self) -> str:
        if not self.remedy or "; to do: " in self.text:  # that of the cause, which the text quotes
            return self.text
        return f"{self.text}; to do: {self.remedy}"


class Gone(Error):
    """Released, expired, unknown, or a wrong key."""

    sentinel = "handoff.gone"
    remedy = "run the prompt again and export it anew"


class Taken(Error):
    """No copy of the hand-off is left."""

    sentinel = "handoff.taken"
    remedy = "export with more copies if several imports are meant to consume it"


class WrongModel(Error):
    """The two groups run other models."""

    sentinel = "handoff.model"
    remedy = "state the same name and states on both sides"


class PlanMismatch(Error):
    """No plan exists between the two cuts, or the sides planned differently."""

    sentinel = "handoff.plan"
    remedy = "see `baton plan`: it says which cell no rank holds"


class WrongPosition(Error):
    """KV and per-request state, or tokens and manifest, disagree."""

    sentinel = "handoff.position"
    remedy = "import with the tokens that were exported, and export the state of one position"


class WrongWeights(Error):
    """The weights epoch differs."""

    sentinel = "handoff.weights"
    remedy = "run the prompt again with the group's weights"


class NoCapacity(Error):
    """There is no room, and the queue is full."""

    sentinel = "handoff.capacity"
    remedy = "import into another group, or later"


class DeadlinePassed(Error):
    """The import's deadline passed."""

    sentinel = "handoff.deadline"
    remedy = "try again if the source is safe, else run the prompt again"


class Aborted(Error):
    """The import was ended by who asked for it."""

    sentinel = "handoff.aborted"
    remedy = "nothing: it was asked for"


class PeerLost(Error):
    """The sidecar, or the other group, cannot be reached."""

    sentinel = "handoff.peer"
    remedy = "the client attaches again by itself; try the request again if the source is safe"


class TransferFailed(Error):
    """The copy failed."""

    sentinel = "handoff.transfer"
    remedy = "try again if the source is safe; `baton doctor` measures the link"


class ChecksumDiffers(Error):
    """What arrived is not what was exported."""

    sentinel = "handoff.checksum"
    remedy = "run the prompt again, and look for what writes into exported blocks before FREE"


class InDoubt(Error):
    """Nobody can tell yet how it ended."""

    sentinel = "handoff.in-doubt"
    remedy = "ask the control plane for the hand-off"


class NotReady(Error):
    """Not every rank of the group is attached."""

    sentinel = "handoff.not-ready"
    remedy = "wait until all ranks have attached"


class AlreadyAttached(Error):
    """The rank is attached already."""

    sentinel = "handoff.attached"
    remedy = "close the other client of this rank; after a crash it ends by itself soon"


class AttachRefused(Error):
    """What the rank states cannot be."""

    sentinel = "handoff.attach"
    remedy = "correct what attach() was given"


class Relaunch(Error):
    """The ranks hold what cannot be one group any more."""

    sentinel = "handoff.relaunch"
    remedy = "launch all ranks of the group anew, with a new instance"


class UnknownLabel(Error):
    """An unknown or ambiguous label or id."""

    sentinel = "handoff.unknown"
    remedy = "use a label for one thing at a time"


class EngineFault(Error):
    """The engine broke the protocol."""

    sentinel = "handoff.engine"
    remedy = "correct the engine's order of calls: the text says which"


class WrongRole(Error):
    """The group does not do this in its role."""

    sentinel = "handoff.role"
    remedy = "export from prefill groups and import into decode groups"


class NotQuiet(Error):
    """Memory may still be touched."""

    sentinel = "handoff.quiet"
    remedy = "wait until the former movers have exited"


class Bound(Error):
    """A value is larger than allowed, or is none of its kind."""

    sentinel = "handoff.bound"
    remedy = "keep within the bound that the text names"


class Draining(Error):
    """The group takes no new work."""

    sentinel = "handoff.draining"
    remedy = "send it to another group"


class NoGroup(Error):
    """There is no such group."""

    sentinel = "handoff.group"
    remedy = "see `baton doctor` for the groups that there are"


class Denied(Error):
    """The caller's certificate, or user, may not do this."""

    sentinel = "handoff.denied"
    remedy = "run engine and sidecar as one user"


class WrongVersion(Error):
    """There is no common version of a protocol."""

    sentinel = "handoff.version"
    remedy = "install the client of the sidecar's release"


class TransferError(Error):
    """An error of whatever moves bytes (`transfer.*`)."""

    remedy = "`baton doctor` measures the links and says what is wrong with them"


class LayoutError(Error):
    """A shard contradicts itself, its model or its memory (`layout.*`, `reshard.*`)."""

    sentinel = "layout.geometry"
    remedy = "correct the shards that attach() was given"


class SessionFull(Error):
    """The other side does not read fast enough."""

    sentinel = "session.full"
    remedy = "the client attaches again by itself"


class SessionClosed(Error):
    """The client has ended."""

    sentinel = "session.closed"
    remedy = "attach anew"


class CudaError(Error):
    """The GPU driver refused, or the memory cannot be shared."""


_OTHERS: dict[str, type[Error]] = {
    name: kind
    for kind, names in (
        (Error, "handoff.host handoff.section handoff.order choice.none discovery.lost discovery.taken "
                "discovery.record discovery.down context.canceled context.deadline"),
        (TransferError, "transfer.closed transfer.bounds transfer.memory transfer.peer transfer.mover transfer.canceled "
                        "transfer.busy transfer.convert transfer.full transfer.lost"),
        (LayoutError, "reshard.uncovered reshard.mismatch lower.job lower.pair lower.template lower.split"),
    )
    for name in names.split()
}

#: Every name that an error may carry, with its class.
BY_NAME: dict[str, type[Error]] = {**{k.sentinel: k for k in Error.__subclasses__() if k.sentinel}, **_OTHERS}


def named(names: Iterable[str], text: str, spoken: bool = True) -> Error:
    """The error that these sentinels are; unknown names are not believed."""
    known = [n for n in names if n in BY_NAME][:16]
    kind = BY_NAME[known[0]] if known else Error
    return kind(text or (known[0] if known else "unknown error"), known, spoken)
