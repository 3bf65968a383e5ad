"""Sessions, one after the other: the thread that attaches, hears, and attaches again."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any, Callable, Sequence

from . import _wire, words
from ._blocks import BlockEvent, Blocks, messages
from ._record import MAX_HELD, Record
from ._session import Movers, Session, send_files
from .errors import EngineFault, Error, PeerLost, SessionClosed

_MAX_WAITING = 1 << 16  # events that an engine may leave unpolled; more is the client's end
_CLOSE_GRACE = 1.0  # seconds that close waits for the sidecar to read what is queued
_ATTACH_LIMIT = 30.0  # seconds of one try to attach again
_STABLE = 10.0  # seconds a session must have stood for the next pause to be short again


class Unpolled(EngineFault):
    """The engine does not take what came."""

    remedy = "poll() and take decisions() between steps"


class Driver:
    """What a client is behind its calls. Its thread serves sessions until it ends."""

    def __init__(self, run_dir: str, statement: Callable[[Any], Any], files: Sequence[tuple[int, int]], weights: int,
                 recompute: bool, redial: tuple[float, float]) -> None:
        self._run_dir, self._statement, self._files = run_dir, statement, files
        self._recompute, self._redial = recompute, redial
        self._movers = Movers()  # of the thread
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)  # readable when the client ends
        self.wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, _close, self._stop, self.wake)  # after the thread, which holds this object
        self._thread = threading.Thread(target=self._run, name="baton", daemon=True)
        self._attached = threading.Event()  # the first try has ended

        self.lock = threading.Condition(threading.RLock())  # guards:
        self.record = Record(weights)
        self.blocks = Blocks()
        self.away: Error | None = None  # why no session stands
        self.error: Error | None = None  # why the client has ended
        self._ready: list[Any] = []
        self._session: Session | None = None  # takes messages; None between two

    def start(self, timeout: float) -> None:
        """Attaches for the first time."""
        self._first = time.monotonic() + timeout
        self._thread.start()
        done = self._attached.wait(timeout + _CLOSE_GRACE)
        why = self.error
        if why is None and done:
            return
        self.close()
        if time.monotonic() >= self._first and not (why and why.spoken):
            raise TimeoutError(f"attach to {self._run_dir}: {timeout:g} s passed: {why or 'no answer'}")
        raise why or SessionClosed("attach: closed meanwhile")

    def send(self, message: Any, record: Callable[[Record], bool] | None, imports: str) -> None:
        """Records and queues a message."""
        with self.lock:
            self._lives()
            if record is not None and not record(self.record):
                return
            if self._session is not None and self._session.send(message):
                return
            if imports:
                del self.record.imports[imports]
                self._fail(imports, PeerLost(f"no sidecar is there to import {imports!r}"), True)

    def _lives(self) -> None:
        """Raises SessionClosed once nothing is sent any more. Caller holds lock."""
        if self.error is not None:
            raise SessionClosed(f"the client has ended: {self.error}")

    def tell(self, change: Callable[[Blocks], list[BlockEvent]]) -> None:
        """Tells a change of the prefix cache, if it is asked for and the sidecar keeps up."""
        with self.lock:
            self._lives()
            events = change(self.blocks)
            if not self.blocks.on or self._session is None:
                return
            if self.blocks.is_behind and events:
                self.blocks.behind(events)
            else:
                self._say(events)

    def _say(self, events: Sequence[BlockEvent]) -> None:
        """Queues block events while there is room. Caller holds lock."""
        said = 0
        for some in messages(events):
            session = self._session
            if session is None or not session.room:
                self.blocks.behind(events[said:])
                return
            session.send(_wire.block_events(some))
            said += len(some)

    def take(self) -> list[Any]:
        with self.lock:
            if self.blocks.on and self.blocks.is_behind and self._session is not None and self._session.room:
                self._say(self.blocks.anew())
            try:
                os.eventfd_read(self.wake)
            except BlockingIOError:
                pass
            out, self._ready = self._ready, []
            return out

    def close(self) -> None:
        with self.lock:
            if self.error is None:
                self.error = SessionClosed("the client is closed")
            session = self._session if self.away is None else None
            if session is not None:
                session.finish()
            else:
                self._end()
            self.lock.notify_all()
        if threading.current_thread() is self._thread:
            return
        self._thread.join(_CLOSE_GRACE)
        with self.lock:
            self._end()
        self._thread.join()

    def _end(self) -> None:
        """Makes the thread give up whatever it waits for. Caller holds lock."""
        os.eventfd_write(self._stop, 1)
        if self._session is not None:
            self._session.end(self.error or SessionClosed("the client is closed"))

    def _ring(self) -> None:
        try:
            os.eventfd_write(self.wake, 1)
        except BlockingIOError:
            pass

    def _fail(self, label: str, error: Error, safe: bool) -> None:
        """Tells the engine the end of an import. Caller holds lock."""
        self._ready.append(words.Failed(label, error, safe))
        self._ring()

    # The thread.

    def _run(self) -> None:
        session = None
        try:
            session = self._attach(self._first)
        except Exception as err:
            with self.lock:
                self.error = self.error or _known(err)
        finally:
            self._attached.set()
        pause = self._redial[0]
        while session is not None:
            began = time.monotonic()
            why = self._serve(session)
            session.close()
            if time.monotonic() - began > _STABLE:
                pause = self._redial[0]
            session = None
            while session is None and self._leave(why):
                if not self._rest(pause):
                    break
                pause = min(2 * pause, self._redial[1])
                try:
                    session = self._attach(time.monotonic() + _ATTACH_LIMIT)
                except Exception as err:
                    why = _known(err)
        self._movers.let_go()

    def _attach(self, deadline: float) -> Session:
        """Opens a session and goes on to the first MoverStarted. What the engine sends from the
        instant on at which its state was taken waits in the session's queue."""
        session = Session(self._run_dir, max(deadline - time.monotonic(), 0.001))
        limit = threading.Timer(max(deadline - time.monotonic(), 0), session.end, [PeerLost("attach: the sidecar does not answer in time")])
        limit.daemon = True
        limit.start()
        try:
            with self.lock:
                if self.error is not None:
                    raise self.error
                state, again = self.record.state(), self._afterwards()
                self.blocks.on = False
                self._session = session
            self._introduce(session, self._statement(state), again, deadline)
            with self.lock:
                if self.error is not None and not self._attached.is_set():
                    raise self.error
                self.away = None
                self._ring()
            return session
        except Exception as err:
            with self.lock:
                self._session = None
            why = session.end(_known(err))
            session.close()
            raise why from None
        finally:
            limit.cancel()

    def _afterwards(self) -> list[Any]:
        """What has to be said again once the rank is attached: the fence, since an answer of
        before may wait for it, and the labels that are announced."""
        out = [_wire.simple("announce", label=label) for label in sorted(self.record.announced)]
        if self.record.fenced:
            out.insert(0, _wire.simple("fenced", n=self.record.fenced))
        return out

    def _introduce(self, session: Session, attach: Any, again: Sequence[Any], deadline: float) -> None:
        session.say(attach)
        answer = self._answer(session)
        if not isinstance(answer, tuple):
            raise EngineFault(f"the sidecar answered attach with {type(answer).__name__}")
        incarnation, key = answer
        self._movers.former(incarnation, self._stop, deadline - time.monotonic())
        send_files(self._run_dir, key, self._files, self._stop, max(deadline - time.monotonic(), 0.001))
        session.say(_wire.simple("buffers_ready"))
        mapped = False
        while not mapped:
            m = self._answer(session)
            self._hear(session, m)
            mapped = isinstance(m, words.MoverStarted)
        for m in again:
            session.say(m)
        session.flow()

    @staticmethod
    def _answer(session: Session) -> Any:
        """A message while the rank attaches: a failure of the rank as a whole ends that."""
        m = session.receive()
        if isinstance(m, words.Failed) and not m.label:
            raise m.error
        return m

    def _serve(self, session: Session) -> Error:
        while True:
            try:
                self._hear(session, session.receive())
            except Exception as err:
                return session.end(_known(err))

    def _hear(self, session: Session, m: Any) -> None:
        """Stores what arrived, and answers a decision with Held."""
        if isinstance(m, words.MoverStarted):
            self._movers.hold(m.pid)
        with self.lock:
            if isinstance(m, words.Decision):
                if self.record.waiting >= MAX_HELD:
                    raise Unpolled(f"{MAX_HELD} decisions wait")
                self.record.holds(m)
                self._ring()
                session.send(_wire.simple("held", n=self.record.held))
                return
            if isinstance(m, bool):
                self.blocks.on = m
                if m:
                    self._say(self.blocks.anew())
                return
            if isinstance(m, tuple) or not self.record.hears(m):
                return
            if len(self._ready) >= _MAX_WAITING:
                raise Unpolled(f"{_MAX_WAITING} messages wait")
            self._ready.append(m)
            self._ring()

    def _leave(self, why: Error) -> bool:
        """Notes that no session stands and reports whether another one follows."""
        with self.lock:
            self._session, self.away = None, why
            if self.error is None and _final(why):
                self.error = why
            self._ring()
            if self.error is not None:
                return False
            if self._recompute:
                for label in self.record.give_up(0, everything=True):
                    self._fail(label, PeerLost(f"the sidecar was lost while {label!r} was imported: {why.text}"), False)
            return True

    def _rest(self, pause: float) -> bool:
        """Waits between two tries, and fails the imports that fall due meanwhile. False: the client
        has ended."""
        until = time.monotonic() + pause
        with self.lock:
            while self.error is None:
                now = time.monotonic()
                for label in self.record.give_up(now):
                    self._fail(label, PeerLost(f"no sidecar came back before the deadline of {label!r}: {self.away}"), False)
                if now >= until:
                    return True
                self.lock.wait(min(until, self.record.due() or until) - now)
            return False


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _known(err: Exception) -> Error:
    """What the thread tells of an error that nobody foresaw: it has no caller to raise it to."""
    return err if isinstance(err, Error) else PeerLost(f"session: {type(err).__name__}: {err}")


def _final(why: Error) -> bool:
    """Whether attaching again cannot help: the sidecar says so, or that this engine breaks the
    protocol or runs another model than its group."""
    return isinstance(why, Unpolled) or why.spoken and any(n in why.names for n in ("handoff.relaunch", "handoff.engine", "handoff.model"))
