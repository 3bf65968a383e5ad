"""One stream to a sidecar, and the descriptors that go beside it."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time
from collections import deque
from typing import Any, Deque, Sequence

import grpc

from . import _wire
from .errors import AttachRefused, Denied, EngineFault, Error, PeerLost, SessionFull

SOCKET = "engine.sock"
FD_SOCKET = "engine.fd.sock"
_METHOD = "/baton.engine.v1.Engine/Session"
_MAX_PATH = 107
_QUEUE = 4096
_FD_ANSWERS = {1: "no such key: the session has ended", 2: "more of the buffer than were declared", 3: "not a descriptor"}
_OPTIONS = [
    ("grpc.max_send_message_length", _wire.MAX_MESSAGE),
    ("grpc.max_receive_message_length", _wire.MAX_MESSAGE),
    ("grpc.use_local_subchannel_pool", 1),  # so that no former channel's pause holds up a new one
    ("grpc.enable_http_proxy", 0),
]


def path(run_dir: str, name: str) -> str:
    """The socket of this name in the sidecar's run directory."""
    p = os.path.join(run_dir, name)
    if not os.path.isabs(p) or os.path.normpath(p) != p:
        raise AttachRefused(f"attach: run directory {run_dir!r}: want an absolute, clean path")
    if len(p.encode()) > _MAX_PATH:
        raise AttachRefused(f"attach: {p!r}: {len(p.encode())} bytes, at most {_MAX_PATH}: choose a shorter run directory")
    return p


