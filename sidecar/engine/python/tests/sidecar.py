"""A sidecar without anything behind it: the test says what it answers. For tests."""

import os
import queue
import socket
import struct
import threading
from concurrent import futures

import grpc

from baton import _wire

PATIENCE = 30.0


class Stream:
    """One session, as the sidecar sees it."""

    def __init__(self, context):
        self.context, self.heard, self.out = context, queue.Queue(), queue.Queue()

    def say(self, what, /, **fields):
        p = _wire._new("engine.v1.ToEngine")
        to = getattr(p, what)
        to.SetInParent()
        for name, value in fields.items():
            if isinstance(value, dict):
                for k, v in value.items():
                    setattr(getattr(to, name), k, v)
            elif isinstance(value, list):
                getattr(to, name).extend(value)
            else:
                setattr(to, name, value)
        self.out.put(p)

    def end(self, names=(), text=""):
        """Ends the session, with the sidecar's word if names are given."""
        self.out.put((names, text))

    def next(self, kind):
        """The next message, which is of this kind."""
        m = self.heard.get(timeout=PATIENCE)
        if m.WhichOneof("message") != kind:
            raise AssertionError(f"want {kind}, got {m}")
        return getattr(m, kind)

    def settle(self, incarnation=1, mover=None, key=9):
        """Attaches the engine; returns what it stated."""
        stated = self.next("attach")
        self.goes_on(incarnation, mover, key)
        return stated

    def goes_on(self, incarnation=1, mover=None, key=9):
        self.say("attached", incarnation=incarnation, fd_key=key)
        self.next("buffers_ready")
        self.say("mover_started", pid=mover or os.getpid())


class Sidecar(grpc.GenericRpcHandler):
    """Both sockets of a run directory. Sessions come to `sessions` in order."""

    def __init__(self, run_dir):
        self.sessions, self.files = queue.Queue(), []
        self.server = grpc.server(futures.ThreadPoolExecutor(8), handlers=[self])
        for name in ("engine.sock", "engine.fd.sock"):
            if os.path.exists(os.path.join(run_dir, name)):
                os.unlink(os.path.join(run_dir, name))
        self.server.add_insecure_port("unix:" + os.path.join(run_dir, "engine.sock"))
        self.fds = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.fds.bind(os.path.join(run_dir, "engine.fd.sock"))
        self.fds.listen()
        self.answer = b"\0"
        self.server.start()
        threading.Thread(target=self._take, daemon=True).start()

    def session(self):
        return self.sessions.get(timeout=PATIENCE)

    def close(self):
        self.server.stop(0).wait()
        self.fds.shutdown(socket.SHUT_RDWR)
        self.fds.close()

    def service(self, call):
        if call.method == "/baton.engine.v1.Engine/Session":
            return grpc.stream_stream_rpc_method_handler(
                self._session, request_deserializer=_wire._class("baton.engine.v1.FromEngine").FromString,
                response_serializer=lambda m: m.SerializeToString())
        return None

    def _session(self, requests, context):
        s = Stream(context)

        def hear():
            try:
                for m in requests:
                    s.heard.put(m)
            except Exception:
                pass
            s.out.put(((), None))

        threading.Thread(target=hear, daemon=True).start()
        self.sessions.put(s)
        while True:
            m = s.out.get()
            if not isinstance(m, tuple):
                yield m
                continue
            names, text = m
            if names:
                error = _wire._new("common.v1.Error")
                error.names.extend(names)
                error.text = text
                status = _wire._new("trailer.Status")
                status.details.add(type_url="type.googleapis.com/baton.common.v1.Error", value=error.SerializeToString())
                context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            return

    def _take(self):
        while True:
            try:
                c, _ = self.fds.accept()
            except OSError:
                return
            with c:
                while True:
                    packet, fds, _, _ = socket.recv_fds(c, 64, 4)
                    if not packet:
                        break
                    self.files.append((struct.unpack(">QI", packet), len(fds)))
                    for fd in fds:
                        os.close(fd)
                    if self.answer:
                        c.send(self.answer)