def _connect(p: str, kind: int, timeout: float) -> socket.socket:
    """Connects to a socket whose owner has this process's user id."""
    s = socket.socket(socket.AF_UNIX, kind)
    s.settimeout(timeout)
    try:
        s.connect(p)
        _, uid, _ = struct.unpack("iII", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError as err:
        s.close()
        raise PeerLost(f"no sidecar serves {p}: {err}") from err
    if uid != os.geteuid():
        s.close()
        raise Denied(f"{p}: served by user {uid}, this is user {os.geteuid()}")
    return s


def send_files(run_dir: str, key: int, files: Sequence[tuple[int, int]], stop: int, timeout: float) -> None:
    """Passes the descriptor of every buffer, as (buffer id, descriptor), and waits until each is
    kept, so that BuffersReady cannot overtake one. stop is a descriptor that becomes readable
    when nobody waits any more."""
    if not files:
        return
    end = time.monotonic() + timeout
    with _connect(path(run_dir, FD_SOCKET), socket.SOCK_SEQPACKET, timeout) as s:
        for buffer, fd in files:
            try:
                socket.send_fds(s, [struct.pack(">QI", key, buffer)], [fd])
                if not _readable(s.fileno(), end - time.monotonic(), stop):
                    raise PeerLost(f"descriptor of buffer {buffer}: the sidecar does not answer")
                answer = s.recv(1)
            except OSError as err:
                raise PeerLost(f"descriptor of buffer {buffer}: {err}") from err
            if answer != b"\0":
                raise AttachRefused(f"descriptor of buffer {buffer}: {_FD_ANSWERS.get(answer[0], answer) if answer else 'no answer'}")


class Session:
    """One stream of messages both ways. Safe for use by several threads; one of them receives."""

    def __init__(self, run_dir: str, timeout: float) -> None:
        p = path(run_dir, SOCKET)
        _connect(p, socket.SOCK_STREAM, timeout).close()
        self._cond = threading.Condition()
        self._direct: Deque[Any] = deque()  # goes out whatever waits
        self._queue: Deque[Any] = deque()  # of the engine, while it flows
        self._flows = False
        self._finishing = False
        self._why: Error | None = None
        self._channel = grpc.insecure_channel("unix:" + p, options=_OPTIONS)
        call = self._channel.stream_stream(_METHOD, request_serializer=_wire.encode, response_deserializer=bytes)
        self._call = call(self._outgoing())

    def _outgoing(self) -> Any:
        while True:
            with self._cond:
                while not (self._direct or self._flows and (self._queue or self._finishing) or self._why):
                    self._cond.wait()
                if self._why:
                    return
                if self._direct:
                    m = self._direct.popleft()
                elif self._queue:
                    m = self._queue.popleft()
                else:
                    return
            yield m

    def say(self, m: Any) -> None:
        """Sends m before what the engine sent: the client's own word while the rank attaches."""
        with self._cond:
            self._direct.append(m)
            self._cond.notify_all()

    def send(self, m: Any) -> bool:
        """Queues m and never blocks. False: the session has ended."""
        with self._cond:
            if self._why or self._finishing:
                return False
            full = len(self._queue) >= _QUEUE
            if not full:
                self._queue.append(m)
                self._cond.notify_all()
        if full:
            self.end(SessionFull(f"session: {_QUEUE} messages wait for the sidecar"))
        return not full

    @property
    def room(self) -> bool:
        """Whether the sidecar keeps up: what can wait is not sent to one that does not."""
        with self._cond:
            return len(self._queue) < _QUEUE // 2

    def flow(self) -> None:
        """Lets go out what the engine sends: the rank is attached."""
        with self._cond:
            self._flows = True
            self._cond.notify_all()

    def finish(self) -> None:
        """Ends the session in order, after what is queued."""
        with self._cond:
            self._finishing = True
            self._cond.notify_all()

    def receive(self) -> Any:
        """The next message; blocks. Raises why the session ended."""
        try:
            return _wire.event(_wire.decode(next(self._call)))
        except StopIteration:
            raise self._ended(PeerLost("session: the sidecar closed it")) from None
        except grpc.RpcError as err:
            raise self._ended(_lost(err)) from None
        except Error:
            raise
        except Exception as err:  # bytes that are no message
            raise EngineFault(f"session: what the sidecar sent cannot be read: {err}") from err

    def _ended(self, why: Error) -> Error:
        with self._cond:
            return self._why or why

    def end(self, why: Error) -> Error:
        """Cuts the session and returns the first reason given."""
        with self._cond:
            self._why = self._why or why
            first = self._why
            self._cond.notify_all()
        self._call.cancel()
        return first

    def close(self) -> None:
        """Frees it, after end."""
        self._channel.close()


def _lost(err: Any) -> Error:
    """Names the end of a stream: the sidecar's own word if it said one."""
    for key, value in err.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            said = _wire.spoken(value)
            if said is not None:
                return said
    return PeerLost(f"session to the sidecar: {err.code().name.lower()}: {err.details()}")


class Movers:
    """The processes that map the rank's buffers, held by pidfd: their exit alone makes memory
    quiet once their sidecar is gone. Of one thread."""

    def __init__(self) -> None:
        self._incarnation = 0
        self._held: dict[int, int] = {}  # pid to pidfd

    def hold(self, pid: int) -> None:
        for old, fd in list(self._held.items()):
            if _exited(fd, 0):
                os.close(fd)
                del self._held[old]
        if pid == os.getpid() or pid in self._held:
            return
        try:
            self._held[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            pass
        except OSError as err:
            raise AttachRefused(f"hold on to the mover, pid {pid}: {err}: engine and sidecar share one PID namespace") from err

    def former(self, incarnation: int, stop: int, timeout: float) -> None:
        """Returns once no mover of another sidecar process than this incarnation can touch the
        buffers. stop is a descriptor that becomes readable when nobody waits any more."""
        if incarnation != self._incarnation:
            for pid, fd in self._held.items():
                if not _exited(fd, timeout, stop):
                    raise PeerLost(f"the former sidecar's mover, pid {pid}, has not exited: kill it if it hangs")
            self.let_go()
        self._incarnation = incarnation

    def let_go(self) -> None:
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()


def _exited(fd: int, timeout: float, stop: int | None = None) -> bool:
    """Waits until the process of a pidfd has exited."""
    return _readable(fd, timeout, stop)


def _readable(fd: int, timeout: float, stop: int | None = None) -> bool:
    """Waits until fd can be read. False: the time has passed, or stop can be read."""
    p = select.poll()
    p.register(fd, select.POLLIN)
    if stop is not None:
        p.register(stop, select.POLLIN)
    return any(f == fd for f, _ in p.poll(max(timeout, 0) * 1000))
